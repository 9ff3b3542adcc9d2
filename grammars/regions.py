"""Whole turns: one byte automaton, with values in its holes run by whichever engine has them.

A regular value is filled into its hole: then a node is a state of one table, shared by all requests
of the grammar, and what is known of it is kept once. A value of llguidance's is entered and left:
its nodes belong to the request. Tokens may lie across either border. llguidance allows anything
behind its value; where the value ends is found by counting brackets, and what follows is the
automaton's again.

Narrowing to canonical tokens happens here, for both engines by the same function of the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specrt.errors import GrammarError
from specrt.grammars.base import DEAD, Unenforced
from specrt.grammars.canonical import WINDOW_BYTES, canonical_run
from specrt.grammars.json_scan import Scan, scan
from specrt.grammars.llguidance_engine import MatcherArena, MatcherPrototype
from specrt.grammars.regular.automaton import Automaton
from specrt.grammars.regular.state_masks import StateMasks, token_ids
from specrt.grammars.turn_automaton import NUM_BYTES, Hole, TurnAutomaton
from specrt.grammars.vocabulary import BIT, Vocabulary

Mask = npt.NDArray[np.int32]
Value = Automaton | MatcherPrototype


@dataclass(frozen=True, slots=True)
class _Entry:
    """A hole that llguidance fills."""

    prototype: MatcherPrototype
    exit: int


class TurnGrammar:
    """A compiled turn. See `Grammar` for the contract.

    Attributes:
        engine: "outlines", "llguidance", or both joined by "+".
        unenforced: what the grammar does not enforce.
        num_states: of the automaton.
        num_bytes: memory of its tables, without masks.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        turn: TurnAutomaton,
        values: Sequence[Value],
        *,
        unenforced: tuple[Unenforced, ...] = (),
        canonical: bool = True,
    ) -> None:
        """Put values into the holes of a turn.

        Args:
            vocabulary: the model's tokens.
            turn: with as many holes as there are values.
            values: regular ones as automata. A matcher's grammar lets anything follow the value,
                unless the turn ends with it.
            unenforced: what the values leave out.
            canonical: narrow forced text to its canonical tokens.
        """
        self.unenforced = unenforced
        self.vocabulary = vocabulary
        self.is_canonical = canonical
        table, final = _fill(turn, values)
        self.entries: Mapping[int, _Entry] = {
            hole.entry: _Entry(value, hole.exit)
            for hole, value in zip(turn.holes, values, strict=True)
            if isinstance(value, MatcherPrototype)
        }
        self.states = StateMasks(
            table,
            final,
            vocabulary,
            symbol_ids=[vocabulary.special_texts[text] for text in turn.specials],
            entries=tuple(self.entries),
        )
        self.start = turn.start
        kinds = {
            "llguidance" if isinstance(value, MatcherPrototype) else "outlines" for value in values
        }
        self.engine = "+".join(sorted(kinds, reverse=True)) or "outlines"
        self.num_states = len(table)
        self.num_bytes = table.nbytes
        self.runs: dict[int, tuple[int, ...]] = {}  # canonical runs of states
        self.blocked: dict[tuple[int, Scan], Mask] = {}  # tokens that leave a value the wrong way

    def open(self) -> TurnState:
        """A state at the start of the output."""
        return TurnState(self)


