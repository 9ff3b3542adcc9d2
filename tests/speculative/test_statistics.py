"""count_by_source: who drafted, who was right."""

from __future__ import annotations

from specrt.draft_tree import DraftTree
from specrt.speculative.statistics import count_by_source


def test_counts_by_source() -> None:
    tree = DraftTree(0)
    first = tree.add(0, 1, 1.0, "forced")
    second = tree.add(first, 2, 0.5, "choices")
    tree.add(first, 3, 0.5, "choices")
    tree.add(second, 4, 0.5, "history")
    drafted, accepted = count_by_source(tree, [first, second])
    assert drafted == {"forced": 1, "choices": 2, "history": 1}
    assert accepted == {"forced": 1, "choices": 1, "history": 0}


def test_a_tree_without_drafts_counts_nothing() -> None:
    assert count_by_source(DraftTree(0), []) == ({}, {})
