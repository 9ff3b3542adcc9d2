"""Processed scores: bias, penalties and grammar mask on one row of logits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specrt.errors import EngineError
from specrt.request import SamplingParams
from specrt.sampling.history import TokenHistory

Row = npt.NDArray[np.float32]

# Limits of 8 tokens for each byte of a bitmask: +inf lets a logit through, -inf forbids it.
_LIMITS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    np.float32(np.inf),
    np.float32(-np.inf),
)


class SamplingError(EngineError):
    """No token can be drawn from a row; only the request that it belongs to fails."""


def processed(
    row: Tensor,
    params: SamplingParams,
    history: TokenHistory,
    bitmask: npt.NDArray[np.int32] | None,
) -> tuple[Row, int]:
    """The row after bias, penalties and mask, and its best token.

    Args:
        row: float32 [V], one target row; not modified.
        params: logit_bias.
        history: tokens of the path, with the penalties.
        bitmask: int32 [ceil(V / 32)], bit 1 = allowed; None = all.

    Returns:
        float32 [V] (read only: it may share the row's memory), forbidden tokens at -inf; and the
        lowest id among its largest.

    Raises:
        SamplingError: the mask allows nothing, or no allowed logit is a finite largest one.
        ValueError: the bitmask has another length.
    """
    logits: Row = row.detach().cpu().numpy()
    if params.logit_bias or history.is_active:
        logits = logits.copy()
        for token_id, bias in params.logit_bias.items():
            logits[token_id] += np.float32(bias)
        history.penalize_inplace(logits)
    if bitmask is not None:
        if len(bitmask) != -(-len(logits) // 32):
            raise ValueError(
                f"token bitmask: expected {-(-len(logits) // 32)} words for {len(logits)} tokens,"
                f" got {len(bitmask)}; make the mask for the model's vocabulary"
            )
        limits = _LIMITS.take(bitmask.view(np.uint8), axis=0).reshape(-1)[: len(logits)]
        # fmin, unlike minimum, lets a forbidden NaN become -inf; an allowed one becomes +inf.
        logits = np.fmin(logits, limits)
    best = int(logits.argmax())
    if not np.isfinite(logits[best]):
        raise SamplingError(_reason(logits[best], bitmask))
    return logits, best


def _reason(best: np.float32, bitmask: npt.NDArray[np.int32] | None) -> str:
    if bitmask is not None and not bitmask.any():
        return "the grammar allows no token here: expected at least one bit set in the mask"
    if best == -np.inf:
        return "all allowed logits are -inf: expected a finite one; check the model's weights"
    return "the logits hold NaN or +inf: expected finite ones; check the model's weights"
