"""SlotAllocator: which slots of the KV pool are free.

Knows numbers only: no tensor, no token, no owner. Slots are handed out in contiguous runs, because
attention reads a run as a view and copies of runs are long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Run(NamedTuple):
    """Slots start .. start + length - 1."""

    start: int
    length: int


def run_slots(runs: Iterable[Run]) -> npt.NDArray[np.int32]:
    """The slots of `runs` in order, int32 [total length]."""
    parts = [np.arange(start, start + length, dtype=np.int32) for start, length in runs]
    return np.concatenate(parts) if parts else np.empty(0, np.int32)


def runs_of(slots: npt.NDArray[np.int32]) -> list[Run]:
    """The fewest runs that cover distinct `slots` (any order); ascending."""
    if not len(slots):
        return []
    ordered = np.sort(slots)
    cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
    starts = [0, *cuts.tolist()]
    ends = [*cuts.tolist(), len(ordered)]
    return [Run(int(ordered[a]), b - a) for a, b in zip(starts, ends, strict=True)]


class SlotAllocator:
    """Free slots as sorted intervals that never touch each other.

    Attributes:
        num_slots: size of the pool in slots.
        num_free: slots in no one's hands.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_free = num_slots
        self._starts = [0] if num_slots else []
        self._ends = [num_slots] if num_slots else []

    def reserve(self, n: int, after: int | None = None) -> list[Run]:
        """Take `n` slots: behind slot `after` as far as they are free, the rest in few runs.

        The rest goes into the largest interval, with half of the slack left in front of it: the
        owner of the slot in front can then go on growing, and so can the new run.

        Args:
            n: slots wanted, 0 <= n <= num_free.
            after: the slot that the taker already owns and would like to continue.

        Returns:
            Runs in the order in which they are to be filled.
        """
        assert 0 <= n <= self.num_free, f"{n} slots asked of {self.num_free} free"
        self.num_free -= n
        runs = []
        if after is not None and n:
            i = bisect_left(self._starts, after + 1)
            if i < len(self._starts) and self._starts[i] == after + 1:
                runs.append(self._take(i, 0, min(n, self._ends[i] - self._starts[i])))
                n -= runs[0].length
        if n:
            runs += self._take_largest(n)
        return runs

    def release(self, runs: Iterable[Run]) -> None:
        """Give slots back; they must be taken, each named once."""
        for start, length in runs:
            end = start + length
            i = bisect_left(self._starts, start)
            joins_left = i > 0 and self._ends[i - 1] == start
            joins_right = i < len(self._starts) and self._starts[i] == end
            assert length > 0 and start >= 0 and end <= self.num_slots, f"no run: {start}+{length}"
            assert i == 0 or self._ends[i - 1] <= start, f"double free in {start}+{length}"
            assert i == len(self._starts) or end <= self._starts[i], f"double free before {end}"
            if joins_left and joins_right:
                self._ends[i - 1] = self._ends.pop(i)
                del self._starts[i]
            elif joins_left:
                self._ends[i - 1] = end
            elif joins_right:
                self._starts[i] = start
            else:
                self._starts.insert(i, start)
                self._ends.insert(i, end)
            self.num_free += length

    def free_runs(self) -> list[Run]:
        """The free intervals, ascending; no two touch."""
        return [Run(a, b - a) for a, b in zip(self._starts, self._ends, strict=True)]

    def _take(self, i: int, offset: int, n: int) -> Run:
        """Cut `n` slots out of interval `i`, `offset` behind its start."""
        start, end = self._starts[i], self._ends[i]
        left, right = start + offset, start + offset + n
        pieces = [(a, b) for a, b in ((start, left), (right, end)) if a < b]
        self._starts[i : i + 1] = [a for a, _ in pieces]
        self._ends[i : i + 1] = [b for _, b in pieces]
        return Run(left, n)

    def _take_largest(self, n: int) -> list[Run]:
        """Take `n` slots from the largest intervals; only the last one is left in part."""
        runs = []
        for largest in sorted(self.free_runs(), key=lambda run: -run.length):
            if not n or largest.length > n:
                break
            runs.append(largest)
            n -= largest.length
        if runs:
            whole = {run.start for run in runs}
            kept = [run for run in self.free_runs() if run.start not in whole]
            self._starts = [run.start for run in kept]
            self._ends = [run.start + run.length for run in kept]
        if n:
            slack = largest.length - n
            offset = slack // 2 if largest.start else 0
            runs.append(self._take(bisect_left(self._starts, largest.start), offset, n))
        return runs