def _fill(
    turn: TurnAutomaton, values: Sequence[Value]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """One table of the turn and all its regular values."""
    tables, finals = [turn.table.copy()], [turn.final.copy()]
    num_states, width = turn.table.shape
    for hole, value in zip(turn.holes, values, strict=True):
        if isinstance(value, MatcherPrototype):
            continue
        # State s of the value becomes num_states + s - 1: its own dead state is not needed.
        renamed = np.arange(len(value.table), dtype=np.int32) + np.int32(num_states - 1)
        renamed[DEAD] = DEAD
        ends = np.flatnonzero(value.final)
        goes_on = value.table[ends].any(axis=1)  # a number may end or go on
        if goes_on.any() and not _is_end(turn, hole):
            raise ValueError("expected a value that shows its own end")
        renamed[ends[~goes_on]] = hole.exit
        final = np.zeros(len(value.table), dtype=np.bool_)
        final[ends[goes_on]] = True
        tables[0][hole.entry, :NUM_BYTES] = renamed[value.table[value.start]]
        tables.append(_widened(renamed[value.table[1:]], width))
        finals.append(final[1:])
        num_states += len(value.table) - 1
    return np.concatenate(tables), np.concatenate(finals)


def _widened(table: npt.NDArray[np.int32], width: int) -> npt.NDArray[np.int32]:
    """With columns of special tokens, which no value has."""
    return np.pad(table, ((0, 0), (0, width - table.shape[1]))) if width > NUM_BYTES else table


def _is_end(turn: TurnAutomaton, hole: Hole) -> bool:
    return bool(turn.final[hole.exit]) and not turn.table[hole.exit].any()


@dataclass(frozen=True, slots=True)
class _Inside:
    """A node inside a value of llguidance's."""

    arena: MatcherArena
    node: int
    entry: _Entry
    at: Scan


class TurnState:
    """One request's nodes. Not thread safe. See `GrammarState` for the contract.

    A node below `grammar.num_states` is a state of the automaton, the next one stands for an output
    that has ended, all above are inside values of llguidance's.

    Attributes:
        root: the node of the committed output.
    """

    def __init__(self, grammar: TurnGrammar) -> None:
        self._grammar = grammar
        self._vocabulary = grammar.vocabulary
        self._states = grammar.states
        self._ended = grammar.num_states
        self._next_id = self._ended + 1
        self._inside: dict[int, _Inside] = {}
        self._ids: dict[tuple[MatcherArena, int], int] = {}
        self._arenas: dict[int, MatcherArena] = {}  # entry state -> of values not committed yet
        self._runs: dict[int, tuple[int, ...]] = {}  # of nodes inside
        start = grammar.start
        self.root = self._enter(start, b"") if start in grammar.entries else start

    @property
    def num_nodes(self) -> int:
        """Nodes alive that are this request's own."""
        return len(self._inside)

    def advance(self, node: int, token_id: int) -> int:
        """The node after `token_id`, or DEAD when the node's mask forbids it. Never raises."""
        if node > self._ended and node not in self._inside:
            return DEAD
        try:
            if token_id in self._vocabulary.eos_token_ids:
                return self._ended if self.is_final(node) else DEAD
            run = self._run(node)
            if run:
                return self._advance(node, token_id) if token_id == run[0] else DEAD
            return self._advance(node, token_id)
        except GrammarError:
            return DEAD

    def masks(self, nodes: Sequence[int], out: Mask) -> None:
        """Write one token bitmask row per node: int32 [n, ceil(vocab_size / 32)].

        Raises:
            GrammarError: the grammar cannot go on.
        """
        for row, node in zip(out, nodes, strict=True):
            run = self._run(node)
            if run:
                row[:] = 0
                row[run[0] >> 5] = BIT[run[0] & 31]
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
        if node < self._ended and not self._states.mask(node)[1]:
            return self._states.allowed(node, limit)
        return token_ids(self._mask(node), limit)

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
        if node < self._ended:
            return bool(self._states.final[node])
        inside = self._inside.get(node)
        if inside is None:
            return node == self._ended
        return self._is_last(inside) and inside.arena.is_final(inside.node)

    def commit(self, node: int) -> None:
        """Make `node` the root; nodes that do not descend from it are gone.

        Raises:
            GrammarError: the grammar cannot go on.
        """
        inside = self._inside.get(node)
        self._arenas.clear()  # values that were looked into, but not written
        kept: dict[int, _Inside] = {}
        if inside is not None:
            arena = inside.arena
            arena.commit(inside.node)
            kept = {i: n for i, n in self._inside.items() if n.arena is arena and n.node in arena}
        self._inside = kept
        self._ids = {(n.arena, n.node): i for i, n in kept.items()}
        self._runs = {i: run for i, run in self._runs.items() if i in kept}
        self.root = node

    def _is_last(self, inside: _Inside) -> bool:
        """Does the turn end with this value? Then its grammar lets nothing follow."""
        return self._states.is_end(inside.entry.exit)

    def _advance(self, node: int, token_id: int) -> int:
        """As the grammar alone has it, for tokens other than end-of-sequence ones."""
        inside = self._inside.get(node)
        if inside is None:
            if node >= self._ended:
                return DEAD
            after, residue = self._states.advance(node, token_id)
            return self._enter(after, residue) if residue is not None else after
        after = inside.arena.advance(inside.node, token_id)
        if after == DEAD:
            return DEAD
        data = self._vocabulary.token_bytes[token_id]
        at, end = scan(data, inside.at)
        if end < 0 or self._is_last(inside):
            return self._intern(inside.arena, after, inside.entry, at)
        return self._walk(inside.entry.exit, data[end:])

    def _walk(self, state: int, data: bytes) -> int:
        """From a state of the automaton over bytes."""
        after, residue = self._states.walk(state, data)
        return self._enter(after, residue) if residue is not None else after

    def _enter(self, entry_state: int, data: bytes) -> int:
        """Into a value of llguidance's with the first bytes of it, possibly all."""
        entry = self._grammar.entries[entry_state]
        arena = self._arenas.get(entry_state)
        if arena is None:
            arena = self._arenas[entry_state] = entry.prototype.open()
        node, (at, end) = arena.root, scan(data, Scan())
        pieces = self._vocabulary.pieces(data)
        if pieces is None:
            return DEAD
        for token_id in pieces:
            node = arena.advance(node, token_id)
            if node == DEAD:
                return DEAD
        if end < 0 or self._states.is_end(entry.exit):
            return self._intern(arena, node, entry, at)
        return self._walk(entry.exit, data[end:])

    def _intern(self, arena: MatcherArena, node: int, entry: _Entry, at: Scan) -> int:
        key = (arena, node)
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = self._next_id
            self._inside[known] = _Inside(arena, node, entry, at)
            self._next_id += 1
        return known

    def _mask(self, node: int) -> Mask:
        """The mask as the grammar alone has it: int32 [num_words], not to be modified."""
        inside = self._inside.get(node)
        if inside is None:
            if node >= self._ended:
                return self._vocabulary.eos_mask
            mask, crossing = self._states.mask(node)
            if crossing:
                mask = mask.copy()
                for token_id, entry_state, residue in crossing:
                    if self._enter(entry_state, residue) == DEAD:
                        mask[token_id >> 5] &= ~BIT[token_id & 31]
            return mask
        mask = inside.arena.mask(inside.node)
        if self._is_last(inside):
            return mask | self._vocabulary.eos_mask if inside.arena.is_final(inside.node) else mask
        if inside.at.depth > self._vocabulary.max_closings:
            return mask
        return mask & ~self._blocked(inside)

    def _blocked(self, inside: _Inside) -> Mask:
        """Tokens that close the value and go on in a way that the turn forbids."""
        key = (inside.entry.exit, inside.at)
        blocked = self._grammar.blocked.get(key)
        if blocked is None:
            blocked = np.zeros(self._vocabulary.num_words, dtype=np.int32)
            for token_id in self._vocabulary.closing_ids:
                data = self._vocabulary.token_bytes[token_id]
                _, end = scan(data, inside.at)
                if end >= 0 and self._walk(inside.entry.exit, data[end:]) == DEAD:
                    blocked[token_id >> 5] |= BIT[token_id & 31]
            self._grammar.blocked[key] = blocked
        return blocked

    def _run(self, node: int) -> tuple[int, ...]:
        if not self._grammar.is_canonical:
            return ()
        runs = self._grammar.runs if node < self._ended else self._runs
        run = runs.get(node)
        if run is None:
            run = runs[node] = self._make_run(node)
        return run

    def _make_run(self, node: int) -> tuple[int, ...]:
        if node == self._ended:
            return ()
        if node < self._ended:
            special = self._states.forced_special(node)
            if special is not None:
                return (special,)
        return canonical_run(
            self._forced_bytes(node),
            self._vocabulary,
            lambda tokens, candidates: self._can_follow(node, tokens, candidates),
        )

    def _forced_bytes(self, node: int) -> bytes:
        """What every output from here on continues with, as far as it is looked at."""
        forced = b""
        inside = self._inside.get(node)
        if inside is not None:
            forced = inside.arena.forced_bytes(inside.node)
            at, end = scan(forced, inside.at)
            if end != len(forced) or self._is_last(inside):
                return forced
            node = inside.entry.exit
        more, node = self._states.forced_bytes(node, max(WINDOW_BYTES + 1 - len(forced), 0))
        forced += more
        if node in self._grammar.entries:
            forced += self._forced_bytes(self._enter(node, b""))
        return forced

    def _can_follow(
        self, node: int, tokens: tuple[int, ...], candidates: npt.NDArray[np.int32]
    ) -> bool:
        for token_id in tokens:
            node = self._advance(node, token_id)
        mask = self._mask(node)
        return bool(np.any(mask[candidates >> 5] & BIT[candidates & 31]))
