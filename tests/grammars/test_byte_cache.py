"""The cache holds no more than its bound, makes each value once, and forgets what was used last."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specrt.grammars.byte_cache import ByteCache

MAX_BYTES = 10


class CacheMachine(RuleBasedStateMachine):
    """The cache against an ordered dictionary that does the same in the plainest way."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: ByteCache[int, str] = ByteCache(MAX_BYTES, len)
        self.model: OrderedDict[int, str] = OrderedDict()
        self.hits = self.misses = self.evictions = 0

    @rule(key=st.integers(0, 5), size=st.integers(0, MAX_BYTES + 2))
    def get(self, key: int, size: int) -> None:
        made = []

        def make() -> str:
            made.append(key)
            return str(key) * size

        value = self.cache.get_or_make(key, make)
        assert bool(made) == (key not in self.model)
        if key in self.model:
            self.hits += 1
            self.model.move_to_end(key)
            assert value == self.model[key]
            return
        self.misses += 1
        assert value == str(key) * size
        if size <= MAX_BYTES:
            self.model[key] = value
        while sum(map(len, self.model.values())) > MAX_BYTES:
            self.model.popitem(last=False)
            self.evictions += 1

    @rule(key=st.integers(0, 5))
    def fail(self, key: int) -> None:
        if key not in self.model:
            self.misses += 1
            with pytest.raises(ZeroDivisionError):
                self.cache.get_or_make(key, lambda: str(1 // 0))

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.model.clear()

    @invariant()
    def counters_agree(self) -> None:
        counters = self.cache.counters()
        assert counters.bytes == sum(map(len, self.model.values())) <= MAX_BYTES
        assert counters.entries == len(self.model)
        assert (counters.hits, counters.misses) == (self.hits, self.misses)
        assert counters.evictions == self.evictions


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_keys_that_arrive_together_are_made_once() -> None:
    cache: ByteCache[str, list[int]] = ByteCache(100, len)
    made = []
    barrier = threading.Barrier(8)

    def make() -> list[int]:
        made.append(1)
        time.sleep(0.05)
        return [7]

    def ask(_: int) -> list[int]:
        barrier.wait()
        return cache.get_or_make("key", make)

    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(ask, range(8)))
    assert len(made) == 1
    assert all(value is values[0] for value in values)
    counters = cache.counters()
    assert (counters.hits, counters.misses) == (7, 1)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_error_reaches_all_who_wait_and_is_forgotten(error: BaseException) -> None:
    cache: ByteCache[str, str] = ByteCache(100, len)
    has_begun = threading.Event()
    may_fail = threading.Event()
    raised = []

    def make() -> str:
        has_begun.set()
        may_fail.wait(10)
        raise error

    def ask(make_value: object) -> None:
        try:
            cache.get_or_make("key", make_value)  # type: ignore[arg-type]
        except BaseException as found:
            raised.append(found)

    threads = [threading.Thread(target=ask, args=(make,))]
    threads[0].start()
    assert has_begun.wait(10)
    threads += [threading.Thread(target=ask, args=(lambda: "unused",)) for _ in range(3)]
    for thread in threads[1:]:
        thread.start()
    while cache.counters().hits < 3:
        time.sleep(0.001)
    may_fail.set()
    for thread in threads:
        thread.join(10)
    assert raised == [error] * 4
    assert cache.get_or_make("key", lambda: "value") == "value"


def test_a_size_that_cannot_be_told_leaves_nothing_behind() -> None:
    def size_of(value: int) -> int:
        return 100 // value

    cache = ByteCache[str, int](1000, size_of)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_make("key", lambda: 0)
    assert cache.counters().entries == 0
    assert cache.get_or_make("key", lambda: 5) == 5
    assert cache.counters().bytes == 20


def test_other_keys_do_not_wait_for_a_value_being_made() -> None:
    cache: ByteCache[str, str] = ByteCache(100, len)
    may_end = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(cache.get_or_make, "slow", lambda: "x" * may_end.wait(10))
        assert cache.get_or_make("quick", lambda: "y") == "y"
        assert not slow.done()
        may_end.set()
        assert slow.result(10) == "x"


def test_many_threads_stay_within_the_bound() -> None:
    cache: ByteCache[int, bytes] = ByteCache(500, len)

    def ask(number: int) -> None:
        key = number * 7919 % 40
        assert cache.get_or_make(key, lambda: bytes([key]) * (key + 1)) == bytes([key]) * (key + 1)
        assert cache.counters().bytes <= 500

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(4000)))
    counters = cache.counters()
    assert counters.hits + counters.misses == 4000
    assert counters.evictions > 0
