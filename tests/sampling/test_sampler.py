from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sampling.reference import reference

from specrt.errors import EngineError
from specrt.request import SamplingParams
from specrt.sampling import Draw, SamplingError, TokenHistory, sample
from specrt.sampling.support import best_tokens, truncated

VOCAB = 49_152


def mask_of(allowed: list[int], vocab_size: int) -> np.ndarray:
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def draw(
    row: np.ndarray, params: SamplingParams, position: int = 0, allowed: list[int] | None = None
) -> Draw:
    mask = None if allowed is None else mask_of(allowed, len(row))
    history = TokenHistory([], 0, params)
    return sample(torch.from_numpy(row), params, history, mask, position)


def random_row(seed: int, scale: float = 2.0, vocab_size: int = VOCAB) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab_size) * scale).astype(np.float32)


params_strategy = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    temperature=st.sampled_from((0.0, 0.01, 0.5, 1.0, 1.7, 10.0)),
    top_p=st.sampled_from((1.0, 1.0, 0.99, 0.9, 0.5, 0.1, 1e-6)),
    top_k=st.sampled_from((0, 0, 1, 2, 5, 40, 100_000)),
    min_p=st.sampled_from((0.0, 0.0, 1e-3, 0.1, 1.0)),
    repetition_penalty=st.sampled_from((1.0, 1.0, 1.3, 0.7)),
    presence_penalty=st.sampled_from((0.0, 0.0, 0.7)),
    frequency_penalty=st.sampled_from((0.0, 0.0, 0.3, -0.4)),
    # Whole steps: a bias of 1e-37 orders two tokens whose logprobs are the same number.
    logit_bias=st.dictionaries(
        st.integers(0, 39), st.integers(-1000, 1000).map(lambda tenths: tenths / 10), max_size=3
    ),
    seed=st.integers(0, 2**64 - 1),
    choice_index=st.integers(0, 5),
    logprobs=st.sampled_from((None, 0, 3)),
)


@settings(max_examples=400, deadline=None)
@given(
    params=params_strategy,
    row_seed=st.integers(0, 2**32),
    vocab_size=st.sampled_from((40, 64, 333, 1500)),
    grid=st.sampled_from((0.0, 1.0, 100.0)),
    density=st.sampled_from((0.02, 0.3, 1.0)),
    prompt=st.lists(st.integers(0, 39), max_size=20),
    output=st.lists(st.integers(0, 39), max_size=20),
    position=st.integers(0, 2**31),
)
def test_equals_the_slow_reference(
    params: SamplingParams,
    row_seed: int,
    vocab_size: int,
    grid: float,
    density: float,
    prompt: list[int],
    output: list[int],
    position: int,
) -> None:
    rng = np.random.default_rng(row_seed)
    row = random_row(row_seed, 3.0, vocab_size)
    if grid:  # many equal logits
        row = np.round(row / grid).astype(np.float32) * np.float32(grid)
    row[rng.random(vocab_size) < 0.05] = -np.inf
    row[7] = 0.5
    allowed = sorted({7, *np.flatnonzero(rng.random(vocab_size) < density).tolist()})
    expected = reference(row, params, prompt, output, allowed, position)
    assume(expected.edge_gap > 1e-5)
    before = row.copy()
    history = TokenHistory(prompt + output, len(prompt), params)
    mask = None if density == 1.0 else mask_of(allowed, vocab_size)
    result = sample(torch.from_numpy(row), params, history, mask, position)
    assert result.token_id == expected.token_id
    assert np.array_equal(row, before)
    if params.logprobs is None:
        assert result.logprob is None and result.top == ()
    else:
        assert result.logprob == pytest.approx(expected.logprobs[result.token_id], abs=2e-5)
        best = sorted(expected.logprobs, key=lambda t: (-expected.logprobs[t], t))
        assert [t for t, _ in result.top] == best[: params.logprobs]
        for t, logprob in result.top:
            assert logprob == pytest.approx(expected.logprobs[t], abs=2e-5)


@settings(max_examples=60, deadline=None)
@given(params=params_strategy, row_seed=st.integers(0, 2**32), scale=st.sampled_from((0.1, 2, 8)))
def test_support_equals_the_slow_reference_on_a_whole_vocabulary(
    params: SamplingParams, row_seed: int, scale: float
) -> None:
    assume(params.temperature > 0)
    plain = SamplingParams(
        max_tokens=1,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
    )
    row = random_row(row_seed, scale, 6_000)
    expected = reference(row, plain, [], [], list(range(len(row))), 3)
    assume(expected.edge_gap > 1e-6)
    support = truncated(row, int(row.argmax()), plain, plain.temperature)
    assert (set(range(len(row))) if support is None else set(support.tolist())) == expected.support
    assert draw(row, plain, 3).token_id == expected.token_id


