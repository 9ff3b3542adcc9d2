"""HeadRunner: a head over the slots of the KV store.

The row made from (feature of token t, token t + 1) lies in the slot of token t + 1, beside that
token's keys, values and own feature: so a row depends on its slot's own path alone, a cached
prefix brings its rows along, and any token may follow it. Rows of committed tokens are made from
the target's features, on demand; rows of drafted tokens from their parent's output, in slots of
their own, and thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specrt.attention.base import RowGroup
from specrt.attention.torch_backend import TorchAttention
from specrt.cache.kv_store import KVStore
from specrt.draft_heads.eagle3 import Eagle3Head

HEAD_ROW, FEATURE = "head_row", "feature"
# Slots for the rows of drafted tokens, behind those of the pool.
NUM_SCRATCH_SLOTS = 1024
# Rows of committed tokens that are made in one pass of the head: bounds its memory.
_MAX_ROWS = 512

Slots = npt.NDArray[np.int32]


def extra_planes(head: Eagle3Head) -> dict[str, tuple[int, ...]]:
    """What the head keeps in each slot: name -> shape."""
    config = head.config
    return {
        HEAD_ROW: (2, config.num_kv_heads, config.head_dim),
        FEATURE: (config.hidden_size,),
    }


@dataclass(frozen=True, slots=True)
class DraftedPath:
    """Drafted tokens in a row, none of which has a head row yet.

    Attributes:
        token_ids: n tokens.
        first_position: position of the first one in its sequence.
        context_slots: int32, slots of the rows before them, the sequence's first token excluded.
        row_slots: int32 [n], where their rows go.
        feature: float32 [H], the output of the row that predicts the first of them; all n take it.
    """

    token_ids: list[int]
    first_position: int
    context_slots: Slots
    row_slots: Slots
    feature: Tensor


class _Span(NamedTuple):
    """Tokens first .. last - 1 of a sequence."""

    token_ids: list[int]
    slots: Slots
    first: int
    last: int


class HeadRunner:
    """Makes head rows and reads predictions from them.

    Attributes:
        draft_token_ids: int64 [Vd], token id of each draft logit.
        capture_layers: what the target's pass must capture.
        scratch_slots: int32, slots for the rows of drafted tokens.
    """

    def __init__(self, head: Eagle3Head, store: KVStore, num_pool_slots: int) -> None:
        """Args:
        head: the head.
        store: made with `extra_planes(head)`, NUM_SCRATCH_SLOTS larger than the pool.
        num_pool_slots: the slots that sequences may own.
        """
        self._head = head
        self._rows = TorchAttention(store.layer_of(HEAD_ROW), head.config.num_heads)
        self._features = store.extra[FEATURE]
        self._num_pool_slots = num_pool_slots
        self._has_row = np.zeros(store.num_slots, dtype=np.bool_)
        self.draft_token_ids: npt.NDArray[np.int64] = head.draft_token_ids.numpy()
        self.capture_layers = head.config.capture_layers
        self.scratch_slots: Slots = np.arange(num_pool_slots, store.num_slots, dtype=np.int32)

    def time_wave(self, num_rows: int, num_context: int = 256) -> float:
        """Seconds of reading `num_rows` drafted tokens and predicting behind each.

        Overwrites the first slots of the pool: only before any request.
        """
        limit = min(self._num_pool_slots, self._head.num_positions - 2)
        context = np.arange(max(0, min(num_context, limit)), dtype=np.int32)
        feature = torch.zeros(self._head.config.hidden_size)
        paths = [
            DraftedPath([0], len(context) + 1, context, self.scratch_slots[i : i + 1], feature)
            for i in range(num_rows)
        ]
        start = time.perf_counter()
        self.logits(list(self.follow(paths)))
        return time.perf_counter() - start

    def keep_features(self, slots: Slots, captured: Tensor) -> None:
        """Fuse what the target's pass captured.

        Args:
            slots: int32 [T], slots of the pass's rows.
            captured: float32 [T, layers * target H].
        """
        self._features.index_copy_(0, _index(slots), self._head.fuse(captured))

    def forget(self, slots: Slots) -> None:
        """Other tokens will lie in these slots: their rows are void."""
        self._has_row[slots] = False

    def extend(self, sequences: Sequence[tuple[list[int], Slots]]) -> Tensor:
        """Make the missing rows of committed tokens, from the target's features.

        Args:
            sequences: (n >= 2 token ids, int32 [n] slots) each; all tokens but the last have a
                feature in their slot.

        Returns:
            float32 [len(sequences), H], the output of each one's last row.
        """
        spans = []
        for token_ids, slots in sequences:
            has_row = self._has_row[slots]
            has_row[-1] = False  # its output is wanted
            first = max(1, int(np.argmin(has_row[1:])) + 1)
            while len(slots) - first > _MAX_ROWS:
                self._extend([_Span(token_ids, slots, first, first + _MAX_ROWS)])
                first += _MAX_ROWS
            spans.append(_Span(token_ids, slots, first, len(slots)))
        return self._extend(spans)

    def _extend(self, spans: list[_Span]) -> Tensor:
        """One pass over rows first .. last - 1 of each sequence."""
        out = self._forward(
            [(s.slots[1 : s.first], s.slots[s.first : s.last]) for s in spans],
            [s.token_ids[s.first : s.last] for s in spans],
            [s.first for s in spans],
            torch.cat([self._features[_index(s.slots[s.first - 1 : s.last - 1])] for s in spans]),
        )
        for span in spans:
            self._has_row[span.slots[span.first : span.last]] = True
        return out

    def follow(self, paths: Sequence[DraftedPath]) -> Tensor:
        """Make the rows of drafted paths in one pass.

        Returns:
            float32 [len(paths), H], the output of each path's last row.
        """
        lengths = torch.tensor([len(p.token_ids) for p in paths])
        return self._forward(
            [(p.context_slots, p.row_slots) for p in paths],
            [p.token_ids for p in paths],
            [p.first_position for p in paths],
            torch.stack([p.feature for p in paths]).repeat_interleave(lengths, dim=0),
        )

    def _forward(
        self,
        slots: list[tuple[Slots, Slots]],
        token_ids: list[list[int]],
        first_positions: list[int],
        features: Tensor,
    ) -> Tensor:
        """Chains of rows, each behind its context; the outputs of their last rows, [chains, H]."""
        none = np.empty(0, np.int32)
        self._rows.plan([RowGroup(context, rows, len(rows), none) for context, rows in slots])
        lengths = [len(ids) for ids in token_ids]
        # The row of a token has the position of the token before.
        positions = [
            first - 1 + i
            for first, length in zip(first_positions, lengths, strict=True)
            for i in range(length)
        ]
        out = self._head.forward(
            torch.tensor([token_id for ids in token_ids for token_id in ids]),
            features,
            torch.tensor(positions),
            self._rows,
        )
        return out[torch.tensor(lengths).cumsum(0) - 1]

    def logits(self, outs: list[Tensor]) -> npt.NDArray[np.float32]:
        """Draft logits of rows' outputs: float32 [n, Vd]."""
        logits: npt.NDArray[np.float32] = self._head.logits(torch.stack(outs)).numpy()
        return logits


def _index(slots: Slots) -> Tensor:
    return torch.from_numpy(slots.astype(np.int64))
