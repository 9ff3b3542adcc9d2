"""Grows and prunes the draft trees of one pass.

waves:  root -> (certain runs, then every drafter) -> the new nodes that can still be among the
        best rows -> ...
then:   the nodes of all requests compete for the rows that the cost model grants
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from specrt.draft_tree import DraftTree
from specrt.grammars.base import DEAD
from specrt.grammars.json_region import JsonPlace
from specrt.speculative.base import Candidate, Drafter, DraftRequest, FrontierNode, Tokens
from specrt.speculative.calibration import Calibration
from specrt.speculative.cost_model import Array, Pace, PassCost, num_worth_rows

# A path less likely than this is not followed, however cheap rows are.
MIN_PROBABILITY = 0.01


class TreeRequest(NamedTuple):
    """A request that draws a token in this pass.

    Attributes:
        request: an opened request.
        max_rows: draft rows at most; 0 = none.
        max_depth: draft depth at most. One less than the output tokens left is right: the last one
            comes as the bonus token.
    """

    request: DraftRequest
    max_rows: int
    max_depth: int


class _Best:
    """The `size` largest of the probabilities offered so far."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[float] = []

    def is_open(self, probability: float) -> bool:
        """Would it enter?"""
        if len(self._heap) < self._size:
            return True
        return self._size > 0 and probability > self._heap[0]

    def offer(self, probability: float) -> bool:
        """Enter it if it is large enough."""
        if not self.is_open(probability):
            return False
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, probability)
        else:
            heapq.heapreplace(self._heap, probability)
        return True


class _Growth:
    """A tree under construction."""

    def __init__(
        self, item: TreeRequest, best_of_pass: _Best, floor: float, tokens: Tokens
    ) -> None:
        self.request = item.request
        self._tokens = tokens
        self._places: dict[int, JsonPlace] = {0: item.request.place}
        self.max_rows = item.max_rows
        self.tree = DraftTree(
            item.request.token_ids[-1],
            DEAD if item.request.grammar is None else item.request.grammar.root,
        )
        self._max_depth = item.max_depth
        self._best = _Best(self.max_rows)
        self._best_of_pass = best_of_pass
        self._floor = floor

    def is_open(self, node: int) -> bool:
        """Could a child of the node get a row?"""
        probability = self.tree.probability[node]
        return (
            self.tree.depth[node] < self._max_depth
            and probability >= self._floor
            and self._best.is_open(probability)
            and self._best_of_pass.is_open(probability)
        )

    def frontier(self, node: int) -> FrontierNode:
        return FrontierNode(self.request, self.tree, node, self._place(node))

    def _place(self, node: int) -> JsonPlace:
        place = self._places.get(node)
        if place is None:
            data = self._tokens.token_bytes(self.tree.token_ids[node])
            place = self._places[node] = self._place(self.tree.parent[node]).advance(data)
        return place

    def add(self, node: int, candidates: Sequence[Candidate], source: str) -> None:
        region = self._place(node).region
        for token_id, probability, bucket, grammar_node in candidates:
            self.tree.add(node, token_id, probability, source, grammar_node, bucket, region)

    def settle(self, node: int) -> list[tuple[_Growth, int]]:
        """The children of a node that has all of them."""
        children = self.tree.children(node)
        for child in children:
            if self._best.offer(self.tree.probability[child]):
                self._best_of_pass.offer(self.tree.probability[child])
        return [(self, child) for child in children]


