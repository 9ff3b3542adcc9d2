"""Near ties: can rounding explain why two runs drew different tokens from the same prefix?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specrt.request import SamplingParams
from specrt.sampling.history import TokenHistory
from specrt.sampling.sampler import MIN_TEMPERATURE, draw_scores
from specrt.sampling.scores import Row, processed
from specrt.sampling.support import ordered, truncated

# Scores of the same row in two different passes differ by far less than this.
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Tie:
    """How close a decision was.

    Attributes:
        kind: "scores" (the two best scores), "top_k", "top_p" or "min_p" (an edge of the support).
        gap: distance in score, log-probability or probability mass.
    """

    kind: str
    gap: float


def near_tie(
    row: Tensor,
    params: SamplingParams,
    history: TokenHistory,
    bitmask: npt.NDArray[np.int32] | None,
    position: int,
    token_ids: tuple[int, int],
    tolerance: float = TOLERANCE,
) -> Tie | None:
    """Say whether a divergence at this row is a tie.

    It is one when the two best scores (logits at temperature 0, else logit / T + noise within the
    support) differ by less than the tolerance, or when one of the two tokens lies that close to a
    top-k, top-p or min-p edge, in log-probability or in cumulative mass.

    Args:
        row: float32 [V], as `sample` takes it; so are the next four.
        params: how the token was drawn.
        history: tokens on the path to this row.
        bitmask: int32 [ceil(V / 32)] or None.
        position: index of the drawn token in its sequence.
        token_ids: what the two runs drew.
        tolerance: gaps from this on are no ties.

    Returns:
        The closest tie, or None.

    Raises:
        SamplingError: as `sample`.
    """
    logits, best = processed(row, params, history, bitmask)
    if params.temperature < MIN_TEMPERATURE:
        gaps = [Tie("scores", _gap(np.sort(logits)))]
    else:
        support = truncated(logits, best, params, params.temperature)
        if support is None:
            support = np.flatnonzero(logits > -np.inf)
        scores = draw_scores(logits, support, params, position)
        gaps = [Tie("scores", _gap(np.sort(scores))), *_edge_gaps(logits, params, token_ids)]
    closest = min(gaps, key=lambda tie: tie.gap)
    return closest if closest.gap < tolerance else None


def _gap(ascending: npt.NDArray[np.floating]) -> float:
    return float(ascending[-1] - ascending[-2]) if len(ascending) > 1 else math.inf


def _edge_gaps(logits: Row, params: SamplingParams, token_ids: tuple[int, int]) -> list[Tie]:
    """Distance of each token to each edge that is on."""
    order = ordered(logits, np.flatnonzero(logits > -np.inf))
    scores = logits[order].astype(np.float64) / params.temperature
    scores -= scores[0]
    ranks = [int(r) for t in token_ids for r in np.flatnonzero(order == t)]
    ties = []

    def add(kind: str, kept: int) -> None:
        """The edge between rank kept - 1 and rank kept."""
        if kept < len(order):
            for rank in ranks:
                beyond = kept if rank < kept else kept - 1
                ties.append(Tie(kind, abs(float(scores[rank] - scores[beyond]))))

    num_left = len(order)
    if 0 < params.top_k < num_left:
        num_left = params.top_k
        add("top_k", num_left)
    if params.top_p < 1.0:
        mass = np.cumsum(np.exp(scores[:num_left]))
        before = np.concatenate(([0.0], mass[:-1])) / mass[-1]
        add("top_p", max(1, int((before < params.top_p).sum())))
        # The best token stays whatever its mass: no edge there.
        inside = [rank for rank in ranks if 0 < rank < num_left]
        ties += [Tie("top_p", abs(float(before[rank]) - params.top_p)) for rank in inside]
    if params.min_p > 0.0:
        bar = math.log(params.min_p)
        ties += [Tie("min_p", abs(float(scores[rank]) - bar)) for rank in ranks]
    return ties
