"""Which sources drafted and which were right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from specrt.draft_tree import DraftTree


def count_by_source(
    tree: DraftTree, accepted_nodes: Iterable[int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Count the nodes of a verified tree.

    Args:
        tree: the tree that was verified.
        accepted_nodes: the nodes that the walk took, the root not among them.

    Returns:
        (drafted, accepted): number of nodes by source; every source of the tree is in both.
    """
    drafted = Counter(tree.source[1:])
    accepted = Counter(tree.source[node] for node in accepted_nodes)
    return dict(drafted), {source: accepted[source] for source in drafted}
