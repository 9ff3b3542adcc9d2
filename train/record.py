"""What a training run records of itself: loss and acceptance over time, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specrt.draft_heads.checkpoint import HeadCheckpoint
from specrt.train.acceptance import Measured

# Entries of a curve at most: what a plot can show, and little in every saved state.
_MAX_WINDOWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FitRecord:
    """Where a run stands, without its weights.

    Attributes:
        coverage: share of the generated tokens that the draft vocabulary has, 0 to 1.
        draft_vocab_size: tokens that the head can propose.
        best_epoch: the epoch after which the best head was saved, from 1; 0 before.
        history: by epoch: `epoch`, `step`, `seconds` (of training, pauses left out), `loss`,
            `tau_sim`, `acceptance` (on held-out packs; None without them).
        curve: see `extend_curve`.
        step: optimiser steps taken.
        total_steps: of the whole run.
    """

    coverage: float
    draft_vocab_size: int
    best_epoch: int
    history: list[dict[str, Any]]
    curve: list[dict[str, Any]]
    step: int
    total_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult(FitRecord):
    """A trained head.

    Attributes:
        head: the best one by tau_sim on the held-out packs, or the last one without such packs.
        measured: `head` on the held-out packs; None without them, or if the run is not finished.
        is_finished: False if `should_stop` ended the run; a further call goes on.
    """

    head: HeadCheckpoint
    measured: Measured | None
    is_finished: bool


def extend_curve(
    curve: list[dict[str, Any]],
    *,
    step: int,
    total_steps: int,
    seconds: float,
    losses: Sequence[float],
    tried: Sequence[int],
    right: Sequence[int],
) -> None:
    """Add a step to a curve, in place.

    An entry stands for a fixed number of steps, so that a curve is the same however often its run
    was interrupted: `step` and `seconds` (at its end), `loss` (sum over its visits), `visits`,
    `tried` and `right` (by depth, of the chains that were visited, before they were learned from).

    Args:
        curve: entries so far, the last one perhaps not full.
        step: number of the step, from 1.
        total_steps: of the run.
        seconds: of training so far.
        losses: of the packs visited.
        tried: by depth, decisions whose earlier ones in the chain were right.
        right: by depth, those that were right.
    """
    window = -(-total_steps // _MAX_WINDOWS)
    if not curve or (step - 1) // window != (curve[-1]["step"] - 1) // window:
        zeros = [0] * len(tried)
        curve.append({"loss": 0.0, "visits": 0, "tried": zeros, "right": list(zeros)})
    entry = curve[-1]
    entry["step"], entry["seconds"] = step, seconds
    entry["loss"] += sum(losses)
    entry["visits"] += len(losses)
    entry["tried"] = [a + b for a, b in zip(entry["tried"], tried, strict=True)]
    entry["right"] = [a + b for a, b in zip(entry["right"], right, strict=True)]


def curve_rows(curve: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries of a curve with means in place of sums; None where there was nothing."""
    return [
        {
            "step": entry["step"],
            "seconds": entry["seconds"],
            "loss": entry["loss"] / entry["visits"] if entry["visits"] else None,
            "acceptance": [
                right / tried if tried else None
                for right, tried in zip(entry["right"], entry["tried"], strict=True)
            ],
            "tried": entry["tried"],
        }
        for entry in curve
    ]
