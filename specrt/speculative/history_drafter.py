"""Drafts copied from earlier text by longest suffix match: the request's own, or other requests'.

                        ... " city " : " Zur ich " ...                 the text so far
    root: ... " city "  ->  :  ->  "  ->  Zur  ->  ich  ->  "          one match, followed
                                   ^ a run or a choice that no match continues: search again with
                                     the path's own last tokens

Every node keeps the matches of its context. A child's are its parent's that go on with the child's
token; only when there are none is the index searched.
"""

from __future__ import annotations

from collections.abc import Sequence

from specrt.draft_tree import DraftTree
from specrt.grammars.json_region import JsonPlace
from specrt.speculative.base import Candidate, DraftRequest, FrontierNode
from specrt.speculative.calibration import Calibration
from specrt.speculative.shared_outputs import BREAK, SharedOutputs
from specrt.speculative.suffix_index import MAX_MATCH, Match, SuffixIndex

MAX_CANDIDATES = 3
# Distinct continuations tried against the grammar before a node is given up.
MAX_TRIES = 8


class _History:
    """What a request drafts from, and the matches at the nodes of the tree that is being built."""

    def __init__(self, request: DraftRequest, index: SuffixIndex) -> None:
        self.request = request
        self.index = index
        self.tree: DraftTree | None = None
        self.matches: dict[int, list[Match]] = {}


class HistoryDrafter:
    """Proposes what followed the longest earlier occurrence of the context in the request."""

    source = "history"

    def __init__(self, calibration: Calibration, max_candidates: int = MAX_CANDIDATES) -> None:
        self._calibration = calibration
        self._max_candidates = max_candidates
        self._histories: dict[str, _History] = {}

    def open(self, request: DraftRequest) -> None:
        """Index the prompt."""
        self._histories[request.request_id] = _History(request, SuffixIndex(request.token_ids))

    def close(self, request_id: str) -> None:
        """Drop the index."""
        self._histories.pop(request_id, None)

    def extend(self, request: DraftRequest) -> None:
        """Index the tokens gained."""
        self._histories[request.request_id].index.update()

    def propose(self, frontier: Sequence[FrontierNode]) -> list[list[Candidate]]:
        """Propose continuations of the longest matches that the grammar allows."""
        return [self._propose(*item) for item in frontier]

    def _propose(
        self, request: DraftRequest, tree: DraftTree, node: int, place: JsonPlace
    ) -> list[Candidate]:
        history = self._histories.get(request.request_id)
        if history is None:
            return []
        if history.tree is not tree:
            history.tree, history.matches = tree, {}
        matches = self._matches(history, request, tree, node)
        candidates: list[Candidate] = []
        for token_id, length, count in rank(matches, history.index.token_ids)[:MAX_TRIES]:
            if token_id == BREAK:
                continue
            after = request.advance(tree.grammar_node[node], token_id)
            if after is None:
                continue
            bucket, prior = describe(len(candidates), length, count, len(matches))
            rate = self._calibration.rate(self.source, bucket, prior, place.region)
            candidates.append(Candidate(token_id, rate, bucket, after))
            if len(candidates) == self._max_candidates:
                break
        return candidates

    @staticmethod
    def _matches(
        history: _History, request: DraftRequest, tree: DraftTree, node: int
    ) -> list[Match]:
        """The matches of a node's context, followed from its parent's or searched."""
        above = history.matches.get(tree.parent[node])
        found = history.index.follow(above, tree.token_ids[node]) if above else []
        if not found:
            path = tree.path(node)
            found = history.index.search(request.token_ids[-MAX_MATCH:] + path)
        history.matches[node] = found
        return found


class SharedHistoryDrafter(HistoryDrafter):
    """Proposes what followed in the finished outputs of requests with the same `history_key`."""

    source = "shared"

    def __init__(self, calibration: Calibration, outputs: SharedOutputs) -> None:
        super().__init__(calibration)
        self._outputs = outputs

    def open(self, request: DraftRequest) -> None:
        """Look up the outputs of its key."""
        self._histories.pop(request.request_id, None)
        if request.history_key:
            index = self._outputs.index(request.history_key)
            self._histories[request.request_id] = _History(request, index)

    def extend(self, request: DraftRequest) -> None:
        """Nothing to do: its own output is looked through by `HistoryDrafter`."""

    def close(self, request_id: str) -> None:
        """Keep its output for the requests to come."""
        history = self._histories.pop(request_id, None)
        if history is not None:
            request = history.request
            # Where an output starts is what it follows: the end of the prompt.
            start = max(0, request.num_prompt_tokens - MAX_MATCH)
            if len(request.token_ids) > request.num_prompt_tokens:
                self._outputs.add(request.history_key, request.token_ids[start:])


def rank(matches: Sequence[Match], token_ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """Order the continuations of matches.

    Args:
        matches: what the index found.
        token_ids: the text that the matches point into.

    Returns:
        (token, length of its longest match, number of its matches) for each distinct
        continuation; longest match first, the most recent of equally long ones.
    """
    best: dict[int, tuple[int, int, int]] = {}
    for end, length in matches:
        token_id = token_ids[end]
        longest, latest, count = best.get(token_id, (0, 0, 0))
        best[token_id] = (*max((longest, latest), (length, end)), count + 1)
    order = sorted(best.items(), key=lambda item: item[1], reverse=True)
    return [(token_id, longest, count) for token_id, (longest, _, count) in order]


def describe(place: int, length: int, count: int, total: int) -> tuple[int, float]:
    """The statistics key of a candidate and its acceptance before any observation.

    Args:
        place: 0 for the node's first candidate.
        length: its longest match.
        count: how many matches go on with it.
        total: how many matches there are.

    Returns:
        (bucket, prior). The prior was fitted by eye to recorded tool calls.
    """
    place = min(place, 1)
    share = count / total
    bucket = ((place * 8 + length.bit_length()) * 4 + int(3.99 * share)) * 4
    support = length * count
    prior = support / (support + 2) * share ** (2 / length) * (0.4 if place else 1.0)
    return bucket + min(count.bit_length(), 3), prior