def test_equal_logits_go_to_the_lowest_id_everywhere() -> None:
    row = np.zeros(VOCAB, np.float32)
    greedy = SamplingParams(max_tokens=1, temperature=0.0, logprobs=3)
    assert draw(row, greedy).token_id == 0
    assert draw(row, greedy, allowed=[900, 17, 40_000]).token_id == 17
    assert [t for t, _ in draw(row, greedy).top] == [0, 1, 2]
    params = SamplingParams(max_tokens=1, top_k=3)
    assert truncated(row, 0, params, 1.0).tolist() == [0, 1, 2]  # type: ignore[union-attr]
    params = SamplingParams(max_tokens=1, top_p=0.25)
    assert sorted(truncated(row, 0, params, 1.0).tolist()) == list(range(VOCAB // 4))  # type: ignore[union-attr]
    assert best_tokens(row, 2).tolist() == [0, 1]


def test_the_mask_comes_before_truncation() -> None:
    row = np.array([9.0, 8.0, 1.0, 0.0], np.float32)
    for options in ({"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}):
        params = SamplingParams(max_tokens=1, **options)  # type: ignore[arg-type]
        assert draw(row, params, allowed=[2, 3]).token_id == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_drawable_token_is_an_error_not_a_guess(temperature: float) -> None:
    params = SamplingParams(max_tokens=1, temperature=temperature)
    row = np.zeros(64, np.float32)
    with pytest.raises(SamplingError, match="allows no token"):
        draw(row, params, allowed=[])
    row[:] = -np.inf
    with pytest.raises(SamplingError, match="-inf"):
        draw(row, params, allowed=[3, 4])
    with pytest.raises(SamplingError, match="-inf"):
        draw(row, params)
    row[:] = 1.0
    row[5] = np.nan
    with pytest.raises(SamplingError, match="NaN"):
        draw(row, params)
    with pytest.raises(SamplingError, match="NaN"):
        draw(row, params, allowed=[4, 5])
    assert draw(row, params, allowed=[4]).token_id == 4  # what is forbidden does no harm
    with pytest.raises(ValueError, match="expected 2 words for 64 tokens, got 1"):
        sample(torch.zeros(64), params, TokenHistory([], 0, params), np.ones(1, np.int32), 0)
    assert issubclass(SamplingError, EngineError)


def test_bits_beyond_the_vocabulary_are_ignored() -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0)
    mask = np.array([0, -1], np.int32)
    row = torch.arange(35, dtype=torch.float32)
    assert sample(row, params, TokenHistory([], 0, params), mask, 0).token_id == 34


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_any_mask_that_keeps_the_winner_draws_the_winner(scale: float) -> None:
    """Subsets of all sizes take other ways through the code; the token is the same."""
    row, rng = random_row(5, scale), np.random.default_rng(6)
    params = SamplingParams(max_tokens=1, seed=99)
    for position in range(10):
        winner = draw(row, params, position).token_id
        for n in (0, 1, 10, 1000, 30_000):
            allowed = sorted({winner, *rng.permutation(VOCAB)[:n].tolist()})
            assert draw(row, params, position, allowed).token_id == winner


def test_skipped_tokens_are_those_that_cannot_win() -> None:
    """A tail 26.1 below the best never wins, and one that is not skipped can."""
    row = np.full(VOCAB, -26.2, np.float32)
    row[0] = 0.0
    params = SamplingParams(max_tokens=1, seed=1)
    assert all(draw(row, params, position).token_id == 0 for position in range(20))
    row[1:] = -10.8  # e^-10.8 * 49,151 = 1.0: wins half of the time
    wins = sum(draw(row, params, position).token_id != 0 for position in range(200))
    assert 70 < wins < 130


def test_draws_do_not_depend_on_order_or_on_logprobs() -> None:
    params = SamplingParams(max_tokens=1, seed=3, top_p=0.95)
    rows = [random_row(i, 2.5, 4_000) for i in range(20)]
    forward = [draw(row, params, i).token_id for i, row in enumerate(rows)]
    backward = [draw(rows[i], params, i).token_id for i in reversed(range(20))]
    with_logprobs = replace(params, logprobs=5)
    assert forward == backward[::-1]
    assert forward == [draw(row, with_logprobs, i).token_id for i, row in enumerate(rows)]
    assert len(set(forward)) > 10


def test_seed_choice_and_position_give_different_draws() -> None:
    row = np.zeros(VOCAB, np.float32)
    base = SamplingParams(max_tokens=1)
    tokens = [draw(row, base, position).token_id for position in range(20)]
    tokens += [draw(row, replace(base, seed=s)).token_id for s in range(1, 20)]
    tokens += [draw(row, replace(base, choice_index=c)).token_id for c in range(1, 20)]
    assert len(set(tokens)) > 55
    assert tokens[0] == draw(row, base, 0).token_id


def test_penalties_follow_the_path() -> None:
    row = np.array([1.0, 0.9, 0.8, 0.0], np.float32)
    params = SamplingParams(max_tokens=1, temperature=0.0, presence_penalty=0.5)
    history, tensor = TokenHistory([3], 1, params), torch.from_numpy(row)
    path = []
    for position in range(4):
        path.append(sample(tensor, params, history, None, position).token_id)
        history.push(path[-1])
    assert path == [0, 1, 2, 0]
    fresh = TokenHistory([3], 1, params)
    assert sample(tensor, params, fresh, None, 0).token_id == 0


def test_logprobs_are_log_softmax_over_what_is_allowed() -> None:
    row = random_row(8)
    params = SamplingParams(max_tokens=1, temperature=0.3, top_k=5, logprobs=4)
    result = draw(row, params)
    expected = torch.log_softmax(torch.from_numpy(row).double(), 0)
    assert result.logprob == pytest.approx(float(expected[result.token_id]), abs=1e-5)
    assert [t for t, _ in result.top] == expected.topk(4).indices.tolist()
    forced = draw(row, params, allowed=[11])
    assert forced == Draw(11, 0.0, ((11, 0.0),))


def chi_square(counts: np.ndarray, probs: np.ndarray) -> float:
    """In standard deviations from what a right sampler gives on average."""
    expected = probs * counts.sum()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(counts) - 1
    return (statistic - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.6}, {"top_p": 0.8}, {"top_k": 7, "temperature": 1.4}]
)
def test_frequencies_are_the_probabilities(options: dict[str, float]) -> None:
    row = random_row(2, 1.5, 40)
    params = SamplingParams(max_tokens=1, seed=12, **options)  # type: ignore[arg-type]
    support = sorted(reference(row, params, [], [], list(range(40)), 0).support)
    probs = np.exp(row[support].astype(np.float64) / params.temperature)
    probs /= probs.sum()
    tokens = [draw(row, params, position).token_id for position in range(20_000)]
    counts = np.bincount(tokens, minlength=40)
    assert counts.sum() == counts[support].sum()
    common = probs > 5e-4
    observed = np.append(counts[support][common], counts[support][~common].sum() + 1e-9)
    wanted = np.append(probs[common], max(probs[~common].sum(), 1e-12))
    assert abs(chi_square(observed, wanted)) < 4.5
    # The bound notices a temperature that is 10 % off.
    wrong = wanted**1.1 / (wanted**1.1).sum()
    assert chi_square(observed, wrong) > 4.5


def test_neighbouring_positions_are_independent() -> None:
    row = np.zeros(4, np.float32)
    params = SamplingParams(max_tokens=1, seed=5)
    tokens = np.array([draw(row, params, position).token_id for position in range(20_001)])
    pairs = np.bincount(4 * tokens[:-1] + tokens[1:], minlength=16)
    assert abs(chi_square(pairs, np.full(16, 1 / 16))) < 4.5


BENCH_MASK = np.where(np.random.default_rng(3).random(VOCAB // 32) < 0.3, 12345, -1)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 50},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 0.0, "logprobs": 5},
        {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
    ],
    ids=str,
)
def test_bench_sample(benchmark, options: dict[str, float]) -> None:  # type: ignore[no-untyped-def]
    # Logits of a language model's kind: a few likely tokens over a wide bulk.
    row = random_row(4, 3.0)
    row[:200] += np.linspace(18, 6, 200).astype(np.float32)
    params = SamplingParams(max_tokens=1, seed=12, **options)  # type: ignore[arg-type]
    history = TokenHistory(list(range(0, 3000, 3)), 900, params)
    benchmark(sample, torch.from_numpy(row), params, history, BENCH_MASK.astype(np.int32), 7)
