"""HistoryDrafter: longest suffix match against a brute-force search."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from speculative.fake_grammar import CLOSE, COLON, COMMA, KEY, A, B, FakeGrammar

from specrt.draft_tree import DraftTree
from specrt.speculative.base import Candidate, DraftRequest, FrontierNode
from specrt.speculative.calibration import Calibration
from specrt.speculative.history_drafter import HistoryDrafter, describe, rank
from specrt.speculative.suffix_index import MAX_MATCH, MAX_OCCURRENCES, Match, SuffixIndex

texts = st.lists(st.integers(0, 3), min_size=1, max_size=MAX_OCCURRENCES)


def brute_force(tokens: Sequence[int], context: Sequence[int]) -> list[Match]:
    """All occurrences of the context's last two tokens, each with its whole match length."""
    found = []
    for end in range(len(tokens)):
        length = 0
        while (
            length < min(end, len(context), MAX_MATCH)
            and tokens[end - 1 - length] == context[-1 - length]
        ):
            length += 1
        if length >= 2:
            found.append(Match(end, length))
    return found


def propose(
    drafter: HistoryDrafter, request: DraftRequest, tree: DraftTree, node: int = 0
) -> list[Candidate]:
    return drafter.propose([FrontierNode(request, tree, node)])[0]


@settings(deadline=None)
@given(texts)
def test_search_equals_brute_force(tokens: list[int]) -> None:
    assert SuffixIndex(tokens).search(tokens) == brute_force(tokens, tokens)


def test_the_most_recent_occurrences_bound_a_search() -> None:
    matches = SuffixIndex([5] * 1000).search([5] * 1000)
    assert matches == [Match(end, MAX_MATCH) for end in range(1000 - MAX_OCCURRENCES, 1000)]


@settings(deadline=None)
@given(texts, texts)
def test_growing_equals_starting_with_all(first: list[int], second: list[int]) -> None:
    tokens = list(first)
    index = SuffixIndex(tokens)
    for token_id in second:
        tokens.append(token_id)
        index.update()
    assert index.search(tokens) == SuffixIndex(tokens).search(tokens)
    assert index.search(tokens) == brute_force(tokens, tokens)[-MAX_OCCURRENCES:]


@settings(deadline=None)
@given(texts, st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_following_finds_the_longest_matches_without_a_search(
    tokens: list[int], path: list[int]
) -> None:
    index = SuffixIndex(tokens)
    matches = index.search(tokens)
    for depth, token_id in enumerate(path, start=1):
        matches = index.follow(matches, token_id)
        # What follows d tokens is all matches of at least 2 + d tokens: the longest ones.
        expected = brute_force(tokens, tokens + path[:depth])
        assert matches == [match for match in expected if match.length >= 2 + depth]


def test_continuations_are_ranked_by_length_then_recency() -> None:
    tokens = [7, 1, 2, 3, 9, 1, 2, 4, 7, 1, 2, 5]
    #            1 2 -> 3 (match 3: 7 1 2), 1 2 -> 4 (match 2), 7 1 2 -> 5 (match 3, later)
    matches = SuffixIndex(tokens).search([7, 1, 2])
    assert rank(matches, tokens) == [(5, 3, 1), (3, 3, 1), (4, 2, 1)]


def test_a_longer_and_more_frequent_match_is_more_likely() -> None:
    assert describe(0, 8, 1, 1)[1] > describe(0, 2, 1, 1)[1]
    assert describe(0, 4, 3, 3)[1] > describe(0, 4, 1, 1)[1]
    assert describe(0, 4, 2, 2)[1] > describe(0, 4, 2, 8)[1]
    assert describe(0, 4, 1, 2)[1] > describe(1, 4, 1, 2)[1]
    assert describe(1, 2, 1, 32)[1] > 0.0 and describe(0, MAX_MATCH, 32, 32)[1] < 1.0


def test_a_copied_continuation_is_followed_down_the_tree() -> None:
    request = DraftRequest("r", [1, 2, 3, 4, 5, 8, 1, 2], 8)
    drafter = HistoryDrafter(Calibration())
    drafter.open(request)
    tree, node = DraftTree(2), 0
    for expected in (3, 4, 5, 8, 1, 2):
        (candidate,) = propose(drafter, request, tree, node)
        assert candidate.token_id == expected
        node = tree.add(node, candidate.token_id, candidate.probability, "history")
    assert [c.token_id for c in propose(drafter, request, tree, node)] == [3], "searched again"


def test_drafting_goes_on_behind_tokens_of_other_drafters() -> None:
    request = DraftRequest("r", [5, 6, 7, 8, 9, 1, 2], 7)
    drafter = HistoryDrafter(Calibration())
    drafter.open(request)
    tree = DraftTree(2)
    assert propose(drafter, request, tree) == []
    node = tree.add(tree.add(0, 6, 1.0, "forced"), 7, 1.0, "forced")
    assert [c.token_id for c in propose(drafter, request, tree, node)] == [8]


def test_forbidden_continuations_give_way_to_others() -> None:
    # Behind `:` only A, B and the quote are allowed; the most recent continuation is forbidden.
    tokens = [KEY, COLON, A, KEY, COLON, CLOSE, KEY, COLON]
    request = DraftRequest("r", tokens, 8, FakeGrammar(root=4))
    drafter = HistoryDrafter(Calibration())
    drafter.open(request)
    candidates = propose(drafter, request, DraftTree(COLON, grammar_node=4))
    assert [(c.token_id, c.grammar_node) for c in candidates] == [(A, 5)]


def test_end_tokens_are_not_drafted() -> None:
    request = DraftRequest("r", [1, 2, 0, 1, 2, 3, 1, 2], 8, None, frozenset([3]))
    drafter = HistoryDrafter(Calibration())
    drafter.open(request)
    assert [c.token_id for c in propose(drafter, request, DraftTree(2))] == [0]


def test_output_is_matched_as_soon_as_it_is_there() -> None:
    tokens = [KEY, COLON]
    request = DraftRequest("r", tokens, 2)
    drafter = HistoryDrafter(Calibration())
    drafter.open(request)
    assert propose(drafter, request, DraftTree(COLON)) == []
    tokens += [B, COMMA, KEY, COLON]
    drafter.extend(request)
    assert [c.token_id for c in propose(drafter, request, DraftTree(COLON))] == [B]


def test_short_texts_have_no_history() -> None:
    for tokens in ([1], [1, 2]):
        request = DraftRequest("r", tokens, 1)
        drafter = HistoryDrafter(Calibration())
        drafter.open(request)
        assert propose(drafter, request, DraftTree(tokens[-1])) == []


def test_requests_are_apart_and_closing_forgets() -> None:
    first = DraftRequest("a", [1, 2, 3, 1, 2], 5)
    second = DraftRequest("b", [1, 2, 4, 1, 2], 5)
    drafter = HistoryDrafter(Calibration())
    drafter.open(first)
    drafter.open(second)
    wave = [FrontierNode(r, DraftTree(2), 0) for r in (first, second)]
    assert [[c.token_id for c in found] for found in drafter.propose(wave)] == [[3], [4]]
    drafter.close("a")
    drafter.close("a")
    assert [c.token_id for c in propose(drafter, second, DraftTree(2))] == [4]
