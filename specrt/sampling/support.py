"""Which tokens top-k, top-p and min-p leave over, exactly, rarely sorting the vocabulary.

All three keep a head of one order: larger logit first, of equal logits the lower token id. So the
support is the shortest of three heads, and top-p needs the order only as far as its mass reaches.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from specrt.request import SamplingParams
from specrt.sampling.scores import Row

# top-p looks first at the tokens with at least this share of the mass. There are 1,024 at most, and
# they nearly always suffice; sorting all takes a few times as long.
_HEAVY_SHARE = 2.0**-10


def ordered(logits: Row, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """`token_ids` (ascending), largest logit first, lower ids first among equals."""
    return token_ids[np.argsort(-logits[token_ids], kind="stable")]


def best_tokens(logits: Row, k: int) -> npt.NDArray[np.int64]:
    """The k best tokens in order; fewer when fewer are allowed."""
    keep = logits > -np.inf
    num_allowed = np.count_nonzero(keep)
    if num_allowed > k:
        # Among many equal values, as the forbidden ones are, partition is slow.
        values = logits if 2 * num_allowed > len(logits) else logits[keep]
        keep = logits >= np.partition(values, len(values) - k)[len(values) - k]
    return ordered(logits, np.flatnonzero(keep))[:k]


@np.errstate(over="ignore")
def weights(logits: Row, best: float, temperature: float) -> npt.NDArray[np.float32]:
    """exp((logit - best) / temperature), float32 of the logits' shape."""
    scaled: Row = logits - np.float32(best)
    scaled *= np.float32(1.0 / temperature)
    np.exp(scaled, out=scaled)
    return scaled


def truncated(
    logits: Row, best: int, params: SamplingParams, temperature: float
) -> npt.NDArray[np.int64] | None:
    """The tokens that top-k, then top-p, then min-p leave over.

    Args:
        logits: float32 [V], processed; forbidden tokens at -inf.
        best: the best token.
        params: top_k, top_p (of the mass that top-k leaves), min_p.
        temperature: > 0.

    Returns:
        int64 [n], n >= 1, in no particular order; None when nothing is truncated.
    """
    peak = float(logits[best])
    head = best_tokens(logits, params.top_k) if 0 < params.top_k < len(logits) else None
    if params.top_p < 1.0:
        head = _nucleus(logits, peak, params.top_p, temperature, head)
    if params.min_p > 0.0:
        bar = peak + temperature * math.log(params.min_p)
        if head is None:
            return np.flatnonzero(logits >= bar)
        head = head[logits[head] >= bar]
    return head


def _nucleus(
    logits: Row,
    peak: float,
    top_p: float,
    temperature: float,
    head: npt.NDArray[np.int64] | None,
) -> npt.NDArray[np.int64]:
    """The tokens before which less than top_p of the mass lies; the first always."""
    if head is not None:
        mass = np.cumsum(weights(logits[head], peak, temperature), dtype=np.float64)
        return head[: _reach(mass, top_p * float(mass[-1]))]
    heavy = weights(logits, peak, temperature)
    total = float(heavy.sum(dtype=np.float64))
    wanted = top_p * total
    heaviest = np.flatnonzero(logits >= peak + temperature * math.log(total * _HEAVY_SHARE))
    if float(heavy.take(heaviest).sum(dtype=np.float64)) <= wanted:
        heaviest = np.flatnonzero(logits > -np.inf)
    values = logits.take(heaviest)
    descending = np.sort(values)[::-1]
    mass = np.cumsum(weights(descending, peak, temperature), dtype=np.float64)
    reached = _reach(mass, wanted)
    last = descending[reached - 1]
    above = heaviest[values > last]
    return np.concatenate((above, heaviest[values == last][: reached - len(above)]))


def _reach(mass: npt.NDArray[np.float64], wanted: float) -> int:
    """Tokens needed until the running mass is `wanted`."""
    return max(1, min(len(mass), int(np.searchsorted(mass, wanted, side="left")) + 1))
