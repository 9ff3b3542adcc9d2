"""Masks of generated positions: where they come from, and what training makes of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from grammar_walks import ids_of, mask_of, tiny_vocabulary
from train_fakes import DRAFT_IDS, TARGET, VOCAB, random_pack, target_weights, tiny_head

from specrt.grammars.base import GrammarRecipe, ToolSpec
from specrt.grammars.compiler import GrammarCompiler
from specrt.train.acceptance import evaluate
from specrt.train.grammar_masks import ANY, GrammarMasks, walk_grammars
from specrt.train.objective import OUTSIDE, Teacher, masked, soft_cross_entropy
from specrt.train.packs import build_packs
from specrt.train.turn_file import Turn

CPU = torch.device("cpu")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
RECIPE = GrammarRecipe(
    kind="tools",
    tools=(ToolSpec(name="look_up", parameters=json.dumps(SCHEMA)),),
    require_call=True,
)
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Rome"}}\n</tool_call>'


def turn(turn_id: str, text: str, prompt: tuple[int, ...] = (5, 6, 7)) -> Turn:
    vocabulary = tiny_vocabulary()
    output = [*vocabulary.encode(text.encode()), vocabulary.eos_token_ids[0]]
    return Turn(turn_id, "s", False, list(prompt), output, [False] * len(output), "stop")


def test_masks_are_those_of_the_grammar_behind_each_token() -> None:
    vocabulary, compiler = tiny_vocabulary(), GrammarCompiler(tiny_vocabulary())
    called, free = turn("a[0]", CALL), turn("b[0]", "hello", (5, 6, 8))
    masks = walk_grammars([called, free], {"a[0]": RECIPE}, vocabulary, compiler)
    (pack,), _ = build_packs([called, free])
    found = masks.of(pack)
    (first, length), (other, _) = pack.branches.tolist()
    assert (found[:first] == ANY).all() and (found[other:] == ANY).all()
    state = compiler.compile(RECIPE).open()
    for index, token_id in enumerate(called.output_ids):
        state.commit(state.advance(state.root, token_id))
        row = found[first + index : first + index + 1]
        allowed = masks.allowed(row, vocabulary.vocab_size)[0]
        assert np.flatnonzero(allowed.numpy()).tolist() == ids_of(
            mask_of(state, state.root, vocabulary)
        )
    assert 2 < len(masks) <= length
    assert masks.allowed(torch.tensor([ANY]), vocabulary.vocab_size).all()


def test_behind_a_misstep_anything_may_come() -> None:
    vocabulary, compiler = tiny_vocabulary(), GrammarCompiler(tiny_vocabulary())
    wrong = turn("a[0]", CALL.replace("Rome", "Rxme"))
    masks = walk_grammars([wrong], {"a[0]": RECIPE}, vocabulary, compiler)
    (pack,), _ = build_packs([wrong])
    found = masks.of(pack)[3:]
    assert found[0] != ANY and found[-1] == ANY
    first_any = int((found == ANY).nonzero()[0])
    assert (found[first_any:] == ANY).all() and (found[:first_any] != ANY).all()


def random_masks(seed: int) -> GrammarMasks:
    """Every generated row of `random_pack(seed)` may be followed by about half of the tokens."""
    pack = random_pack(seed)
    masks = GrammarMasks((VOCAB + 31) // 32)
    noise = np.random.default_rng(seed)
    for turn_id, (_, length) in zip(pack.turn_ids, pack.branches.tolist(), strict=True):
        rows = noise.integers(-(2**31), 2**31, (length, masks._num_words), dtype=np.int64)
        masks._turns[turn_id] = torch.tensor([masks._intern(row.astype(np.int32)) for row in rows])
    return masks


def test_the_teacher_chooses_among_what_is_allowed() -> None:
    teacher = Teacher(TARGET, target_weights(), DRAFT_IDS, CPU)
    hidden = torch.randn(20, 16, generator=torch.Generator().manual_seed(0))
    allowed = torch.rand(20, VOCAB, generator=torch.Generator().manual_seed(1)) < 0.3
    everywhere = teacher.best(hidden)
    found = teacher.best(hidden, allowed)
    inside = found != OUTSIDE
    assert allowed[inside.nonzero()[:, 0], DRAFT_IDS[found[inside]]].all()
    assert (found != everywhere).any() and (
        teacher.best(hidden, allowed | True) == everywhere
    ).all()
    shares = teacher.distribution(hidden, allowed)
    assert shares.sum(dim=-1) == pytest.approx(1.0)
    assert shares[~teacher.draft_part(allowed)].max() == 0
    plain = teacher.distribution(hidden) * teacher.draft_part(allowed)
    assert torch.allclose(shares, plain / plain.sum(dim=-1, keepdim=True), atol=1e-6)


def test_a_row_without_any_allowed_token_gives_a_finite_loss() -> None:
    logits = torch.randn(1, 30, requires_grad=True)
    nothing = torch.zeros(1, 30, dtype=torch.bool)
    loss = soft_cross_entropy(masked(logits, nothing), torch.full((1, 30), 1 / 30)) * 0
    loss.sum().backward()
    assert loss.isfinite().all() and logits.grad is not None and logits.grad.isfinite().all()


def test_a_masked_head_is_right_more_often() -> None:
    """The mask takes wrong first choices away from both sides."""
    head, teacher = tiny_head(), Teacher(TARGET, target_weights(), DRAFT_IDS, CPU)
    plain = with_masks = 0
    for seed in range(6):
        packs = [lambda seed=seed: random_pack(seed)]
        plain += evaluate(head, teacher, packs, 3).total.right[1][0]
        found = evaluate(head, teacher, packs, 3, masks=random_masks(seed))
        with_masks += found.total.right[1][0]
    assert with_masks > plain > 0
