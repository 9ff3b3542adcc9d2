"""Which sources drafted, where, and which were right."""

from __future__ import annotations

from collections.abc import Iterable

from specrt.draft_tree import DraftTree
from specrt.request import Counts, DraftStats


def tree_stats(
    tree: DraftTree, accepted_nodes: Iterable[int], num_tokens: int, num_invalid: int = 0
) -> DraftStats:
    """Count the nodes of a verified tree.

    Args:
        tree: the tree that was verified.
        accepted_nodes: the nodes that the walk took, the root not among them.
        num_tokens: what the pass committed.
        num_invalid: nodes that turned out to be forbidden.

    Returns:
        One pass; every source and region of the tree is in both counts.
    """
    drafted: Counts = {}
    accepted: Counts = {}
    for node in range(1, len(tree)):
        _count(drafted, tree, node, 1)
        _count(accepted, tree, node, 0)
    for node in accepted_nodes:
        _count(accepted, tree, node, 1)
    return DraftStats(drafted, accepted, num_invalid, {num_tokens: 1})


def _count(counts: Counts, tree: DraftTree, node: int, number: int) -> None:
    by_region = counts.setdefault(tree.source[node], {})
    region = tree.region[node]
    by_region[region] = by_region.get(region, 0) + number
