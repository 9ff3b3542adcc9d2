from __future__ import annotations

import random

import numpy as np
import pytest

from specrt.cache.slots import Run, SlotAllocator, run_slots, runs_of


def pool(picture: str) -> SlotAllocator:
    """One slot a character, "." is free."""
    allocator = SlotAllocator(len(picture))
    allocator.reserve(len(picture))
    allocator.release(Run(i, 1) for i, c in enumerate(picture) if c == ".")
    return allocator


def test_continues_behind_the_slot_it_is_told() -> None:
    allocator = SlotAllocator(10)
    assert allocator.reserve(3) == [Run(0, 3)]
    assert allocator.reserve(4, after=2) == [Run(3, 4)]
    assert allocator.num_free == 3


def test_continues_as_far_as_free_then_opens_one_run() -> None:
    #  A wants 4: 2 behind itself, 2 in the middle of the largest rest
    allocator = pool("AA..BB....")
    assert allocator.reserve(4, after=1) == [Run(2, 2), Run(7, 2)]
    assert allocator.free_runs() == [Run(6, 1), Run(9, 1)]


def test_two_growing_runs_do_not_block_each_other() -> None:
    allocator = SlotAllocator(1000)
    tables = [run_slots(allocator.reserve(10)), run_slots(allocator.reserve(10))]
    for _ in range(10):
        for i, table in enumerate(tables):
            more = run_slots(allocator.reserve(10, after=int(table[-1])))
            tables[i] = np.concatenate((table, more))
    assert [len(runs_of(table)) for table in tables] == [1, 1]


def test_splits_only_when_nothing_fits_longest_first() -> None:
    allocator = pool(".x...x..x.")
    assert allocator.reserve(3) == [Run(2, 3)]
    allocator.release([Run(2, 3)])
    assert allocator.reserve(5) == [Run(2, 3), Run(6, 2)]
    assert allocator.free_runs() == [Run(0, 1), Run(9, 1)]
    assert allocator.reserve(2) == [Run(0, 1), Run(9, 1)]
    assert allocator.free_runs() == []


def test_release_coalesces_on_both_sides() -> None:
    allocator = pool("xxxxxxxxx")
    allocator.release([Run(0, 3), Run(6, 3)])
    assert allocator.free_runs() == [Run(0, 3), Run(6, 3)]
    allocator.release([Run(3, 3)])
    assert allocator.free_runs() == [Run(0, 9)]


@pytest.mark.parametrize(
    "run", [Run(0, 1), Run(2, 1), Run(3, 2), Run(1, 2), Run(0, 9), Run(8, 2), Run(-1, 1), Run(4, 0)]
)
def test_double_or_foreign_free_is_caught(run: Run) -> None:
    allocator = pool("...xxx...")
    if run == Run(3, 2):
        allocator.release([run])  # once is fine
    with pytest.raises(AssertionError):
        allocator.release([run])


def test_asking_for_more_than_is_free_is_caught() -> None:
    with pytest.raises(AssertionError):
        SlotAllocator(3).reserve(4)


def test_runs_of_is_the_inverse_of_run_slots() -> None:
    assert runs_of(np.array([7, 3, 4, 9, 8], np.int32)) == [Run(3, 2), Run(7, 3)]
    assert runs_of(run_slots([])) == []
    assert run_slots([Run(7, 2), Run(3, 1)]).tolist() == [7, 8, 3]


def test_random_use_against_a_set() -> None:
    rng = random.Random(0)
    allocator, free, taken = SlotAllocator(200), set(range(200)), []
    for _ in range(2000):
        if rng.random() < 0.55 and free:
            n = rng.randint(1, min(len(free), 40))
            after = rng.choice(taken)[-1] if taken and rng.random() < 0.5 else None
            runs = allocator.reserve(n, after)
            slots = run_slots(runs).tolist()
            assert len(slots) == n == len(set(slots)) and set(slots) <= free
            if after is not None and after + 1 in free:
                assert slots[0] == after + 1
            free -= set(slots)
            taken.append(slots)
        elif taken:
            slots = taken.pop(rng.randrange(len(taken)))
            allocator.release(runs_of(np.array(slots, np.int32)))
            free |= set(slots)
        spans = allocator.free_runs()
        assert set(run_slots(spans).tolist()) == free and allocator.num_free == len(free)
        assert all(a.start + a.length < b.start for a, b in zip(spans, spans[1:], strict=False))
