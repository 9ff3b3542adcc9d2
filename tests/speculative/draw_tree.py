"""Draws trees as text, so that a test shows the tree it expects."""

from __future__ import annotations

from collections.abc import Sequence

from specrt.draft_tree import DraftTree


def draw(tree: DraftTree, text: Sequence[str]) -> list[str]:
    """One line per leaf: the path, each token marked with its source's first letter."""
    lines = []
    for node in range(1, len(tree)):
        if not tree.children(node):
            path, at = [], node
            while at:
                path.append(f"{text[tree.token_ids[at]]}'{tree.source[at][0]}")
                at = tree.parent[at]
            lines.append(" ".join(path[::-1]))
    return lines
