"""Draw one token from one target row: the only place where a token is decided.

bias, penalties -> grammar mask -> (logprobs) -> temperature -> top-k -> top-p -> min-p -> draw

The draw is argmax(logit / T + Gumbel noise of the token id), which takes each token with its
softmax probability. The noise is a function of seed, choice, position and token id, so the token is
a function of the row and those three numbers: it depends on no tree, batch or drafter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from specrt.kernels.noise import (
    GUMBEL_MAX,
    GUMBEL_MIN,
    approximate_gumbel,
    gumbel,
    noise_words,
    vocab_noise_words,
)
from specrt.request import SamplingParams
from specrt.sampling.history import TokenHistory
from specrt.sampling.scores import Row, processed
from specrt.sampling.support import best_tokens, truncated, weights

# Below this a temperature is plain argmax: the noise could overturn logit gaps of 3e-4 at most.
MIN_TEMPERATURE = 1e-5
# Approximate noise may be 0.4 too large where it is small: who is further behind cannot win.
_RACE_MARGIN = 0.45
# With more candidates than this share of the vocabulary, picking them out costs more than it saves.
_DENSE_SHARE = 0.125


@dataclass(frozen=True, slots=True)
class Draw:
    """One drawn token.

    Attributes:
        token_id: the token.
        logprob: its log-probability after bias, penalties and mask, before temperature and
            truncation; None unless asked for.
        top: (token id, logprob) of the best alternatives, best first.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample(
    row: Tensor,
    params: SamplingParams,
    history: TokenHistory,
    bitmask: npt.NDArray[np.int32] | None,
    position: int,
) -> Draw:
    """Draw one token.

    Args:
        row: float32 [V], logits of one target row; not modified.
        params: how to draw; logprobs never change the token.
        history: tokens on the path to this row.
        bitmask: int32 [ceil(V / 32)], bit 1 = allowed; None = all.
        position: index of the drawn token in its sequence; part of the noise.

    Returns:
        Draw.

    Raises:
        SamplingError: the mask allows nothing, or no allowed logit is a finite largest one.
        ValueError: the bitmask has another length.
    """
    logits, best = processed(row, params, history, bitmask)
    token_id = best
    if params.temperature >= MIN_TEMPERATURE:
        token_id = _race(logits, best, params, position)
    if params.logprobs is None:
        return Draw(token_id)
    peak = float(logits[best])
    norm = peak + float(np.log(weights(logits, peak, 1.0).sum(dtype=np.float64)))
    top = best_tokens(logits, params.logprobs).tolist() if params.logprobs else []
    return Draw(
        token_id,
        float(logits[token_id]) - norm,
        tuple((other, float(logits[other]) - norm) for other in top),
    )


def draw_scores(
    logits: Row, token_ids: npt.NDArray[np.int64], params: SamplingParams, position: int
) -> list[float]:
    """Score of each token, logit / T + noise in float64: the largest is drawn."""
    words = noise_words(params.seed, params.choice_index, position, token_ids).tolist()
    values = logits[token_ids].tolist()
    return [v / params.temperature + gumbel(w) for v, w in zip(values, words, strict=True)]


def _race(logits: Row, best: int, params: SamplingParams, position: int) -> int:
    """The token of the support with the best noisy score, of equals the lowest id."""
    support = truncated(logits, best, params, params.temperature)
    # Even with the best noise against the worst, a token below this bar loses to the best one.
    bar = float(logits[best]) - (GUMBEL_MAX - GUMBEL_MIN) * params.temperature
    if support is None:
        can_win = logits >= bar
        if np.count_nonzero(can_win) > _DENSE_SHARE * len(logits):
            words = vocab_noise_words(params.seed, params.choice_index, position, len(logits))
            return _first_of(logits, words, best, params.temperature)
        support = np.flatnonzero(can_win)
    else:
        support = np.sort(support[logits[support] >= bar])
    if len(support) == 1:
        return int(support[0])
    words = noise_words(params.seed, params.choice_index, position, support)
    place = int(np.searchsorted(support, best))
    return int(support[_first_of(logits[support], words, place, params.temperature)])


@np.errstate(over="ignore")
def _first_of(logits: Row, words: npt.NDArray[np.uint32], best: int, temperature: float) -> int:
    """Index of the best noisy score: rough ones of all, exact ones of those in reach of it."""
    rough = logits - logits[best]
    rough *= np.float32(1.0 / temperature)
    rough += approximate_gumbel(words)
    winner, best_score = -1, -np.inf
    for i in np.flatnonzero(rough >= rough.max() - _RACE_MARGIN).tolist():
        score = float(logits[i]) / temperature + gumbel(int(words[i]))
        if score > best_score:
            winner, best_score = i, score
    return winner
