from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from specrt.cache import radix_tree
from specrt.cache.manager import CacheManager, SequenceCache
from specrt.cache.slots import runs_of


def opened(cache: CacheManager, tokens: list[int], capacity: int | None = None) -> SequenceCache:
    sequence = cache.open("", tokens)
    assert cache.grow(sequence, len(tokens) if capacity is None else capacity)
    return sequence


def test_exact_hit_recomputes_one_token() -> None:
    cache = CacheManager(100, check=True)
    tokens = list(range(10))
    cache.close(opened(cache, tokens), tokens, 10)
    assert cache.match_length("", tokens) == 9
    again = cache.open("", tokens)
    assert again.num_cached_tokens == len(again.page_table) == 9
    assert cache.stats().num_locked == 9


def test_next_turn_finds_prompt_and_output() -> None:
    cache = CacheManager(100, check=True)
    prompt, output, user = [1, 2, 3], [4, 5], [6, 7]
    sequence = opened(cache, prompt, 5)
    table = sequence.page_table.tolist()
    cache.close(sequence, prompt + output, 4)  # the last output token has no KV yet
    turn = cache.open("", prompt + output + user)
    assert turn.num_cached_tokens == len(prompt + output) - 1
    assert turn.page_table.tolist() == table[:4]


def test_single_token_and_other_namespace_match_nothing() -> None:
    cache = CacheManager(100, check=True)
    cache.close(opened(cache, [1, 2]), [1, 2], 2)
    assert cache.open("", [1]).num_cached_tokens == 0
    assert cache.open("other", [1, 2, 3]).num_cached_tokens == 0
    assert cache.open("", [1, 2, 3]).num_cached_tokens == 2


def test_publish_gives_duplicates_back() -> None:
    #  A and B compute the same 6 tokens at once; A publishes first
    #
    #     A  [0..5]  -> tree            B's slots of 1 2 3 are released, its table takes the tree's
    #     B  1 2 3 7 8 9                root - "1 2 3" -+- "4 5 6"
    #                                                   +- "7 8 9"
    cache = CacheManager(100, check=True)
    a_tokens, b_tokens = [1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8, 9]
    a, b = opened(cache, a_tokens), opened(cache, b_tokens)
    own = b.page_table.tolist()
    cache.publish(a, a_tokens, 6)
    free = cache.stats().num_free
    cache.publish(b, b_tokens, 6)
    assert b.page_table.tolist() == a.page_table.tolist()[:3] + own[3:]
    assert cache.stats().num_free == free + 3
    assert cache.stats().num_cached == 9


def test_publish_of_part_keeps_the_rest_held() -> None:
    cache = CacheManager(100, check=True)
    tokens = list(range(8))
    a = opened(cache, tokens, 12)
    before = a.page_table.tolist()
    cache.publish(a, tokens, 5)
    assert (a.num_shared, a.capacity, cache.stats().num_cached) == (5, 12, 5)
    assert a.page_table.tolist() == before
    assert cache.open("", tokens).num_cached_tokens == 5


def test_close_commits_the_computed_prefix_and_frees_the_rest() -> None:
    cache = CacheManager(200, check=True)
    sequence = opened(cache, list(range(50)), 60)
    cache.close(sequence, list(range(50)), 20)
    stats = cache.stats()
    assert (stats.num_cached, stats.num_held, stats.num_locked, stats.num_free) == (20, 0, 0, 180)
    with pytest.raises(AssertionError):
        cache.close(sequence, list(range(50)), 20)


def test_growth_stays_contiguous_between_two_sequences() -> None:
    cache = CacheManager(4000, check=True)
    sequences = [opened(cache, [1, i], 300) for i in range(3)]
    for capacity in range(300, 700):
        for sequence in sequences:
            assert cache.grow(sequence, capacity)
    assert [len(runs_of(s.page_table)) for s in sequences] == [1, 1, 1]


def test_growth_is_all_or_nothing() -> None:
    cache = CacheManager(20, check=True)
    cache.close(opened(cache, list(range(12))), list(range(12)), 12)
    a = opened(cache, [90, 91], 6)
    cached = cache.stats().num_cached
    assert not cache.grow(a, 21)
    assert (a.capacity, cache.stats().num_cached) == (6, cached)
    assert cache.grow(a, 20)
    assert cache.stats().evicted_total == 12
    assert cache.can_ever_fit(20) and not cache.can_ever_fit(21)


def test_eviction_spares_what_a_running_sequence_uses() -> None:
    cache = CacheManager(20, check=True)
    for tokens in ([1, 2, 3, 4], [5, 6, 7, 8]):
        cache.close(opened(cache, tokens), tokens, 4)
    a = cache.open("", [1, 2, 3, 4, 9])
    held = a.page_table.tolist()
    assert cache.grow(a, 20)
    assert cache.match_length("", [1, 2, 3, 4, 0]) == 4
    assert cache.match_length("", [5, 6, 7, 8, 0]) == 0
    assert a.page_table.tolist()[:4] == held


