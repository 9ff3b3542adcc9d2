"""Grammars run by llguidance.

llguidance has a matcher that moves; the seam wants nodes that stay. So a state keeps an arena of
nodes (parent, token), one matcher at the root, and a copy of it with a cursor: to ask about a node,
the copy walks on, or a new copy (2 us) walks down from the root. Answers are kept at the node.
A matcher is never rolled back: in llguidance 1.9.1 one that computes a mask, is rolled back, takes
other tokens, is rolled back once more and takes tokens again can give the mask of the other path.

Masks are never collapsed by llguidance itself (`no_forcing`): narrowing to canonical tokens is
canonical.py's alone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits

from specrt.errors import GrammarError
from specrt.grammars.base import DEAD, Unenforced
from specrt.grammars.canonical import canonical_run, run_after_first
from specrt.grammars.vocabulary import Vocabulary

# Bounds on what a hostile schema may cost, in llguidance's own units: about 4 ms to build a lexer,
# 7 ms for one mask, 100 MB of lexer states.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_grammar_size=100_000,
    max_lexer_states=50_000,
    verbose_errors=False,
)


class RefusedError(Exception):
    """llguidance does not take this grammar; the text is its reason in one line."""


def build_matcher(vocabulary: Vocabulary, lark: str) -> LLMatcher:
    """Compile Lark text.

    Raises:
        RefusedError: with llguidance's reason.
    """
    matcher = LLMatcher(vocabulary.ll_tokenizer, lark, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        first_line = matcher.get_error().partition("\n")[0]
        raise RefusedError(first_line.rpartition("JSON schema: ")[2].strip())
    return matcher


class LLGuidanceGrammar:
    """A compiled grammar: a prototype matcher that each request copies.

    Attributes:
        engine: "llguidance".
        unenforced: what the grammar does not enforce.
    """

    engine = "llguidance"

    def __init__(
        self,
        vocabulary: Vocabulary,
        lark: str,
        *,
        unenforced: tuple[Unenforced, ...] = (),
        canonical: bool = True,
    ) -> None:
        """Compile `lark`.

        Args:
            vocabulary: the model's tokens.
            lark: grammar text with `no_forcing` set.
            unenforced: what the text leaves out.
            canonical: narrow forced text to its canonical tokens.

        Raises:
            RefusedError: llguidance does not take the text.
        """
        self.unenforced = unenforced
        self._vocabulary = vocabulary
        self._canonical = canonical
        self._prototype = build_matcher(vocabulary, lark)
        self._lock = threading.Lock()  # a matcher has one user at a time

    def open(self) -> LLGuidanceState:
        """A state at the start of the output."""
        with self._lock:
            matcher = self._prototype.deep_copy()
        return LLGuidanceState(matcher, self._vocabulary, self._canonical)


@dataclass(slots=True)
class _Node:
    parent: int
    token_id: int
    depth: int
    is_ended: bool = False  # an end-of-sequence token was taken
    children: dict[int, int] = field(default_factory=dict)  # token id -> node
    mask: npt.NDArray[np.int32] | None = None  # [num_words], not narrowed
    is_final: bool | None = None
    forced_bytes: bytes | None = None
    run: tuple[int, ...] | None = None  # canonical tokens that must come next


class LLGuidanceState:
    """One request's nodes. Not thread safe. See `GrammarState` for the contract.

    Attributes:
        root: the node of the committed output.
    """

    def __init__(self, matcher: LLMatcher, vocabulary: Vocabulary, canonical: bool) -> None:
        self.root = DEAD + 1
        self._root_matcher = matcher  # only ever takes tokens
        self._matcher = matcher.deep_copy()
        self._vocabulary = vocabulary
        self._canonical = canonical
        self._nodes = {self.root: _Node(parent=DEAD, token_id=-1, depth=0)}
        self._cursor = self.root
        self._next_id = self.root + 1
        self._error = ""

    def __len__(self) -> int:
        """The number of nodes alive."""
        return len(self._nodes)

    def advance(self, node: int, token_id: int) -> int:
        """The node after `token_id`, or DEAD when the node's mask forbids it. Never raises."""
        entry = self._nodes.get(node)
        if entry is None:
            return DEAD
        is_eos = token_id in self._vocabulary.eos_token_ids
        if entry.is_ended:
            return node if is_eos else DEAD
        try:
            run = self._run(node)
            if run:
                if token_id != run[0]:
                    return DEAD
                child = self._child(node, token_id)
                self._inherit_run(entry, self._nodes[child])
                return child
            if token_id in entry.children:
                return entry.children[token_id]
            if not (self.is_final(node) if is_eos else self._is_allowed(node, token_id)):
                return DEAD
        except GrammarError:
            return DEAD
        child = self._child(node, token_id)
        self._nodes[child].is_ended = is_eos
        return child

    def masks(self, nodes: Sequence[int], out: npt.NDArray[np.int32]) -> None:
        """Write one token bitmask row per node: int32 [n, ceil(vocab_size / 32)].

        Raises:
            GrammarError: the grammar cannot go on.
        """
        for row, node in zip(out, nodes, strict=True):
            run = self._run(node)
            if run:
                row[:] = 0
                row[run[0] >> 5] = _BITS[run[0] & 31]
            else:
                row[:] = self._mask(node)

    def allowed(self, node: int, limit: int) -> list[int] | None:
        """The allowed token ids in ascending order, or None when there are more than `limit`.

        Raises:
            GrammarError: the grammar cannot go on.
        """
        run = self._run(node)
        if run:
            return [run[0]] if limit >= 1 else None
        mask = self._mask(node)
        if int.from_bytes(mask.tobytes(), "little").bit_count() > limit:
            return None
        words = np.flatnonzero(mask)
        bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(-1, 32)
        rows, offsets = np.nonzero(bits)
        ids: list[int] = (words[rows] * 32 + offsets).tolist()
        return ids

    def forced(self, node: int) -> int | None:
        """The one canonical token that must come next, or None. Never an end-of-sequence id.

        Raises:
            GrammarError: the grammar cannot go on.
        """
        run = self._run(node)
        return run[0] if run else None

    def is_final(self, node: int) -> bool:
        """May the output end here?

        Raises:
            GrammarError: the grammar cannot go on.
        """
        entry = self._nodes[node]
        if entry.is_final is None:
            if entry.is_ended:
                entry.is_final = True
            else:
                self._move(node)
                entry.is_final = self._matcher.is_accepting()
                self._check(self._matcher)
        return entry.is_final

    def commit(self, node: int) -> None:
        """Make `node` the root; nodes that do not descend from it are gone.

        Raises:
            GrammarError: the grammar cannot go on.
        """
        entry = self._nodes[node]
        path = [node]
        while path[-1] != self.root:
            path.append(self._nodes[path[-1]].parent)
        if not entry.is_ended:
            self._root_matcher.consume_tokens([self._nodes[n].token_id for n in path[-2::-1]])
            self._check(self._root_matcher)
            if not self._descends(self._cursor, node):
                self._matcher, self._cursor = self._root_matcher.deep_copy(), node
        for ancestor, kept in zip(path[:0:-1], path[-2::-1], strict=True):
            dropped = [c for c in self._nodes.pop(ancestor).children.values() if c != kept]
            while dropped:
                dropped.extend(self._nodes.pop(dropped.pop()).children.values())
        entry.parent = DEAD
        self.root = node

    def _child(self, node: int, token_id: int) -> int:
        """The interned child; the caller has checked that the token is legal."""
        entry = self._nodes[node]
        child = entry.children.get(token_id)
        if child is None:
            child = entry.children[token_id] = self._next_id
            self._nodes[child] = _Node(parent=node, token_id=token_id, depth=entry.depth + 1)
            self._next_id += 1
        return child

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
            raise GrammarError(self._error)

    def _mask(self, node: int) -> npt.NDArray[np.int32]:
        """The mask as the grammar alone has it: int32 [num_words], not to be modified."""
        entry = self._nodes[node]
        if entry.mask is None:
            if entry.is_ended:
                mask = np.zeros(self._vocabulary.num_words, dtype=np.int32)
            else:
                self._move(node)
                bitmask = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
                self._check(self._matcher)
                mask = bitmask[: self._vocabulary.num_words].copy()
            is_final = self.is_final(node)
            for token_id in self._vocabulary.eos_token_ids:
                mask[token_id >> 5] &= ~_BITS[token_id & 31]
                if is_final:
                    mask[token_id >> 5] |= _BITS[token_id & 31]
            entry.mask = mask
        return entry.mask

    def _is_allowed(self, node: int, token_id: int) -> bool:
        """Does the grammar alone allow this token (not an end-of-sequence id)?"""
        if not 0 <= token_id < self._vocabulary.vocab_size:
            return False
        mask = self._nodes[node].mask
        if mask is not None:
            return bool(mask[token_id >> 5] & _BITS[token_id & 31])
        if token_id in self._vocabulary.special_ids:
            return False
        # A tenth of a mask's cost, and unlike `consume_token` it leaves the matcher healthy.
        self._move(node)
        is_allowed = self._matcher.validate_tokens([token_id]) == 1
        self._check(self._matcher)
        return is_allowed

    def _run(self, node: int) -> tuple[int, ...]:
        entry = self._nodes[node]
        if entry.run is None:
            if entry.is_ended or not self._canonical:
                entry.run = ()
            else:
                if entry.forced_bytes is None:
                    self._move(node)
                    entry.forced_bytes = self._matcher.compute_ff_bytes()
                    self._check(self._matcher)
                entry.run = canonical_run(
                    entry.forced_bytes,
                    self._vocabulary,
                    lambda tokens, candidates: self._can_follow(node, tokens, candidates),
                )
        return entry.run

    def _inherit_run(self, parent: _Node, child: _Node) -> None:
        """Fill in the child behind the parent's forced token without moving the matcher."""
        if child.run is None and parent.run and parent.forced_bytes is not None:
            length = len(self._vocabulary.token_bytes[parent.run[0]])
            child.forced_bytes = parent.forced_bytes[length:] or None
            child.run = run_after_first(parent.forced_bytes, parent.run, self._vocabulary)

    def _can_follow(
        self, node: int, tokens: tuple[int, ...], candidates: npt.NDArray[np.int32]
    ) -> bool:
        for token_id in tokens:
            node = self._child(node, token_id)
        mask = self._mask(node)
        return bool(np.any(mask[candidates >> 5] & _BITS[candidates & 31]))


_BITS = (np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)  # 1 << i as int32
