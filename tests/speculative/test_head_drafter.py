"""HeadDrafter over a bigram table in place of a head: what it reads, crosses, masks and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from speculative.draw_tree import draw
from speculative.fake_grammar import (
    CLOSE,
    COMMA,
    END,
    QUOTE,
    TEXT,
    TOKENS,
    FakeGrammar,
    X,
    Y,
    Z,
)

from specrt.kernels.noise import gumbel, noise_words
from specrt.request import SamplingParams
from specrt.speculative.base import DraftRequest, FrontierNode
from specrt.speculative.calibration import Calibration
from specrt.speculative.cost_model import Pace, PassCost
from specrt.speculative.grammar_drafter import ForcedDrafter
from specrt.speculative.head_drafter import HeadDrafter
from specrt.speculative.tree_builder import TreeBuilder, TreeRequest

FREE_ROWS = PassCost(((1, 0.02), (2, 0.02)))
GREEDY = SamplingParams(max_tokens=50, temperature=0.0)
NUM_SCRATCH = 40


class BigramRunner:
    """A head whose prediction depends on the last token alone; outputs are token paths.

    Attributes:
        read: (tokens of the path, feature, context slots, row slots) of every drafted path.
        waves: paths per pass.
    """

    def __init__(self, table: dict[int, dict[int, float]], ids: Sequence[int] = range(12)) -> None:
        self.table = table
        self.draft_token_ids: npt.NDArray[np.int64] = np.array(ids, np.int64)
        self.scratch_slots = np.arange(1000, 1000 + NUM_SCRATCH, dtype=np.int32)
        self.read: list[tuple[list[int], Any, list[int], list[int]]] = []
        self.waves: list[int] = []
        self.extended: list[list[int]] = []

    def extend(self, sequences: Sequence[tuple[list[int], Any]]) -> list[tuple[int, ...]]:
        self.extended += [list(slots) for _, slots in sequences]
        return [tuple(token_ids) for token_ids, _ in sequences]

    def follow(self, paths: Sequence[Any]) -> list[tuple[int, ...]]:
        self.waves.append(len(paths))
        for p in paths:
            self.read.append((p.token_ids, p.feature, list(p.context_slots), list(p.row_slots)))
            assert p.first_position == 1 + len(p.context_slots)
        return [(*p.feature, *p.token_ids) for p in paths]

    def logits(self, outs: Sequence[tuple[int, ...]]) -> npt.NDArray[np.float32]:
        rows = np.full((len(outs), 12), -np.inf, np.float32)
        for row, out in zip(rows, outs, strict=True):
            for token_id, probability in self.table.get(out[-1], {}).items():
                row[token_id] = np.log(probability)
        return rows[:, self.draft_token_ids]


def make(
    table: dict[int, dict[int, float]], ids: Sequence[int] = range(12), **options: Any
) -> tuple[BigramRunner, HeadDrafter, TreeBuilder]:
    runner = BigramRunner(table, ids)
    calibration = Calibration(prior_weight=1e9)  # keep the head's own probabilities
    drafter = HeadDrafter(runner, calibration, Pace(), vocab_size=12, **options)  # type: ignore[arg-type]
    builder = TreeBuilder([ForcedDrafter(), drafter], calibration, TOKENS, FREE_ROWS)
    return runner, drafter, builder


def make_request(
    tokens: list[int], state: int | None, sampling: SamplingParams = GREEDY, name: str = "r"
) -> DraftRequest:
    return DraftRequest(
        name,
        tokens,
        len(tokens),
        None if state is None else FakeGrammar(state),
        frozenset([END]),
        sampling,
        np.arange(100, 140, dtype=np.int32),
        len(tokens) - 1,
    )


def grow(
    builder: TreeBuilder, *requests: DraftRequest, rows: int = 16, depth: int = 20
) -> list[str]:
    for request in requests:
        builder.open(request)
    trees = builder.build([TreeRequest(r, rows, depth) for r in requests], num_base_rows=1)
    return [line for tree in trees for line in draw(tree, TEXT)]


STRING = {
    X: {Y: 0.7, Z: 0.2, COMMA: 0.1},
    Y: {QUOTE: 0.9, X: 0.1},
    Z: {Z: 1.0},
    QUOTE: {COMMA: 1.0},
}


def test_a_tree_from_one_head() -> None:
    runner, _, builder = make(STRING, num_steps=2, topk=2)
    lines = grow(builder, make_request([X, X], None))
    assert sorted(lines) == ["y'e \"'e", "y'e x'e", "z'e z'e"]
    assert runner.extended == [[100, 101]]
    assert runner.read == [
        ([Y], (X, X), [101], [1039]),
        ([Z], (X, X), [101], [1038]),
    ]


def test_forbidden_tokens_are_masked_before_the_best_are_taken() -> None:
    """After a string's closing quote only , and } are allowed, whatever the head prefers."""
    table = {QUOTE: {X: 0.9, Y: 0.09, COMMA: 0.006, CLOSE: 0.004}}
    _, _, builder = make(table, num_steps=1, topk=2)
    request = make_request([X, QUOTE], 5)
    builder.open(request)
    (tree,) = builder.build([TreeRequest(request, 8, 20)], num_base_rows=1)
    children = {TEXT[tree.token_ids[n]]: tree.probability[n] for n in tree.children(0)}
    assert children == pytest.approx({",": 0.6, "}": 0.4}, abs=1e-3)