def test_headroom_comes_from_free_slots_and_yields() -> None:
    cache = CacheManager(100, check=True)
    a = opened(cache, [1, 2, 3])
    assert a.num_reserved > a.capacity == 3
    b = cache.open("", [4])
    assert cache.grow(b, 97)
    assert (a.num_reserved, cache.stats().num_free) == (3, 0)
    cache.shrink(b, 10)
    assert cache.stats().num_free == 87


def test_pins_outlive_the_request_and_yield_to_need() -> None:
    cache = CacheManager(20, check=True)
    for key, tokens in (("a", [1, 2, 3]), ("b", [4, 5, 6])):
        sequence = opened(cache, tokens)
        cache.publish(sequence, tokens, 3)
        cache.pin(sequence, key, ttl_s=10.0 if key == "a" else 20.0, now=0.0)
        cache.close(sequence, tokens, 3)
    c = cache.open("", [7])
    assert cache.grow(c, 14)
    assert cache.match_length("", [1, 2, 3, 0]) == cache.match_length("", [4, 5, 6, 0]) == 3
    assert not cache.grow(c, 21)  # does not fit at all: pins stay
    assert cache.stats().num_locked == 6
    assert cache.grow(c, 17)
    assert cache.match_length("", [1, 2, 3, 0]) == 0
    assert cache.match_length("", [4, 5, 6, 0]) == 3
    cache.expire_pins(20.0)
    assert cache.stats().num_locked == 0
    cache.close(c, [7], 0)


def test_flush_keeps_running_sequences_only() -> None:
    cache = CacheManager(50, check=True)
    tokens = [1, 2, 3, 4, 5, 6]
    old = opened(cache, tokens)
    cache.publish(old, tokens, 6)
    cache.pin(old, "session", 100.0, 0.0)
    cache.close(old, tokens, 6)
    running = cache.open("", [1, 2, 9, 9])
    assert cache.flush() == 4
    stats = cache.stats()
    assert (stats.num_cached, stats.num_locked, stats.evicted_total) == (2, 2, 0)
    cache.close(running, [1, 2, 9, 9], 2)
    assert cache.flush() == 2
    assert cache.stats().num_free == 50


def test_check_integrity_notices_a_leak_and_a_double_owner() -> None:
    cache = CacheManager(50)
    a, b = opened(cache, [1, 2]), opened(cache, [3, 4])
    cache.check_integrity()
    b._table[0] = a._table[0]
    with pytest.raises(AssertionError, match="owners instead of 1"):
        cache.check_integrity()


NAMESPACES = ("", "salt")
# Few distinct tokens and long stretches of one token: many shared prefixes, forks at every depth.
tokens_strategy = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 12)), min_size=1, max_size=5
).map(lambda pairs: [token for token, count in pairs for _ in range(count)])


