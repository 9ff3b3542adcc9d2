"""Chains of segments: what crosses in one pass, what predicts, where chains end."""

from __future__ import annotations

import torch
from train_fakes import random_pack

from specrt.train.segments import MAX_RUN, Segment, branch_chains, chain, plan, trunk_chains


def forced(pattern: str) -> list[bool]:
    return [letter == "f" for letter in pattern]


def test_a_run_rides_with_the_decision_before_it() -> None:
    assert chain(0, 7, forced("..ff.f."), 4) == (
        Segment(0, 1, 0),
        Segment(1, 3, 1),
        Segment(4, 2, 2),
    )


def test_a_run_behind_the_start_crosses_before_the_first_prediction() -> None:
    assert chain(0, 5, forced(".ff.."), 1) == (Segment(0, 1, -1), Segment(1, 2, 0))


def test_fed_runs_take_a_pass_a_token() -> None:
    assert chain(0, 5, forced("..ff."), 2, cross_runs=False) == (
        Segment(0, 1, 0),
        Segment(1, 1, -1),
        Segment(2, 1, -1),
        Segment(3, 1, 1),
    )


def test_nothing_is_predicted_behind_the_branch() -> None:
    assert chain(2, 3, forced("..."), 4) == ()
    assert chain(0, 3, forced("..f"), 4) == (Segment(0, 1, 0),)
    assert chain(0, 2, forced(".f"), 4) == ()


def test_a_chain_ends_before_a_run_that_is_too_long() -> None:
    for cross in (True, False):
        longest = "..{}.".format("f" * MAX_RUN)
        found = chain(0, len(longest), forced(longest), 4, cross_runs=cross)
        assert found[-1].depth == 1
        longer = "..{}.".format("f" * (MAX_RUN + 1))
        found = chain(0, len(longer), forced(longer), 4, cross_runs=cross)
        assert found == (Segment(0, 1, 0),)


def test_every_prediction_is_of_a_free_token_of_the_same_branch() -> None:
    pack = random_pack(3)
    chains = branch_chains(pack, 4)
    unroll = plan(chains)
    branch_of = {
        row: index
        for index, (first, length) in enumerate(pack.branches.tolist())
        for row in range(first, first + length)
    }
    assert len(unroll.rows) > len(chains) / 2
    for row, owner in zip(unroll.rows.tolist(), unroll.chains.tolist(), strict=True):
        assert not pack.forced[row + 1]
        assert branch_of[row + 1] == branch_of[row] == branch_of[chains[owner][0].first]


def test_trunk_rows_are_the_prompt_without_its_first_token() -> None:
    assert [segment.first for (segment,) in trunk_chains(random_pack(0))] == list(range(1, 9))


def test_a_pass_takes_its_features_from_the_end_of_the_segment_before() -> None:
    marks = forced("......ff.")
    chains = [chain(0, 4, marks, 2), chain(4, 9, marks, 2)]
    first, second = plan(chains).passes
    assert first.rows.tolist() == [0, 4]
    assert second.rows.tolist() == [1, 5, 6, 7]
    assert first.rows[second.features].tolist() == [0, 4, 4, 4]
    assert second.columns.tolist() == [0, 0, 1, 2] and second.width == 3
    assert second.predicting.tolist() == [0, 3]


def test_the_order_of_chains_is_the_callers() -> None:
    short, long = chain(0, 2, forced("....."), 2), chain(2, 5, forced("....."), 2)
    unroll = plan([short, long])
    assert torch.equal(unroll.chains, torch.tensor([1, 0, 1]))
    assert torch.equal(unroll.rows, torch.tensor([2, 0, 3]))
