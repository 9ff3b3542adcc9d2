"""The walks of a table over a token trie, compiled by numba.

Importing this module compiles it, or loads what an earlier process compiled: token_walk.py imports
it when the first table is taken, and does without it where numba is not installed.

State 0 is dead. Tokens are set as bits of uint32 words and never cleared. A trie is passed as five
arrays: node_byte, node_depth, subtree_end, node_word, node_bit (see `TokenTrie`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit, types

Function = TypeVar("Function", bound=Callable[..., Any])
Ints = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Depths = npt.NDArray[np.uint16]

MAX_CHARACTERS = 32  # of a class's tokens that are known beforehand; longer ones are walked
ASCII = 128

_WORDS = types.uint32[::1]
_SCRATCH = types.int32[::1]
_INT = types.int64


def _read_only(scalar: Any, dimensions: int) -> Any:
    return types.Array(scalar, dimensions, "C", readonly=True)


_ROW = _read_only(types.int32, 1)
_TABLE = _read_only(types.int32, 2)
_TRIE = (
    _read_only(types.uint8, 1),
    _read_only(types.uint16, 1),
    _read_only(types.int32, 1),
    _read_only(types.int32, 1),
    _read_only(types.uint32, 1),
)


def _compiled(signature: Any) -> Callable[[Function], Function]:
    decorator: Callable[[Function], Function] = njit(signature, cache=True, nogil=True)
    return decorator


@_compiled(types.void(_TABLE, _INT, _INT, _INT, *_TRIE, _SCRATCH, _WORDS))
def walk_nodes(
    table: Ints,
    state: int,
    first: int,
    end: int,
    node_byte: Bytes,
    node_depth: Depths,
    subtree_end: Ints,
    node_word: Ints,
    node_bit: Words,
    stack: Ints,
    out: Words,
) -> None:
    """Set the tokens at the nodes [first, end), whole subtrees of siblings, that a table lets by.

    `state` stands before the edges into the siblings; `stack` is scratch, int32 [max_depth + 1].
    """
    # Unsigned numbers: numba lets signed ones count from the end, which costs a quarter.
    node, last = np.uint64(first), np.uint64(end)
    if node < last:
        stack[np.uint64(node_depth[node])] = state
    while node < last:
        depth = np.uint64(node_depth[node])
        after = table[np.uint64(stack[depth]), np.uint64(node_byte[node])]
        if after == 0:
            node = np.uint64(subtree_end[node])
            continue
        out[np.uint64(node_word[node])] |= node_bit[node]
        stack[depth + np.uint64(1)] = after
        node += np.uint64(1)


@_compiled(
    types.int64(_TABLE, *_TRIE, _SCRATCH, _SCRATCH, _SCRATCH, _SCRATCH, types.uint32[:, ::1])
)
def walk_class(
    characters: Ints,
    node_byte: Bytes,
    node_depth: Depths,
    subtree_end: Ints,
    node_word: Ints,
    node_bit: Words,
    stack: Ints,
    begun: Ints,
    exits: Ints,
    exit_characters: Ints,
    masks: Words,
) -> int:
    """Set the tokens that are made of a class of characters, and list where others leave it.

    Args:
        characters: automaton of any number of characters of the class; state 1 is between them.
        node_byte: of the trie, as the next four.
        node_depth: see TokenTrie.
        subtree_end: see TokenTrie.
        node_word: see TokenTrie.
        node_bit: see TokenTrie.
        stack: scratch, int32 [max_depth + 1].
        begun: scratch, int32 [max_depth + 1].
        exits: int32 [N], filled: nodes whose edge begins a character outside of the class, or one
            more than MAX_CHARACTERS.
        exit_characters: int32 [N], filled: characters above each exit.
        masks: uint32 [MAX_CHARACTERS + 1, num_words]; row n gets the tokens of n characters, the
            last one whole or not.

    Returns:
        The number of exits.
    """
    num_exits = 0
    node = 0
    stack[0] = 1
    begun[0] = 0
    while node < len(node_byte):
        depth = node_depth[node]
        before = stack[depth]
        after = characters[before, node_byte[node]]
        if before == 1 and (after == 0 or begun[depth] == MAX_CHARACTERS):
            exits[num_exits] = node
            exit_characters[num_exits] = begun[depth]
            num_exits += 1
            after = 0
        if after == 0:
            node = subtree_end[node]
            continue
        begun[depth + 1] = begun[depth] + (1 if before == 1 else 0)
        stack[depth + 1] = after
        masks[begun[depth + 1], node_word[node]] |= node_bit[node]
        node += 1
    return num_exits


@_compiled(types.void(_TABLE, _ROW, _INT, _ROW, _ROW, *_TRIE, _SCRATCH, _WORDS))
def walk_exits(
    table: Ints,
    chain: Ints,
    length: int,
    exits: Ints,
    exit_characters: Ints,
    node_byte: Bytes,
    node_depth: Depths,
    subtree_end: Ints,
    node_word: Ints,
    node_bit: Words,
    stack: Ints,
    out: Words,
) -> None:
    """Set the tokens that leave a class after at most `length` characters, chain[n] after n."""
    for place in range(len(exits)):
        if exit_characters[place] > length:
            continue
        node = exits[place]
        state = chain[exit_characters[place]]
        if table[state, node_byte[node]] != 0:
            walk_nodes(
                table,
                state,
                node,
                subtree_end[node],
                node_byte,
                node_depth,
                subtree_end,
                node_word,
                node_bit,
                stack,
                out,
            )


@_compiled(types.boolean(_TABLE, _INT, _INT, _TABLE))
def leads_over_text(table: Ints, state: int, target: int, utf8: Ints) -> bool:
    """Does every character beyond ASCII lead from `state` to `target`, and no other bytes on?

    The table need not be minimal: several states may stand for one place inside a character.
    """
    most = 64
    places = np.empty(most, np.int32)
    states = np.empty(most, np.int32)
    places[0] = 1
    states[0] = state
    count = 1
    at = 0
    while at < count:
        place = places[at]
        before = states[at]
        at += 1
        for byte in range(ASCII if place == 1 else 0, 256):
            after = table[before, byte]
            next_place = utf8[place, byte]
            if (after == 0) != (next_place == 0) or (next_place == 1 and after != target):
                return False
            if next_place <= 1:
                continue
            is_known = False
            for other in range(count):
                if places[other] == next_place and states[other] == after:
                    is_known = True
                    break
            if not is_known:
                if count == most:
                    return False
                places[count] = next_place
                states[count] = after
                count += 1
    return True


@_compiled(types.int64(_TABLE, _INT, _TABLE, _INT, types.uint8[::1], _SCRATCH))
def find_chain(
    table: Ints, state: int, utf8: Ints, min_members: int, members: Bytes, chain: Ints
) -> int:
    """Find the class of characters that lead on from a state, and how often it does.

    Args:
        table: the table.
        state: where to begin.
        utf8: automaton of UTF-8 text, state 1 between characters.
        min_members: fewest ASCII characters of a class.
        members: uint8 [129], filled: 1 for each ASCII character of the class; the last one for all
            characters beyond ASCII together.
        chain: int32 [MAX_CHARACTERS + 1], filled: the state after n characters, whichever they are.

    Returns:
        The most characters, at most MAX_CHARACTERS; -1 when there is no such class, or characters
        of it are still allowed where others of it no longer are.
    """
    for candidate in (ord("a"), ord("A"), ord("0")):
        after = table[state, candidate]
        count = 0
        for byte in range(ASCII):
            members[byte] = after != 0 and table[state, byte] == after
            count += members[byte]
        if count >= min_members:
            break
    if count < min_members:
        return -1
    members[ASCII] = leads_over_text(table, state, after, utf8)
    chain[0] = state
    length = 0
    while length < MAX_CHARACTERS:
        before = chain[length]
        length += 1
        chain[length] = after
        if after == before:
            for place in range(length, MAX_CHARACTERS + 1):
                chain[place] = after
            return MAX_CHARACTERS
        before = after
        after = table[before, candidate]
        is_same = after != 0
        is_dead = True
        for byte in range(ASCII):
            if members[byte] == 1 and table[before, byte] != 0:
                is_dead = False
            if (after != 0 and table[before, byte] == after) != (members[byte] == 1):
                is_same = False
        if members[ASCII] == 1:
            for byte in range(ASCII, 256):
                if table[before, byte] != 0:
                    is_dead = False
        if is_same and leads_over_text(table, before, after, utf8) != (members[ASCII] == 1):
            is_same = False
        if length < MAX_CHARACTERS and not is_same:
            return length if is_dead else -1
    return length
