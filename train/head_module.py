"""TrainableHead: the EAGLE-3 head over a token tree, unrolled as drafting unrolls it.

The row of a token is made from that token and the feature of the token before it. True rows attend
to the true rows above them in the tree. A drafted row attends to the true rows up to its chain's
start, to the chain's earlier rows, and to those before it in its own segment.

Source: EAGLE-3 training-time test (arXiv 2503.01840), with forced runs crossed in one pass.
Shape letters: T tree rows, N rows of a pass, n chains of a pass, H hidden_size, D head_dim, K
key/value heads, G query heads to each of them, W width of a pass, E drafted rows of a chain so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specrt.draft_heads.checkpoint import EMBEDDING, HeadCheckpoint, head_shapes
from specrt.draft_heads.config import HeadConfig
from specrt.model.rope import rotary_table
from specrt.train.segments import Pass, Unroll

if TYPE_CHECKING:
    from specrt.train.packs import Pack


@dataclass(frozen=True, slots=True)
class Tree:
    """What the head reads of a pack.

    Attributes:
        token_ids: int64 [T].
        parent: int64 [T]; the first token's is 0, and no row attends to its row.
        positions: int64 [T], one less than the tokens' own.
        captured: float32 [T, 3 * target H].
        visible: bool [T, T], which true rows the true row of each token attends to.
    """

    token_ids: Tensor
    parent: Tensor
    positions: Tensor
    captured: Tensor
    visible: Tensor

    @classmethod
    def of(cls, pack: Pack, device: torch.device) -> Tree:
        """Read a pack."""
        return cls(
            token_ids=pack.token_ids.to(device),
            parent=pack.parent.clamp(min=0).to(device),
            positions=(pack.position - 1).clamp(min=0).to(device),
            captured=pack.captured.to(device).float(),
            visible=visible_rows(pack.parent).to(device),
        )


def visible_rows(parent: Tensor) -> Tensor:
    """Who sees whom, bool [T, T]: the column's token is the row's or one above, and has a row.

    Args:
        parent: int64 [T], each below its row; -1 for a first token.
    """
    above = parent.numpy()
    visible = np.zeros((len(above), len(above)), dtype=np.bool_)
    for row, before in enumerate(above):
        if before >= 0:
            visible[row] = visible[before]
            visible[row, row] = True
    return torch.from_numpy(visible)


class _RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, rows: Tensor) -> Tensor:
        return F.rms_norm(rows, (rows.shape[-1],), self.weight, self._eps)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class _Attention(nn.Module):
    """The projections; what they attend to differs between true and drafted rows."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        inputs = 2 * config.hidden_size
        self.q_proj = _linear(inputs, config.num_heads * config.head_dim)
        self.k_proj = _linear(inputs, config.num_kv_heads * config.head_dim)
        self.v_proj = _linear(inputs, config.num_kv_heads * config.head_dim)
        self.o_proj = _linear(config.num_heads * config.head_dim, config.hidden_size)


