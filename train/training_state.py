"""The saved state of a training run: written whole or not at all, so that a kill costs minutes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specrt.errors import ConfigError

STATE_FILE = "state.pt"


@dataclass(slots=True)
class TrainingState:
    """Where a run stands. There is no random state: every draw is seeded by what it is for.

    Attributes:
        settings: what the run depends on; another run's state is refused.
        step: optimiser steps taken.
        draft_token_ids: int64 [Vd], ascending.
        coverage: share of the generated tokens that the draft vocabulary has, 0 to 1.
        head: tensors by name, float32.
        optimiser: state of AdamW; {} before the first step.
        loss: mean over the packs of the current epoch so far, as (sum, packs).
        history: one entry an epoch.
        best: the head with the highest tau_sim so far; {} before the first epoch ends.
        best_epoch: its epoch, from 1; 0 before.
        curve: loss and acceptance by steps, see `record.extend_curve`.
    """

    settings: dict[str, Any]
    step: int
    draft_token_ids: Tensor
    coverage: float
    head: dict[str, Tensor]
    optimiser: dict[str, Any]
    loss: tuple[float, int]
    history: list[dict[str, Any]]
    best: dict[str, Tensor]
    best_epoch: int
    curve: list[dict[str, Any]] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Replace the saved state in a folder, which is made if absent."""
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / (STATE_FILE + ".partial")
        torch.save({name: getattr(self, name) for name in self.__dataclass_fields__}, partial)
        os.replace(partial, folder / STATE_FILE)

    @classmethod
    def load(
        cls, folder: Path, settings: dict[str, Any], defaults: Mapping[str, Any]
    ) -> TrainingState | None:
        """Read the saved state; None if there is none.

        Args:
            folder: where `save` wrote.
            settings: of this run.
            defaults: what a setting was in runs that were saved before there was such a setting.

        Raises:
            ConfigError: it is damaged, or of a run with other settings.
        """
        path = folder / STATE_FILE
        if not path.is_file():
            return None
        try:
            state = cls(**torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # unpickling may fail in any way
            raise ConfigError(f"{path}: damaged ({error}); delete it to start over") from error
        for name in sorted(settings.keys() | state.settings.keys()):
            own, other = settings.get(name), state.settings.get(name, defaults.get(name))
            if own != other:
                raise ConfigError(
                    f"{path}: the saved run has {name} = {other!r}, this one {own!r}; resume with"
                    " the same settings, or delete the file to start over"
                )
        return state
