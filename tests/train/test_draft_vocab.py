"""The draft vocabulary: order of choice, ties, coverage; and the first weights of a head."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from train_fakes import DRAFT_IDS, TARGET, target_weights

from specrt.errors import ConfigError
from specrt.train.draft_vocab import choose_draft_vocab, fallback_ids
from specrt.train.initialise import head_config, initial_head


def test_generated_tokens_come_first_then_the_extra_ones() -> None:
    ids, coverage = choose_draft_vocab({7: 5, 3: 2, 9: 3, 4: 0}, [3, 20, 11, 12], 5)
    assert ids.tolist() == [3, 7, 9, 11, 20] and ids.dtype == torch.int64
    assert coverage == 1.0


def test_ties_go_to_the_lower_id_and_coverage_counts_what_is_cut() -> None:
    ids, coverage = choose_draft_vocab({8: 6, 5: 2, 2: 2}, [1], 2)
    assert ids.tolist() == [2, 8]
    assert coverage == pytest.approx(0.8)


def test_it_is_as_small_as_what_there_is() -> None:
    ids, _ = choose_draft_vocab({1: 1}, [2, 2, 1], 100)
    assert ids.tolist() == [1, 2]


def test_fallback_ids() -> None:
    token_bytes = [b"", b"a", b"the", b'":', b"12", b"\xff", b" a", b"\n\n", b"\xc3\xa9"]
    assert fallback_ids({2: 1, 6: 4, 8: 4}, token_bytes, [0]) == [0, 1, 3, 4, 5, 7, 6, 8, 2]


@pytest.mark.parametrize(("counts", "size"), [({}, 3), ({1: 1}, 0)])
def test_nothing_to_choose_from(counts: dict[int, int], size: int) -> None:
    with pytest.raises(ConfigError, match="draft"):
        choose_draft_vocab(counts, [], size)


def test_a_head_begins_as_the_last_layer_of_its_target() -> None:
    weights = target_weights()
    config = head_config(TARGET, len(DRAFT_IDS))
    assert config.capture_layers == (2, 3, 4)
    head = initial_head(config, DRAFT_IDS, TARGET, weights, 0).weights
    query = head["midlayer.self_attn.q_proj.weight"]
    assert torch.equal(query[:, 16:], weights["model.layers.6.self_attn.q_proj.weight"])
    assert 0 < float(query[:, :16].abs().max()) < 0.1
    torch.testing.assert_close(head["fc.weight"][:, 32:], torch.eye(16), atol=0.1, rtol=0)
    last = "model.layers.6."
    assert torch.equal(
        head["midlayer.hidden_norm.weight"], weights[last + "input_layernorm.weight"]
    )
    assert torch.equal(head["norm.weight"], weights["model.norm.weight"])
    again = initial_head(config, DRAFT_IDS, TARGET, weights, 0).weights
    assert all(torch.equal(head[name], again[name]) for name in head)


def test_a_head_of_other_sizes_cannot_begin_so() -> None:
    config = dataclasses.replace(head_config(TARGET, len(DRAFT_IDS)), intermediate_size=20)
    with pytest.raises(ConfigError, match=r"gate_proj.weight .* \[24, 16\], got \[20, 16\]"):
        initial_head(config, DRAFT_IDS, TARGET, target_weights(), 0)
