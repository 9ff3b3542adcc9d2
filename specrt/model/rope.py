"""Rotary position embedding: the frequencies, and a table of cosines and sines by position.

Computed in the order of operations of transformers, so that the values are equal to the bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specrt.model.config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """float32 [head_dim / 2]: radians per position of each pair.

    Source: RoFormer (arXiv 2104.09864); "llama3" as published with Llama 3.1.
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponent)
    if rope.rope_type == "default":
        return plain
    if rope.rope_type == "linear":
        return plain / rope.factor
    wavelength = 2 * math.pi / plain
    longest = rope.original_max_positions / rope.low_freq_factor
    shortest = rope.original_max_positions / rope.high_freq_factor
    share = (rope.original_max_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - share) * plain / rope.factor + share * plain
    scaled = torch.where(wavelength > longest, plain / rope.factor, blended)
    return torch.where(wavelength < shortest, plain, scaled)


def rotary_table(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `rotate`, float32 [num_positions, head_dim] each.

    The first half of each sine row is negated: see `rotate`.
    """
    positions = torch.arange(num_positions, dtype=torch.int64).float()
    angles = positions[:, None] * inverse_frequencies(rope, head_dim)[None, :]
    cosines, sines = angles.cos(), angles.sin()
    return torch.cat((cosines, cosines), dim=-1), torch.cat((-sines, sines), dim=-1)


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the pairs (i, i + head_dim / 2) of each head.

    Args:
        heads: [T, H, head_dim].
        cosines: [T, 1, head_dim], rows of the table.
        sines: [T, 1, head_dim]; the negated half makes one swap of halves do for both terms.

    Returns:
        [T, H, head_dim], a new tensor.
    """
    # roll by half a head is that swap, in one pass over the data.
    return (heads * cosines).addcmul_(heads.roll(heads.shape[-1] // 2, -1), sines)
