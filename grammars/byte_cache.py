"""A cache bounded in bytes in which equal keys that arrive together are made once.

It knows nothing of what it keeps: the caller says how large a value is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """What a cache did since its start, and what it holds now.

    Attributes:
        hits: values that were there, or being made for somebody else.
        misses: values that had to be made, failures included.
        evictions: values that went to make room.
        entries: values held.
        bytes: their size together.
    """

    hits: int
    misses: int
    evictions: int
    entries: int
    bytes: int


class ByteCache(Generic[K, V]):
    """Keeps the values used last, as many as fit. Thread safe."""

    def __init__(self, max_bytes: int, size_of: Callable[[V], int]) -> None:
        """Args:
        max_bytes: bound on the size of all values together.
        size_of: bytes of a value, its key and other overhead included; asked once.
        """
        self._max_bytes = max_bytes
        self._size_of = size_of
        self._lock = threading.Lock()
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()  # the one used last is last
        self._pending: dict[K, Future[V]] = {}
        self._num_bytes = 0
        self._hits = self._misses = self._evictions = 0

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made if it is not there.

        Args:
            key: equal keys share one value.
            make: called without a lock held, by one of the threads that ask for a key together;
                must not itself ask for this key. What it raises reaches all of them and is not
                kept. A value larger than the whole cache is returned and not kept.
        """
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._hits += 1
                self._values.move_to_end(key)
                return found[0]
            future = self._pending.get(key)
            is_ours = future is None
            if future is None:
                self._misses += 1
                future = self._pending[key] = Future()
            else:
                self._hits += 1
        if is_ours:
            self._make(key, make, future)
        return future.result()

    def clear(self) -> None:
        """Forget all values; those being made are kept when they are done."""
        with self._lock:
            self._values.clear()
            self._num_bytes = 0

    def counters(self) -> CacheCounters:
        """For metrics."""
        with self._lock:
            return CacheCounters(
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                entries=len(self._values),
                bytes=self._num_bytes,
            )

    def _make(self, key: K, make: Callable[[], V], future: Future[V]) -> None:
        try:
            value = make()
            size = self._size_of(value)
        except BaseException as error:
            with self._lock:
                del self._pending[key]
            future.set_exception(error)
            return
        with self._lock:
            del self._pending[key]
            if size <= self._max_bytes:
                self._values[key] = (value, size)
                self._num_bytes += size
                while self._num_bytes > self._max_bytes:
                    _, (_, evicted_size) = self._values.popitem(last=False)
                    self._num_bytes -= evicted_size
                    self._evictions += 1
        future.set_result(value)
