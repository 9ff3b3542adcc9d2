"""TargetModel: one lean decoder for the Llama family, over rows that know only their position.

Which row attends which is the attention backend's plan; sampling, slots and requests are
elsewhere. Shape letters: T rows, H hidden_size, V vocab_size, D head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specrt.attention.base import AttentionBackend
from specrt.kernels.linear import PackedLinear
from specrt.kernels.norm import RMSNorm
from specrt.model.config import TargetConfig
from specrt.model.rope import rotary_table, rotate
from specrt.model.weights import LAYER, weight_shapes


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What one pass yields.

    Attributes:
        logits: float32 [n, V], one row for each of `logits_rows`.
        captured: float32 [T, len(capture_layers) * H], or None when nothing is captured.
    """

    logits: Tensor
    captured: Tensor | None


class _Layer:
    """The weights of one layer, packed."""

    def __init__(self, config: TargetConfig, weights: Mapping[str, Tensor], prefix: str) -> None:
        def get(name: str) -> Tensor:
            return weights[f"{prefix}{name}.weight"]

        def fused(*names: str) -> PackedLinear:
            biases = [weights[key] for n in names if (key := f"{prefix}{n}.bias") in weights]
            weight = torch.cat([get(n) for n in names]) if len(names) > 1 else get(names[0])
            return PackedLinear(weight, torch.cat(biases) if biases else None)

        eps = config.rms_norm_eps
        self.input_norm = RMSNorm(get("input_layernorm"), eps)
        self.qkv = fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.o_proj = fused("self_attn.o_proj")
        self.post_norm = RMSNorm(get("post_attention_layernorm"), eps)
        self.gate_up = fused("mlp.gate_proj", "mlp.up_proj")
        self.down = fused("mlp.down_proj")
        self.qk_norm: RMSNorm | None = None
        if config.qk_norm:
            query, key = get("self_attn.q_norm"), get("self_attn.k_norm")
            by_head = [query.expand(config.num_heads, -1), key.expand(config.num_kv_heads, -1)]
            self.qk_norm = RMSNorm(torch.cat(by_head), eps)


class TargetModel:
    """The target model in float32.

    Attributes:
        config: its sizes.
    """

    def __init__(self, config: TargetConfig, weights: Mapping[str, Tensor]) -> None:
        """Pack the weights; set the number of torch threads before.

        Args:
            config: sizes and parts.
            weights: name -> float32 tensor, exactly those of weights.weight_shapes(config).
        """
        assert weights.keys() == weight_shapes(config).keys()
        self.config = config
        with torch.inference_mode():
            self._embedding = weights["model.embed_tokens.weight"]
            self._layers = [
                _Layer(config, weights, LAYER.format(i)) for i in range(config.num_layers)
            ]
            self._norm = RMSNorm(weights["model.norm.weight"], config.rms_norm_eps)
            self._lm_head = PackedLinear(
                self._embedding if config.tied else weights["lm_head.weight"]
            )
            cosines, sines = rotary_table(config.rope, config.head_dim, config.max_positions)
            self._cosines = cosines.to(self._embedding.device)
            self._sines = sines.to(self._embedding.device)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attention: AttentionBackend,
        logits_rows: Tensor,
        capture_layers: Sequence[int] = (),
    ) -> ModelOutput:
        """Run one pass.

        Args:
            token_ids: int64 [T], T >= 1.
            positions: int64 [T], below config.max_positions.
            attention: planned for these T rows.
            logits_rows: int64 [n], the rows whose logits are wanted; n may be 0.
            capture_layers: layer indices, ascending: the residual stream that enters each of them
                is returned (hidden_states[i] of transformers); num_layers is the stream behind the
                last one, before the final norm.

        Returns:
            ModelOutput.
        """
        config = self.config
        num_query, num_kv = config.num_heads, config.num_kv_heads
        captured = []
        cosines = self._cosines.index_select(0, positions).unsqueeze(1)  # [T, 1, D]
        sines = self._sines.index_select(0, positions).unsqueeze(1)
        hidden = F.embedding(token_ids, self._embedding)  # [T, H]
        for index, layer in enumerate(self._layers):
            if index in capture_layers:
                captured.append(hidden.clone())
            heads = layer.qkv(layer.input_norm(hidden)).view(
                -1, num_query + 2 * num_kv, config.head_dim
            )
            rotating = heads[:, : num_query + num_kv]  # Q and K turn in one operation
            if layer.qk_norm is not None:
                rotating = layer.qk_norm(rotating)
            rotated = rotate(rotating, cosines, sines)
            attended = attention.run(
                index,
                rotated[:, :num_query],
                rotated[:, num_query:],
                heads[:, num_query + num_kv :],
            )
            if index == config.num_layers - 1 and config.num_layers not in capture_layers:
                # Nothing reads the other rows any more.
                hidden, attended = hidden[logits_rows], attended[logits_rows]
            hidden += layer.o_proj(attended)
            gate, up = layer.gate_up(layer.post_norm(hidden)).chunk(2, dim=-1)
            hidden += layer.down(F.silu(gate).mul_(up))
        if config.num_layers in capture_layers:
            captured.append(hidden)
            hidden = hidden[logits_rows]
        logits = self._lm_head(self._norm(hidden))
        return ModelOutput(logits, torch.cat(captured, dim=-1) if captured else None)
