"""The tokens of a vocabulary as a trie over their bytes, laid out for walks without recursion.

Nodes are numbered in pre-order, so a subtree is a range of nodes. Special tokens have no bytes and
are not in it: where a table has them, they are its columns from NUM_BYTES on, one symbol each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from specrt.grammars.regular.automaton import NUM_BYTES
from specrt.grammars.vocabulary import Vocabulary

__all__ = ["NUM_BYTES", "TokenTrie", "build_trie", "trie_of"]


@dataclass(frozen=True, slots=True, eq=False)
class TokenTrie:
    """A trie whose root is not a node.

    Attributes:
        node_byte: uint8 [N], the byte on the edge into a node.
        node_depth: uint16 [N], bytes above that edge: 0 for children of the root.
        subtree_end: int32 [N], the first node behind a node's subtree.
        node_word: int32 [N], the word of a bitmask row that holds the token that ends at a node.
        node_bit: uint32 [N], its bit there; 0 where no token ends.
        twins: int32 [n, 2], ids (a, b) of equal bytes; b has no node, and is allowed where a is.
        parent: int32 [N], the node above, -1 for children of the root.
        levels: the nodes of each depth, ascending.
        max_depth: bytes of the longest token.
        num_words: int32 words of one token bitmask row.
    """

    node_byte: npt.NDArray[np.uint8]
    node_depth: npt.NDArray[np.uint16]
    subtree_end: npt.NDArray[np.int32]
    node_word: npt.NDArray[np.int32]
    node_bit: npt.NDArray[np.uint32]
    twins: npt.NDArray[np.int32]
    parent: npt.NDArray[np.int32]
    levels: tuple[npt.NDArray[np.int64], ...]
    max_depth: int
    num_words: int


def trie_of(vocabulary: Vocabulary) -> TokenTrie:
    """The trie of a vocabulary; made once."""
    trie = _tries.get(vocabulary)
    if trie is None:
        trie = _tries[vocabulary] = build_trie(vocabulary.token_bytes)
    return trie


_tries: WeakKeyDictionary[Vocabulary, TokenTrie] = WeakKeyDictionary()


def build_trie(token_bytes: Sequence[bytes]) -> TokenTrie:
    """Build a trie.

    Args:
        token_bytes: by token id; ids with b"" are left out.
    """
    ids = sorted((i for i, text in enumerate(token_bytes) if text), key=token_bytes.__getitem__)
    lengths = np.array([len(token_bytes[i]) for i in ids], np.int64)
    flat = np.frombuffer(b"".join([token_bytes[i] for i in ids]), np.uint8)
    offsets = np.cumsum(lengths) - lengths
    shared = _shared_prefixes(flat, offsets, lengths)
    # Each token adds the nodes of the bytes that it does not share with the one before.
    num_new = lengths - shared
    num_nodes = int(num_new.sum())
    first_new = np.cumsum(num_new) - num_new
    depth = np.arange(num_nodes) - np.repeat(first_new - shared, num_new)
    node_byte = flat[np.repeat(offsets, num_new) + depth]
    has_own_node = num_new > 0
    ends_at = (first_new + num_new - 1)[has_own_node]
    token_ids = np.array(ids, np.int32)
    firsts = token_ids[np.maximum.accumulate(np.where(has_own_node, np.arange(len(ids)), 0))]
    node_token = np.zeros(num_nodes, np.int32)
    node_token[ends_at] = token_ids[has_own_node]
    node_bit = np.zeros(num_nodes, np.uint32)
    node_bit[ends_at] = np.uint32(1) << (node_token[ends_at] & 31).astype(np.uint32)
    levels = _levels(depth)
    parent, subtree_end = _relations(levels, num_nodes)
    return TokenTrie(
        node_byte=node_byte,
        node_depth=depth.astype(np.uint16),
        subtree_end=subtree_end,
        node_word=node_token >> 5,
        node_bit=node_bit,
        twins=np.stack([firsts, token_ids], axis=1)[~has_own_node],
        parent=parent,
        levels=levels,
        max_depth=int(lengths.max(initial=0)),
        num_words=(len(token_bytes) + 31) // 32,
    )


def _shared_prefixes(
    flat: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """For each text, the bytes it shares with the one before it."""
    shared = np.zeros(len(lengths), np.int64)
    same = np.arange(1, len(lengths))
    depth = 0
    while len(same):
        same = same[(lengths[same] > depth) & (lengths[same - 1] > depth)]
        same = same[flat[offsets[same] + depth] == flat[offsets[same - 1] + depth]]
        depth += 1
        shared[same] = depth
    return shared


def _levels(depth: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    """The nodes of each depth, ascending."""
    if not len(depth):
        return ()
    by_depth = np.argsort(depth, kind="stable")
    return tuple(np.split(by_depth, np.cumsum(np.bincount(depth))[:-1]))


def _relations(
    levels: tuple[npt.NDArray[np.int64], ...], num_nodes: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Each node's parent, and the first node behind its subtree."""
    parent = np.full(num_nodes, -1, np.int32)
    end = np.empty(num_nodes, np.int32)
    above = np.zeros(0, np.int64)
    for level in levels:
        behind = np.append(level[1:], num_nodes)  # the next sibling, or where the parent's ends
        if len(above):
            parent[level] = above[np.searchsorted(above, level) - 1]
            behind = np.minimum(behind, end[parent[level]])
        end[level] = behind
        above = level
    return parent, end
