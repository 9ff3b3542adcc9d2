"""PassCost: what rows cost and which nodes are worth theirs."""

from __future__ import annotations

import time
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specrt.speculative.cost_model import Pace, PassCost, measure, num_worth_rows

FLAT = PassCost(((1, 0.02), (64, 0.02)))
STEEP = PassCost(((1, 0.02), (2, 0.04)))


def test_times_are_interpolated_and_extrapolated() -> None:
    cost = PassCost(((1, 1.0), (3, 2.0), (7, 4.0)))
    assert cost.time(1) == 1.0
    assert cost.time(2) == pytest.approx(1.5)
    assert cost.time(5) == pytest.approx(3.0)
    assert cost.time(9) == pytest.approx(5.0)
    assert cost.times(2, 3) == pytest.approx([1.5, 2.0, 2.5])


def test_a_time_that_falls_is_raised() -> None:
    cost = PassCost(((1, 2.0), (2, 1.0), (4, 3.0)))
    assert cost.seconds == pytest.approx([2.0, 2.0, 3.0])


@pytest.mark.parametrize("timings", [(), ((1, 1.0),), ((2, 1.0), (1, 2.0)), ((1, 1.0), (1, 2.0))])
def test_timings_without_a_slope_are_refused(timings: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match="ascending rows"):
        PassCost(timings)


def test_a_pass_that_takes_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0 s"):
        PassCost(((1, 0.0), (2, 1.0)))


def test_free_rows_are_all_worth_it_and_dear_ones_never() -> None:
    probabilities = [1.0, 0.5, 0.02]
    assert num_worth_rows(probabilities, FLAT.row_prices(1, 1, 3)) == 3
    assert num_worth_rows([0.99, 0.5, 0.02], STEEP.row_prices(1, 1, 3)) == 0


def test_one_slope_is_one_threshold() -> None:
    # A row costs 2 ms, a token of a plain pass 20 ms: nodes above 0.1 are worth it.
    cost = PassCost(((1, 0.020), (101, 0.220)))
    assert cost.row_prices(1, 1, 2) == pytest.approx([0.1, 0.1])
    assert num_worth_rows([0.9, 0.11, 0.09], cost.row_prices(1, 1, 9)) == 2


def test_a_certain_run_behind_a_choice_counts_with_the_choice() -> None:
    cost = PassCost(((1, 0.020), (101, 0.220)))
    run = [0.3] * 10
    assert num_worth_rows(run, cost.row_prices(1, 1, 10)) == 10


def test_a_dear_first_row_is_paid_by_the_cheap_ones_behind_it() -> None:
    cost = PassCost(((1, 0.010), (2, 0.025), (9, 0.025)))
    assert num_worth_rows([0.9], cost.row_prices(1, 1, 8)) == 0
    assert num_worth_rows([0.9, 0.9], cost.row_prices(1, 1, 8)) == 2


def test_trees_shrink_with_load_and_with_prefill_rows() -> None:
    cost = PassCost()
    probabilities = [0.75 * 0.95**i for i in range(32)]
    kept = [
        num_worth_rows(probabilities, cost.row_prices(batch, batch, 32))
        for batch in (1, 2, 4, 8, 16, 32, 64)
    ]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > 20
    assert kept[-1] == 0
    assert num_worth_rows(probabilities, cost.row_prices(264, 8, 32)) < kept[3]


def test_a_fast_pace_makes_rows_dearer() -> None:
    cost = PassCost()
    assert cost.row_prices(1, 1, 4, speedup=2.0) == pytest.approx(2 * cost.row_prices(1, 1, 4))


def test_nothing_to_price() -> None:
    assert num_worth_rows([], FLAT.row_prices(1, 1, 0)) == 0
    assert num_worth_rows([1.0], FLAT.row_prices(1, 1, 0)) == 0


steps = st.lists(st.floats(0.0, 0.02), min_size=1, max_size=6)
chances = st.lists(st.floats(0.0, 1.0), max_size=40).map(lambda p: sorted(p, reverse=True))


@settings(deadline=None)
@given(steps, chances, st.integers(1, 30), st.integers(0, 100))
def test_never_slower_than_plain_decoding(
    steps: list[float], probabilities: list[float], batch: int, prefill: int
) -> None:
    seconds = accumulate(steps, initial=0.02)
    cost = PassCost([(2**i, s) for i, s in enumerate(seconds)])
    base = batch + prefill
    kept = num_worth_rows(probabilities, cost.row_prices(base, batch, 40))
    spent = cost.time(batch) + cost.time(base + kept) - cost.time(base)
    assert (batch + sum(probabilities[:kept])) / spent >= batch / cost.time(batch) * (1 - 1e-9)


@settings(deadline=None)
@given(steps, chances, st.integers(1, 30))
def test_no_set_is_larger_than_that_of_certain_nodes(
    steps: list[float], probabilities: list[float], batch: int
) -> None:
    seconds = accumulate(steps, initial=0.02)
    prices = PassCost([(2**i, s) for i, s in enumerate(seconds)]).row_prices(batch, batch, 40)
    certain = num_worth_rows([1.0] * len(probabilities), prices)
    assert num_worth_rows(probabilities, prices) <= certain


def test_measure_takes_the_quickest_after_an_untimed_pass() -> None:
    calls: list[int] = []

    def run_pass(count: int) -> float:
        calls.append(count)
        return {0: 0.5, 1: 5.0 * count, 2: 1.0 * count, 3: 2.0 * count}[(len(calls) - 1) % 4]

    cost = measure(run_pass, row_counts=(1, 4))
    assert calls == [1, 1, 1, 1, 4, 4, 4, 4]
    assert list(cost.rows) == [1, 4]
    assert cost.seconds == pytest.approx([1.0, 4.0])


def test_measure_takes_the_time_itself() -> None:
    def run_pass(count: int) -> None:
        time.sleep(0.001 * count)

    cost = measure(run_pass, row_counts=(1, 8))
    assert 0.001 <= cost.time(1) < cost.time(8)
    assert np.isfinite(cost.seconds).all()


def test_pace_is_tokens_for_time_against_plain_decoding() -> None:
    cost = PassCost(((1, 0.020), (101, 0.220)))
    pace = Pace()
    assert pace.speedup == 1.0
    for _ in range(200):
        pace.start_pass(cost, base=1, decisions=1, drafts=5)  # 30 ms
        pace.commit(3)  # 60 ms of plain passes
    assert pace.speedup == pytest.approx(2.0)
    for _ in range(200):
        pace.start_pass(cost, base=1, decisions=1, drafts=5)
        pace.commit(1)
    assert pace.speedup == 1.0, "never below plain"
