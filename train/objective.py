"""What the head learns: the target's distribution over the draft vocabulary, and the losses.

p is the target's distribution of a row, q the head's; alpha = sum_v min(p, q) is the share of draft
tokens drawn from q that rejection sampling keeps, 1 - alpha the total variation distance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from specrt.model.config import TargetConfig
from specrt.train.initialise import lm_head_of

# Rows of logits over the whole vocabulary that are made at once (50 MB at 49,152 tokens).
_CHUNK_ROWS = 256
OUTSIDE = -1
_NEVER = -1e9

LossName = Literal["ce", "lk-hybrid", "lk-alpha"]
Loss = Callable[[Tensor, Tensor], Tensor]  # (logits [P, Vd], p [P, Vd]) -> [P]


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


def lk_hybrid(logits: Tensor, expected: Tensor, eta: float) -> Tensor:
    """KL(p, q) where the two are apart, total variation where they are close.

    lambda * KL + (1 - lambda) * TV with lambda = exp(-eta * alpha), alpha of the row and without a
    gradient of its own.

    Args:
        logits: float32 [P, Vd].
        expected: float32 [P, Vd], probabilities.
        eta: at least 0; 0 = KL alone.

    Returns:
        float32 [P].

    Source: LK losses (arXiv 2602.23881), the hybrid one; eta 3 is theirs.
    """
    log_shares = logits.log_softmax(dim=-1)
    alpha = torch.minimum(log_shares.exp(), expected).sum(dim=-1)
    divergence = (torch.xlogy(expected, expected) - expected * log_shares).sum(dim=-1)
    weight = torch.exp(-eta * alpha.detach())
    return weight * divergence + (1 - weight) * (1 - alpha)


def lk_alpha(logits: Tensor, expected: Tensor) -> Tensor:
    """-log(alpha) of each row.

    Args:
        logits: float32 [P, Vd].
        expected: float32 [P, Vd], probabilities.

    Returns:
        float32 [P], nats.

    Source: LK losses (arXiv 2602.23881).
    """
    smaller = torch.minimum(logits.log_softmax(dim=-1), expected.log())
    return -smaller.logsumexp(dim=-1)


def loss_of(name: LossName, eta: float) -> Loss:
    """A loss by its name; eta is for "lk-hybrid"."""
    losses: dict[LossName, Loss] = {
        "ce": soft_cross_entropy,
        "lk-hybrid": partial(lk_hybrid, eta=eta),
        "lk-alpha": lk_alpha,
    }
    return losses[name]
