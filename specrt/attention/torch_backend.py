"""TorchAttention: the attention backend for the CPU; on other devices correct, not tuned.

Keys of a group are read where they lie. Its slots (context, then rows) are cut into runs of
consecutive slots; the usual group is one run, hence one call a layer without any copy:

    slots   [ context ............ | chain rows | tree rows ]
    mask      0 0 0 0 0 0 0 0 0 0    causal       ancestors      one line per row, made once a pass

Short runs are gathered into one stretch instead, and the results over stretches are merged by
their log-sum-exp. Knows rows and slots only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specrt.attention.base import RowGroup
from specrt.cache.kv_store import KeysAndValues
from specrt.kernels.attention import attend, fold_heads, merge, unfold_heads

# A run of at least this many slots is read in place, shorter ones are gathered into one stretch. In
# place costs one more call and a merge, a gather a copy. SmolLM2's heads, three runs, one row,
# 2-core AVX-512 machine: runs of 50 slots 224 us in place, 150 us gathered; of 100: 231 and 210; of
# 150: 241 and 264; of 400: 290 and 624. Eight rows cross there too, 32 rows nearer to 200.
MIN_VIEW_SLOTS = 128
# From this many mask cells (rows x context) on, context is read without a mask and merged: 256 rows
# over 7000 tokens take 76 ms instead of 89 ms, and no 25 MB mask is made.
MIN_SPLIT_CELLS = 1 << 18


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Keys that one call reads: a view [start, start + length), or gathered `slots`."""

    start: int
    length: int
    slots: Tensor | None  # int64 [length]
    mask: Tensor | None  # [1, 1, R * group, length], 0 or -inf


@dataclass(frozen=True, slots=True)
class _PlannedGroup:
    first_row: int
    num_rows: int
    stretches: tuple[_Stretch, ...]


class TorchAttention:
    """Attention over slots with plain torch operations."""

    def __init__(self, store: KeysAndValues, num_heads: int) -> None:
        """Make a backend.

        Args:
            store: where keys and values live: a KVStore, or one layer of its extra planes.
            num_heads: query heads, a multiple of the store's key heads.
        """
        self._store = store
        _, self._num_kv_heads, _ = store.keys[0].shape
        assert num_heads % self._num_kv_heads == 0
        self._heads_per_group = num_heads // self._num_kv_heads
        self._device, self._dtype = store.keys[0].device, store.keys[0].dtype
        # [1, K, slots, D]: a run is one narrow() of these.
        self._keys = [keys.transpose(0, 1).unsqueeze(0) for keys in store.keys]
        self._values = [values.transpose(0, 1).unsqueeze(0) for values in store.values]
        self._row_slots = torch.empty(0, dtype=torch.int64)
        self._groups: list[_PlannedGroup] = []

    @torch.inference_mode()
    def plan(self, groups: list[RowGroup]) -> None:
        """Prepare one pass; rows of the groups are concatenated in order."""
        rows = np.concatenate([group.row_slots for group in groups])
        self._row_slots = self._tensor(rows)
        self._groups = []
        first_row = 0
        for group in groups:
            num_rows = len(group.row_slots)
            self._groups.append(_PlannedGroup(first_row, num_rows, self._stretches(group)))
            first_row += num_rows

    @torch.inference_mode()
    def run(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend in one layer; see AttentionBackend.run."""
        store = self._store
        store.keys[layer].index_copy_(0, self._row_slots, key)
        store.values[layer].index_copy_(0, self._row_slots, value)
        results = [
            self._attend_group(layer, group, query.narrow(0, group.first_row, group.num_rows))
            for group in self._groups
        ]
        return results[0] if len(results) == 1 else torch.cat(results)

    def _attend_group(self, layer: int, group: _PlannedGroup, query: Tensor) -> Tensor:
        folded = fold_heads(query, self._num_kv_heads)
        parts = [attend(folded, *self._read(layer, s), s.mask) for s in group.stretches]
        if len(parts) == 1:
            output = parts[0][0]
        else:
            output = merge([output for output, _ in parts], [lse for _, lse in parts])
        return unfold_heads(output, group.num_rows)

    def _read(self, layer: int, stretch: _Stretch) -> tuple[Tensor, Tensor]:
        """Keys and values of a stretch, [1, K, L, D] each."""
        if stretch.slots is None:
            return (
                self._keys[layer].narrow(2, stretch.start, stretch.length),
                self._values[layer].narrow(2, stretch.start, stretch.length),
            )
        return (
            self._keys[layer].index_select(2, stretch.slots),
            self._values[layer].index_select(2, stretch.slots),
        )

    def _stretches(self, group: RowGroup) -> tuple[_Stretch, ...]:
        num_context, num_rows = len(group.context_slots), len(group.row_slots)
        slots = np.concatenate([group.context_slots, group.row_slots]).astype(np.int64)
        is_cut = np.diff(slots) != 1
        if num_rows * num_context >= MIN_SPLIT_CELLS:
            is_cut[num_context - 1] = True
        cuts = (np.flatnonzero(is_cut) + 1).tolist()
        starts, ends = [0, *cuts], [*cuts, len(slots)]
        visible = row_visibility(group)
        # The rows stay in one stretch: each row sees at least itself there, so that no line of a
        # mask is all -inf. Rows that a cut divides are gathered.
        rows_are_one_run = starts[-1] <= num_context
        stretches, gathered = [], []
        for start, end in zip(starts, ends, strict=True):
            is_long = end - start >= MIN_VIEW_SLOTS or not cuts
            if is_long and (end <= num_context or rows_are_one_run):
                mask = self._mask(visible, end - start) if end > num_context else None
                stretches.append(_Stretch(int(slots[start]), end - start, None, mask))
            else:
                gathered.append(slots[start:end])
        if gathered:
            joined = np.concatenate(gathered)
            has_rows = gathered[-1][-1] == slots[-1]  # runs are in order, rows come last
            mask = self._mask(visible, len(joined)) if has_rows else None
            stretches.append(_Stretch(0, len(joined), self._tensor(joined), mask))
        return tuple(stretches)

    def _mask(self, visible: npt.NDArray[np.bool_], length: int) -> Tensor | None:
        """The mask over `length` columns, the last of which are the rows: [1, 1, R * group, L]."""
        num_rows = len(visible)
        if num_rows == 1:
            return None  # a single row sees all
        mask = torch.zeros((num_rows, length), dtype=self._dtype)
        rows = torch.from_numpy(~visible)
        mask[:, length - num_rows :].masked_fill_(rows, float("-inf"))
        folded = mask.repeat_interleave(self._heads_per_group, dim=0)
        return folded[None, None].to(self._device)

    def _tensor(self, slots: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(slots.astype(np.int64)).to(self._device)


def row_visibility(group: RowGroup) -> npt.NDArray[np.bool_]:
    """Which rows of the group each row attends: bool [R, R]. Context is attended by all.

    A chain row sees the rows before it and itself; a tree row what its parent sees and itself.
    """
    num_rows, num_chain = len(group.row_slots), group.num_chain
    visible = np.tri(num_rows, dtype=np.bool_)
    for row, parent in enumerate(group.parents.tolist(), start=num_chain):
        assert num_chain - 1 <= parent < row
        visible[row] = visible[parent]
        visible[row, row] = True
    return visible
