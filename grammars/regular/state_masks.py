"""What is known of the states of one table: masks, allowed tokens, what is forced.

A state means the same to every request, so each answer is made once. Holes that another engine
fills are entry states without transitions: a token that reaches one and goes on is reported with
the bytes that are left of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specrt.grammars.base import DEAD
from specrt.grammars.regular.token_trie import NUM_BYTES
from specrt.grammars.regular.token_walk import TokenWalk
from specrt.grammars.vocabulary import BIT, Vocabulary

Mask = npt.NDArray[np.int32]

_MAX_MASK_BYTES = 64 << 20  # of one grammar; beyond it masks are made again
_MAX_MOVES = 1 << 20
_FEW = 64


class Crossing(NamedTuple):
    """A token that reaches a hole and goes on.

    Attributes:
        token_id: the token.
        entry: state of the hole.
        residue: its bytes from there on, at least one.
    """

    token_id: int
    entry: int
    residue: bytes


class StateMasks:
    """Masks and moves over one table. Not thread safe.

    Attributes:
        final: bool [num_states].
    """

    def __init__(
        self,
        table: npt.NDArray[np.int32],
        final: npt.NDArray[np.bool_],
        vocabulary: Vocabulary,
        *,
        symbol_ids: Sequence[int] = (),
        entries: Sequence[int] = (),
    ) -> None:
        """Take a table.

        Args:
            table: int32 [num_states, 256 + len(symbol_ids)], row 0 all 0 (dead).
            final: bool [num_states].
            vocabulary: the model's tokens.
            symbol_ids: special tokens that are symbols of the table, in the order of its columns.
            entries: states of holes that another engine fills; no transition leads out of them.
        """
        self.final = final
        self._table = np.ascontiguousarray(table, np.int32)
        self._flat = self._table.reshape(-1).data  # a third of the time of indexing the array
        self._vocabulary = vocabulary
        self._symbol_ids = tuple(symbol_ids)
        self._entries = frozenset(entries)
        # Made with the first mask: who only compiles needs neither.
        self._walk: TokenWalk | None = None
        self._beyond: TokenWalk | None = None
        self._only: tuple[list[int], list[int]] | None = None
        self._masks: dict[int, tuple[Mask, tuple[Crossing, ...]]] = {}
        self._allowed: dict[int, list[int] | None] = {}
        self._moves: dict[tuple[int, int], tuple[int, bytes | None]] = {}
        self._max_masks = max(_MAX_MASK_BYTES // (4 * vocabulary.num_words), 16)

    def mask(self, state: int) -> tuple[Mask, tuple[Crossing, ...]]:
        """The tokens that may come next.

        Returns:
            (int32 [num_words], not to be modified, end-of-sequence ids set iff the state is final;
            those of them that go beyond an entry, where only its engine can tell).
        """
        known = self._masks.get(state)
        if known is None:
            if len(self._masks) >= self._max_masks:
                self._masks.clear()
            known = self._masks[state] = self._make_mask(state)
        return known

    def allowed(self, state: int, limit: int) -> list[int] | None:
        """The allowed ids in ascending order where nothing crosses; None = more than `limit`."""
        if state not in self._allowed:
            self._allowed[state] = token_ids(self.mask(state)[0], _FEW)
        found = self._allowed[state]
        if limit > _FEW:
            return token_ids(self.mask(state)[0], limit)
        return None if found is None or len(found) > limit else found

    def advance(self, state: int, token_id: int) -> tuple[int, bytes | None]:
        """The state after a token.

        Returns:
            (state or DEAD, None), or (entry state, what is left of the token) at a hole.
        """
        key = (state, token_id)
        move = self._moves.get(key)
        if move is None:
            if len(self._moves) >= _MAX_MOVES:
                self._moves.clear()
            move = self._moves[key] = self._move(state, token_id)
        return move

    def walk(self, state: int, data: bytes) -> tuple[int, bytes | None]:
        """The state after some bytes, as `advance`."""
        flat, width, entries = self._flat, self._table.shape[1], self._entries
        if state in entries:
            return state, data
        if not entries:
            for byte in data:
                state = flat[state * width + byte]
            return state, None
        for offset, byte in enumerate(data, start=1):
            state = flat[state * width + byte]
            if state in entries:
                return state, data[offset:]
        return state, None

    def is_end(self, state: int) -> bool:
        """Does the output end here, whatever comes?"""
        return bool(self.final[state]) and not self._table[state].any()

    def forced_special(self, state: int) -> int | None:
        """The special token that must come next, if one must."""
        if self.final[state] or self._table[state, :NUM_BYTES].any():
            return None
        symbols = np.flatnonzero(self._table[state, NUM_BYTES:])
        return self._symbol_ids[int(symbols[0])] if len(symbols) == 1 else None

    def forced_bytes(self, state: int, limit: int) -> tuple[bytes, int]:
        """The bytes that must come next, at most `limit`, and the state behind them."""
        if self._only is None:
            self._only = _only_edges(self._table, self.final)
        only, after = self._only
        forced = bytearray()
        while len(forced) < limit and only[state] >= 0:  # no edge leads out of an entry
            forced.append(only[state])
            state = after[state]
        return bytes(forced), state

    def _move(self, state: int, token_id: int) -> tuple[int, bytes | None]:
        vocabulary = self._vocabulary
        if token_id in self._symbol_ids:
            after = int(self._table[state, NUM_BYTES + self._symbol_ids.index(token_id)])
            return (after, b"") if after in self._entries else (after, None)
        if not 0 <= token_id < vocabulary.vocab_size or not vocabulary.token_bytes[token_id]:
            return DEAD, None
        return self.walk(state, vocabulary.token_bytes[token_id])

    def _make_mask(self, state: int) -> tuple[Mask, tuple[Crossing, ...]]:
        if self._walk is None:
            self._walk = TokenWalk(self._table, self._vocabulary)
            if self._entries:
                self._beyond = self._make_beyond()
        mask = self._walk.mask(state)
        crossing: list[Crossing] = []
        if self._beyond is not None:
            wide = self._beyond.mask(state)
            for token_id in token_ids(wide & ~mask, 1 << 31) or ():
                entry, residue = self._move(state, token_id)
                if residue:
                    crossing.append(Crossing(token_id, entry, residue))
                    mask[token_id >> 5] |= BIT[token_id & 31]
        for column, token_id in enumerate(self._symbol_ids, start=NUM_BYTES):
            if self._table[state, column]:
                mask[token_id >> 5] |= BIT[token_id & 31]
        if self.final[state]:
            mask |= self._vocabulary.eos_mask
        return mask, tuple(crossing)

    def _make_beyond(self) -> TokenWalk:
        """The same table with whatever follows an entry: tells which tokens go beyond one."""
        anything = len(self._table)
        row = np.full((1, self._table.shape[1]), anything, dtype=np.int32)
        row[:, NUM_BYTES:] = DEAD
        table = np.concatenate([self._table, row])
        table[list(self._entries)] = row
        return TokenWalk(table, self._vocabulary)


def _only_edges(
    table: npt.NDArray[np.int32], final: npt.NDArray[np.bool_]
) -> tuple[list[int], list[int]]:
    """By state, the one byte that must come (-1 = there is a choice), and the state behind it."""
    is_edge = table != DEAD
    edges = is_edge.argmax(axis=1)
    is_only = (np.count_nonzero(is_edge, axis=1) == 1) & ~final & (edges < NUM_BYTES)
    after = np.take_along_axis(table, edges[:, None], axis=1)[:, 0]
    return np.where(is_only, edges, -1).tolist(), after.tolist()


def token_ids(mask: Mask, limit: int) -> list[int] | None:
    """The set bits in ascending order, or None when there are more than `limit`."""
    if int.from_bytes(mask.tobytes(), "little").bit_count() > limit:
        return None
    words = np.flatnonzero(mask)
    bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(-1, 32)
    rows, offsets = np.nonzero(bits)
    ids: list[int] = (words[rows] * 32 + offsets).tolist()
    return ids
