"""ForcedDrafter and ChoicesDrafter over the hand-written automaton."""

from __future__ import annotations

import pytest
from speculative.fake_grammar import CLOSE, COMMA, END, KEY, QUOTE, A, B, FakeGrammar

from specrt.draft_tree import DraftTree
from specrt.speculative.base import Candidate, Drafter, DraftRequest, FrontierNode
from specrt.speculative.calibration import Calibration
from specrt.speculative.grammar_drafter import ChoicesDrafter, ForcedDrafter


def propose(drafter: Drafter, state: int | None) -> list[Candidate]:
    grammar = None if state is None else FakeGrammar(state)
    request = DraftRequest("r", [1, 2, 3], 3, grammar, frozenset([END]))
    tree = DraftTree(3, state or 0)
    return drafter.propose([FrontierNode(request, tree, 0)])[0]


def test_a_forced_token_is_certain() -> None:
    assert propose(ForcedDrafter(), 2) == [Candidate(KEY, 1.0, 0, 3)]


@pytest.mark.parametrize("state", [4, 5, 6, 7, None])
def test_nothing_is_forced_elsewhere(state: int | None) -> None:
    assert propose(ForcedDrafter(), state) == []


def test_choices_start_alike() -> None:
    candidates = propose(ChoicesDrafter(Calibration()), 4)
    assert [(c.token_id, c.grammar_node) for c in candidates] == [(A, 5), (B, 5), (QUOTE, 6)]
    assert [c.probability for c in candidates] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("state", [6, None])
def test_many_choices_are_none(state: int | None) -> None:
    assert propose(ChoicesDrafter(Calibration()), state) == []


def test_an_end_token_is_a_choice_but_no_draft() -> None:
    assert propose(ChoicesDrafter(Calibration()), 7) == []


def test_each_set_of_choices_learns_by_token() -> None:
    calibration = Calibration()
    drafter = ChoicesDrafter(calibration)
    for _ in range(20):
        for candidate in propose(drafter, 5):
            calibration.observe("choices", candidate.bucket, candidate.token_id == CLOSE)
    learned = {c.token_id: c.probability for c in propose(drafter, 5)}
    assert list(learned) == [CLOSE, COMMA], "most probable first"
    assert learned[CLOSE] > 0.8
    assert sum(learned.values()) == pytest.approx(1.0)
    others = propose(drafter, 4)
    assert [c.probability for c in others] == pytest.approx([1 / 3] * 3)
