"""A whole EAGLE-3 forward over a folder, from the descriptions of the layouts alone.

Plain torch in float32 with dense attention; shares nothing with the runtime, not even the reading
of the files. Slow, and only for folders that are what they should be.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor


class ReferenceFolder:
    """A head as its folder says.

    Attributes:
        token_ids: int64 [Vd], what each draft logit stands for.
        layers: indices of transformers' hidden_states that features are made of.
    """

    def __init__(self, folder: Path, target_embedding: Tensor, target_lm_head: Tensor) -> None:
        raw = json.loads((folder / "config.json").read_text())
        is_nested = "speculators_model_type" in raw
        self.layer: dict[str, Any] = raw["transformer_layer_config"] if is_nested else raw
        self.fc_norm, self.norm_before_fc = raw.get("fc_norm"), raw.get("norm_before_fc")
        self.norm_output = raw.get("norm_output")
        self.norm_before_residual = raw.get("norm_before_residual", is_nested)
        path = folder / "pytorch_model.bin"
        tensors = torch.load(path) if path.exists() else load_file(folder / "model.safetensors")
        self.w = {
            name.removeprefix("model.").replace("layers.0.", "midlayer."): t.float()
            if t.is_floating_point()
            else t
            for name, t in tensors.items()
        }
        self.w.setdefault("embed_tokens.weight", target_embedding)
        self.w.setdefault("lm_head.weight", target_lm_head)
        self.heads = self.layer.get("num_attention_heads", 32)
        self.kv_heads = self.layer.get("num_key_value_heads") or self.heads
        hidden = self.layer.get("hidden_size", 4096)
        self.dim = self.layer.get("head_dim") or hidden // self.heads
        self.eps = self.layer.get("rms_norm_eps", 1e-6)
        rope = self.layer.get("rope_parameters") or self.layer
        self.theta = rope.get("rope_theta", 10000.0)
        size = len(self.w["lm_head.weight"])
        self.token_ids = torch.arange(size) + self.w.get("d2t", torch.zeros(size)).long()
        name = "eagle_aux_hidden_state_layer_ids"
        by_output = raw.get("eagle_config", {}).get(name)
        self.layers = raw.get(name) if by_output is None else [index + 1 for index in by_output]

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return x * scale * self.w[f"{name}.weight"]

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """[heads, T, D] by pairs (i, i + D / 2)."""
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim
        angles = positions[:, None].double() * self.theta**-exponents
        turn = torch.polar(torch.ones_like(angles), angles)  # [T, D / 2]
        first, second = x.double().chunk(2, dim=-1)
        turned = torch.complex(first, second) * turn
        return torch.cat((turned.real, turned.imag), dim=-1).float()

    def fuse(self, captured: Tensor) -> Tensor:
        if self.norm_before_fc:
            captured = self.norm(captured, "input_norm")
        if self.fc_norm:
            chunks = captured.chunk(len(captured[0]) // len(self.w["fc_norm.0.weight"]), dim=-1)
            captured = torch.cat(
                [self.norm(chunk, f"fc_norm.{i}") for i, chunk in enumerate(chunks)], dim=-1
            )
        return captured @ self.w["fc.weight"].T

    def logits(self, tokens: list[int], captured: Tensor, num_drafted: int) -> Tensor:
        """Draft logits behind each of the last `num_drafted + 1` tokens.

        Args:
            tokens: [n], the last `num_drafted` of them drafted.
            captured: [n - num_drafted - 1, layers * H], of all committed tokens but the last.
            num_drafted: how many tokens read the output of the row before them.
        """
        features = list(self.fuse(captured))
        for _ in range(num_drafted + 1):
            # Row t has token t + 1 and feature t; all rows again, as there is no cache.
            read = torch.tensor(tokens[1 : len(features) + 1])
            features.append(self.layer_over(read, torch.stack(features))[-1])
        rows = torch.stack(features[-num_drafted - 1 :])
        read = rows if self.norm_output else self.norm(rows, "norm")
        return read @ self.w["lm_head.weight"].T

    def layer_over(self, tokens: Tensor, features: Tensor) -> Tensor:
        count, m = len(tokens), "midlayer."
        embedded = F.embedding(tokens, self.w["embed_tokens.weight"])
        normed = self.norm(features, m + "hidden_norm")
        x = torch.cat((self.norm(embedded, m + "input_layernorm"), normed), dim=-1)
        projected = (x @ self.w[f"{m}self_attn.{n}_proj.weight"].T for n in "qkv")
        q, k, v = (part.view(count, -1, self.dim).transpose(0, 1) for part in projected)
        q, k = self.rotate(q, torch.arange(count)), self.rotate(k, torch.arange(count))
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
        scores = q @ k.transpose(1, 2) / self.dim**0.5
        future = torch.ones(count, count).triu(1).bool()
        shares = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
        attended = (shares @ v).transpose(0, 1).reshape(count, -1)
        residual = normed if self.norm_before_residual else features
        hidden = residual + attended @ self.w[m + "self_attn.o_proj.weight"].T
        inner = self.norm(hidden, m + "post_attention_layernorm")
        gate = F.silu(inner @ self.w[m + "mlp.gate_proj.weight"].T)
        up = inner @ self.w[m + "mlp.up_proj.weight"].T
        out = hidden + (gate * up) @ self.w[m + "mlp.down_proj.weight"].T
        return self.norm(out, "norm") if self.norm_output else out
