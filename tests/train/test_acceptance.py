"""Acceptance by depth against a count by hand, chain by chain."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from train_fakes import DRAFT_IDS, TARGET, random_pack, target_weights, tiny_head

from specrt.train.acceptance import Acceptance, evaluate
from specrt.train.head_module import Tree
from specrt.train.objective import OUTSIDE, Teacher, soft_cross_entropy
from specrt.train.segments import branch_chains, plan

CPU = torch.device("cpu")
WEIGHTS = target_weights()
TEACHER = Teacher(TARGET, WEIGHTS, DRAFT_IDS, CPU)


def test_rates_and_tau() -> None:
    counts = Acceptance({1: [8, 4, 0]}, {1: [4, 1, 0]})
    assert counts.rates() == [0.5, 0.25, 0.0]
    assert counts.tau_sim() == pytest.approx(1 + 0.5 + 0.125)
    counts.add(1, [2, 0, 1], [2, 0, 1])
    assert counts.rates() == [0.6, 0.25, 1.0]


def test_evaluate_counts_chains_until_their_first_miss() -> None:
    head = tiny_head()
    packs = [random_pack(seed) for seed in range(14)]
    tried = {width: [0] * 3 for width in (1, 4)}
    right = {width: [0] * 3 for width in (1, 4)}
    of_source: dict[str, int] = {}
    for pack in packs:
        hidden = F.rms_norm(pack.hidden.float(), (16,), WEIGHTS["model.norm.weight"], 1e-5)
        choices = (hidden @ WEIGHTS["model.embed_tokens.weight"].T).argmax(dim=-1)
        for chain in branch_chains(pack, 3):
            unroll = plan([chain])
            ranked = DRAFT_IDS[head(Tree.of(pack, CPU), unroll).argsort(descending=True)]
            for width in (1, 4):
                for depth, row in enumerate(unroll.rows.tolist()):
                    tried[width][depth] += 1
                    if choices[row] not in ranked[depth, :width]:
                        break
                    right[width][depth] += 1
            ends = pack.branches.sum(dim=1)
            branch = int((ends <= chain[0].first).sum())
            of_source[f"turn {branch}"] = of_source.get(f"turn {branch}", 0) + 1
    found = evaluate(
        head,
        TEACHER,
        [lambda pack=pack: pack for pack in packs],  # type: ignore[misc]
        3,
        max_starts=5,
        source_of=lambda turn_id: turn_id,
    )
    assert found[""].tried == tried and found[""].right == right
    assert right[4][0] > right[1][0] > 0 and tried[4][2] > 0
    assert {name: counts.tried[1][0] for name, counts in found.items() if name} == of_source


def test_the_teacher_speaks_the_draft_vocabulary() -> None:
    hidden = random_pack(0).hidden
    normed = F.rms_norm(hidden.float(), (16,), WEIGHTS["model.norm.weight"], 1e-5)
    logits = normed @ WEIGHTS["model.embed_tokens.weight"].T
    torch.testing.assert_close(TEACHER.distribution(hidden), logits[:, DRAFT_IDS].softmax(dim=-1))
    for row, index in enumerate(TEACHER.best(hidden).tolist()):
        best = int(logits[row].argmax())
        assert (index == OUTSIDE) == (best not in DRAFT_IDS)
        assert index == OUTSIDE or int(DRAFT_IDS[index]) == best
    assert OUTSIDE in TEACHER.best(hidden)


def test_soft_cross_entropy_is_least_at_the_expected_distribution() -> None:
    expected = torch.tensor([[0.7, 0.2, 0.1]])
    entropy = -(expected * expected.log()).sum(dim=-1)
    torch.testing.assert_close(soft_cross_entropy(expected.log(), expected), entropy)
    assert soft_cross_entropy(torch.zeros(1, 3), expected) > entropy
