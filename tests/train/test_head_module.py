"""The vectorised unroll against a slow one, a chain and a row at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from train_fakes import TARGET, random_pack, tiny_head

from specrt.draft_heads.checkpoint import head_shapes
from specrt.model.rope import inverse_frequencies
from specrt.train.head_module import TrainableHead, Tree
from specrt.train.packs import Pack
from specrt.train.segments import branch_chains, plan, trunk_chains

CPU = torch.device("cpu")


class SlowHead:
    """One row at a time, from the definition; weights by their public names."""

    def __init__(self, head: TrainableHead, pack: Pack) -> None:
        self.weights = {name: value.double() for name, value in head.state_dict().items()}
        self.embedding = head.embed_tokens.weight.double()
        self.pack, self.config = pack, head.config

    def get(self, name: str) -> Tensor:
        return self.weights[f"{name}.weight"]

    def norm(self, name: str, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean() + TARGET.rms_norm_eps).sqrt() * self.get(name)

    def rotated(self, x: Tensor, position: int) -> Tensor:
        angles = position * inverse_frequencies(TARGET.rope, TARGET.head_dim).double()
        first, second = x.view(-1, TARGET.head_dim).chunk(2, dim=1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=1)

    def row(self, row: int, feature: Tensor) -> dict[str, Tensor]:
        """Projections of the token of a tree row, with some feature."""
        embedded = self.embedding[self.pack.token_ids[row]]
        normed = self.norm("midlayer.input_layernorm", embedded)
        x = torch.cat((normed, self.norm("midlayer.hidden_norm", feature)))
        q, k, v = (self.get(f"midlayer.self_attn.{name}_proj") @ x for name in "qkv")
        position = int(self.pack.position[row]) - 1
        return {
            "q": self.rotated(q, position),
            "k": self.rotated(k, position),
            "v": v.view(-1, TARGET.head_dim),
            "residual": x[len(x) // 2 :] if self.config.norm_before_residual else feature,
        }

    def out(self, own: dict[str, Tensor], seen: list[dict[str, Tensor]]) -> Tensor:
        group = TARGET.num_heads // TARGET.num_kv_heads
        heads = []
        for head in range(TARGET.num_heads):
            keys = torch.stack([one["k"][head // group] for one in seen])
            values = torch.stack([one["v"][head // group] for one in seen])
            shares = (keys @ own["q"][head] / TARGET.head_dim**0.5).softmax(dim=0)
            heads.append(shares @ values)
        a = own["residual"] + self.get("midlayer.self_attn.o_proj") @ torch.cat(heads)
        x = self.norm("midlayer.post_attention_layernorm", a)
        gate = F.silu(self.get("midlayer.mlp.gate_proj") @ x)
        up = self.get("midlayer.mlp.up_proj") @ x
        out = a + self.get("midlayer.mlp.down_proj") @ (gate * up)
        return self.norm("norm", out) if self.config.norm_output else out

    def logits(self, out: Tensor) -> Tensor:
        read = out if self.config.norm_output else self.norm("norm", out)
        return self.get("lm_head") @ read

    def feature(self, row: int) -> Tensor:
        captured = self.pack.captured[row].double()
        if self.config.norm_before_fc:
            captured = self.norm("input_norm", captured)
        if self.config.fc_norm:
            chunks = captured.chunk(3)
            captured = torch.cat([self.norm(f"fc_norm.{i}", c) for i, c in enumerate(chunks)])
        return self.get("fc") @ captured

    def true_rows(self, row: int) -> list[dict[str, Tensor]]:
        """Rows of a token and all those above it that have one, from the top."""
        path: list[dict[str, Tensor]] = []
        while (above := int(self.pack.parent[row])) >= 0:
            path.insert(0, self.row(row, self.feature(above)))
            row = above
        return path

    def unroll(
        self, start: int, end: int, steps: int, cross: bool
    ) -> dict[int, tuple[int, Tensor]]:
        """Depth -> (row that predicts, logits), drafting forward from a true row."""
        found: dict[int, tuple[int, Tensor]] = {}
        seen = self.true_rows(start)
        out = self.out(seen[-1], seen)
        row = start
        while row + 1 < end and len(found) < steps:
            token = row + 1
            run = 0
            if not self.pack.forced[token]:
                found[len(found)] = (row, self.logits(out))
                after = token + 1
            else:
                after = token
            while after < end and self.pack.forced[after]:
                after += 1
                run += 1
            if run > 24:
                break
            shared = out
            for one in range(token, after):
                seen.append(self.row(one, shared if cross else out))
                out = self.out(seen[-1], seen)
            row = after - 1
        return found


VARIANTS: tuple[dict[str, bool], ...] = (
    {"norm_before_residual": True},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_fc": True, "norm_output": True, "norm_before_residual": True},
)
CASES: list[tuple[int, dict[str, bool]]] = [(seed, {}) for seed in range(4)]
CASES += [(2, variants) for variants in VARIANTS]


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize(("seed", "variants"), CASES)
def test_unroll_equals_the_slow_one(seed: int, cross: bool, variants: dict[str, bool]) -> None:
    pack = random_pack(seed, forced_share=(0.0, 0.3, 0.6, 0.8)[seed])
    head = tiny_head(seed, **variants)
    slack = 2e-4 if variants else 1e-5  # each norm is rounded, too
    chains = branch_chains(pack, 3, cross_runs=cross)
    trunk = trunk_chains(pack)
    unroll = plan([*chains, *trunk])
    with torch.no_grad():
        logits = head(Tree.of(pack, CPU), unroll).double()
    got = {
        (int(chain), int(depth)): (int(row), logits[index])
        for index, (chain, depth, row) in enumerate(
            zip(unroll.chains, unroll.depths, unroll.rows, strict=True)
        )
    }
    slow = SlowHead(head, pack)
    number = 0
    for first, length in pack.branches.tolist():
        for start in range(first, first + length):
            wanted = slow.unroll(start, first + length, 3, cross)
            if not wanted:
                continue
            assert chains[number][0].first == start
            for depth, (row, expected) in wanted.items():
                got_row, got_logits = got.pop((number, depth))
                assert got_row == row
                torch.testing.assert_close(got_logits, expected, atol=slack, rtol=slack)
            number += 1
    assert number == len(chains)
    for offset, (segment,) in enumerate(trunk):
        seen = slow.true_rows(segment.first)
        expected = slow.logits(slow.out(seen[-1], seen))
        last = got.pop((number + offset, 0))[1]
        torch.testing.assert_close(last, expected, atol=slack, rtol=slack)
    assert not got


def test_crossing_runs_differs_from_feeding_them() -> None:
    pack, head = random_pack(1, forced_share=0.6), tiny_head()
    tree = Tree.of(pack, CPU)
    with torch.no_grad():
        crossed, fed = (
            head(tree, plan(branch_chains(pack, 3, cross_runs=cross))) for cross in (True, False)
        )
    assert crossed.shape == fed.shape
    assert not torch.allclose(crossed.sum(), fed.sum(), atol=1e-3)


def test_gradient_reaches_every_trained_tensor() -> None:
    pack, head = random_pack(2), tiny_head()
    logits = head(Tree.of(pack, CPU), plan(branch_chains(pack, 3)))
    logits.logsumexp(dim=-1).sum().backward()
    for name, value in head.named_parameters():
        if name in ("lm_head.weight", "embed_tokens.weight"):
            assert value.grad is None
        else:
            assert value.grad is not None and float(value.grad.abs().max()) > 1e-6, name
    token_half, feature_half = head.midlayer.self_attn.k_proj.weight.grad.chunk(2, dim=1)
    assert float(token_half.abs().max()) > 1e-6 and float(feature_half.abs().max()) > 1e-6


def test_the_first_token_has_no_row() -> None:
    pack = random_pack(0)
    visible = Tree.of(pack, CPU).visible
    assert not visible[:, 0].any()
    assert visible[8].nonzero().squeeze(-1).tolist() == [1, 2, 6, 7, 8]


def test_the_state_has_the_public_names() -> None:
    head = tiny_head()
    assert head.checkpoint(torch.arange(30)).weights.keys() == head_shapes(head.config).keys()
