"""Small random heads, and a slow forward of one written from the paper's description alone."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from specrt.draft_heads.checkpoint import HeadCheckpoint, head_shapes, save_head
from specrt.draft_heads.config import HeadConfig
from specrt.engine import LLMEngine
from specrt.model.config import RopeConfig
from specrt.speculative.cost_model import PassCost
from specrt.speculative.head_drafter import HeadDrafter


def tiny_head(
    *,
    seed: int = 0,
    vocab_size: int = 320,
    draft_vocab_size: int = 200,
    target_hidden_size: int = 64,
    scale: float = 0.2,
    **overrides: object,
) -> HeadCheckpoint:
    """A random head for `fakes.tiny_model_folder`; its weights are exact in bfloat16."""
    sizes: dict[str, object] = {
        "hidden_size": 64,
        "target_hidden_size": target_hidden_size,
        "intermediate_size": 80,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "max_positions": 512,
        "rms_norm_eps": 1e-5,
        "rope": RopeConfig(theta=10000.0),
        "vocab_size": vocab_size,
        "draft_vocab_size": draft_vocab_size,
        "capture_layers": (0, 1),
    }
    config = HeadConfig(**{**sizes, **overrides})  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in head_shapes(config).items():
        weight = torch.randn(shape, generator=generator) * scale
        if name.endswith("norm.weight"):
            weight = 1.0 + weight
        weights[name] = weight.bfloat16().float()
    ids = torch.randperm(vocab_size, generator=generator)[:draft_vocab_size].sort().values
    return HeadCheckpoint(config, weights, ids)


FREE_ROWS = PassCost(((1, 0.02), (2, 0.02)))


def tiny_head_folder(folder: Path, **options: object) -> Path:
    """`tiny_head` as a checkpoint that borrows the target's embedding."""
    save_head(folder, tiny_head(**options))  # type: ignore[arg-type]
    return folder


def make_rows_free(engine: LLMEngine) -> None:
    """Rows and waves of the head cost nothing: what is drafted depends on no measured time."""
    builder = engine.worker.builder
    assert builder is not None
    builder._cost = FREE_ROWS
    (drafter,) = (d for d in builder._drafters if isinstance(d, HeadDrafter))
    drafter._target_cost = None


class ReferenceHead:
    """One row at a time, keys and values in lists: nothing shared with the runtime."""

    def __init__(self, head: HeadCheckpoint, embedding: Tensor) -> None:
        self.c, self.w, self.embedding = head.config, head.weights, embedding

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean() + self.c.rms_norm_eps) * self.w[name + ".weight"]

    def turn(self, heads: Tensor, position: int) -> Tensor:
        half = self.c.head_dim // 2
        angles = position * self.c.rope.theta ** (-torch.arange(half, dtype=torch.float64) / half)
        cos, sin = angles.cos().float(), angles.sin().float()
        a, b = heads[..., :half], heads[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def fuse(self, captured: Tensor) -> Tensor:
        return self.w["fc.weight"] @ captured

    def row(
        self, token_id: int, feature: Tensor, position: int, seen: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Output of one row that attends `seen` and itself, and its own (key, value)."""
        c, m = self.c, "midlayer."
        x = torch.cat(
            [
                self.norm(self.embedding[token_id], m + "input_layernorm"),
                self.norm(feature, m + "hidden_norm"),
            ]
        )
        query, key, value = (
            (self.w[f"{m}self_attn.{n}_proj.weight"] @ x).view(-1, c.head_dim) for n in "qkv"
        )
        query, key = self.turn(query, position), self.turn(key, position)
        keys = torch.stack([k for k, _ in seen] + [key])  # [rows, kv heads, D]
        values = torch.stack([v for _, v in seen] + [value])
        outputs = []
        for head in range(c.num_heads):
            kv = head * c.num_kv_heads // c.num_heads
            weight = torch.softmax(keys[:, kv] @ query[head] / c.head_dim**0.5, dim=0)
            outputs.append(weight @ values[:, kv])
        hidden = feature + self.w[m + "self_attn.o_proj.weight"] @ torch.cat(outputs)
        inner = self.norm(hidden, m + "post_attention_layernorm")
        gate = F.silu(self.w[m + "mlp.gate_proj.weight"] @ inner)
        up = self.w[m + "mlp.up_proj.weight"] @ inner
        return hidden + self.w[m + "mlp.down_proj.weight"] @ (gate * up), (key, value)

    def logits(self, out: Tensor) -> Tensor:
        return self.w["lm_head.weight"] @ self.norm(out, "norm")
