"""PackedLinear: a weight packed once for oneDNN, whose rows come out the same in any batch.

A row's result is the same to the bit alone, in a chunk, in a tree or in a batch, so a draft that is
verified in one wide pass gives what plain decoding gives. `F.linear` does not: it picks other
kernels, with other summation orders, for other row counts.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

logger = logging.getLogger(__name__)

# Row count that the packed layout is chosen for. One packing serves every row count, since packing
# per row count would change the summation order; 16 costs single rows little and wide passes least.
_ROWS_HINT = 16
# Smallest row counts tried until every batch gives the same rows; smaller inputs are padded to it.
_MIN_ROWS = (1, 2, 4, 8, 16)
_PROBE_ROWS = 40
_PROBE_SIZES = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 31, 33)

# (in_features, out_features, threads) -> smallest row count: the kernel depends on these alone.
_min_rows_by_shape: dict[tuple[int, int, int], int] = {}


class PackedLinear:
    """y = x W^T + b with a prepacked weight.

    Set the number of torch threads before packing: the check below runs under it.

    Attributes:
        in_features: columns of the input.
        out_features: columns of the output.
        min_rows: inputs with fewer rows are padded to this many. oneDNN takes a matrix-vector
            path for one row of a wide input (AVX-512, in_features > 1024) that sums in another
            order; two rows avoid it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Pack a weight.

        Args:
            weight: float32 [out_features, in_features]; may be freed afterwards.
            bias: float32 [out_features].
        """
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self.is_packed = weight.device.type == "cpu" and weight.dtype == torch.float32
        if self.is_packed and not _has_onednn():
            self.is_packed = False
            _log_once("no oneDNN in this torch: rows may differ in the last bits between batches")
        self._weight = weight
        self.min_rows = 1
        if self.is_packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
            shape = (self.in_features, self.out_features, torch.get_num_threads())
            if shape not in _min_rows_by_shape:
                _min_rows_by_shape[shape] = find_min_rows(self._multiply, self.in_features)
            self.min_rows = _min_rows_by_shape[shape]

    def __call__(self, rows: Tensor) -> Tensor:
        """Multiply: [T, in_features] -> [T, out_features], T >= 0."""
        num_rows = rows.shape[0]
        if num_rows >= self.min_rows:
            return self._multiply(rows)
        if num_rows == 0:
            return rows.new_empty(0, self.out_features)
        return self._multiply(F.pad(rows, (0, 0, 0, self.min_rows - num_rows)))[:num_rows]

    def _multiply(self, rows: Tensor) -> Tensor:
        if not self.is_packed:
            return F.linear(rows, self._weight, self._bias)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._weight, self._bias, "none", [], ""
        )
        return result


def find_min_rows(multiply: Callable[[Tensor], Tensor], in_features: int) -> int:
    """The smallest row count from which on rows equal those of a bigger batch to the bit.

    Args:
        multiply: the linear, [T, in_features] -> [T, out_features].
        in_features: columns of its input.

    Returns:
        One of 1, 2, 4, 8, 16; 1 with a warning when none is.
    """
    rows = torch.randn(_PROBE_ROWS, in_features, generator=torch.Generator().manual_seed(0))
    whole = multiply(rows)
    # From the end of the batch, so that a row's place in a tile differs too.
    unequal = [n for n in _PROBE_SIZES if not torch.equal(multiply(rows[-n:]), whole[-n:])]
    for min_rows in _MIN_ROWS:
        if all(n < min_rows for n in unequal):
            return min_rows
    _log_once(
        "oneDNN gives rows that depend on the batch on this CPU: speculative and plain decoding "
        "may differ where two tokens are almost equally likely"
    )
    return 1


def _has_onednn() -> bool:
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


@functools.cache
def _log_once(message: str) -> None:
    logger.warning(message)
