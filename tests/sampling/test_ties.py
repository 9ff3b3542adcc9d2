from __future__ import annotations

import numpy as np
import pytest
import torch

from specrt.request import SamplingParams
from specrt.sampling import Tie, TokenHistory, near_tie, sample
from specrt.sampling.sampler import draw_scores


def tie(logits: list[float], pair: tuple[int, int], **options: float) -> Tie | None:
    params = SamplingParams(max_tokens=1, **options)  # type: ignore[arg-type]
    row = torch.tensor(logits, dtype=torch.float32)
    return near_tie(row, params, TokenHistory([], 0, params), None, 0, pair)


def test_greedy_ties_are_close_logits() -> None:
    found = tie([5.0, 4.9995, 0.0], (0, 1), temperature=0.0)
    assert found is not None and found.kind == "scores"
    assert found.gap == pytest.approx(5e-4, abs=1e-6)
    assert tie([5.0, 4.998, 0.0], (0, 1), temperature=0.0) is None
    assert tie([5.0], (0, 0), temperature=0.0) is None


def test_sampled_ties_are_close_noisy_scores() -> None:
    params = SamplingParams(max_tokens=1, temperature=0.5, seed=4)
    row = np.zeros(3, np.float32)
    noise = draw_scores(row, np.arange(3), params, 0)
    row[:] = [-0.5 * noise[0], -0.5 * noise[1] + 0.0002, -100.0]  # now equal up to 0.0004
    history = TokenHistory([], 0, params)
    found = near_tie(torch.from_numpy(row), params, history, None, 0, (0, 1))
    assert found is not None and found.kind == "scores"
    assert found.gap == pytest.approx(4e-4, abs=1e-5)
    assert near_tie(torch.from_numpy(row), params, history, None, 1, (0, 1)) is None
    assert sample(torch.from_numpy(row), params, history, None, 0).token_id == 1


def test_masked_tokens_do_not_tie() -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0)
    row, mask = torch.tensor([5.0, 5.0, 0.0]), np.array([0b101], np.int32)
    assert near_tie(row, params, TokenHistory([], 0, params), mask, 0, (0, 2)) is None


def test_top_k_edge_concerns_the_tokens_at_it() -> None:
    logits = [9.0, 5.0, 4.9996, 1.0, 0.0]
    assert tie(logits, (0, 2), top_k=2) == Tie("top_k", pytest.approx(4e-4, abs=1e-5))
    assert tie(logits, (0, 1), top_k=2) == Tie("top_k", pytest.approx(4e-4, abs=1e-5))
    assert tie(logits, (0, 3), top_k=2) is None
    assert tie(logits, (0, 2), top_k=3) is None


def test_top_p_edge_in_mass_and_in_log_probability() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert tie(logits, (0, 2), top_p=0.8004) == Tie("top_p", pytest.approx(4e-4, abs=1e-5))
    assert tie(logits, (0, 1), top_p=0.8004) is None
    assert tie(logits, (0, 2), top_p=0.81) is None
    swapping = np.log([0.5, 0.2501, 0.25]).tolist()  # either may be the one that is left out
    assert tie(swapping, (1, 2), top_p=0.6) == Tie("top_p", pytest.approx(4e-4, abs=1e-5))
    assert tie(logits, (0, 3), top_p=5e-4) is None  # the best token is always kept


def test_min_p_edge() -> None:
    logits = np.log([0.5, 0.3, 0.0501, 0.01]).tolist()
    found = tie(logits, (0, 2), min_p=0.1002)
    assert found is not None and (found.kind, found.gap < 1e-4) == ("min_p", True)
    assert tie(logits, (0, 2), min_p=0.1) == None  # noqa: E711  (2e-3 away)
