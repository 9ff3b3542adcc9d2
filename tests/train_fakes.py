"""A tiny target, random packs and a tiny head, for the tests of training."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from specrt.draft_heads.checkpoint import head_shapes
from specrt.draft_heads.config import HeadConfig
from specrt.model.config import RopeConfig, TargetConfig
from specrt.model.weights import weight_shapes
from specrt.train.head_module import TrainableHead
from specrt.train.initialise import head_config, initial_head
from specrt.train.packs import Pack

VOCAB = 40
TARGET = TargetConfig(
    architecture="LlamaForCausalLM",
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=24,
    num_layers=7,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    max_positions=256,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=100.0),
    tied=True,
    eos_token_ids=(1,),
)
DRAFT_IDS = torch.arange(2, 32)


def target_weights() -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(5)
    return {
        name: 1 + 0.1 * torch.randn(shape, generator=noise)
        if "norm" in name
        else 0.4 * torch.randn(shape, generator=noise)
        for name, shape in weight_shapes(TARGET).items()
    }


def tiny_head(seed: int = 0, **variants: bool) -> TrainableHead:
    """Weights large enough for every path to matter."""
    config: HeadConfig = head_config(TARGET, len(DRAFT_IDS))
    weights = target_weights()
    start = initial_head(config, DRAFT_IDS, TARGET, weights, seed)
    noise = torch.Generator().manual_seed(seed + 1)
    config = dataclasses.replace(config, **variants)
    for name, shape in head_shapes(config).items():
        start.weights.setdefault(name, torch.ones(shape))
    for value in start.weights.values():
        value += 0.3 * torch.randn(value.shape, generator=noise)
    return TrainableHead(config, weights["model.embed_tokens.weight"]).load(start.weights)


def random_pack(seed: int, *, num_branches: int = 3, forced_share: float = 0.4) -> Pack:
    """A trunk that forks once, and branches with forced runs from several places of it."""
    noise = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=noise))

    parent = [-1, *range(5), 2, 6, 7]
    branches = []
    for _ in range(num_branches):
        above, length = draw(2, 9), draw(4, 12)
        branches.append((len(parent), length))
        parent += [above, *range(len(parent), len(parent) + length - 1)]
    size = len(parent)
    position = [0] * size
    for row in range(1, size):
        position[row] = position[parent[row]] + 1
    forced = torch.zeros(size, dtype=torch.bool)
    forced[9:] = torch.rand(size - 9, generator=noise) < forced_share
    return Pack(
        token_ids=torch.randint(0, VOCAB, (size,), generator=noise),
        parent=torch.tensor(parent),
        position=torch.tensor(position),
        branches=torch.tensor(branches),
        forced=forced,
        held=False,
        turn_ids=tuple(f"turn {index}" for index in range(num_branches)),
        captured=torch.randn(size, 3 * 16, generator=noise).bfloat16(),
        hidden=torch.randn(size, 16, generator=noise).bfloat16(),
    )
