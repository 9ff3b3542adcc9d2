"""RMSNorm in four torch operations instead of the ten that F.rms_norm is made of on the CPU.

A pass over one row is mostly the cost of starting operations: 12 us instead of 22 us a norm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        """Prepare the constants.

        Args:
            weight: float32 [N], or [..., N] to give each head its own.
            eps: added to the mean square.
        """
        size = weight.shape[-1]
        # With n = |x|: sqrt(n^2 / N + eps) = hypot(n, sqrt(N * eps)) / sqrt(N).
        self._weight = weight * math.sqrt(size)
        self._floor = torch.tensor(math.sqrt(size * eps), device=weight.device)

    def __call__(self, rows: Tensor) -> Tensor:
        """[..., N] -> a new tensor of the same shape; a row's result depends on that row alone."""
        norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).hypot_(self._floor)
        scaled: Tensor = (rows / norm).mul_(self._weight)
        return scaled
