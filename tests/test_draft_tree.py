"""DraftTree: bookkeeping."""

from __future__ import annotations

import pytest

from specrt.draft_tree import DraftTree


def make() -> DraftTree:
    """
          0
         / \\
        1   2
       / \\
      3   4
    """
    tree = DraftTree(9, grammar_node=5)
    tree.add(0, 10, 0.5, "head", grammar_node=6)
    tree.add(0, 11, 0.3, "history", grammar_node=7, bucket=3)
    tree.add(1, 12, 0.1, "head")
    tree.add(1, 13, 0.9, "head")
    return tree


def test_nodes_know_parent_depth_and_path_probability() -> None:
    tree = make()
    assert len(tree) == 5
    assert tree.token_ids == [9, 10, 11, 12, 13]
    assert tree.parent == [-1, 0, 0, 1, 1]
    assert tree.depth == [0, 1, 1, 2, 2]
    assert tree.probability == pytest.approx([1.0, 0.5, 0.3, 0.05, 0.45])
    assert tree.grammar_node == [5, 6, 7, 0, 0]
    assert tree.source == ["", "head", "history", "head", "head"]
    assert tree.bucket == [0, 0, 3, 0, 0]


def test_children_and_paths() -> None:
    tree = make()
    assert tree.children(0) == [1, 2]
    assert tree.children(2) == []
    assert tree.child(1, 13) == 4
    assert tree.child(0, 13) is None
    assert tree.path(4) == [10, 13]
    assert tree.path(0) == []


def test_merged_candidates_belong_to_the_more_confident_source() -> None:
    tree = make()
    assert tree.add(0, 11, 0.2, "choices", bucket=8) == 2
    assert (tree.source[2], tree.bucket[2], tree.probability[2]) == ("history", 3, 0.3)
    assert tree.add(0, 11, 0.3, "choices", bucket=8) == 2
    assert tree.source[2] == "history", "the first one, if they agree"
    assert tree.add(0, 11, 0.6, "choices", bucket=8) == 2
    assert (tree.source[2], tree.bucket[2], tree.probability[2]) == ("choices", 8, 0.6)
    assert len(tree) == 5


def test_merging_above_children_is_refused() -> None:
    with pytest.raises(AssertionError, match="stale"):
        make().add(0, 10, 0.9, "choices")


def test_subtree_renumbers_and_keeps_everything_else() -> None:
    tree = make()
    kept = tree.subtree([1, 4])
    assert kept.token_ids == [9, 10, 13]
    assert kept.parent == [-1, 0, 1]
    assert kept.depth == [0, 1, 2]
    assert kept.grammar_node == [5, 6, 0]
    assert kept.probability == [tree.probability[node] for node in (0, 1, 4)]
    assert kept.children(1) == [2]
    assert kept.path(2) == [10, 13]


def test_subtree_of_nothing_is_the_root() -> None:
    kept = make().subtree([])
    assert len(kept) == 1
    assert (kept.token_ids, kept.grammar_node) == ([9], [5])
