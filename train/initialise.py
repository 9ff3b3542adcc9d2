"""A head's first weights, taken from its target.

The layer is the target's last one, whose inputs resemble a head's; the half that reads the token
starts as noise, and fc passes the highest captured state through; or all of that is random. The
final norm and the lm_head are the target's, its rows of the draft vocabulary, so that the head
starts with a meaningful output space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from specrt.draft_heads.checkpoint import HeadCheckpoint, head_shapes
from specrt.draft_heads.config import HeadConfig, default_capture_layers
from specrt.errors import ConfigError
from specrt.model.config import TargetConfig
from specrt.model.weights import LAYER

_EMBEDDING = "model.embed_tokens.weight"
# Standard deviation of the noise in fc and in the half of q, k and v that reads the token.
_NOISE = 0.01
# That of random matrices, as transformers draws them.
_RANDOM = 0.02

InitialLayer = Literal["last", "random"]


def head_config(
    target: TargetConfig, draft_vocab_size: int, capture_layers: tuple[int, ...] | None = None
) -> HeadConfig:
    """A head of the size of one target layer.

    Args:
        target: the model to draft for.
        draft_vocab_size: tokens that it can propose.
        capture_layers: layers whose inputs it reads; None = the three of EAGLE-3.
    """
    return HeadConfig(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        max_positions=target.max_positions,
        rms_norm_eps=target.rms_norm_eps,
        rope=target.rope,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        capture_layers=capture_layers or default_capture_layers(target.num_layers),
    )


def lm_head_of(target: TargetConfig, weights: Mapping[str, Tensor]) -> Tensor:
    """[V, H]: the target's output matrix."""
    return weights[_EMBEDDING if target.tied else "lm_head.weight"]


def initial_head(
    config: HeadConfig,
    draft_token_ids: Tensor,
    target: TargetConfig,
    target_weights: Mapping[str, Tensor],
    seed: int,
    initial_layer: InitialLayer = "last",
) -> HeadCheckpoint:
    """An untrained head.

    Args:
        config: from `head_config`.
        draft_token_ids: int64 [draft_vocab_size], ascending.
        target: the target's config.
        target_weights: float32, by transformers' names.
        seed: of the noise.
        initial_layer: the target's last one, or random matrices, fc among them.

    Raises:
        ConfigError: the head's sizes are not those of a target layer.
    """
    noise = torch.Generator().manual_seed(seed)
    layer = LAYER.format(target.num_layers - 1)
    hidden = config.hidden_size
    shapes = head_shapes(config)
    weights: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        part = name.removeprefix("midlayer.")
        is_taken = initial_layer == "last" or part in ("norm.weight", "lm_head.weight")
        if not is_taken and len(shape) == 1:
            value = torch.ones(shape)
        elif not is_taken:
            value = torch.randn(shape, generator=noise) * _RANDOM
        elif part == "fc.weight":
            value = torch.randn(shape, generator=noise) * _NOISE
            value[:, -hidden:] += torch.eye(hidden)
        elif part == "input_layernorm.weight":
            value = torch.ones(shape)
        elif part == "hidden_norm.weight":
            value = target_weights[f"{layer}input_layernorm.weight"]
        elif part == "norm.weight":
            value = target_weights["model.norm.weight"]
        elif part == "lm_head.weight":
            value = lm_head_of(target, target_weights)[draft_token_ids]
        elif part in [f"self_attn.{letter}_proj.weight" for letter in "qkv"]:
            of_token = torch.randn((shape[0], hidden), generator=noise) * _NOISE
            value = torch.cat((of_token, target_weights[layer + part]), dim=1)
        else:
            value = target_weights[layer + part]
        if tuple(value.shape) != shape:
            raise ConfigError(
                f"draft head: {name} must have the target's shape {list(value.shape)},"
                f" got {list(shape)}"
            )
        weights[name] = value.clone()
    return HeadCheckpoint(config, weights, draft_token_ids)
