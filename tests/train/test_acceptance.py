"""Acceptance by depth against a count by hand, chain by chain."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from train_fakes import DRAFT_IDS, TARGET, random_pack, target_weights, tiny_head

from specrt.bench.reliability import Reliability
from specrt.grammars.json_region import REGIONS
from specrt.train.acceptance import Acceptance, TurnLabels, Walk, evaluate
from specrt.train.head_module import Tree
from specrt.train.objective import OUTSIDE, Teacher, soft_cross_entropy
from specrt.train.packs import Pack
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


def test_a_walk_goes_from_bonus_token_to_bonus_token() -> None:
    """
    row     10   11   12   13   14   15   16
            *    f    d    f    d    d    d      f: forced, d: decided
    pass 1: 10 -> 12 right, 14 wrong; 14 is given
    pass 2: 14 -> 15 right, 16 right: the end
    """
    forced = [False] * 11 + [True, False, True, False, False, False]
    walk = Walk()
    walk.add(10, 7, forced, {10: 1, 14: 2, 11: 9, 15: 9})
    assert (walk.passes, walk.tokens, walk.decisions) == (2, 6, 4)
    assert walk.acceptance_length == 3.0
    plain = Walk()
    plain.add(10, 7, forced, {})
    assert (plain.passes, plain.tokens) == (4, 6), "forced text alone: a pass a decision"
    walk.add(20, 1, [False] * 21, {})
    assert walk.passes == 2, "the prefill yields the only token"
    assert Walk().acceptance_length is None


def labelled_packs(count: int) -> tuple[list[Pack], dict[str, TurnLabels]]:
    """Packs whose turns have names of their own, a data set each, and regions in turn."""
    packs, labels = [], {}
    for seed in range(count):
        pack = random_pack(seed)
        names = tuple(f"{seed}/{number}" for number in range(len(pack.branches)))
        for number, (name, length) in enumerate(
            zip(names, pack.branches[:, 1].tolist(), strict=True)
        ):
            regions = [REGIONS[(number + place) % 3] for place in range(length)]
            labels[name] = TurnLabels(f"set {number}" if number else "", regions)
        packs.append(dataclasses.replace(pack, turn_ids=names))
    return packs, labels


def test_evaluate_counts_chains_until_their_first_miss() -> None:
    head = tiny_head()
    packs, labels = labelled_packs(14)
    tried = {width: [0] * 3 for width in (1, 4)}
    right = {width: [0] * 3 for width in (1, 4)}
    of_source: Counter[str] = Counter()
    of_region: dict[int, Counter[tuple[str, bool]]] = {1: Counter(), 4: Counter()}
    proposed: list[tuple[float, bool]] = []
    for pack in packs:
        hidden = F.rms_norm(pack.hidden.float(), (16,), WEIGHTS["model.norm.weight"], 1e-5)
        choices = (hidden @ WEIGHTS["model.embed_tokens.weight"].T).argmax(dim=-1)
        for chain in branch_chains(pack, 3):
            number = int((pack.branches.sum(dim=1) <= chain[0].first).sum())
            source, regions = labels[pack.turn_ids[number]]
            of_source[source] += 1
            unroll = plan([chain])
            with torch.no_grad():
                shares, ranked = (
                    head(Tree.of(pack, CPU), unroll).softmax(dim=-1).sort(descending=True)
                )
            ranked = DRAFT_IDS[ranked]
            for width in (1, 4):
                for depth, row in enumerate(unroll.rows.tolist()):
                    is_right = choices[row] in ranked[depth, :width]
                    tried[width][depth] += 1
                    region = regions[row + 1 - int(pack.branches[number, 0])]
                    of_region[width][region, bool(is_right)] += 1
                    if width == 1:
                        proposed += [
                            (float(shares[depth, at]), bool(ranked[depth, at] == choices[row]))
                            for at in range(4)
                        ]
                    if not is_right:
                        break
                    right[width][depth] += 1
    loaders = [lambda pack=pack: pack for pack in packs]  # type: ignore[misc]
    found = evaluate(head, TEACHER, loaders, 3, max_starts=5, labels=labels)
    assert found.total.tried == tried and found.total.right == right
    assert right[4][0] > right[1][0] > 0 and tried[4][2] > 0
    del of_source[""]
    assert {name: part.tried[1][0] for name, part in found.by_source.items()} == of_source
    assert set(found.by_region) == set(REGIONS[:3])
    for region, part in found.by_region.items():
        for width, counts in of_region.items():
            assert sum(part.right[width]) == counts[region, True]
            assert sum(part.tried[width]) == counts[region, True] + counts[region, False]
            assert part.share(width) == sum(part.right[width]) / sum(part.tried[width])
    expected = Reliability.of(proposed)
    for row, same in zip(found.reliability.rows(), expected.rows(), strict=True):
        assert row == pytest.approx(same)
    assert found.reliability.error() == pytest.approx(expected.error())


def test_without_labels_only_the_total_is_told() -> None:
    found = evaluate(tiny_head(), TEACHER, [lambda: random_pack(0)], 2)
    assert sum(found.total.tried[1]) > 0 and not found.by_source and not found.by_region


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