class TreeBuilder:
    """One merged tree per request and pass, from several drafters.

    Outcomes come back through `extend`: what was drawn judges every candidate of the last tree
    whose parent was reached, also those that got no row, so that no estimate can lock itself out.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        calibration: Calibration,
        tokens: Tokens,
        cost: PassCost | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Combine drafters.

        Args:
            drafters: asked in this order; the forced drafter first, since its runs are crossed
                before the others are asked.
            calibration: the one that the drafters take their probabilities from.
            tokens: the target's.
            cost: the price of rows; None = a fixed curve.
            pace: the one that drafters take prices from, if any does.
        """
        self._drafters = list(drafters)
        self._calibration = calibration
        self._tokens = tokens
        self._cost = cost or PassCost()
        self._pace = pace or Pace()
        self._last_trees: dict[str, DraftTree] = {}

    def open(self, request: DraftRequest) -> None:
        """Prepare for a request; opening an open one (after a retraction) starts it afresh."""
        self._last_trees.pop(request.request_id, None)
        self._place(request, request.token_ids[request.num_prompt_tokens :])
        for drafter in self._drafters:
            drafter.open(request)

    def close(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        self._last_trees.pop(request_id, None)
        for drafter in self._drafters:
            drafter.close(request_id)

    def extend(self, request: DraftRequest, new_token_ids: Sequence[int]) -> None:
        """Append what a pass emitted to `request.token_ids`, and learn from it.

        Args:
            request: an opened request.
            new_token_ids: accepted draft tokens, then the bonus token.
        """
        tree = self._last_trees.pop(request.request_id, None)
        if tree is not None:
            self._pace.commit(len(new_token_ids))
            self._judge(tree, new_token_ids)
        request.token_ids.extend(new_token_ids)
        self._place(request, new_token_ids)
        for drafter in self._drafters:
            drafter.extend(request)

    def _place(self, request: DraftRequest, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            request.place = request.place.advance(self._tokens.token_bytes(token_id))

    def _judge(self, tree: DraftTree, new_token_ids: Sequence[int]) -> None:
        node: int | None = 0
        for token_id in new_token_ids:
            if node is None:
                return
            for child in tree.children(node):
                taken = tree.token_ids[child] == token_id
                self._calibration.observe(
                    tree.source[child], tree.bucket[child], taken, tree.region[child]
                )
            node = tree.child(node, token_id)

    def build(
        self, requests: Sequence[TreeRequest], num_base_rows: int, budget: int | None = None
    ) -> list[DraftTree]:
        """Draft for all requests that draw a token in one pass.

        Args:
            requests: all of them, also those with max_rows 0: they share the pass.
            num_base_rows: chain rows of the pass, prefill rows of other requests included.
            budget: draft rows of the pass at most; None = the requests' own limits only.

        Returns:
            For each request a tree of at most max_rows nodes besides its root, in the order of
            `requests`. No node is forbidden, an end token or deeper than max_depth.
        """
        if not requests:
            return []
        limit = sum(item.max_rows for item in requests)
        limit = limit if budget is None else min(limit, budget)
        prices = self._cost.row_prices(num_base_rows, len(requests), limit, self._pace.speedup)
        # No set of nodes is worth more rows than certain ones would be.
        limit = num_worth_rows([1.0] * limit, prices)
        floor = max(MIN_PROBABILITY, float(prices[:limit].min(initial=1.0)))
        best_of_pass = _Best(limit)
        growths = [_Growth(item, best_of_pass, floor, self._tokens) for item in requests]
        wave = [(growth, 0) for growth in growths]
        while wave:
            wave = self._expand([item for item in wave if item[0].is_open(item[1])])
        kept = self._select(growths, limit, prices)
        for growth in growths:
            self._last_trees[growth.request.request_id] = growth.tree
        self._pace.start_pass(
            self._cost, num_base_rows, len(requests), sum(len(nodes) for nodes in kept)
        )
        return [
            growth.tree.subtree(sorted(nodes)) for growth, nodes in zip(growths, kept, strict=True)
        ]

    def _expand(self, wave: list[tuple[_Growth, int]]) -> list[tuple[_Growth, int]]:
        """Ask the drafters for children; returns the next wave."""
        expanded: list[tuple[_Growth, int]] = []
        for place, drafter in enumerate(self._drafters):
            undecided = []
            while wave:
                certain = []
                proposals = drafter.propose([growth.frontier(node) for growth, node in wave])
                for (growth, node), candidates in zip(wave, proposals, strict=True):
                    growth.add(node, candidates, drafter.source)
                    if not candidates or candidates[0].probability < 1.0:
                        undecided.append((growth, node))
                    elif place > 0:
                        expanded.append((growth, node))
                    else:
                        certain += growth.settle(node)
                # Runs are crossed at once: a neural drafter then starts behind all of them.
                wave = [item for item in certain if item[0].is_open(item[1])]
            wave = undecided
        expanded += wave
        return [child for growth, node in expanded for child in growth.settle(node)]

    @staticmethod
    def _select(growths: Sequence[_Growth], limit: int, prices: Array) -> list[list[int]]:
        """The nodes that get a row, by request: the most probable ones, closed under parents."""
        ranked = sorted(
            (-growth.tree.probability[node], growth.tree.depth[node], place, node)
            for place, growth in enumerate(growths)
            for node in range(1, len(growth.tree))
        )
        chosen: list[tuple[float, int, int]] = []
        counts = [0] * len(growths)
        for negated, _, place, node in ranked:
            if len(chosen) == limit:
                break
            if counts[place] < growths[place].max_rows:
                counts[place] += 1
                chosen.append((-negated, place, node))
        kept: list[list[int]] = [[] for _ in growths]
        for _, place, node in chosen[: num_worth_rows([c[0] for c in chosen], prices)]:
            kept[place].append(node)
        return kept
