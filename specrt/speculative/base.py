"""The drafter seam: frontier nodes in, candidates out.

A drafter knows nothing of rows, budgets or other drafters; the tree builder merges and ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from specrt.draft_tree import DraftTree
from specrt.grammars.base import DEAD, GrammarState
from specrt.grammars.json_region import JsonPlace
from specrt.request import SamplingParams

_TEXT = JsonPlace.text()


class Tokens(Protocol):
    """What drafting needs of a tokenizer."""

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of ordinary text."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        ...


@dataclass(slots=True, eq=False)
class DraftRequest:
    """What drafters may know of a request.

    Attributes:
        request_id: the request.
        token_ids: prompt and output so far; grows in place (`TreeBuilder.extend`).
        num_prompt_tokens: how many of them are the prompt.
        grammar: the request's grammar; None = free text.
        end_token_ids: tokens that end the output. They are never drafted: an end drawn at the
            parent is emitted as the bonus token and saves no pass as a node.
        sampling: how the target will draw: a drafter may look at the same noise.
        slots: int32, KV slot of each token of `token_ids` in the coming pass.
        num_computed_tokens: how many of them the target has seen.
        place: where in the JSON the output stands behind `token_ids`; before `TreeBuilder.open`,
            where an output starts.
        history_key: requests with the same key draft from each other's outputs; "" = from none.
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    grammar: GrammarState | None = None
    end_token_ids: frozenset[int] = frozenset()
    sampling: SamplingParams = SamplingParams(max_tokens=1)
    slots: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    num_computed_tokens: int = 0
    place: JsonPlace = _TEXT
    history_key: str = ""

    def advance(self, grammar_node: int, token_id: int) -> int | None:
        """The grammar node after `token_id`, or None when it may not be drafted there."""
        if token_id in self.end_token_ids:
            return None
        if self.grammar is None:
            return DEAD
        after = self.grammar.advance(grammar_node, token_id)
        return None if after == DEAD else after


class Candidate(NamedTuple):
    """A proposed child.

    Attributes:
        token_id: the token; allowed by the grammar, not an end token.
        probability: chance that the target takes it at its parent; 1 = certain, which settles the
            parent: later drafters are not asked for siblings.
        bucket: the drafter's statistics key.
        grammar_node: state after the token; DEAD when there is no grammar.
    """

    token_id: int
    probability: float
    bucket: int = 0
    grammar_node: int = DEAD


class FrontierNode(NamedTuple):
    """A node that waits for children.

    Attributes:
        request: whose tree it is.
        tree: the tree so far.
        node: one of its nodes.
        place: where in the JSON its children stand.
    """

    request: DraftRequest
    tree: DraftTree
    node: int
    place: JsonPlace = _TEXT


class Drafter(Protocol):
    """Proposes children.

    Attributes:
        source: name in statistics and on nodes.
    """

    source: str

    def open(self, request: DraftRequest) -> None:
        """Prepare for a request; opening an open one starts it afresh."""
        ...

    def close(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        ...

    def extend(self, request: DraftRequest) -> None:
        """`request.token_ids` has grown."""
        ...

    def propose(self, frontier: Sequence[FrontierNode]) -> list[list[Candidate]]:
        """Propose children for one wave.

        A wave holds nodes of all requests of the pass, so that a neural drafter can run it as one
        batch. A node's parent was in an earlier wave of the same build or is certain.

        Args:
            frontier: nodes without a certain child.

        Returns:
            For each node its candidates, most probable first, no token twice.
        """
        ...
