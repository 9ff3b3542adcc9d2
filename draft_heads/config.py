"""HeadConfig: the sizes of an EAGLE-3 head, and the variants of its computation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specrt.errors import ConfigError
from specrt.model.config import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """One decoder layer over (token, feature); vanilla EAGLE-3 unless a variant is set.

    Attributes:
        hidden_size: width H of the head.
        target_hidden_size: width of the target's residual stream.
        intermediate_size: width of the MLP.
        num_heads: query heads.
        num_kv_heads: key and value heads.
        head_dim: size of one head.
        max_positions: context in tokens it was made for.
        rms_norm_eps: of every norm.
        rope: rotary embedding.
        vocab_size: the target's vocabulary; the head reads all of it.
        draft_vocab_size: tokens that it can propose.
        capture_layers: layers whose incoming residual streams make a feature, low to high
            (hidden_states[i] of transformers).
        fc_norm: each of these streams is normed on its own before fc (EAGLE-3.1).
        norm_before_fc: all of them are normed as one row before fc.
        norm_before_residual: the residual of the layer starts from the normed feature.
        norm_output: what a row passes on to its children is normed (EAGLE-3.1).
        provenance: what `train-draft` noted (target, vocabulary hash, training settings).
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    rope: RopeConfig
    vocab_size: int
    draft_vocab_size: int
    capture_layers: tuple[int, ...]
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)


# The fields that change the computation; their names are the keys of every layout.
VARIANTS = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")


def default_capture_layers(num_layers: int) -> tuple[int, int, int]:
    """The layers that EAGLE-3 reads: 2, N // 2 and N - 3 (EAGLE-3, arXiv 2503.01840).

    Raises:
        ConfigError: the target has too few layers for three different ones.
    """
    if num_layers < 7:
        raise ConfigError(
            "an EAGLE-3 head reads three layers of its target, 2, N // 2 and N - 3: expected a"
            f" target of 7 layers or more, got {num_layers}"
        )
    return 2, num_layers // 2, num_layers - 3
