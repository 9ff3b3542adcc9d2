"""Eagle3Head: one decoder layer that reads a token and a feature of the target.

    feature g_t of token t   = fc(residual streams of three target layers at t)
    row of token t + 1       = layer(embedding of x_{t+1}, g_t) at position t -> out
    draft logits for x_{t+2} = lm_head(norm(out)); a drafted token's row takes its parent's out
                               in place of a feature

Source: EAGLE-3 (arXiv 2503.01840), vanilla: raw features, feedback before the norm; the variants
of `HeadConfig` (EAGLE-3.1, arXiv 2605.09992, and those of the speculators library) add norms.
Shape letters: T rows, H hidden_size, Vd draft_vocab_size, D head_dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from specrt.attention.base import AttentionBackend
from specrt.draft_heads.checkpoint import HeadCheckpoint
from specrt.kernels.linear import PackedLinear
from specrt.kernels.norm import RMSNorm
from specrt.model.rope import rotary_table, rotate


class Eagle3Head:
    """An EAGLE-3 head in float32.

    Attributes:
        config: its sizes.
        num_positions: context in tokens that it runs on.
        draft_token_ids: int64 [Vd], target token id of each draft logit, ascending.
    """

    def __init__(self, checkpoint: HeadCheckpoint, embedding: Tensor, num_positions: int) -> None:
        """Pack the weights; set the number of torch threads before.

        Args:
            checkpoint: the head's tensors.
            embedding: float32 [V, H].
            num_positions: the target's context in tokens, whatever the head was trained for.
        """
        config, weights = checkpoint.config, checkpoint.weights
        self.config = config
        self.num_positions = num_positions
        self.draft_token_ids = checkpoint.draft_token_ids

        def get(name: str) -> Tensor:
            return weights[f"{name}.weight"]

        def norm(name: str) -> RMSNorm:
            return RMSNorm(get(name), config.rms_norm_eps)

        layer = "midlayer."
        with torch.inference_mode():
            self._embedding = embedding
            self._fc = PackedLinear(get("fc"))
            self._fc_norm: RMSNorm | None = None
            if config.norm_before_fc:
                self._fc_norm = norm("input_norm")
            elif config.fc_norm:
                names = [f"fc_norm.{index}" for index in range(len(config.capture_layers))]
                self._fc_norm = RMSNorm(torch.stack(list(map(get, names))), config.rms_norm_eps)
            self._input_norm = norm(layer + "input_layernorm")
            self._hidden_norm = norm(layer + "hidden_norm")
            self._qkv = PackedLinear(
                torch.cat([get(f"{layer}self_attn.{name}_proj") for name in "qkv"])
            )
            self._o_proj = PackedLinear(get(layer + "self_attn.o_proj"))
            self._post_norm = norm(layer + "post_attention_layernorm")
            self._gate_up = PackedLinear(
                torch.cat([get(layer + "mlp.gate_proj"), get(layer + "mlp.up_proj")])
            )
            self._down = PackedLinear(get(layer + "mlp.down_proj"))
            self._norm = norm("norm")
            self._lm_head = PackedLinear(get("lm_head"))
            cosines, sines = rotary_table(config.rope, config.head_dim, num_positions)
            self._cosines = cosines.to(embedding.device)
            self._sines = sines.to(embedding.device)

    @torch.inference_mode()
    def fuse(self, captured: Tensor) -> Tensor:
        """Features: float32 [T, layers * target H] -> [T, H]."""
        if self._fc_norm is not None:
            shape = captured.shape
            if self.config.fc_norm:  # a row of each captured layer
                captured = captured.reshape(shape[0], len(self.config.capture_layers), -1)
            captured = self._fc_norm(captured).reshape(shape)
        return self._fc(captured)

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, features: Tensor, positions: Tensor, attention: AttentionBackend
    ) -> Tensor:
        """Run the layer over T rows.

        Args:
            token_ids: int64 [T], target ids.
            features: float32 [T, H], of the tokens before, or their rows' outputs.
            positions: int64 [T], one less than the tokens' own.
            attention: planned for these rows over the head's own keys and values.

        Returns:
            float32 [T, H]: what a child's row takes as its feature, and `logits` reads.
        """
        config = self.config
        num_query, num_kv = config.num_heads, config.num_kv_heads
        cosines = self._cosines.index_select(0, positions).unsqueeze(1)  # [T, 1, D]
        sines = self._sines.index_select(0, positions).unsqueeze(1)
        embedded = self._input_norm(F.embedding(token_ids, self._embedding))
        normed = self._hidden_norm(features)
        both = torch.cat((embedded, normed), dim=-1)  # [T, 2H]
        heads = self._qkv(both).view(-1, num_query + 2 * num_kv, config.head_dim)
        rotated = rotate(heads[:, : num_query + num_kv], cosines, sines)
        attended = attention.run(
            0, rotated[:, :num_query], rotated[:, num_query:], heads[:, num_query + num_kv :]
        )
        residual = normed if config.norm_before_residual else features
        hidden = residual + self._o_proj(attended)
        gate, up = self._gate_up(self._post_norm(hidden)).chunk(2, dim=-1)
        out = hidden + self._down(F.silu(gate).mul_(up))
        return self._norm(out) if config.norm_output else out

    @torch.inference_mode()
    def logits(self, out: Tensor) -> Tensor:
        """Draft logits: float32 [n, H] -> [n, Vd]."""
        return self._lm_head(out if self.config.norm_output else self._norm(out))
