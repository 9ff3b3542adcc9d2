"""Values written by llguidance.

llguidance has a matcher that moves; the seam wants nodes that stay. So an arena keeps nodes
(parent, token), one matcher at the root, and a copy of it with a cursor: to ask about a node, the
copy walks on, or a new copy (2 us) walks down from the root. Answers are kept at the node.
A matcher is never rolled back: in llguidance 1.9.1 one that computes a mask, is rolled back, takes
other tokens, is rolled back once more and takes tokens again can give the mask of the other path.

It knows no turn, no end-of-sequence token and no canonical tokenisation: regions.py does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits

from specrt.errors import GrammarError
from specrt.grammars.base import DEAD
from specrt.grammars.vocabulary import BIT, Vocabulary

# Bounds on what a hostile schema may cost, in llguidance's own units: about 4 ms to build a lexer,
# 35 ms for one mask (a pattern beside a maxLength takes 13), 100 MB of lexer states.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=500_000,
    step_max_items=20_000,
    max_grammar_size=100_000,
    max_lexer_states=50_000,
    verbose_errors=False,
)

# Where a run meets the limit of items, its beginning is right, but the matcher fails at its next
# use. A limit of 20,000 is not met on fewer bytes than these.
_LONG_RUN = 256


class RefusedError(Exception):
    """llguidance does not take this grammar; the text is its reason in one line."""


def build_matcher(vocabulary: Vocabulary, lark: str) -> LLMatcher:
    """Compile Lark text.

    Args:
        vocabulary: the model's tokens.
        lark: grammar text with `no_forcing` set, so that masks are as the grammar has them.

    Raises:
        RefusedError: with llguidance's reason.
    """
    matcher = LLMatcher(vocabulary.ll_tokenizer, lark, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        first_line = matcher.get_error().partition("\n")[0]
        raise RefusedError(first_line.rpartition("JSON schema: ")[2].strip())
    return matcher


class MatcherPrototype:
    """A compiled grammar that each use copies. Thread safe."""

    def __init__(self, vocabulary: Vocabulary, lark: str) -> None:
        """Compile `lark`; see `build_matcher`."""
        self._vocabulary = vocabulary
        self._lark = lark
        self._matcher = build_matcher(vocabulary, lark)
        self._is_spent = False
        self._lock = threading.Lock()  # a matcher has one user at a time

    def open(self) -> MatcherArena:
        """An arena whose root is the start of the grammar."""
        with self._lock:
            if self._is_spent:
                self._matcher = build_matcher(self._vocabulary, self._lark)
                self._is_spent = False
            matcher = self._matcher.deep_copy()
        return MatcherArena(matcher, self._vocabulary, self._spend)

    def _spend(self) -> None:
        # Copies share a lexer: once it has met its limit, it fails at every start.
        self._is_spent = True


@dataclass(slots=True)
class _Node:
    parent: int
    token_id: int
    depth: int
    children: dict[int, int] = field(default_factory=dict)  # token id -> node
    mask: npt.NDArray[np.int32] | None = None  # [num_words]
    is_final: bool | None = None
    forced_bytes: bytes | None = None


class MatcherArena:
    """Nodes of one grammar, by the tokens that lead to them. Not thread safe.

    Attributes:
        root: the node of what is committed.
    """

    def __init__(
        self, matcher: LLMatcher, vocabulary: Vocabulary, on_error: Callable[[], object]
    ) -> None:
        self.root = DEAD + 1
        self._on_error = on_error
        self._root_matcher = matcher  # only ever takes tokens
        self._matcher = matcher.deep_copy()
        self._vocabulary = vocabulary
        self._nodes = {self.root: _Node(parent=DEAD, token_id=-1, depth=0)}
        self._cursor = self.root
        self._next_id = self.root + 1
        self._error = ""

    def __len__(self) -> int:
        """The number of nodes alive."""
        return len(self._nodes)

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def advance(self, node: int, token_id: int) -> int:
        """The node after a token that is text, or DEAD.

        Raises:
            GrammarError: the grammar cannot go on.
        """
        entry = self._nodes[node]
        child = entry.children.get(token_id)
        if child is None:
            if not self._is_allowed(node, token_id):
                return DEAD
            child = entry.children[token_id] = self._next_id
            self._nodes[child] = _Node(parent=node, token_id=token_id, depth=entry.depth + 1)
            self._next_id += 1
        return child

    def mask(self, node: int) -> npt.NDArray[np.int32]:
        """The tokens that may come next: int32 [num_words], not to be modified; no special ids.

        Raises:
            GrammarError: the grammar cannot go on.
        """
        entry = self._nodes[node]
        if entry.mask is None:
            self._move(node)
            bitmask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
            self._check(self._matcher)
            mask = bitmask[: self._vocabulary.num_words].copy()
            for token_id in self._vocabulary.eos_token_ids:
                mask[token_id >> 5] &= ~BIT[token_id & 31]
            entry.mask = mask
        return entry.mask

    def is_final(self, node: int) -> bool:
        """May the value end here?

        Raises:
            GrammarError: the grammar cannot go on.
        """
        entry = self._nodes[node]
        if entry.is_final is None:
            self._move(node)
            entry.is_final = self._matcher.is_accepting()
            self._check(self._matcher)
        return entry.is_final

    def forced_bytes(self, node: int) -> bytes:
        """What every text from here on begins with.

        Raises:
            GrammarError: the grammar cannot go on.
        """
        entry = self._nodes[node]
        if entry.forced_bytes is None:
            self._move(node)
            entry.forced_bytes = self._matcher.compute_ff_bytes()
            self._check(self._matcher)
            if len(entry.forced_bytes) > _LONG_RUN:
                self._matcher, self._cursor = self._root_matcher.deep_copy(), self.root
        return entry.forced_bytes

    def commit(self, node: int) -> None:
        """Make `node` the root; nodes that do not descend from it are gone.

        Raises:
            GrammarError: the grammar cannot go on.
        """
        path = [node]
        while path[-1] != self.root:
            path.append(self._nodes[path[-1]].parent)
        self._root_matcher.consume_tokens([self._nodes[n].token_id for n in path[-2::-1]])
        self._check(self._root_matcher)
        if not self._descends(self._cursor, node):
            self._matcher, self._cursor = self._root_matcher.deep_copy(), node
        for ancestor, kept in zip(path[:0:-1], path[-2::-1], strict=True):
            dropped = [c for c in self._nodes.pop(ancestor).children.values() if c != kept]
            while dropped:
                dropped.extend(self._nodes.pop(dropped.pop()).children.values())
        self._nodes[node].parent = DEAD
        self.root = node

    def _is_allowed(self, node: int, token_id: int) -> bool:
        if token_id in self._vocabulary.special_ids:
            return False
        # `validate_tokens` is faster, but only a mask gives the lexer new fuel: without, it says
        # no when that has run out, and every copy of the matcher is broken.
        return bool(self.mask(node)[token_id >> 5] & BIT[token_id & 31])

    def _descends(self, node: int, ancestor: int) -> bool:
        depth = self._nodes[ancestor].depth
        while self._nodes[node].depth > depth:
            node = self._nodes[node].parent
        return node == ancestor

    def _move(self, node: int) -> None:
        """Put the matcher at `node`."""
        if self._error:
            raise GrammarError(self._error)
        if not self._descends(node, self._cursor):
            self._matcher, self._cursor = self._root_matcher.deep_copy(), self.root
        ahead = []
        above = node
        while above != self._cursor:
            ahead.append(self._nodes[above].token_id)
            above = self._nodes[above].parent
        if ahead:
            self._matcher.consume_tokens(ahead[::-1])
        self._check(self._matcher)
        self._cursor = node

    def _check(self, matcher: LLMatcher) -> None:
        # A matcher in error answers every later question with "end of sequence".
        if matcher.is_error():
            self._error = f"the grammar cannot go on: {matcher.get_error().strip()}"
            self._on_error()
            raise GrammarError(self._error)
