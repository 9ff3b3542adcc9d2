"""Token masks and moves of the states of a table, by walks over the trie of a vocabulary.

Inside a string nearly every token is allowed, and which character it is makes no difference. So the
tokens that a class of characters makes up are found once per class and vocabulary. A state where
all characters of the class lead on to one state, and from there again, takes those tokens as they
are and walks only where a token leaves the class: where it holds a quote or a backslash.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from specrt.grammars.base import DEAD
from specrt.grammars.regular.token_trie import NUM_BYTES, TokenTrie, trie_of
from specrt.grammars.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

# Over fewer ASCII characters than this the plain walk is soon done.
_MIN_MEMBERS = 48
_MAX_CLASSES = 32  # kept per vocabulary; a class takes 0.2 MB at 49k tokens, 0.6 MB at 152k

_ASCII = 128
_STRING = bytes(byte >= 0x20 and byte not in b'"\\' for byte in range(_ASCII)) + b"\1"

Mask = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint32]
Table = npt.NDArray[np.int32]


class TokenWalk:
    """Masks and moves over one table. Safe between threads."""

    def __init__(self, table: Table, vocabulary: Vocabulary) -> None:
        """Take a table.

        Args:
            table: int32 [num_states, 256 or more], row 0 all 0 (dead); not to be modified. Columns
                from 256 on are not looked at.
            vocabulary: the model's tokens.
        """
        self._table = np.ascontiguousarray(table, np.int32)
        self._flat = self._table.reshape(-1).data
        self._width = table.shape[1]
        self._filler = filler_of(vocabulary)

    def mask(self, state: int) -> Mask:
        """The tokens whose bytes may come next: a new int32 [num_words].

        Special tokens, those that end the output included, are never set.
        """
        return self._filler.mask(self._table, state).view(np.int32)

    def walk(self, state: int, data: bytes) -> int:
        """The state after some bytes, DEAD when they are not allowed."""
        flat, width = self._flat, self._width
        for byte in data:
            state = flat[state * width + byte]
        return state


@dataclass(frozen=True, slots=True, eq=False)
class _ClassTokens:
    """What a class of characters makes of a vocabulary.

    Attributes:
        masks: uint32 [n + 1, num_words]; row i has the tokens of at most i characters of the class.
        exits: int32 [m], trie nodes whose edge begins a character outside of it, or one too many.
        exit_characters: int32 [m], the characters above each exit.
    """

    masks: Words
    exits: npt.NDArray[np.int32]
    exit_characters: npt.NDArray[np.int32]


class MaskFiller:
    """Masks of the states of any tables over one trie. Safe between threads."""

    def __init__(self, trie: TokenTrie) -> None:
        """Prepare what JSON strings need; other classes are prepared when they are met."""
        self._trie = trie
        self._kernel = _load_kernel()
        self._classes: dict[bytes, _ClassTokens] = {}
        self._arrays: tuple[npt.NDArray[Any], ...] = (
            trie.node_byte,
            trie.node_depth,
            trie.subtree_end,
            trie.node_word,
            trie.node_bit,
        )
        if self._kernel is not None:
            self._class_tokens(_STRING)

    def mask(self, table: Table, state: int) -> Words:
        """The tokens whose bytes may follow a state: a new uint32 [num_words].

        Args:
            table: int32 [num_states, 256 or more], C order, row 0 all 0.
            state: below num_states.
        """
        trie, kernel = self._trie, self._kernel
        if kernel is None or not len(trie.node_byte):
            return plain_mask(table, state, trie)
        stack = np.empty(trie.max_depth + 1, np.int32)
        members = np.empty(_ASCII + 1, np.uint8)
        chain = np.empty(kernel.MAX_CHARACTERS + 1, np.int32)
        length = kernel.find_chain(table, state, _utf8_table(), _MIN_MEMBERS, members, chain)
        if length >= 0:
            tokens = self._class_tokens(members.tobytes())
            out: Words = tokens.masks[length].copy()
            exits = (tokens.exits, tokens.exit_characters)
            kernel.walk_exits(table, chain, length, *exits, *self._arrays, stack, out)
        else:
            out = np.zeros(trie.num_words, np.uint32)
            kernel.walk_nodes(table, state, 0, len(trie.node_byte), *self._arrays, stack, out)
        _set_twins(trie, out)
        return out

    def _class_tokens(self, members: bytes) -> _ClassTokens:
        tokens = self._classes.get(members)
        if tokens is None:
            if len(self._classes) >= _MAX_CLASSES:
                self._classes.clear()
            tokens = self._classes[members] = self._find_class_tokens(members)
        return tokens

    def _find_class_tokens(self, members: bytes) -> _ClassTokens:
        trie, kernel = self._trie, self._kernel
        assert kernel is not None
        characters = _utf8_table().copy()
        if not members[_ASCII]:
            characters[1] = DEAD
        characters[1, :_ASCII] = np.frombuffer(members, np.uint8)[:_ASCII]
        stack, begun = np.empty((2, trie.max_depth + 1), np.int32)
        exits, exit_characters = np.empty((2, len(trie.node_byte)), np.int32)
        masks = np.zeros((kernel.MAX_CHARACTERS + 1, trie.num_words), np.uint32)
        count = kernel.walk_class(
            characters, *self._arrays, stack, begun, exits, exit_characters, masks
        )
        np.bitwise_or.accumulate(masks, axis=0, out=masks)
        return _ClassTokens(masks, exits[:count].copy(), exit_characters[:count].copy())


def filler_of(vocabulary: Vocabulary) -> MaskFiller:
    """The filler of a vocabulary; made once."""
    filler = _fillers.get(vocabulary)
    if filler is None:
        filler = _fillers[vocabulary] = MaskFiller(trie_of(vocabulary))
    return filler


_fillers: WeakKeyDictionary[Vocabulary, MaskFiller] = WeakKeyDictionary()


def plain_mask(table: Table, state: int, trie: TokenTrie) -> Words:
    """`MaskFiller.mask` in numpy, a level of the trie at a time: the twin of the compiled walks.

    It takes milliseconds whatever the state. For tests, and where numba is not installed.
    """
    num_nodes = len(trie.node_byte)
    states = np.zeros(num_nodes + 1, np.int32)
    states[-1] = state  # the root is the parent -1
    for level in trie.levels:
        states[level] = table[states[trie.parent[level]], trie.node_byte[level]]
    alive = np.flatnonzero(states[:num_nodes])
    out = np.zeros(trie.num_words, np.uint32)
    np.bitwise_or.at(out, trie.node_word[alive], trie.node_bit[alive])
    _set_twins(trie, out)
    return out


def _set_twins(trie: TokenTrie, out: Words) -> None:
    """Allow tokens whose bytes equal those of an allowed one."""
    if len(trie.twins):
        first, second = trie.twins.T
        is_set = (out[first >> 5] >> (first & 31).astype(np.uint32)) & np.uint32(1)
        np.bitwise_or.at(out, second >> 5, is_set << (second & 31).astype(np.uint32))


@cache
def _load_kernel() -> ModuleType | None:
    """The compiled walks; numba is loaded here and not before, since it takes half a second."""
    try:
        return import_module("specrt.grammars.regular.walk_kernel")
    except ImportError:
        logger.warning("numba is not installed: the first mask of a state takes milliseconds")
        return None


@cache
def _utf8_table() -> Table:
    """The automaton of UTF-8 text: 0 dead, 1 between characters, 2 to 8 inside one."""
    table = np.zeros((9, NUM_BYTES), np.int32)
    table[1, :0x80] = 1
    table[1, 0xC2:0xE0], table[2, 0x80:0xC0] = 2, 1
    table[1, 0xE0:0xF0], table[3, 0x80:0xC0] = 3, 2
    table[1, 0xE0], table[4, 0xA0:0xC0] = 4, 2
    table[1, 0xED], table[5, 0x80:0xA0] = 5, 2  # no surrogates
    table[1, 0xF0], table[6, 0x90:0xC0] = 6, 3
    table[1, 0xF1:0xF4], table[7, 0x80:0xC0] = 7, 3
    table[1, 0xF4], table[8, 0x80:0x90] = 8, 3
    return table
