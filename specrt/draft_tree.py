r"""DraftTree: candidate continuations of one request, every node with its grammar state.

Bookkeeping only: no torch, no sampling, no decision which candidates are worth a row.

          0  last committed token (root)        node:      0   1   2   3
         / \                                     parent:   -1   0   0   1
        1   2                                    depth:     0   1   1   2
        |
        3
"""

from __future__ import annotations

from specrt.grammars.base import DEAD


class DraftTree:
    """A tree over token ids; node 0 is the root, a node comes after its parent.

    Attributes:
        token_ids: token of each node; the root's is the last committed token.
        parent: parent node; -1 for the root.
        depth: distance from the root.
        probability: estimated chance that the walk reaches the node (1 for the root).
        source: which drafter made the node; "" for the root.
        bucket: the source's own statistics key for the node.
        region: where in the output the node's token was expected: "key", "value", ...
        grammar_node: state after the node's token; DEAD (0) throughout when there is no grammar.
    """

    def __init__(self, token_id: int, grammar_node: int = DEAD) -> None:
        self.token_ids = [token_id]
        self.parent = [-1]
        self.depth = [0]
        self.probability = [1.0]
        self.source = [""]
        self.bucket = [0]
        self.region = [""]
        self.grammar_node = [grammar_node]
        self._children: list[dict[int, int]] = [{}]

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(
        self,
        parent: int,
        token_id: int,
        probability: float,
        source: str,
        grammar_node: int = DEAD,
        bucket: int = 0,
        region: str = "",
    ) -> int:
        """Add a child, or merge with the one that `parent` already has for this token.

        Merged candidates are one node that belongs to the more confident drafter (the first, if
        they agree): its probability, source and bucket stay together, so that the outcome is
        charged to the estimate that ranked the node. Merge only while the node has no children.

        Args:
            parent: an existing node.
            token_id: the candidate.
            probability: chance that the target takes it at `parent`, 0 to 1.
            source: name of the drafter.
            grammar_node: state after the token.
            bucket: the drafter's statistics key.
            region: where in the output the parent's children stand.

        Returns:
            The node.
        """
        siblings = self._children[parent]
        if token_id in siblings:
            node = siblings[token_id]
            if self.probability[parent] * probability > self.probability[node]:
                assert not self._children[node], "probabilities below the node would be stale"
                self.probability[node] = self.probability[parent] * probability
                self.source[node], self.bucket[node] = source, bucket
            return node
        node = len(self.token_ids)
        siblings[token_id] = node
        self.token_ids.append(token_id)
        self.parent.append(parent)
        self.depth.append(self.depth[parent] + 1)
        self.probability.append(self.probability[parent] * probability)
        self.source.append(source)
        self.bucket.append(bucket)
        self.region.append(region)
        self.grammar_node.append(grammar_node)
        self._children.append({})
        return node

    def child(self, node: int, token_id: int) -> int | None:
        """The child of `node` for `token_id`, if any."""
        return self._children[node].get(token_id)

    def children(self, node: int) -> list[int]:
        """The children of `node` in the order they were added."""
        return list(self._children[node].values())

    def path(self, node: int) -> list[int]:
        """Token ids from below the root down to `node`."""
        tokens = []
        while node > 0:
            tokens.append(self.token_ids[node])
            node = self.parent[node]
        return tokens[::-1]

    def subtree(self, nodes: list[int]) -> DraftTree:
        """The tree made of the root and `nodes` (ascending, closed under parents)."""
        kept = DraftTree(self.token_ids[0], self.grammar_node[0])
        new_id = {0: 0}
        for node in nodes:
            new_id[node] = kept.add(
                new_id[self.parent[node]],
                self.token_ids[node],
                0.0,
                self.source[node],
                self.grammar_node[node],
                self.bucket[node],
                self.region[node],
            )
            kept.probability[new_id[node]] = self.probability[node]
        return kept
