"""CacheManager: the one door to KV memory accounting; who owns which slot.

Torch-free: it hands out slot numbers, the KV store holds the tensors.

Every slot has exactly one owner: the free list, the radix tree (cached), or one sequence (held).
The law: num_free + num_cached + num_held == num_total.

Indices of one sequence's page table (index i = slot of token i):

    [0, num_shared)          the tree's slots, kept by the sequence's lock on `node`
    [num_shared, capacity)   held: computed tokens first, then rows of the pass and scratch
    [capacity, num_reserved) held: headroom, so that the next `grow` continues the run
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specrt.cache.radix_tree import RadixNode, RadixTree, TokenIds
from specrt.cache.slots import SlotAllocator, run_slots, runs_of

# Headroom of a growth: 1/8 of the sequence, 32 slots at least, but a quarter of what is free at
# most.
MIN_HEADROOM = 32


class SequenceCache:
    """One running sequence's view of the KV pool. Made by `CacheManager.open`.

    Attributes:
        namespace: the cache namespace it matches in.
        num_cached_tokens: tokens found in the cache when it was opened.
        num_shared: leading tokens whose slots the tree owns.
        capacity: tokens that have a slot.
        num_reserved: capacity and headroom.
        is_open: False once closed.
    """

    __slots__ = (
        "_node",
        "_table",
        "capacity",
        "is_open",
        "namespace",
        "num_cached_tokens",
        "num_reserved",
        "num_shared",
    )

    def __init__(self, namespace: str, slots: npt.NDArray[np.int32], node: RadixNode) -> None:
        self.namespace = namespace
        self.num_cached_tokens = self.num_shared = len(slots)
        self.capacity = self.num_reserved = len(slots)
        self.is_open = True
        self._table = slots
        self._node = node

    @property
    def page_table(self) -> npt.NDArray[np.int32]:
        """int32 [capacity], a view: ask again after `grow`; `publish` may change entries."""
        return self._table[: self.capacity]


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Slots by owner.

    Attributes:
        num_free: no one's.
        num_cached: the tree's.
        num_locked: of those, on the path of a running sequence or a session pin.
        num_held: the sequences' own.
        num_total: size of the pool.
        evicted_total: tokens evicted to make room, since the start.
    """

    num_free: int
    num_cached: int
    num_locked: int
    num_held: int
    num_total: int
    evicted_total: int