class _MLP(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = _linear(config.hidden_size, config.intermediate_size)
        self.up_proj = _linear(config.hidden_size, config.intermediate_size)
        self.down_proj = _linear(config.intermediate_size, config.hidden_size)

    def forward(self, rows: Tensor) -> Tensor:
        result: Tensor = self.down_proj(F.silu(self.gate_proj(rows)) * self.up_proj(rows))
        return result


class _Layer(nn.Module):
    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = _RMSNorm(size, eps)
        self.hidden_norm = _RMSNorm(size, eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = _RMSNorm(size, eps)
        self.mlp = _MLP(config)


class _DraftedRows:
    """Keys and values of the chains' drafted rows, padded to [n, K, E, D]."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._is_there: list[Tensor] = []

    def add(self, rows: Pass, keys: Tensor, values: Tensor) -> None:
        """Append a pass; keys and values are [N, K, D]."""
        place = (rows.owners, rows.columns)
        shape = (rows.num_chains, rows.width)
        is_there = torch.zeros(shape, dtype=torch.bool, device=keys.device)
        self._is_there.append(is_there.index_put(place, is_there.new_ones(())))
        for padded, part in ((self._keys, keys), (self._values, values)):
            empty = part.new_zeros(shape + part.shape[1:])
            padded.append(empty.index_put(place, part).transpose(1, 2))

    def seen_by(self, rows: Pass) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values, [n, K, E, D], and who sees them, bool [n, W, E]; last pass causal."""
        n, width = rows.num_chains, rows.width
        keys = torch.cat([part[:n] for part in self._keys], dim=2)
        values = torch.cat([part[:n] for part in self._values], dim=2)
        visible = torch.cat([part[:n] for part in self._is_there], dim=1)
        visible = visible[:, None, :].repeat(1, width, 1)
        visible[:, :, -width:] &= torch.ones(width, width, device=keys.device).tril().bool()
        return keys, values, visible


class TrainableHead(nn.Module):
    """The head's tensors under their public names, float32; embedding and lm_head are frozen."""

    def __init__(
        self, config: HeadConfig, embedding: Tensor, *, has_own_embedding: bool = False
    ) -> None:
        """Make a head with unset weights; see `load`.

        Args:
            config: its sizes.
            embedding: float32 [V, H]; not copied.
            has_own_embedding: it is the head's own, not the target's.
        """
        super().__init__()
        self.config = config
        self._has_own_embedding = has_own_embedding
        embed_tokens = nn.Embedding.from_pretrained(embedding, freeze=True)  # type: ignore[no-untyped-call]
        self.embed_tokens: nn.Embedding = embed_tokens
        target = len(config.capture_layers) * config.target_hidden_size
        self.fc = _linear(target, config.hidden_size)
        self.midlayer = _Layer(config)
        self.norm = _RMSNorm(config.hidden_size, config.rms_norm_eps)
        if config.norm_before_fc:
            self.input_norm = _RMSNorm(target, config.rms_norm_eps)
        if config.fc_norm:
            one = partial(_RMSNorm, config.target_hidden_size, config.rms_norm_eps)
            self.fc_norm = nn.ModuleList(one() for _ in config.capture_layers)
        self.lm_head = _linear(config.hidden_size, config.draft_vocab_size)
        self.lm_head.requires_grad_(False)
        self.register_buffer("_cosines", torch.empty(0), persistent=False)
        self.register_buffer("_sines", torch.empty(0), persistent=False)

    def load(self, weights: Mapping[str, Tensor]) -> TrainableHead:
        """Copy weights by their public names, an own embedding if given; returns the head."""
        names = list(head_shapes(self.config))
        if self._has_own_embedding and EMBEDDING in weights:
            names.append(EMBEDDING)
        missing, unexpected = self.load_state_dict({n: weights[n] for n in names}, strict=False)
        assert not unexpected and set(missing) <= {EMBEDDING}
        return self

    def weights(self) -> dict[str, Tensor]:
        """Its tensors on the CPU, perhaps shared; the target's embedding is not among them."""
        return {
            name: part.detach().cpu()
            for name, part in self.state_dict().items()
            if self._has_own_embedding or name != EMBEDDING
        }

    def checkpoint(self, draft_token_ids: Tensor) -> HeadCheckpoint:
        """A copy of the tensors on the CPU."""
        weights = {name: part.clone() for name, part in self.weights().items()}
        embedding = weights.pop(EMBEDDING, None)
        return HeadCheckpoint(self.config, weights, draft_token_ids, embedding)

    def forward(self, tree: Tree, unroll: Unroll) -> Tensor:
        """Draft logits of the rows that predict.

        Args:
            tree: the true rows.
            unroll: the chains to run over it; its tensors on the tree's device.

        Returns:
            float32 [P, draft_vocab_size], in the order of `unroll.rows`.
        """
        self._extend_rotary_table(int(tree.positions.max()) + 1)
        features = self._fuse(tree.captured).index_select(0, tree.parent)
        true_keys, true_values = self._true_keys_values(tree, features)
        drafted = _DraftedRows()
        starts = unroll.passes[0].rows
        outs = features  # of the pass before
        predicting: list[Tensor] = []
        for index, rows in enumerate(unroll.passes):
            feature = outs.index_select(0, rows.features if index else rows.rows)
            inputs = self._inputs(tree.token_ids[rows.rows], feature)
            positions = tree.positions[rows.rows]
            query = self._rotate(self._heads("q", inputs), positions)
            if index:
                key = self._rotate(self._heads("k", inputs), positions)
                drafted.add(rows, key, self._heads("v", inputs))
            visible = tree.visible[starts[rows.owners]]
            attended = _attend(query, true_keys, true_values, visible, rows, drafted, index > 0)
            outs = self._after_attention(feature, attended)
            predicting.append(outs.index_select(0, rows.predicting))
        read = torch.cat(predicting)
        logits: Tensor = self.lm_head(read if self.config.norm_output else self.norm(read))
        return logits

    def _fuse(self, captured: Tensor) -> Tensor:
        """Features: [T, layers * target H] -> [T, H]."""
        if self.config.norm_before_fc:
            captured = self.input_norm(captured)
        if self.config.fc_norm:
            chunks = captured.chunk(len(self.fc_norm), dim=-1)
            pairs = zip(self.fc_norm, chunks, strict=True)
            captured = torch.cat([norm(chunk) for norm, chunk in pairs], dim=-1)
        features: Tensor = self.fc(captured)
        return features

    def _true_keys_values(self, tree: Tree, features: Tensor) -> tuple[Tensor, Tensor]:
        """[K, T, D] each."""
        inputs = self._inputs(tree.token_ids, features)
        keys = self._rotate(self._heads("k", inputs), tree.positions)
        return keys.transpose(0, 1), self._heads("v", inputs).transpose(0, 1)

    def _inputs(self, token_ids: Tensor, features: Tensor) -> Tensor:
        embedded = self.embed_tokens(token_ids)
        layer = self.midlayer
        return torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(features)), dim=-1)

    def _heads(self, name: str, inputs: Tensor) -> Tensor:
        """[N, heads, D]."""
        projection = self.midlayer.self_attn.get_submodule(f"{name}_proj")
        heads: Tensor = projection(inputs)
        return heads.view(len(inputs), -1, self.config.head_dim)

    def _rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        cosines = self.get_buffer("_cosines").index_select(0, positions).unsqueeze(1)
        sines = self.get_buffer("_sines").index_select(0, positions).unsqueeze(1)
        return heads * cosines + heads.roll(self.config.head_dim // 2, -1) * sines

    def _extend_rotary_table(self, num_positions: int) -> None:
        if len(self.get_buffer("_cosines")) < num_positions:
            config, device = self.config, self.fc.weight.device
            cosines, sines = rotary_table(config.rope, config.head_dim, num_positions)
            self._cosines, self._sines = cosines.to(device), sines.to(device)

    def _after_attention(self, feature: Tensor, attended: Tensor) -> Tensor:
        layer, config = self.midlayer, self.config
        residual = layer.hidden_norm(feature) if config.norm_before_residual else feature
        hidden = residual + layer.self_attn.o_proj(attended)
        result: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return self.norm(result) if config.norm_output else result


def _attend(
    query: Tensor,
    true_keys: Tensor,
    true_values: Tensor,
    visible: Tensor,
    rows: Pass,
    drafted: _DraftedRows,
    has_drafted: bool,
) -> Tensor:
    """One softmax over true and drafted rows.

    Args:
        query: [N, K * G, D].
        true_keys: [K, T, D].
        true_values: [K, T, D].
        visible: bool [N, T].
        rows: the pass.
        drafted: keys and values of the chains' own rows, this pass included.
        has_drafted: whether there are any.

    Returns:
        [N, K * G * D].
    """
    num_kv, num_true, dim = true_keys.shape
    count, group = len(query), query.shape[1] // num_kv
    query = query * dim**-0.5
    by_kv = query.view(count, num_kv, group, dim).transpose(0, 1)  # [K, N, G, D]
    scores = by_kv.reshape(num_kv, count * group, dim) @ true_keys.transpose(1, 2)
    scores = scores.view(num_kv, count, group, num_true)
    _hide(scores, visible[:, None, :])
    if has_drafted:
        keys, values, own_visible = drafted.seen_by(rows)
        place = (rows.owners, rows.columns)
        padded = query.new_zeros(rows.num_chains, rows.width, num_kv, group * dim)
        padded = padded.index_put(place, query.view(count, num_kv, group * dim))
        shape = (rows.num_chains, num_kv, rows.width * group)
        own = padded.transpose(1, 2).reshape(*shape, dim) @ keys.transpose(2, 3)  # [n, K, W * G, E]
        own = own.view(rows.num_chains, num_kv, rows.width, group, -1)
        _hide(own, own_visible[:, None, :, None, :])
        scores = torch.cat((scores, own.permute(2, 0, 1, 3, 4)[place[::-1]].transpose(0, 1)), -1)
    shares = scores.softmax(dim=-1)
    of_true = shares[..., :num_true].reshape(num_kv, count * group, num_true)
    result = (of_true @ true_values).view(num_kv, count, group, dim).transpose(0, 1)
    if has_drafted:
        own = shares[..., num_true:].transpose(0, 1)  # [N, K, G, E]
        padded = own.new_zeros((rows.num_chains, rows.width, *own.shape[1:])).index_put(place, own)
        weighted = padded.transpose(1, 2).reshape(*shape, -1) @ values  # [n, K, W * G, D]
        weighted = weighted.view(rows.num_chains, num_kv, rows.width, group, dim)
        result = result + weighted.permute(2, 0, 1, 3, 4)[place[::-1]]
    return result.reshape(count, -1)


def _hide(scores: Tensor, visible: Tensor) -> None:
    """Set scores of what is not visible to -inf, in place.

    Autograd need not know: the softmax passes no gradient to a score whose share is 0.
    """
    with torch.no_grad():
        scores.masked_fill_(~visible, float("-inf"))
