"""Plain-torch twins of the kernels: slow, short, obviously right; tests compare the pairs."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear layer in float64, x W^T + b: [T, in], [out, in], [out] -> float32 [T, out]."""
    result = rows.double() @ weight.double().T
    return (result if bias is None else result + bias.double()).float()


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm in float64: x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    values = rows.double()
    mean_square = (values * values).mean(dim=-1, keepdim=True)
    return (values / torch.sqrt(mean_square + eps) * weight.double()).float()


def attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention with log-sum-exp in float64; arguments as kernels.attention.attend."""
    scores = query.double() @ keys.double().transpose(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + mask.double()
    output = torch.softmax(scores, dim=-1) @ values.double()
    return output.to(query.dtype), torch.logsumexp(scores, dim=-1).float()


def masked_attention(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """Attention of one sequence's rows over gathered keys, one head and one row at a time.

    Args:
        query: [R, H, D].
        keys: [L, K, D], H a multiple of K.
        values: [L, K, D].
        visible: bool [R, L], at least one True in each row.

    Returns:
        [R, H * D].
    """
    num_rows, num_heads, head_dim = query.shape
    group = num_heads // keys.shape[1]
    output = torch.empty(num_rows, num_heads, head_dim, dtype=torch.float64)
    for row in range(num_rows):
        seen = visible[row]
        for head in range(num_heads):
            scores = keys[seen, head // group].double() @ query[row, head].double()
            weights = torch.softmax(scores / math.sqrt(head_dim), dim=0)
            output[row, head] = weights @ values[seen, head // group].double()
    return output.reshape(num_rows, -1).to(query.dtype)
