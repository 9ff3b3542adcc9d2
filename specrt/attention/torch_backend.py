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
from specrt.cache.kv_store import KVStore
from specrt.kernels.attention import attend, fold_heads, merge, unfold_heads

# A run of at least this many slots is read in place; shorter ones are gathered. In place costs one
# more attention call and a merge (about 60 us with 3 key heads of 64), a gather costs about 0.15 us
# a slot for keys and values: the two meet near 400 slots (2-core AVX-512 machine).
MIN_VIEW_SLOTS = 400


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
    """Attention over a KVStore with plain torch operations."""

    def __init__(self, store: KVStore, num_heads: int) -> None:
        """Make a backend.

        Args:
            store: where keys and values live.
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
        keys = self._store.keys[layer].index_select(0, stretch.slots)
        values = self._store.values[layer].index_select(0, stretch.slots)
        return keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)

    def _stretches(self, group: RowGroup) -> tuple[_Stretch, ...]:
        num_context, num_rows = len(group.context_slots), len(group.row_slots)
        slots = np.concatenate([group.context_slots, group.row_slots]).astype(np.int64)
        cuts = np.flatnonzero(np.diff(slots) != 1) + 1
        starts = [0, *cuts.tolist()]
        ends = [*cuts.tolist(), len(slots)]
        visible = row_visibility(group)
        # The rows stay in one stretch: then each row sees at least itself there, and no line of a
        # mask is all -inf. If a cut lies among them they are gathered.
        is_last_whole = starts[-1] <= num_context
        if len(starts) == 1:
            return (self._stretch(slots, 0, len(slots), None, visible, num_context),)
        stretches, gathered = [], []
        for start, end in zip(starts, ends, strict=True):
            has_rows = end > num_context
            if end - start >= MIN_VIEW_SLOTS and (not has_rows or is_last_whole):
                stretches.append(self._stretch(slots, start, end, None, visible, num_context))
            else:
                gathered.append(np.arange(start, end))
        if gathered:
            columns = np.concatenate(gathered)
            has_rows = int(columns[-1]) >= num_context
            assert not has_rows or int(columns[-num_rows]) == num_context
            stretches.append(self._stretch(slots, 0, len(columns), columns, visible, num_context))
        return tuple(stretches)

    def _stretch(
        self,
        slots: npt.NDArray[np.int64],
        start: int,
        end: int,
        columns: npt.NDArray[np.int64] | None,
        visible: npt.NDArray[np.bool_],
        num_context: int,
    ) -> _Stretch:
        """One stretch: slots[start:end] in place, or slots[columns] gathered."""
        length = end - start
        last = end - 1 if columns is None else int(columns[-1])
        mask = None
        # A single row sees all; context is seen by all.
        if last >= num_context and len(visible) > 1:
            mask = self._mask(visible, length)
        if columns is None:
            return _Stretch(int(slots[start]), length, None, mask)
        return _Stretch(0, length, self._tensor(slots[columns]), mask)

    def _mask(self, visible: npt.NDArray[np.bool_], length: int) -> Tensor:
        """The mask over `length` columns, the last of which are the rows: [1, 1, R * group, L]."""
        num_rows = len(visible)
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