class CacheMachine(RuleBasedStateMachine):
    """Random use of the manager against a shadow of the pool.

    shadow[slot] is the token path whose KV was last written there; it stays when a slot is freed,
    as the real pool's bytes do, so that a stale or wrongly shared slot shows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: list[tuple[SequenceCache, list[int], int]] = []  # tokens, num_computed

    @initialize(num_slots=st.sampled_from((12, 48, 200)), quantum=st.sampled_from((1, 4, 32)))
    def start(self, num_slots: int, quantum: int) -> None:
        self.old_quantum = radix_tree.EVICTION_QUANTUM
        radix_tree.EVICTION_QUANTUM = quantum
        self.cache = CacheManager(num_slots, check=True)
        self.shadow: list[object] = [None] * num_slots
        self.now = 0.0

    def teardown(self) -> None:
        for sequence, tokens, computed in self.live:
            self.cache.close(sequence, tokens, computed)
        self.cache.flush()
        stats = self.cache.stats()
        assert (stats.num_free, stats.num_locked) == (stats.num_total, 0)
        radix_tree.EVICTION_QUANTUM = self.old_quantum

    def pick(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.live) - 1))

    def add(self, namespace: str, tokens: list[int], run: bool) -> None:
        """Open a sequence; `run` it up to its last token if there is room."""
        expected = self.cache.match_length(namespace, tokens)
        sequence = self.cache.open(namespace, tokens)
        assert sequence.num_cached_tokens == expected < len(tokens)
        self.live.append((sequence, tokens, expected))
        if run and self.grow_to(sequence, len(tokens)):
            self.write(len(self.live) - 1)

    def grow_to(self, sequence: SequenceCache, wanted: int) -> bool:
        before, stats = sequence.page_table.copy(), self.cache.stats()
        others = [s for s, _, _ in self.live if s is not sequence]
        held_by_others = sum(s.capacity - s.num_shared for s in others)
        grown = self.cache.grow(sequence, wanted)
        assert sequence.capacity == (max(len(before), wanted) if grown else len(before))
        assert (sequence.page_table[: len(before)] == before).all()
        if not grown:  # nothing was left to take
            shared_by_others = stats.num_locked - sequence.num_shared
            assert wanted > stats.num_total - held_by_others - shared_by_others
            assert self.cache.stats().num_cached == stats.num_cached
        return grown

    def write(self, i: int) -> None:
        """A pass: write the KV of as many tokens as the table has room for, scratch included."""
        sequence, tokens, computed = self.live[i]
        end = max(computed, min(len(tokens), sequence.capacity))
        table = sequence.page_table.tolist()
        for index in range(computed, sequence.capacity):
            path = (sequence.namespace, tuple(tokens[: index + 1]))
            self.shadow[table[index]] = path if index < end else "scratch"
        self.live[i] = (sequence, tokens, end)

    @rule(namespace=st.sampled_from(NAMESPACES), tokens=tokens_strategy, run=st.booleans())
    def open(self, namespace: str, tokens: list[int], run: bool) -> None:
        self.add(namespace, tokens, run)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tail=tokens_strategy, run=st.booleans())
    def fork(self, data: st.DataObject, tail: list[int], run: bool) -> None:
        sequence, tokens, computed = self.live[self.pick(data)]
        self.cache.publish(sequence, tokens, computed)
        cut = data.draw(st.integers(0, computed) | st.just(computed))
        self.add(sequence.namespace, tokens[:cut] + tail, run)
        assert self.live[-1][0].num_cached_tokens >= min(cut, cut + len(tail) - 1)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), extra=st.integers(0, 40))
    def grow(self, data: st.DataObject, extra: int) -> None:
        sequence, _, computed = self.live[self.pick(data)]
        self.grow_to(sequence, computed + extra)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), new=tokens_strategy)
    def decode(self, data: st.DataObject, new: list[int]) -> None:
        i = self.pick(data)
        sequence, tokens, computed = self.live[i]
        if computed == len(tokens):
            self.live[i] = (sequence, tokens + new, computed)
            self.grow_to(sequence, len(tokens + new))
        self.write(i)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def shrink(self, data: st.DataObject) -> None:
        sequence, _, computed = self.live[self.pick(data)]
        self.cache.shrink(sequence, max(computed, sequence.num_shared))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        sequence, tokens, computed = self.live[self.pick(data)]
        self.cache.publish(sequence, tokens, computed)
        assert self.cache.match_length(sequence.namespace, [*tokens[:computed], 0]) == computed

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def close_one(self, data: st.DataObject) -> None:
        sequence, tokens, computed = self.live.pop(self.pick(data))
        self.cache.close(sequence, tokens, computed)
        assert self.cache.match_length(sequence.namespace, [*tokens[:computed], 0]) == computed

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        sequence, tokens, computed = self.live.pop(self.pick(data))
        self.cache.close(sequence, tokens, computed)
        self.add(sequence.namespace, tokens, run=False)
        assert self.live[-1][2] >= min(computed, len(tokens) - 1)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), key=st.sampled_from("pq"), ttl_s=st.integers(1, 5))
    def pin(self, data: st.DataObject, key: str, ttl_s: int) -> None:
        self.cache.pin(self.live[self.pick(data)][0], key, ttl_s, self.now)

    @rule()
    def tick(self) -> None:
        self.now += 1.0
        self.cache.expire_pins(self.now)

    @rule()
    def flush(self) -> None:
        self.cache.flush()
        stats = self.cache.stats()
        assert stats.num_cached == stats.num_locked
        assert stats.num_free + stats.num_cached + stats.num_held == stats.num_total

    @invariant()
    def every_computed_slot_holds_its_own_path(self) -> None:
        for sequence, tokens, computed in self.live:
            table = sequence.page_table.tolist()
            for index in range(computed):
                expected = (sequence.namespace, tuple(tokens[: index + 1]))
                assert self.shadow[table[index]] == expected

    @invariant()
    def every_cached_slot_holds_its_own_path(self) -> None:
        cached: list[tuple[radix_tree.RadixNode, tuple[int, ...]]]
        cached = [(root, ()) for root in self.cache._tree._roots.values()]
        while cached:
            node, prefix = cached.pop()
            path = prefix + tuple(node.token_ids.tolist())
            for i, slot in enumerate(node.slots.tolist(), start=len(prefix) + 1):
                assert self.shadow[slot] == (node.namespace, path[:i])
            cached.extend((child, path) for child in node.children.values())


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)


def test_bench_open_and_close(benchmark) -> None:  # type: ignore[no-untyped-def]
    cache = CacheManager(20_000)
    tokens = np.arange(8_000).tolist()
    cache.close(opened(cache, tokens), tokens, 8_000)

    def turn() -> None:
        cache.close(cache.open("", tokens), tokens, 7_999)

    benchmark(turn)
