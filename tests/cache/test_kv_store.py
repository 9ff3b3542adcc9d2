from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from specrt.cache.kv_store import KVStore, bytes_per_slot
from specrt.errors import ConfigError

EXTRA = {"head_row": (2, 4), "feature": (6,)}


def _store(num_slots: int = 20) -> KVStore:
    store = KVStore(num_slots, 3, 2, 4, extra=EXTRA)
    generator = torch.Generator().manual_seed(0)
    for plane in (*store.keys, *store.values, *store.extra.values()):
        plane.normal_(generator=generator)
    return store


def _slot(store: KVStore, slot: int) -> list[torch.Tensor]:
    return [p[slot].clone() for p in (*store.keys, *store.values, *store.extra.values())]


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_planes_have_the_announced_layout() -> None:
    store = _store()
    assert [tuple(k.shape) for k in store.keys] == [(20, 2, 4)] * 3
    # A run of slots of one head is one stretch of memory.
    assert all(plane[:, 0].is_contiguous() for plane in (*store.keys, *store.values))
    assert {n: tuple(p.shape) for n, p in store.extra.items()} == {
        "head_row": (20, 2, 4),
        "feature": (20, 6),
    }


def test_move_takes_all_planes_and_leaves_other_slots() -> None:
    store = _store()
    before = [_slot(store, i) for i in range(20)]
    store.move(np.array([12, 15, 17], np.int32), [10, 11, 12])
    for slot in range(20):
        source = {10: 12, 11: 15, 12: 17}.get(slot, slot)
        assert _equal(_slot(store, slot), before[source]), slot


@pytest.mark.parametrize("offset", [1, -1])
def test_move_reads_all_before_it_writes(offset: int) -> None:
    store = _store()
    before = [_slot(store, i) for i in range(20)]
    sources = list(range(5, 15))
    store.move(sources, [slot + offset for slot in sources])
    assert all(_equal(_slot(store, slot + offset), before[slot]) for slot in sources)


def test_move_of_nothing() -> None:
    store = _store()
    before = [_slot(store, i) for i in range(20)]
    store.move([], [])
    assert all(_equal(_slot(store, i), before[i]) for i in range(20))


def test_export_and_adopt_carry_slots_to_another_store() -> None:
    source, target = _store(), _store(9)
    planes = source.export([3, 19, 4])
    assert planes["kv"].shape == (3, 2, 2, 3, 4)
    target.adopt([8, 0, 1], planes)
    for there, here in ((8, 3), (0, 19), (1, 4)):
        assert _equal(_slot(target, there), _slot(source, here))


def test_export_is_a_copy() -> None:
    store = _store()
    planes = store.export([5])
    before = planes["feature"].clone()
    store.extra["feature"].zero_()
    assert torch.equal(planes["feature"], before)


def test_adopt_refuses_other_layouts() -> None:
    store = _store()
    planes = store.export([1, 2])
    with pytest.raises(ValueError, match="expected the planes"):
        store.adopt([1, 2], {"kv": planes["kv"]})
    with pytest.raises(ValueError, match="plane 'kv'"):
        store.adopt([1, 2, 3], planes)
    with pytest.raises(ValueError, match="plane 'feature'.*float16"):
        store.adopt([1, 2], {**planes, "feature": planes["feature"].half()})


def test_slots_out_of_range_are_a_bug() -> None:
    with pytest.raises(AssertionError):
        _store().move([20], [0])
    with pytest.raises(AssertionError):
        _store().move([1], [-1])


def test_bytes_per_slot_is_what_a_store_takes() -> None:
    store = _store()
    planes = (*store.keys, *store.values, *store.extra.values())
    assert bytes_per_slot(3, 2, 4, torch.float32, EXTRA) * 20 == sum(p.nbytes for p in planes)
    assert bytes_per_slot(30, 3, 64) == 46080  # SmolLM2: 30 layers x 2 x 3 heads x 64 x 4 bytes


def test_memory_is_not_touched_before_use() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not Path("/proc/self/statm").exists():
        pytest.skip("reads the resident memory from /proc")
    before = resident()
    store = KVStore(2**15, 30, 4, 64)  # 2 GB
    store.keys[29][2**15 - 1] = 1.0
    assert resident() - before < 2**28


def test_too_large_a_store_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigError, match="1099511627776 slots.*--max-total-tokens"):
        KVStore(2**40, 30, 4, 64)