class CacheManager:
    """Matches, grows, publishes and closes sequences over one pool of slots."""

    def __init__(self, num_slots: int, check: bool = False) -> None:
        """Make an empty cache.

        Args:
            num_slots: size of the pool in tokens.
            check: run `check_integrity` after every operation (slow).
        """
        self._slots = SlotAllocator(num_slots)
        self._tree = RadixTree()
        self._check = check
        self._sequences: dict[SequenceCache, None] = {}
        self._num_held = 0
        self._evicted_total = 0

    @property
    def num_slots(self) -> int:
        """Size of the pool in tokens."""
        return self._slots.num_slots

    def match_length(self, namespace: str, token_ids: TokenIds) -> int:
        """Tokens that `open` would find; changes nothing."""
        return self._tree.match_length(namespace, token_ids[:-1])

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Could a sequence of `num_tokens`, scratch included, run if it were alone?"""
        return num_tokens <= self.num_slots

    def open(self, namespace: str, token_ids: TokenIds) -> SequenceCache:
        """Start a sequence on its longest cached prefix, which stays locked until `close`.

        The last token never counts as cached: computing it gives the first logits.

        Args:
            namespace: only equal namespaces share KV.
            token_ids: prompt, and the output so far; at least one token.
        """
        match = self._tree.match_prefix(namespace, token_ids[:-1])
        self._tree.lock(match.node)
        sequence = SequenceCache(namespace, match.slots, match.node)
        self._sequences[sequence] = None
        self._checked()
        return sequence

    def grow(self, sequence: SequenceCache, num_tokens: int) -> bool:
        """Give the sequence slots for `num_tokens`, evicting unlocked leaves if need be.

        Args:
            sequence: an open sequence.
            num_tokens: capacity wanted; a smaller one than it has changes nothing.

        Returns:
            False when the memory is not there; the sequence is then as before.
        """
        assert sequence.is_open
        missing = num_tokens - sequence.num_reserved
        if missing > 0:
            if not self._make_room(missing, sequence):
                return False
            spare = (self._slots.num_free - missing) // 4
            taken = missing + min(max(MIN_HEADROOM, num_tokens // 8), spare)
            end = sequence.num_reserved
            after = int(sequence._table[end - 1]) if end else None
            runs = self._slots.reserve(taken, after)
            if len(sequence._table) < end + taken:
                table = np.empty(max(end + taken, 2 * len(sequence._table)), np.int32)
                table[:end] = sequence._table[:end]
                sequence._table = table
            sequence._table[end : end + taken] = run_slots(runs)
            sequence.num_reserved += taken
            self._num_held += taken
        sequence.capacity = max(sequence.capacity, num_tokens)
        self._checked()
        return True

    def shrink(self, sequence: SequenceCache, num_tokens: int) -> None:
        """Give back all held slots behind `num_tokens`, headroom included."""
        assert sequence.is_open
        self._shrink(sequence, num_tokens)
        self._checked()

    def publish(self, sequence: SequenceCache, token_ids: TokenIds, num_computed: int) -> None:
        """Put the computed prefix into the tree, so that others can share it at once.

        Where another sequence has put in the same tokens meanwhile, the own slots are released and
        the page table takes the tree's: do it when no pass is reading them.

        Args:
            sequence: an open sequence.
            token_ids: its tokens, num_computed of them at least.
            num_computed: tokens whose KV is complete.
        """
        assert sequence.is_open
        self._publish(sequence, token_ids, num_computed)
        self._checked()

    def pin(self, sequence: SequenceCache, key: str, ttl_s: float, now: float) -> None:
        """Keep what the sequence has published until `now + ttl_s`, even after it is closed.

        A session's older pin is replaced. Pins yield when running sequences need the memory.

        Args:
            sequence: an open sequence.
            key: the session.
            ttl_s: seconds.
            now: clock reading in seconds, of the clock that `expire_pins` is given.
        """
        assert sequence.is_open
        self._tree.pin(sequence._node, key, ttl_s, now)
        self._checked()

    def expire_pins(self, now: float) -> None:
        """Drop the pins whose time is over."""
        self._tree.expire_pins(now)
        self._checked()

    def close(self, sequence: SequenceCache, token_ids: TokenIds, num_computed: int) -> None:
        """End a sequence (finished, aborted or retracted): the computed prefix stays cached.

        Args:
            sequence: an open sequence.
            token_ids: its tokens, num_computed of them at least.
            num_computed: tokens whose KV is complete.
        """
        assert sequence.is_open
        self._publish(sequence, token_ids, num_computed)
        self._shrink(sequence, sequence.num_shared)
        self._tree.unlock(sequence._node)
        sequence.is_open = False
        del self._sequences[sequence]
        self._checked()

    def flush(self) -> int:
        """Drop all pins and evict all that no sequence locks; returns the tokens evicted."""
        for _ in self._tree.pinned_nodes():
            self._tree.drop_oldest_pin()
        slots = self._tree.evict(self._tree.num_evictable_tokens)
        self._slots.release(runs_of(slots))
        self._checked()
        return len(slots)

    def stats(self) -> CacheStats:
        """Slots by owner, now."""
        return CacheStats(
            num_free=self._slots.num_free,
            num_cached=self._tree.num_cached_tokens,
            num_locked=self._tree.num_locked_tokens,
            num_held=self._num_held,
            num_total=self._slots.num_slots,
            evicted_total=self._evicted_total,
        )

    def check_integrity(self) -> None:
        """Recount everything from the owners' own data; AssertionError names what disagrees."""
        stats = self.stats()
        free = run_slots(self._slots.free_runs())
        nodes = list(self._tree.nodes())
        cached = [node.slots for node in nodes]
        held = [s._table[s.num_shared : s.num_reserved] for s in self._sequences]
        owned = np.concatenate([free, *cached, *held])
        owners = np.bincount(owned, minlength=stats.num_total)
        assert len(owners) == stats.num_total, f"slot {owned.max()} is outside the pool"
        wrong = np.flatnonzero(owners != 1)
        assert not len(wrong), f"slots {wrong[:8]} have {owners[wrong[:8]]} owners instead of 1"
        counted = (len(free), sum(map(len, cached)), sum(map(len, held)))
        stated = (stats.num_free, stats.num_cached, stats.num_held)
        assert counted == stated, f"free, cached, held: counted {counted}, stated {stated}"
        locks = dict.fromkeys(nodes, 0)
        for node in [s._node for s in self._sequences] + self._tree.pinned_nodes():
            walk: RadixNode | None = node
            while walk is not None:
                locks[walk] += 1
                walk = walk.parent
        for node, count in locks.items():
            assert node.ref_count == count, f"{node.ref_count} locks stated, {count} counted"
        locked = sum(len(node) for node in nodes if node.ref_count)
        assert locked == stats.num_locked, f"{stats.num_locked} locked stated, {locked} counted"
        for s in self._sequences:
            assert s.num_shared <= s.capacity <= s.num_reserved, "interval table is out of order"

    def _publish(self, sequence: SequenceCache, token_ids: TokenIds, num_computed: int) -> None:
        shared, table = sequence.num_shared, sequence._table
        assert num_computed <= sequence.capacity, f"{num_computed} tokens in {sequence.capacity}"
        if num_computed <= shared:
            return
        inserted = self._tree.insert(
            sequence.namespace, token_ids[:num_computed], table[:num_computed]
        )
        self._tree.lock(inserted.node)
        self._tree.unlock(sequence._node)
        self._slots.release(runs_of(table[shared : inserted.num_existing]))
        table[shared : inserted.num_existing] = inserted.slots[shared : inserted.num_existing]
        self._num_held -= num_computed - shared
        sequence.num_shared = num_computed
        sequence._node = inserted.node

    def _shrink(self, sequence: SequenceCache, num_tokens: int) -> None:
        assert sequence.num_shared <= num_tokens <= sequence.capacity, "shrink inside held slots"
        surplus = sequence._table[num_tokens : sequence.num_reserved]
        self._slots.release(runs_of(surplus))
        self._num_held -= len(surplus)
        sequence.capacity = sequence.num_reserved = num_tokens

    def _make_room(self, missing: int, sequence: SequenceCache) -> bool:
        """Free `missing` slots: by eviction, else with others' headroom, else with pins too."""
        tree, slots = self._tree, self._slots
        if missing > slots.num_free + tree.num_evictable_tokens:
            for other in self._sequences:
                if other is not sequence:
                    self._shrink(other, other.capacity)
        evictable = slots.num_free + tree.num_evictable_tokens
        if missing > evictable and missing > evictable + tree.num_pinned_tokens():
            return False
        while missing > slots.num_free + tree.num_evictable_tokens:
            tree.drop_oldest_pin()
        if missing > slots.num_free:
            evicted = tree.evict(missing - slots.num_free)
            slots.release(runs_of(evicted))
            self._evicted_total += len(evicted)
        return True

    def _checked(self) -> None:
        if self._check:
            self.check_integrity()
