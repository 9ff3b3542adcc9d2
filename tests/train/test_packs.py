"""Packs: every path of a tree spells its turn, and no tree is too large."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from specrt.train.packs import PackTree, build_packs
from specrt.train.turn_file import Turn


@st.composite
def _turns(draw: st.DrawFn) -> list[Turn]:
    tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12)
    turns = []
    for index in range(draw(st.integers(0, 25))):
        output = draw(tokens)
        forced = draw(st.lists(st.booleans(), min_size=len(output), max_size=len(output)))
        turns.append(
            Turn(f"t{index}", "", draw(st.booleans()), draw(tokens), output, forced, "stop")
        )
    return turns


def _path(tree: PackTree, row: int) -> list[int]:
    rows = []
    while row >= 0:
        assert tree.parent[row] < row
        rows.append(row)
        row = int(tree.parent[row])
    return rows[::-1]


@given(_turns(), st.integers(6, 40))
def test_every_path_spells_its_turn(turns: list[Turn], max_rows: int) -> None:
    trees, left_out = build_packs(turns, max_rows)
    by_id = {turn.id: turn for turn in turns}
    found = [turn_id for tree in trees for turn_id in tree.turn_ids]
    fitting = [t.id for t in turns if len(t.prompt_ids) + len(t.output_ids) <= max_rows]
    assert sorted(found) == sorted(fitting) and len(turns) - len(found) == left_out
    for tree in trees:
        num_rows = len(tree.token_ids)
        assert 0 < num_rows <= max_rows
        in_branches = torch.zeros(num_rows, dtype=torch.int64)
        for turn_id, (first, length) in zip(tree.turn_ids, tree.branches.tolist(), strict=True):
            turn = by_id[turn_id]
            assert turn.is_held == tree.held
            path = _path(tree, first + length - 1)
            assert path[-length:] == list(range(first, first + length))
            assert tree.token_ids[path].tolist() == turn.prompt_ids + turn.output_ids
            assert tree.position[path].tolist() == list(range(len(path)))
            assert tree.forced[first : first + length].tolist() == turn.forced
            in_branches[first : first + length] += 1
        assert in_branches.max() <= 1  # an output is its turn's own
        assert not tree.forced[in_branches == 0].any()
        trunk = (in_branches == 0).nonzero().squeeze(-1).tolist()
        spelled = {tuple(tree.token_ids[_path(tree, row)].tolist()) for row in trunk}
        assert len(spelled) == len(trunk)  # equal beginnings of prompts share rows


@given(_turns(), st.integers(6, 40))
def test_packing_is_deterministic_and_the_digest_tells_trees_apart(
    turns: list[Turn], max_rows: int
) -> None:
    first, again = build_packs(turns, max_rows)[0], build_packs(list(turns), max_rows)[0]
    digests = [tree.digest() for tree in first]
    assert digests == [tree.digest() for tree in again]
    assert len(set(digests)) == len(digests)


def test_turns_go_where_they_share_most() -> None:
    prompts = [[0, tool, *range(10, 20), turn] for turn in range(40, 46) for tool in (1, 2)]
    turns = [
        Turn(f"t{index}", "", False, prompt, [5, 6], [True, False], "stop")
        for index, prompt in enumerate(prompts)
    ]
    trees, _ = build_packs(turns, 30)
    assert [len(tree.token_ids) for tree in trees] == [12 + 6 * 3] * 2
    assert [len(set(tree.token_ids.tolist()) & {1, 2}) for tree in trees] == [1, 1]
