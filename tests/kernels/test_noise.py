from __future__ import annotations

import math

import numpy as np
import pytest

from specrt.kernels.noise import (
    GUMBEL_MAX,
    GUMBEL_MIN,
    approximate_gumbel,
    gumbel,
    noise_words,
    philox4x64,
    vocab_noise_words,
)

ONES = (1 << 64) - 1


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
        ),
        (
            (ONES, ONES, ONES, ONES),
            (ONES, ONES),
            (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
        ),
        (
            (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
            (0x452821E638D01377, 0xBE5466CF34E90C6C),
            (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
        ),
    ],
)
def test_known_answers_of_the_publication(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert philox4x64(counter, key) == expected


def test_same_words_as_numpys_philox() -> None:
    key, counter = [0x0123456789ABCDEF, 42], [5, 6, 7, 8]
    raw = np.random.Philox(key=key, counter=counter).random_raw(8).tolist()
    assert philox4x64((6, 6, 7, 8), (key[0], 42)) == tuple(raw[:4])
    assert philox4x64((7, 6, 7, 8), (key[0], 42)) == tuple(raw[4:])


@pytest.mark.parametrize("seed", [0, 1, ONES])
def test_noise_belongs_to_the_token_id(seed: int) -> None:
    rng = np.random.default_rng(0)
    full = vocab_noise_words(seed, 3, 12_345, 49_157)
    assert full.shape == (49_157,) and full.dtype == np.uint32
    for n in (1, 2, 16, 17, 500, 49_157):
        token_ids = rng.permutation(49_157)[:n]
        assert (noise_words(seed, 3, 12_345, token_ids) == full[token_ids]).all()
    same = np.array([9, 9, 9])
    assert (noise_words(seed, 3, 12_345, same) == full[9]).all()


def test_seed_choice_and_position_change_every_word() -> None:
    base = vocab_noise_words(7, 0, 0, 4096)
    for other in ((8, 0, 0), (7, 1, 0), (7, 0, 1), (7 + (1 << 40), 0, 0)):
        assert (vocab_noise_words(*other, 4096) != base).mean() > 0.999
    assert len(set(base.tolist())) > 4090


def test_words_are_uniform() -> None:
    words = np.concatenate([vocab_noise_words(1, 0, p, 40_000) for p in range(10)])
    counts = np.bincount(words >> 24, minlength=256)
    expected = len(words) / 256
    # 255 degrees of freedom: mean 255, standard deviation 22.6
    assert 150 < ((counts - expected) ** 2 / expected).sum() < 400
    halves = np.bincount(words & 1, minlength=2)
    assert abs(halves[0] - halves[1]) < 5 * math.sqrt(len(words))


def test_gumbel_bounds_and_order() -> None:
    words = [0, 1, 1 << 16, 1 << 31, (1 << 32) - 2, (1 << 32) - 1]
    values = [gumbel(word) for word in words]
    assert values == sorted(values) and len(set(values)) == len(values)
    assert values[0] == pytest.approx(-math.log(33 * math.log(2))) and values[0] > GUMBEL_MIN
    assert values[-1] == pytest.approx(33 * math.log(2)) and values[-1] < GUMBEL_MAX
    assert gumbel(1 << 31) == pytest.approx(-math.log(math.log(2)))
    assert GUMBEL_MAX - GUMBEL_MIN < 26.1


def test_approximation_keeps_its_promise() -> None:
    rng = np.random.default_rng(1)
    edges = np.array([*range(300), *range((1 << 32) - 300, 1 << 32)], np.uint64)
    powers = np.array([(1 << 32) - 1 - (1 << b) for b in range(32)], np.uint64)
    words = np.concatenate((rng.integers(0, 1 << 32, 100_000, np.uint64), edges, powers))
    words = words.astype(np.uint32)
    exact = np.array([gumbel(word) for word in words.tolist()])
    error = approximate_gumbel(words) - exact
    assert np.abs(error[exact > -2.7]).max() < 1e-3
    assert error.max() < 0.4 and error.min() > -0.02


def test_bench_vocab_noise(benchmark) -> None:  # type: ignore[no-untyped-def]
    benchmark(vocab_noise_words, 1, 0, 5, 49_152)
