"""TreeBuilder: trees as pictures, limits as properties."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from speculative.draw_tree import draw
from speculative.fake_grammar import (
    CLOSE,
    COLON,
    COMMA,
    END,
    KEY,
    MOVES,
    OPEN,
    QUOTE,
    TEXT,
    TOKENS,
    A,
    FakeGrammar,
    X,
    Y,
    Z,
)

from specrt.config import DRAFT_SOURCES
from specrt.draft_tree import DraftTree
from specrt.speculative.base import Candidate, DraftRequest, FrontierNode
from specrt.speculative.calibration import Calibration
from specrt.speculative.cost_model import PassCost
from specrt.speculative.grammar_drafter import ForcedDrafter
from specrt.speculative.sources import make_tree_builder
from specrt.speculative.tree_builder import TreeBuilder, TreeRequest

FREE_ROWS = PassCost(((1, 0.02), (2, 0.02)))
FAR = 100


def make_request(
    tokens: Sequence[int], state: int | None = None, request_id: str = "r"
) -> DraftRequest:
    grammar = None if state is None else FakeGrammar(state)
    return DraftRequest(request_id, list(tokens), len(tokens), grammar, frozenset([END]))


def build(
    tokens: Sequence[int],
    state: int | None = None,
    *,
    sources: Sequence[str] = DRAFT_SOURCES,
    max_rows: int = 32,
    max_depth: int = FAR,
    cost: PassCost = FREE_ROWS,
) -> DraftTree:
    builder = make_tree_builder(sources, TOKENS, cost)
    request = make_request(tokens, state)
    builder.open(request)
    return builder.build([TreeRequest(request, max_rows, max_depth)], num_base_rows=1)[0]


def test_a_forced_run_is_a_chain_and_choices_are_siblings() -> None:
    """
    root - { - K - : - A - ,
                   |   + - }
                   + - B - ,
                   |   + - }
                   + - "
    """
    tree = build([X], 1, max_rows=10, max_depth=5)
    assert sorted(draw(tree, TEXT)) == [
        "{'f K'f :'f \"'c",
        "{'f K'f :'f A'c ,'c",
        "{'f K'f :'f A'c }'c",
        "{'f K'f :'f B'c ,'c",
        "{'f K'f :'f B'c }'c",
    ]
    assert tree.probability[:4] == [1.0] * 4
    assert sorted(tree.probability[4:]) == pytest.approx([1 / 6] * 4 + [1 / 3] * 3)
    assert tree.grammar_node[:4] == [1, 2, 3, 4]


def test_a_forced_run_behind_a_choice_keeps_the_probability_of_the_choice() -> None:
    """
    root - , - K - : - ...
         + - }
    """
    tree = build([A], 5, sources=("forced", "choices"), max_depth=3)
    comma = tree.child(0, COMMA)
    assert comma is not None
    key = tree.child(comma, KEY)
    assert key is not None
    colon = tree.child(key, COLON)
    assert colon is not None
    assert [tree.probability[n] for n in (comma, key, colon)] == pytest.approx([0.5] * 3)


def test_history_goes_on_behind_a_forced_run() -> None:
    """
    text: { K : " x y     root - { - K - : - " - x - y
    """
    tree = build([OPEN, KEY, COLON, QUOTE, X, Y, Z], 1, sources=("forced", "history"))
    assert draw(tree, TEXT) == ["{'f K'f :'f \"'h x'h y'h z'h"]


def test_history_alone_needs_no_grammar() -> None:
    tree = build([X, Y, Z, A, X, Y], sources=("history",), max_depth=4)
    assert draw(tree, TEXT) == ["z'h A'h x'h y'h"]
    assert set(tree.grammar_node) == {0}


def test_a_candidate_of_two_sources_is_one_node() -> None:
    # The prompt repeats `: A`, so history trusts A more than the choices do.
    tree = build([COLON, A, KEY, COLON, A, KEY, COLON], 4, max_depth=1)
    assert sorted(draw(tree, TEXT)) == ["\"'c", "A'h", "B'c"]
    assert tree.source.count("history") == 1


def test_end_tokens_are_not_drafted() -> None:
    assert len(build([CLOSE], 7)) == 1
    tree = build([X, Y, END, Z, X, Y], sources=("history",))
    assert len(tree) == 1


def test_no_rows_no_depth_no_sources_give_the_root() -> None:
    assert len(build([X], 1, max_rows=0)) == 1
    assert len(build([X], 1, max_depth=0)) == 1
    assert len(build([X], 1, sources=())) == 1
    assert make_tree_builder(DRAFT_SOURCES, TOKENS).build([], num_base_rows=5) == []


def test_dear_rows_give_the_root_and_ask_nobody() -> None:
    builder = make_tree_builder(DRAFT_SOURCES, TOKENS, PassCost(((1, 0.01), (2, 0.03))))
    request = make_request([X], 1)
    builder.open(request)
    (tree,) = builder.build([TreeRequest(request, 32, FAR)], num_base_rows=1)
    assert len(tree) == 1
    assert isinstance(request.grammar, FakeGrammar)
    assert request.grammar.num_asked == 0


def test_host_work_is_bounded_by_the_rows() -> None:
    text = [OPEN, KEY, COLON, QUOTE, X, Y, Z] * 20
    builder = make_tree_builder(DRAFT_SOURCES, TOKENS, FREE_ROWS)
    request = make_request(text, 4)
    builder.open(request)
    builder.build([TreeRequest(request, 8, FAR)], num_base_rows=1)
    assert isinstance(request.grammar, FakeGrammar)
    # `forced` and `allowed` once for each node that may have children: the root and 8 rows.
    assert request.grammar.num_asked <= 2 * 9


def test_requests_compete_for_the_rows_of_a_pass() -> None:
    builder = make_tree_builder(DRAFT_SOURCES, TOKENS, FREE_ROWS)
    forced, open_text = make_request([X], 1, "a"), make_request([X, Y, X, Z, X], None, "b")
    for request in (forced, open_text):
        builder.open(request)
    items = [TreeRequest(forced, 32, FAR), TreeRequest(open_text, 32, FAR)]
    first, second = builder.build(items, num_base_rows=2, budget=3)
    assert draw(first, TEXT) == ["{'f K'f :'f"]
    assert len(second) == 1


def test_forced_runs_of_two_requests_share_the_rows() -> None:
    builder = make_tree_builder(("forced",), TOKENS, FREE_ROWS)
    requests = [make_request([X], 1, name) for name in "ab"]
    for request in requests:
        builder.open(request)
    trees = builder.build([TreeRequest(r, 32, FAR) for r in requests], num_base_rows=2, budget=4)
    assert [len(tree) - 1 for tree in trees] == [2, 2]


class HeadLike:
    """Stands in for a neural drafter: records its waves, proposes the quote everywhere."""

    source = "head"

    def __init__(self) -> None:
        self.waves: list[list[tuple[str, list[int]]]] = []

    def open(self, request: DraftRequest) -> None:
        """Keep nothing."""

    def close(self, request_id: str) -> None:
        """Keep nothing."""

    def extend(self, request: DraftRequest) -> None:
        """Keep nothing."""

    def propose(self, frontier: Sequence[FrontierNode]) -> list[list[Candidate]]:
        self.waves.append([(f.request.request_id, f.tree.path(f.node)) for f in frontier])
        candidates = []
        for request, tree, node, _ in frontier:
            after = request.advance(tree.grammar_node[node], QUOTE)
            candidates.append([] if after is None else [Candidate(QUOTE, 0.5, 0, after)])
        return candidates


def test_a_neural_drafter_sees_whole_levels_behind_the_forced_runs() -> None:
    head = HeadLike()
    builder = TreeBuilder([ForcedDrafter(), head], Calibration(), TOKENS, FREE_ROWS)
    requests = [make_request([X], 1, "a"), make_request([X], 3, "b"), make_request([X], 6, "c")]
    for request in requests:
        builder.open(request)
    builder.build([TreeRequest(r, 8, 4) for r in requests], num_base_rows=3)
    assert sorted(head.waves[0]) == [("a", [OPEN, KEY, COLON]), ("b", [COLON]), ("c", [])]
    assert sorted(head.waves[1]) == [("b", [COLON, QUOTE]), ("c", [QUOTE])]
    assert all(head.waves), "an empty wave is not asked"


def test_what_was_drawn_is_appended_and_learned() -> None:
    builder = make_tree_builder(DRAFT_SOURCES, TOKENS, FREE_ROWS)
    request = make_request([A], 5)
    builder.open(request)

    def chance(token_id: int) -> float:
        (tree,) = builder.build([TreeRequest(request, 32, FAR)], num_base_rows=1)
        node = tree.child(0, token_id)
        return 0.0 if node is None else tree.probability[node]

    before = chance(CLOSE)
    for _ in range(30):
        chance(CLOSE)
        builder.extend(request, [CLOSE])
    assert request.token_ids == [A] + [CLOSE] * 30
    assert chance(CLOSE) > 0.85 > before


def test_a_source_that_was_wrong_can_come_back() -> None:
    # At this price only nodes above 0.3 get a row.
    builder = make_tree_builder(("choices",), TOKENS, PassCost(((1, 0.020), (11, 0.080))))
    request = make_request([A], 5)
    builder.open(request)

    def drafted() -> list[int]:
        (tree,) = builder.build([TreeRequest(request, 32, 1)], num_base_rows=1)
        return tree.token_ids[1:]

    for _ in range(40):
        drafted()
        builder.extend(request, [CLOSE])
    assert drafted() == [CLOSE], "the comma is not worth a row any more"
    for _ in range(200):
        drafted()
        builder.extend(request, [COMMA])
    assert drafted() == [COMMA]


def test_only_reached_candidates_are_judged() -> None:
    builder = make_tree_builder(("forced", "choices"), TOKENS, FREE_ROWS)
    request = make_request([A], 5)
    builder.open(request)
    for _ in range(50):
        builder.build([TreeRequest(request, 32, 4)], num_base_rows=1)
        builder.extend(request, [CLOSE])
    (tree,) = builder.build([TreeRequest(request, 32, 4)], num_base_rows=1)
    comma = tree.child(0, COMMA)
    assert comma is not None
    # The choices behind `, K :` were drafted 50 times and never reached.
    values = [n for n in range(len(tree)) if tree.path(n)[:3] == [COMMA, KEY, COLON]][1:]
    assert len(values) == 3
    assert [tree.probability[n] for n in values] == pytest.approx([tree.probability[comma] / 3] * 3)


def test_reopening_and_closing_forget() -> None:
    builder = make_tree_builder(DRAFT_SOURCES, TOKENS, FREE_ROWS)
    request = make_request([X, Y, Z, X, Y])
    builder.open(request)
    builder.build([TreeRequest(request, 8, FAR)], num_base_rows=1)
    shorter = make_request([X, Y])
    builder.open(shorter)
    assert len(builder.build([TreeRequest(shorter, 8, FAR)], num_base_rows=1)[0]) == 1
    builder.close("r")
    builder.close("r")


draws = st.lists(st.lists(st.integers(0, 10), max_size=4), max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 11), min_size=1, max_size=50),
            st.sampled_from([None, *MOVES]),
            st.integers(0, 12),
            st.integers(0, 12),
        ),
        max_size=4,
    ),
    st.sets(st.sampled_from(DRAFT_SOURCES)),
    st.integers(0, 24) | st.none(),
    st.sampled_from([FREE_ROWS, PassCost()]),
    draws,
)
def test_limits_hold_and_builds_repeat(
    texts: list[tuple[list[int], int | None, int, int]],
    sources: set[str],
    budget: int | None,
    cost: PassCost,
    draws: list[list[int]],
) -> None:
    def run() -> list[list[DraftTree]]:
        builder = make_tree_builder(sources, TOKENS, cost)
        requests = [make_request(text[0], text[1], str(i)) for i, text in enumerate(texts)]
        for request in requests:
            builder.open(request)
        items = [TreeRequest(r, text[2], text[3]) for r, text in zip(requests, texts, strict=True)]
        passes = [builder.build(items, len(items), budget)]
        for drawn in draws:
            for request in requests:
                builder.extend(request, drawn)
            passes.append(builder.build(items, len(items), budget))
        return passes

    passes = run()
    for trees in passes:
        assert budget is None or sum(len(tree) - 1 for tree in trees) <= budget
        for (_, state, max_rows, max_depth), tree in zip(texts, trees, strict=True):
            assert len(tree) - 1 <= max_rows
            for node in range(1, len(tree)):
                parent, token_id = tree.parent[node], tree.token_ids[node]
                assert 0 <= parent < node
                assert tree.depth[node] <= max_depth
                assert token_id != END
                assert tree.child(parent, token_id) == node, "no token twice among siblings"
                assert 0.0 < tree.probability[node] <= tree.probability[parent]
                if state is None:
                    assert tree.grammar_node[node] == 0
                else:
                    after = MOVES[tree.grammar_node[parent]][token_id]
                    assert tree.grammar_node[node] == after
                    if tree.source[node] == "forced":
                        assert tree.children(parent) == [node]

    def flatten(passes: list[list[DraftTree]]) -> list[object]:
        return [(t.token_ids, t.parent, t.probability, t.source) for trees in passes for t in trees]

    assert flatten(passes) == flatten(run())
