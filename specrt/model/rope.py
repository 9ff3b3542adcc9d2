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

    Source: RoFormer (arXiv 2104.09864); "llama3" as published with Llama 3.1; "yarn" is YaRN
    (arXiv 2309.00071).
    """
    exponent = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    spacing = rope.theta**exponent  # positions per radian
    plain = 1.0 / spacing
    if rope.rope_type == "default":
        return plain
    if rope.rope_type == "linear":
        return plain / rope.factor
    if rope.rope_type == "yarn":
        kept = 1 - _yarn_ramp(rope, head_dim)
        return 1.0 / (rope.factor * spacing) * (1 - kept) + plain * kept
    wavelength = 2 * math.pi / plain
    longest = rope.original_max_positions / rope.low_freq_factor
    shortest = rope.original_max_positions / rope.high_freq_factor
    share = (rope.original_max_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - share) * plain / rope.factor + share * plain
    scaled = torch.where(wavelength > longest, plain / rope.factor, blended)
    return torch.where(wavelength < shortest, plain, scaled)


def _yarn_ramp(rope: RopeConfig, head_dim: int) -> Tensor:
    """float32 [head_dim / 2]: 0 where YaRN keeps a frequency, 1 where it divides it."""

    def pair_with(turns: float) -> float:
        """Index of the pair that turns so often over the original context."""
        spacing = rope.original_max_positions / (turns * 2 * math.pi)
        return head_dim * math.log(spacing) / (2 * math.log(rope.theta))

    low, high = pair_with(rope.beta_fast), pair_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)


def rotary_table(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `rotate`, float32 [num_positions, head_dim] each.

    Both are multiplied by `rope.attention_factor`.
    The first half of each sine row is negated: see `rotate`.
    """
    positions = torch.arange(num_positions, dtype=torch.int64).float()
    angles = positions[:, None] * inverse_frequencies(rope, head_dim)[None, :]
    cosines, sines = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
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
