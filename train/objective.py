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
_NEVER = -1e9


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
        self._draft_token_ids = draft_token_ids
        self._draft_lm_head = self._lm_head[draft_token_ids]
        self._draft_index = torch.full((len(self._lm_head),), OUTSIDE, device=device)
        self._draft_index[draft_token_ids] = torch.arange(len(draft_token_ids), device=device)

    @property
    def vocab_size(self) -> int:
        """Tokens of the target."""
        return len(self._lm_head)

    def distribution(self, hidden: Tensor, allowed: Tensor | None = None) -> Tensor:
        """The target's distribution over the draft vocabulary.

        Args:
            hidden: [n, H], before the final norm.
            allowed: bool [n, V], what the grammar leaves; None = everything.

        Returns:
            Probabilities, float32 [n, Vd].
        """
        with torch.no_grad():
            logits = self._normed(hidden) @ self._draft_lm_head.T
            if allowed is not None:
                logits = masked(logits, self.draft_part(allowed))
            return logits.softmax(dim=-1)

    def best(self, hidden: Tensor, allowed: Tensor | None = None) -> Tensor:
        """The target's first choice among all tokens, or all that are allowed.

        Args:
            hidden: [n, H], before the final norm.
            allowed: bool [n, V], what the grammar leaves; None = everything.

        Returns:
            int64 [n], indices in the draft vocabulary, OUTSIDE for tokens that are not in it.
        """
        found = []
        with torch.no_grad():
            for first in range(0, len(hidden), _CHUNK_ROWS):
                part = slice(first, first + _CHUNK_ROWS)
                logits = self._normed(hidden[part]) @ self._lm_head.T
                if allowed is not None:
                    logits = masked(logits, allowed[part])
                found.append(logits.argmax(dim=-1))
            return self._draft_index[torch.cat(found)] if found else self._draft_index[:0]

    def draft_part(self, allowed: Tensor) -> Tensor:
        """The columns of the draft vocabulary: bool [n, V] -> bool [n, Vd]."""
        return allowed[:, self._draft_token_ids]

    def _normed(self, hidden: Tensor) -> Tensor:
        return F.rms_norm(hidden.float(), self._norm.shape, self._norm, self._eps)


def masked(logits: Tensor, allowed: Tensor) -> Tensor:
    """Logits without what is not allowed; finite, so that a row without any token stays one."""
    return logits.masked_fill(~allowed, _NEVER)


def soft_cross_entropy(logits: Tensor, expected: Tensor) -> Tensor:
    """Cross-entropy of each row.

    Args:
        logits: float32 [P, Vd].
        expected: float32 [P, Vd], probabilities.

    Returns:
        float32 [P], nats.
    """
    return F.cross_entropy(logits, expected, reduction="none")
