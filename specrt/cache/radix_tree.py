"""RadixTree: which token paths have their KV in the pool, and in which slots.

Knows token ids and slot numbers; no tensor, no request. One token is one slot. Each namespace has
a root of its own, so equal tokens of different namespaces never share.

    root --- "the cat" --+-- " sat"        a path from a root spells a prefix; every node holds
                         +-- " ran"        the slots of its own tokens; children differ in their
                                           first token

A lock on a node holds its whole path: ref_count of a node >= the sum over its children.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

TokenIds = Sequence[int] | npt.NDArray[np.int32]
Slots = npt.NDArray[np.int32]

# A leaf that is longer than what must go loses its tail only, in pieces of this many tokens: less
# would scatter a growing run over single slots.
EVICTION_QUANTUM = 32

_EMPTY: Slots = np.empty(0, np.int32)


class RadixNode:
    """A stretch of tokens that has no branch inside.

    Attributes:
        token_ids: int32 [length]; empty only at a root.
        slots: int32 [length], where their KV lies.
        parent: None at a root, and at a node that left the tree.
        children: by first token.
        namespace: the root's key.
        ref_count: locks on this node and below.
        last_access: tick of the last use.
    """

    __slots__ = (
        "children",
        "last_access",
        "namespace",
        "parent",
        "ref_count",
        "slots",
        "token_ids",
    )

    def __init__(
        self, token_ids: Slots, slots: Slots, parent: RadixNode | None, namespace: str
    ) -> None:
        self.token_ids = token_ids
        self.slots = slots
        self.parent = parent
        self.namespace = namespace
        self.children: dict[int, RadixNode] = {}
        self.ref_count = 0
        self.last_access = 0

    def __len__(self) -> int:
        return len(self.token_ids)


class Match(NamedTuple):
    """The longest prefix in the tree: its slots, and the node that it ends on."""

    slots: Slots
    node: RadixNode
    num_tokens: int


class Inserted(NamedTuple):
    """What an insertion found: the first `num_existing` tokens had slots already.

    `slots` are the tree's for the full path; `node` is where it ends.
    """

    num_existing: int
    node: RadixNode
    slots: Slots


class RadixTree:
    """Prefix tree with locks, session pins and eviction of the least recently used leaves.

    Attributes:
        num_cached_tokens: tokens in the tree, each with one slot.
        num_locked_tokens: of those, how many lie on a locked path.
    """

    def __init__(self) -> None:
        self.num_cached_tokens = 0
        self.num_locked_tokens = 0
        self._roots: dict[str, RadixNode] = {}
        self._num_nodes = 0
        self._clock = itertools.count(1)
        # Candidates for eviction, oldest first. An entry may be stale: see _is_current.
        self._heap: list[tuple[int, int, RadixNode]] = []
        self._entry_ids = itertools.count()
        self._pins: dict[str, tuple[RadixNode, float]] = {}

    @property
    def num_evictable_tokens(self) -> int:
        """Tokens that `evict` can free now. Below an unlocked node nothing is locked."""
        return self.num_cached_tokens - self.num_locked_tokens

    def match_length(self, namespace: str, token_ids: TokenIds) -> int:
        """Length of the longest prefix in the tree; changes nothing, not even the LRU order."""
        root = self._roots.get(namespace)
        return 0 if root is None else self._descend(root, _as_ids(token_ids))[1]

    def match_prefix(self, namespace: str, token_ids: TokenIds) -> Match:
        """The longest prefix in the tree; splits a node so that the match ends on one.

        Args:
            namespace: only paths of the same namespace match.
            token_ids: what to look for.

        Returns:
            Match; with no match the node is the root. Lock the node before anything is evicted.
        """
        path, num_tokens = self._walk(namespace, _as_ids(token_ids))
        return Match(_path_slots(path), path[-1], num_tokens)

    def insert(self, namespace: str, token_ids: TokenIds, slots: Slots) -> Inserted:
        """Add a path; the part that exists keeps the tree's slots.

        Args:
            namespace: where it belongs.
            token_ids: int [n], from the root on.
            slots: int32 [n]; slots[num_existing:] belong to the tree from here on.

        Returns:
            Inserted. Lock the node before anything is evicted.
        """
        ids = _as_ids(token_ids)
        assert len(ids) == len(slots), f"{len(ids)} tokens, {len(slots)} slots"
        path, num_existing = self._walk(namespace, ids)
        if num_existing < len(ids):
            # Copies: the caller's page table goes on changing.
            leaf = RadixNode(
                ids[num_existing:].copy(),
                slots[num_existing:].astype(np.int32),
                path[-1],
                namespace,
            )
            path[-1].children[int(leaf.token_ids[0])] = leaf
            leaf.last_access = path[-1].last_access
            path.append(leaf)
            self._num_nodes += 1
            self.num_cached_tokens += len(leaf)
            self._offer(leaf)
        return Inserted(num_existing, path[-1], _path_slots(path))

    def lock(self, node: RadixNode) -> None:
        """Keep the path down to `node` from eviction until `unlock`."""
        walk: RadixNode | None = node
        while walk is not None:
            if walk.ref_count == 0:
                self.num_locked_tokens += len(walk)
            walk.ref_count += 1
            walk = walk.parent

    def unlock(self, node: RadixNode) -> None:
        """Take back one `lock`; nodes that need no boundary any more are merged."""
        walk: RadixNode | None = node
        while walk is not None:
            assert walk.ref_count > 0, "unlocked more often than locked"
            walk.ref_count -= 1
            if walk.ref_count == 0:
                self.num_locked_tokens -= len(walk)
            above = walk.parent
            self._merge_into_child(walk)
            self._offer(walk)
            self._forget_root(walk)
            walk = above

    def pin(self, node: RadixNode, key: str, ttl_s: float, now: float) -> None:
        """Lock the path to `node` for a session until `now + ttl_s`; replaces the key's old pin."""
        self.lock(node)
        self.unpin(key)
        self._pins[key] = (node, now + ttl_s)

    def unpin(self, key: str) -> None:
        """Drop a session's pin, if it has one."""
        if key in self._pins:
            self.unlock(self._pins.pop(key)[0])

    def expire_pins(self, now: float) -> None:
        """Drop the pins whose time is over."""
        for key in [key for key, (_, end) in self._pins.items() if end <= now]:
            self.unpin(key)

    def drop_oldest_pin(self) -> None:
        """Drop the pin that would expire first."""
        self.unpin(min(self._pins, key=lambda key: self._pins[key][1]))

    def pinned_nodes(self) -> list[RadixNode]:
        """One node for each pin."""
        return [node for node, _ in self._pins.values()]

    def num_pinned_tokens(self) -> int:
        """Locked tokens that nothing but pins holds: evictable once all pins are dropped."""
        pins: dict[RadixNode, int] = {}
        for node in self.pinned_nodes():
            walk: RadixNode | None = node
            while walk is not None:
                pins[walk] = pins.get(walk, 0) + 1
                walk = walk.parent
        return sum(len(node) for node, count in pins.items() if node.ref_count == count)

    def evict(self, n: int) -> Slots:
        """Free at least `n` tokens, or all that is unlocked; least recently used leaves first.

        Returns:
            int32 [freed], the slots that the tree gave up.
        """
        freed: list[Slots] = []
        missing = n
        while missing > 0 and self._heap:
            last_access, _, node = heapq.heappop(self._heap)
            if not self._is_current(node, last_access):
                continue
            quanta = -(-missing // EVICTION_QUANTUM)
            keep = max(0, len(node) - quanta * EVICTION_QUANTUM)
            freed.append(node.slots[keep:])
            missing -= len(node) - keep
            self.num_cached_tokens -= len(node) - keep
            if keep:
                node.token_ids, node.slots = node.token_ids[:keep], node.slots[:keep]
                self._offer(node)
            else:
                self._remove(node)
        return np.concatenate(freed) if freed else _EMPTY

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes, roots included, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _walk(self, namespace: str, ids: Slots) -> tuple[list[RadixNode], int]:
        """The path of the longest match, root first, ending on a node boundary; marks its use."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = RadixNode(_EMPTY, _EMPTY, None, namespace)
        path, num_tokens = self._descend(root, ids)
        surplus = sum(map(len, path)) - num_tokens
        if surplus:
            path[-1] = self._split(path[-1], len(path[-1]) - surplus)
        tick = next(self._clock)
        for node in path:
            node.last_access = tick
        self._offer(path[-1])
        return path, num_tokens

    @staticmethod
    def _descend(root: RadixNode, ids: Slots) -> tuple[list[RadixNode], int]:
        """Nodes that the match touches (the last maybe in part), and the tokens matched."""
        path, done = [root], 0
        while done < len(ids):
            child = path[-1].children.get(int(ids[done]))
            if child is None:
                break
            common = _common_length(child.token_ids, ids[done:])
            path.append(child)
            done += common
            if common < len(child):
                break
        return path, done

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Cut `node` behind `length` tokens; `node` stays the lower part, which locks refer to."""
        above = node.parent
        assert above is not None
        upper = RadixNode(node.token_ids[:length], node.slots[:length], above, node.namespace)
        upper.ref_count = node.ref_count
        upper.last_access = node.last_access
        above.children[int(upper.token_ids[0])] = upper
        node.token_ids, node.slots = node.token_ids[length:], node.slots[length:]
        node.parent = upper
        upper.children[int(node.token_ids[0])] = node
        self._num_nodes += 1
        return upper

    def _merge_into_child(self, node: RadixNode) -> None:
        """Undo a split that no one needs: no fork here, no lock of its own, used together below."""
        if node.parent is None or len(node.children) != 1:
            return
        (child,) = node.children.values()
        if child.ref_count != node.ref_count or child.last_access != node.last_access:
            return
        child.token_ids = np.concatenate((node.token_ids, child.token_ids))
        child.slots = np.concatenate((node.slots, child.slots))
        child.parent = node.parent
        child.parent.children[int(child.token_ids[0])] = child
        node.parent = None
        node.children = {}
        self._num_nodes -= 1

    def _remove(self, node: RadixNode) -> None:
        """Take an evicted leaf out; its parent may be the next candidate."""
        parent = node.parent
        assert parent is not None
        del parent.children[int(node.token_ids[0])]
        node.parent = None
        self._num_nodes -= 1
        self._offer(parent)
        self._forget_root(parent)

    def _forget_root(self, node: RadixNode) -> None:
        """Drop `node` if it is a root without use: namespaces come and go with cache salts."""
        if not (node.children or node.ref_count) and self._roots.get(node.namespace) is node:
            del self._roots[node.namespace]

    def _offer(self, node: RadixNode) -> None:
        """Make `node` a candidate for eviction if it is an unlocked leaf."""
        if node.parent is None or node.children or node.ref_count:
            return
        heapq.heappush(self._heap, (node.last_access, next(self._entry_ids), node))
        if len(self._heap) > 64 + 4 * self._num_nodes:
            self._heap = [entry for entry in self._heap if self._is_current(entry[2], entry[0])]
            heapq.heapify(self._heap)

    @staticmethod
    def _is_current(node: RadixNode, last_access: int) -> bool:
        """Is a heap entry still an unlocked leaf of the tree, not used since?"""
        return (
            node.last_access == last_access
            and node.parent is not None
            and not node.children
            and node.ref_count == 0
        )


def _as_ids(token_ids: TokenIds) -> Slots:
    return np.asarray(token_ids, dtype=np.int32)


def _path_slots(path: list[RadixNode]) -> Slots:
    return np.concatenate([node.slots for node in path])


def _common_length(a: Slots, b: Slots) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n
