"""Attention of a few rows over a stretch of keys, and merging of such results.

The stretch may be a strided view: nothing is copied on the CPU. Heads are grouped (GQA): the rows
of the query heads that share a key head are laid behind each other, so that each key is read once.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor


def fold_heads(query: Tensor, num_kv_heads: int) -> Tensor:
    """[R, H, D] -> [1, num_kv_heads, R * H / num_kv_heads, D]; a row's heads stay together."""
    num_rows, num_heads, head_dim = query.shape
    group = num_heads // num_kv_heads
    by_kv_head = query.view(num_rows, num_kv_heads, group, head_dim).transpose(0, 1)
    return by_kv_head.reshape(1, num_kv_heads, num_rows * group, head_dim)


def unfold_heads(folded: Tensor, num_rows: int) -> Tensor:
    """The inverse of `fold_heads`, heads joined: -> [R, H * D]."""
    _, num_kv_heads, num_folded, head_dim = folded.shape
    group = num_folded // num_rows
    by_row = folded.view(num_kv_heads, num_rows, group, head_dim).transpose(0, 1)
    return by_row.reshape(num_rows, num_kv_heads * group * head_dim)


def attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention with the log-sum-exp of the scores.

    Args:
        query: [1, K, N, D], K key heads, N folded rows.
        keys: [1, K, L, D], any strides with a dense last dimension.
        values: like keys.
        mask: [1, 1, N, L] of the query's dtype, 0 or -inf, at least one 0 in each row; None = all.

    Returns:
        output [1, K, N, D] and log-sum-exp [1, K, N] (float32).
    """
    if query.device.type == "cpu" and _has_flash():
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, 0.0, False, attn_mask=mask
        )
        return output, lse
    scores = query @ keys.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + mask
    scores = scores.float()
    return F.softmax(scores, dim=-1).to(query.dtype) @ values, torch.logsumexp(scores, dim=-1)


def merge(outputs: list[Tensor], lses: list[Tensor]) -> Tensor:
    """Attention over the union of disjoint stretches from the results over each.

    Args:
        outputs: [1, K, N, D] each.
        lses: [1, K, N] each.

    Returns:
        [1, K, N, D].

    Source: FlashDecoding; the same identity as in online softmax.
    """
    weights = torch.softmax(torch.stack(lses), dim=0)  # [parts, 1, K, N]
    merged = outputs[0] * weights[0].unsqueeze(-1)
    for output, weight in zip(outputs[1:], weights[1:], strict=True):
        merged.addcmul_(output, weight.unsqueeze(-1))
    return merged


@functools.cache
def _has_flash() -> bool:
    return hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
