"""Counter-based noise that belongs to a token id.

One Philox4x64-10 block serves 8 token ids, 32 bits each, low half of a word first:

    key (seed, 0), counter (1 + token_id // 8, position, choice_index, 0)

So any subset of the vocabulary, in any order and on any device, sees the same noise. (numpy's
Philox steps the counter before it is used, hence the 1; it makes the blocks of a whole vocabulary
in C. A few blocks are faster in Python integers than setting a generator up.)

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

# -log(-log(u)) at the smallest and the largest u = (word + 0.5) * 2^-32, rounded outwards.
GUMBEL_MIN = -3.14
GUMBEL_MAX = 22.88

TOKENS_PER_BLOCK = 8
_MAX_SCALAR_TOKENS = 16

_MASK = (1 << 64) - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def philox4x64(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Philox4x64-10: four words of 64 random bits for a counter and a key of 64-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> 64) ^ c1 ^ k0, product1 & _MASK
        c2, c3 = (product0 >> 64) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def noise_words(
    seed: int, choice_index: int, position: int, token_ids: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """32 random bits for each token id.

    Args:
        seed: the request's seed, 64 bits.
        choice_index: which of the n choices.
        position: index of the token to be drawn in its sequence.
        token_ids: int64 [n], any order.

    Returns:
        uint32 [n]; entry i depends on token_ids[i], not on the others.
    """
    if len(token_ids) <= _MAX_SCALAR_TOKENS:
        return _few_words(seed, choice_index, position, token_ids.tolist())
    first = int(token_ids.min()) // TOKENS_PER_BLOCK
    last = int(token_ids.max()) // TOKENS_PER_BLOCK
    words = _block_words(seed, choice_index, position, first, last + 1)
    return words.take(token_ids - first * TOKENS_PER_BLOCK)


def vocab_noise_words(
    seed: int, choice_index: int, position: int, vocab_size: int
) -> npt.NDArray[np.uint32]:
    """`noise_words` of the ids 0 .. vocab_size - 1, uint32 [vocab_size]."""
    blocks = -(-vocab_size // TOKENS_PER_BLOCK)
    return _block_words(seed, choice_index, position, 0, blocks)[:vocab_size]


def gumbel(word: int) -> float:
    """Standard Gumbel noise of one word: -log(-log(u)) with u = (word + 0.5) * 2^-32.

    The C library's log on one number at a time: vectorised ones may differ in the last bit with the
    place in the array.
    """
    return -math.log(-math.log((word + 0.5) * 2.0**-32))


def approximate_gumbel(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """`gumbel` of many words, fast.

    Args:
        words: uint32 [n].

    Returns:
        float32 [n]. The error is below 0.001 where the noise is above -2.7; further down the value
        is at most 0.4 too large and 0.02 too small.
    """
    # log1p(-v) with v = 1 - u: large noise means v near 0, where float32 has digits to spare.
    noise = np.invert(words).astype(np.float32)
    noise += np.float32(0.5)
    noise *= np.float32(-(2.0**-32))
    np.maximum(noise, np.float32(2.0**-24 - 1.0), out=noise)
    np.log1p(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


def _few_words(
    seed: int, choice_index: int, position: int, token_ids: list[int]
) -> npt.NDArray[np.uint32]:
    blocks: dict[int, tuple[int, int, int, int]] = {}
    words = []
    for token_id in token_ids:
        block, place = divmod(token_id, TOKENS_PER_BLOCK)
        if block not in blocks:
            blocks[block] = philox4x64((1 + block, position, choice_index, 0), (seed, 0))
        words.append(blocks[block][place // 2] >> 32 * (place % 2) & 0xFFFFFFFF)
    return np.array(words, np.uint32)


def _block_words(
    seed: int, choice_index: int, position: int, start: int, stop: int
) -> npt.NDArray[np.uint32]:
    """Words of the tokens in blocks start .. stop - 1."""
    counter = np.array([start, position, choice_index, 0], np.uint64)
    philox = np.random.Philox(key=np.array([seed, 0], np.uint64), counter=counter)
    return philox.random_raw(4 * (stop - start)).astype("<u8", copy=False).view("<u4")