def test_an_end_token_is_never_drafted() -> None:
    _, _, builder = make({CLOSE: {END: 1.0}})
    assert grow(builder, make_request([X, CLOSE], 7)) == []
    assert grow(builder, make_request([X, CLOSE], None)) == []


def test_tokens_outside_the_draft_vocabulary_are_added_where_it_has_none() -> None:
    _, _, builder = make({QUOTE: {X: 1.0}}, ids=[X, Y, Z], num_steps=1)
    request = make_request([X, QUOTE], 5)
    builder.open(request)
    (tree,) = builder.build([TreeRequest(request, 4, 20)], num_base_rows=1)
    assert sorted(tree.token_ids[1:3]) == [CLOSE, COMMA]
    assert tree.probability[1:3] == pytest.approx([0.5, 0.5])


def test_a_forced_run_is_crossed_in_one_path_with_the_feature_before_it() -> None:
    """{ K : is forced from state 1; the head reads the three and predicts behind them."""
    table = {X: {}, 5: {6: 0.8, 7: 0.2}, 6: {COMMA: 1.0}, 7: {COMMA: 1.0}}
    runner, _, builder = make(table, num_steps=2, topk=2)
    request = make_request([X, X], 1)
    lines = grow(builder, request, rows=5, depth=5)
    assert lines[0].startswith("{'f K'f :'f A'e")
    path, feature, context, _ = runner.read[0]
    assert [TEXT[t] for t in path] == ["{", "K", ":"]
    assert (feature, context) == ((X, X), [101])
    followed = runner.read[1]
    assert followed[0] == [6] and followed[1] == (X, X, 1, 4, 5)
    assert followed[2] == [101, *runner.read[0][3]]


def test_all_requests_of_a_pass_share_its_waves() -> None:
    runner, _, builder = make(STRING, num_steps=3, topk=1)
    requests = [make_request([X, X], None, name=f"r{i}") for i in range(3)]
    grow(builder, *requests)
    assert len(runner.extended) == 3
    assert runner.waves == [3, 3]


def test_scratch_comes_back_with_the_next_tree() -> None:
    runner, drafter, builder = make(STRING, num_steps=6, topk=2)
    request = make_request([X, X], None)
    for _ in range(30):
        grow(builder, request, rows=32)
    assert len(drafter._free) < NUM_SCRATCH
    builder.close("r")
    assert sorted(drafter._free) == runner.scratch_slots.tolist()


def test_more_nodes_than_scratch_are_left_out() -> None:
    _, _, builder = make(STRING, num_steps=50, topk=8)
    requests = [make_request([X, X], None, name=f"r{i}") for i in range(20)]
    assert grow(builder, *requests, rows=32, depth=50)


def test_a_request_without_features_waits() -> None:
    runner, _, builder = make(STRING)
    prefill = make_request([X, X, X], None)
    prefill.num_computed_tokens = 1
    first = make_request([X], None, name="first")
    assert grow(builder, prefill, first) == []
    assert runner.extended == []


def test_a_wave_that_costs_more_than_it_gains_is_not_run() -> None:
    target = PassCost(((1, 0.02), (2, 0.02)))
    for head_s, is_run in ((0.001, True), (0.019, False)):
        head = PassCost(((1, head_s), (2, head_s)))
        runner, _, builder = make(STRING, target_cost=target, head_cost=head)
        grow(builder, make_request([X, X], None))
        assert bool(runner.extended) is is_run


@pytest.mark.parametrize("seed", range(20))
def test_at_a_temperature_candidates_follow_the_noise_of_the_draw(seed: int) -> None:
    """With the target's own logits the first candidate is the token that the target will draw."""
    sampling = SamplingParams(max_tokens=9, temperature=1.5, seed=seed, choice_index=1)
    table = {X: {Y: 0.4, Z: 0.35, COMMA: 0.25}}
    _, drafter, _ = make(table, num_steps=1, topk=3)
    request = make_request([X, X], 6, sampling)
    request.grammar = FakeGrammar(6)
    drafter.open(request)
    from specrt.draft_tree import DraftTree

    (candidates,) = drafter.propose([FrontierNode(request, DraftTree(X, 6), 0)])
    ids = np.array([Y, Z, COMMA], np.int64)
    words = noise_words(seed, 1, 2, ids)
    scores = {
        int(t): float(np.log(table[X][int(t)])) / 1.5 + gumbel(int(w))
        for t, w in zip(ids, words, strict=True)
    }
    ranked = sorted(scores, key=lambda t: -scores[t])
    drawn = [c.token_id for c in candidates if c.token_id in scores]
    assert drawn == ranked
