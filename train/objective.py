"""What the head learns: the target's distribution over the draft vocabulary, soft cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from specrt.model.config import TargetConfig
from specrt.train.initialise import lm_head_of

# Rows of logits over the whole vocabulary that are made at once (50 MB at 49,152 tokens).
_CHUNK_ROWS = 256
OUTSIDE = -1


class Teacher:
    """The target's last two steps: final norm and lm_head."""

    def __init__(
        self,
        target: TargetConfig,
        weights: Mapping[str, Tensor],
        draft_token_ids: Tensor,
        device: torch.device,
    ) -> None:
        """Take what is needed of the target.

        Args:
            target: its config.
            weights: float32, by transformers' names.
            draft_token_ids: int64 [Vd], ascending.
            device: where to compute.
        """
        self._eps = target.rms_norm_eps
        self._norm = weights["model.norm.weight"].to(device)
        self._lm_head = lm_head_of(target, weights).to(device)
        draft_token_ids = draft_token_ids.to(device)
        self._draft_lm_head = self._lm_head[draft_token_ids]
        self._draft_index = torch.full((len(self._lm_head),), OUTSIDE, device=device)
        self._draft_index[draft_token_ids] = torch.arange(len(draft_token_ids), device=device)

    def distribution(self, hidden: Tensor) -> Tensor:
        """Draft vocabulary only: [n, H] before the final norm -> probabilities, float32 [n, Vd]."""
        with torch.no_grad():
            return (self._normed(hidden) @ self._draft_lm_head.T).softmax(dim=-1)

    def best(self, hidden: Tensor) -> Tensor:
        """The target's first choice among all tokens.

        Args:
            hidden: [n, H], before the final norm.

        Returns:
            int64 [n], indices in the draft vocabulary, OUTSIDE for tokens that are not in it.
        """
        with torch.no_grad():
            parts = [
                (self._normed(part) @ self._lm_head.T).argmax(dim=-1)
                for part in torch.split(hidden, _CHUNK_ROWS)
            ]
            return self._draft_index[torch.cat(parts)]

    def _normed(self, hidden: Tensor) -> Tensor:
        return F.rms_norm(hidden.float(), self._norm.shape, self._norm, self._eps)


def soft_cross_entropy(logits: Tensor, expected: Tensor) -> Tensor:
    """Cross-entropy of each row.

    Args:
        logits: float32 [P, Vd].
        expected: float32 [P, Vd], probabilities.

    Returns:
        float32 [P], nats.
    """
    return F.cross_entropy(logits, expected, reduction="none")
