"""The attention seam: plan once per pass, run once per layer.

A backend knows rows, parents and slots; it knows no request, token or grammar.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The rows of one sequence in a pass: `num_chain` chain rows, then tree rows.

    Attributes:
        context_slots: int32 [C], slots of the tokens already in the pool, in position order.
        row_slots: int32 [R], where the K and V of the R rows go, in row order.
        num_chain: chain rows (>= 1): row i attends rows 0..i.
        parents: int32 [R - num_chain], for each tree row the row index (0..R-1) of its parent,
            which comes before it. A tree row attends the context, all chain rows, its tree
            ancestors and itself. Tree rows that hang from the root have parent num_chain - 1.
    """

    context_slots: npt.NDArray[np.int32]
    row_slots: npt.NDArray[np.int32]
    num_chain: int
    parents: npt.NDArray[np.int32]


class AttentionBackend(Protocol):
    """Writes K and V of the pass into the pool and attends over context and rows."""

    def plan(self, groups: list[RowGroup]) -> None:
        """Prepare one pass; rows of the groups are concatenated in order."""
        ...

    def run(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend in one layer.

        Args:
            layer: layer index in the pool.
            query: [T, num_heads, head_dim], rotated.
            key: [T, num_kv_heads, head_dim], rotated.
            value: [T, num_kv_heads, head_dim].

        Returns:
            [T, num_heads * head_dim], same dtype.
        """
        ...
