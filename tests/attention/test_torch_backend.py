"""TorchAttention against the reference, over random trees and fragmented slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specrt.attention import torch_backend
from specrt.attention.base import RowGroup
from specrt.attention.torch_backend import TorchAttention, row_visibility
from specrt.cache.kv_store import KVStore
from specrt.kernels import reference

NUM_SLOTS, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 300, 2, 6, 2, 16


def _ints(values: object) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


def _group(context: object, rows: object, num_chain: int, parents: object = ()) -> RowGroup:
    return RowGroup(_ints(context), _ints(rows), num_chain, _ints(parents))


def _store(seed: int = 0) -> KVStore:
    store = KVStore(NUM_SLOTS, LAYERS, KV_HEADS, HEAD_DIM)
    generator = torch.Generator().manual_seed(seed)
    for plane in (*store.keys, *store.values):
        plane.normal_(generator=generator)
    return store


def _ancestors(group: RowGroup, row: int) -> set[int]:
    """Rows that a row attends, by walking its parents one at a time."""
    seen = {row}
    while row > 0:
        row = row - 1 if row < group.num_chain else int(group.parents[row - group.num_chain])
        seen.add(row)
    return seen


def _expected(store: KVStore, layer: int, group: RowGroup, query: Tensor) -> Tensor:
    """Call after the backend has written the rows."""
    num_context, num_rows = len(group.context_slots), len(group.row_slots)
    slots = torch.from_numpy(np.concatenate([group.context_slots, group.row_slots])).long()
    visible = torch.zeros(num_rows, num_context + num_rows, dtype=torch.bool)
    visible[:, :num_context] = True
    for row in range(num_rows):
        visible[row, [num_context + r for r in _ancestors(group, row)]] = True
    return reference.masked_attention(
        query, store.keys[layer][slots], store.values[layer][slots], visible
    )


def _check(groups: list[RowGroup], seed: int = 0) -> None:
    store = _store(seed)
    backend = TorchAttention(store, HEADS)
    backend.plan(groups)
    generator = torch.Generator().manual_seed(seed + 1)
    num_rows = sum(len(group.row_slots) for group in groups)
    for layer in range(LAYERS):
        # Slices of one wider tensor, as the decoder passes them.
        heads = torch.randn(num_rows, HEADS + 2 * KV_HEADS, HEAD_DIM, generator=generator)
        query, key = heads[:, :HEADS], heads[:, HEADS : HEADS + KV_HEADS]
        value = heads[:, HEADS + KV_HEADS :]
        output = backend.run(layer, query, key, value)
        assert output.shape == (num_rows, HEADS * HEAD_DIM)
        first = 0
        for group in groups:
            rows = slice(first, first + len(group.row_slots))
            first = rows.stop
            slots = torch.from_numpy(group.row_slots).long()
            assert torch.equal(store.keys[layer][slots], key[rows])
            assert torch.equal(store.values[layer][slots], value[rows])
            expected = _expected(store, layer, group, query[rows])
            torch.testing.assert_close(output[rows], expected, atol=1e-5, rtol=1e-5)


@st.composite
def _random_groups(draw: st.DrawFn) -> list[RowGroup]:
    """1 to 4 groups over disjoint slots: long runs, short runs and single slots, random trees."""
    pieces = draw(st.lists(st.integers(1, 40), min_size=6, max_size=12))
    starts, taken = [], 0
    for length in pieces:
        starts.append(taken)
        taken += length + draw(st.integers(0, 1))
    order = draw(st.permutations(range(len(pieces))))
    pool = [s for i in order for s in range(starts[i], starts[i] + pieces[i]) if s < NUM_SLOTS]
    groups = []
    for _ in range(draw(st.integers(1, 4))):
        num_chain, num_tree = draw(st.integers(1, 6)), draw(st.integers(0, 8))
        num_rows = num_chain + num_tree
        if len(pool) < num_rows:
            break
        num_context = draw(st.integers(0, len(pool) - num_rows))
        slots, pool = pool[: num_context + num_rows], pool[num_context + num_rows :]
        parents = [draw(st.integers(num_chain - 1, row - 1)) for row in range(num_chain, num_rows)]
        groups.append(_group(slots[:num_context], slots[num_context:], num_chain, parents))
    return groups or [_group([], [0], 1)]


@pytest.mark.parametrize(("min_view_slots", "min_split_cells"), [(1, 20), (8, 10**9), (400, 60)])
def test_random_groups_equal_reference(
    monkeypatch: pytest.MonkeyPatch, min_view_slots: int, min_split_cells: int
) -> None:
    monkeypatch.setattr(torch_backend, "MIN_VIEW_SLOTS", min_view_slots)
    monkeypatch.setattr(torch_backend, "MIN_SPLIT_CELLS", min_split_cells)

    @settings(max_examples=20, deadline=None)
    @given(groups=_random_groups(), seed=st.integers(0, 3))
    def check(groups: list[RowGroup], seed: int) -> None:
        _check(groups, seed)

    check()


@pytest.mark.parametrize(("min_view_slots", "min_split_cells"), [(1, 20), (5, 10**9), (400, 20)])
@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([_group([], [7], 1)], id="first row of all"),
        pytest.param([_group([], range(40), 40)], id="chain without context"),
        pytest.param([_group(range(50), range(50, 66), 16)], id="chunk behind context"),
        pytest.param([_group(range(50), [50], 1)], id="decode"),
        pytest.param([_group(range(50), [90], 1)], id="decode in another run"),
        pytest.param([_group(range(60, 80), range(20, 30), 10)], id="rows before context"),
        pytest.param([_group([*range(9), 200], [11, 13, 12], 3)], id="rows in single slots"),
        pytest.param(
            [_group([*range(30), *range(40, 70)], [70, 71, 72, 99], 2, [1, 1])],
            id="last row apart",
        ),
        pytest.param(
            [_group(range(0, 120, 2), range(121, 129), 3, [2, 2, 3, 4, 5])], id="every other slot"
        ),
        pytest.param(
            [_group(range(10 * i, 10 * i + 5), [10 * i + 5], 1) for i in range(25)],
            id="many groups",
        ),
    ],
)
def test_shapes_of_slots_equal_reference(
    monkeypatch: pytest.MonkeyPatch,
    min_view_slots: int,
    min_split_cells: int,
    groups: list[RowGroup],
) -> None:
    monkeypatch.setattr(torch_backend, "MIN_VIEW_SLOTS", min_view_slots)
    monkeypatch.setattr(torch_backend, "MIN_SPLIT_CELLS", min_split_cells)
    _check(groups)


def test_shared_context_of_two_groups() -> None:
    shared = list(range(100))
    _check([_group(shared, range(100, 104), 4), _group(shared, range(150, 153), 1, [0, 1])])


def test_tree_row_equals_its_path_as_a_chain() -> None:
    #  0 - 1 - 2 (chain)   2 -> 3, 4   3 -> 5   5 -> 6
    parents = [2, 2, 3, 5]
    generator = torch.Generator().manual_seed(5)
    heads = torch.randn(7, HEADS + 2 * KV_HEADS, HEAD_DIM, generator=generator)

    def run(group: RowGroup, rows: list[int]) -> Tensor:
        backend = TorchAttention(_store(), HEADS)
        backend.plan([group])
        part = heads[rows]
        return backend.run(
            0, part[:, :HEADS], part[:, HEADS : HEADS + KV_HEADS], part[:, HEADS + KV_HEADS :]
        )

    context = range(30)
    tree = run(_group(context, range(30, 37), 3, parents), list(range(7)))
    for path in ([0, 1, 2, 3, 5, 6], [0, 1, 2, 4]):
        chain = run(_group(context, range(30, 30 + len(path)), len(path)), path)
        torch.testing.assert_close(tree[path], chain, atol=1e-5, rtol=1e-5)


def test_row_visibility_of_a_small_tree() -> None:
    #  0 - 1 (chain)   1 -> 2, 3   2 -> 4
    visible = row_visibility(_group([], range(5), 2, [1, 1, 2]))
    assert visible.astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1],
    ]


def test_the_usual_group_is_one_view_without_a_copy() -> None:
    backend = TorchAttention(_store(), HEADS)
    backend.plan([_group(range(40), range(40, 48), 1, [0, 0, 1, 1, 2, 3, 4])])
    (stretch,) = backend._groups[0].stretches
    assert (stretch.start, stretch.length, stretch.slots) == (0, 48, None)


def test_long_runs_are_views_and_short_ones_one_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "MIN_VIEW_SLOTS", 20)
    backend = TorchAttention(_store(), HEADS)
    backend.plan([_group([*range(50), 60, 70, *range(80, 110)], [110, 111], 2)])
    in_place = [(s.start, s.length) for s in backend._groups[0].stretches if s.slots is None]
    gathered = [s.slots.tolist() for s in backend._groups[0].stretches if s.slots is not None]
    assert in_place == [(0, 50), (80, 32)] and gathered == [[60, 70]]


def test_a_wide_chunk_reads_long_context_without_a_mask() -> None:
    backend = TorchAttention(KVStore(5000, 1, 1, 8), 2)
    backend.plan([_group(range(4000), range(4000, 4256), 256)])
    context, rows = backend._groups[0].stretches
    assert (context.start, context.length, context.mask) == (0, 4000, None)
    assert rows.mask is not None and rows.mask.shape == (1, 1, 512, 256)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_cpu() -> None:
    cpu = _store()
    cuda = KVStore(NUM_SLOTS, LAYERS, KV_HEADS, HEAD_DIM, device="cuda")
    for target, source in zip((*cuda.keys, *cuda.values), (*cpu.keys, *cpu.values), strict=True):
        target.copy_(source)
    group = _group([*range(30), 200, *range(60, 80)], range(80, 86), 2, [1, 1, 2, 4])
    heads = torch.randn(6, HEADS + 2 * KV_HEADS, HEAD_DIM)
    parts = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    outputs = []
    for store in (cpu, cuda):
        backend = TorchAttention(store, HEADS)
        backend.plan([group])
        outputs.append(backend.run(1, *(p.to(store.keys[0].device) for p in parts)).cpu())
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-4, rtol=1e-4)
