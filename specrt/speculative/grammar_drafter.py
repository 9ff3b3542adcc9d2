"""Drafts that the grammar alone knows: forced text, and places where few tokens are allowed."""

from __future__ import annotations

from collections.abc import Sequence

from specrt.draft_tree import DraftTree
from specrt.grammars.json_region import JsonPlace
from specrt.speculative.base import Candidate, DraftRequest, FrontierNode
from specrt.speculative.calibration import Calibration

MAX_CHOICES = 4


class ForcedDrafter:
    """The one canonical token that must come next; always accepted."""

    source = "forced"

    def open(self, request: DraftRequest) -> None:
        """Keep nothing: a forced token is a function of the grammar node."""

    def close(self, request_id: str) -> None:
        """Nothing is kept."""

    def extend(self, request: DraftRequest) -> None:
        """Nothing is kept."""

    def propose(self, frontier: Sequence[FrontierNode]) -> list[list[Candidate]]:
        """Propose the forced token of each node that has one."""
        return [self._propose(*item) for item in frontier]

    def _propose(
        self, request: DraftRequest, tree: DraftTree, node: int, _: JsonPlace
    ) -> list[Candidate]:
        grammar_node = tree.grammar_node[node]
        grammar = request.grammar
        token_id = None if grammar is None else grammar.forced(grammar_node)
        if token_id is None:
            return []
        after = request.advance(grammar_node, token_id)
        return [] if after is None else [Candidate(token_id, 1.0, 0, after)]


class ChoicesDrafter:
    """All allowed tokens where there are few: one of them is accepted.

    Its statistics key is the set of allowed tokens and the token: `,` against `}`, or the value of
    one enum, each has its own estimate.
    """

    source = "choices"

    def __init__(self, calibration: Calibration, max_choices: int = MAX_CHOICES) -> None:
        self._calibration = calibration
        self._max_choices = max_choices

    def open(self, request: DraftRequest) -> None:
        """Keep nothing: the choices are a function of the grammar node."""

    def close(self, request_id: str) -> None:
        """Nothing is kept."""

    def extend(self, request: DraftRequest) -> None:
        """Nothing is kept."""

    def propose(self, frontier: Sequence[FrontierNode]) -> list[list[Candidate]]:
        """Propose every allowed token of each node that has few."""
        return [self._propose(*item) for item in frontier]

    def _propose(
        self, request: DraftRequest, tree: DraftTree, node: int, place: JsonPlace
    ) -> list[Candidate]:
        grammar_node = tree.grammar_node[node]
        allowed = request.grammar and request.grammar.allowed(grammar_node, self._max_choices)
        if not allowed:
            return []
        key = tuple(allowed)
        weights = []
        for token_id in allowed:
            # Hashes of integer tuples are the same in every process.
            bucket = hash((key, token_id))
            rate = self._calibration.rate(self.source, bucket, 1 / len(allowed), place.region)
            weights.append((rate, token_id, bucket))
        total = sum(rate for rate, _, _ in weights)
        candidates = []
        for rate, token_id, bucket in sorted(weights, key=lambda w: -w[0]):
            after = request.advance(grammar_node, token_id)
            if after is not None:
                candidates.append(Candidate(token_id, rate / total, bucket, after))
        return candidates
