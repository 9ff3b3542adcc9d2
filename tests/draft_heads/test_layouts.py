"""Every public layout against a forward of its own, and back again from disk unchanged."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_heads import tiny_head
from fakes import tiny_model_folder
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_head import ReferenceFolder
from safetensors.torch import load_file, save_file
from torch import Tensor

from specrt.cache.kv_store import KVStore
from specrt.draft_heads.checkpoint import HeadCheckpoint, load_head, save_head
from specrt.draft_heads.config_reader import Layout, read_config
from specrt.draft_heads.eagle3 import Eagle3Head
from specrt.draft_heads.runner import NUM_SCRATCH_SLOTS, DraftedPath, HeadRunner, extra_planes
from specrt.errors import ConfigError
from specrt.model.config import RopeConfig, TargetConfig

LAYOUTS: tuple[Layout, ...] = ("flat", "speculators")
VOCAB, WIDTH, NUM_LAYERS = 320, 64, 9
NOISE = torch.Generator().manual_seed(9)
SHARED = {
    "embed_tokens.weight": torch.randn(VOCAB, WIDTH, generator=NOISE),
    "lm_head.weight": torch.randn(VOCAB, WIDTH, generator=NOISE),
}


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("target"), num_hidden_layers=NUM_LAYERS)


def load(folder: Path, target_folder: Path) -> tuple[HeadCheckpoint, Tensor]:
    return load_head(folder, TargetConfig.from_folder(target_folder), SHARED, target_folder)


def edit(
    folder: Path,
    change: Callable[[dict[str, Tensor]], None] = lambda tensors: None,
    **config: Any,
) -> None:
    """Change tensors and keys of config.json; a key set to ... is deleted."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    raw = json.loads(path.read_text()) | config
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not ...}))


def runtime_logits(
    head: HeadCheckpoint, embedding: Tensor, tokens: list[int], captured: Tensor, num_drafted: int
) -> Tensor:
    """What the runtime makes of committed tokens and a drafted path behind them."""
    config = head.config
    eagle = Eagle3Head(head, embedding, num_positions=64)
    store = KVStore(
        32 + NUM_SCRATCH_SLOTS,
        1,
        config.num_kv_heads,
        config.head_dim,
        extra=extra_planes(eagle),
    )
    runner = HeadRunner(eagle, store, 32)
    committed = len(tokens) - num_drafted
    slots = np.arange(3, 3 + committed, dtype=np.int32)
    runner.keep_features(slots[:-1], captured)
    outs = [runner.extend([(tokens[:committed], slots)])[0]]
    scratch = runner.scratch_slots
    for index in range(num_drafted):
        path = DraftedPath(
            [tokens[committed + index]],
            committed + index,
            np.concatenate((slots[1:], scratch[:index])),
            scratch[index : index + 1],
            outs[-1],
        )
        outs.append(runner.follow([path])[0])
    return torch.from_numpy(runner.logits(outs))


def check_against_reference(folder: Path, target_folder: Path, seed: int = 0) -> HeadCheckpoint:
    """Load a folder and compare its logits with those of the reference."""
    head, embedding = load(folder, target_folder)
    reference = ReferenceFolder(folder, *SHARED.values())
    assert torch.equal(head.draft_token_ids, reference.token_ids)
    if reference.layers is not None:
        assert list(head.config.capture_layers) == reference.layers
    noise = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (10,), generator=noise).tolist()
    width = len(head.config.capture_layers) * WIDTH
    captured = 3 * torch.randn(6, width, generator=noise)
    found = runtime_logits(head, embedding, tokens, captured, 3)
    expected = reference.logits(tokens, captured, 3)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)
    assert float(expected.std()) > 0.1, "nothing to compare"
    return head


@st.composite
def heads(draw: st.DrawFn) -> HeadCheckpoint:
    """Heads of many shapes, of every variant that can be."""
    num_kv = draw(st.integers(1, 3))
    num_aux = draw(st.integers(1, 5))
    before_fc = draw(st.sampled_from(["", "fc_norm", "norm_before_fc"]))
    layers = draw(
        st.lists(st.integers(0, NUM_LAYERS - 1), min_size=num_aux, max_size=num_aux, unique=True)
    )
    rope = draw(
        st.sampled_from(
            [
                RopeConfig(theta=500.0),
                RopeConfig(theta=1e6, rope_type="linear", factor=2.0),
                RopeConfig(
                    theta=5e5,
                    rope_type="llama3",
                    factor=8.0,
                    low_freq_factor=1.0,
                    high_freq_factor=4.0,
                    original_max_positions=32,
                ),
                RopeConfig(theta=1e4, rope_type="yarn", factor=4.0, original_max_positions=64),
            ]
        )
    )
    is_wide = draw(st.booleans())
    head = tiny_head(
        seed=draw(st.integers(0, 99)),
        hidden_size=48 if is_wide else WIDTH,
        num_heads=num_kv * draw(st.integers(1, 3)),
        num_kv_heads=num_kv,
        head_dim=2 * draw(st.integers(1, 9)),
        intermediate_size=draw(st.integers(1, 90)),
        draft_vocab_size=draw(st.integers(2, VOCAB)),
        capture_layers=tuple(sorted(layers)),
        rope=rope,
        rms_norm_eps=draw(st.sampled_from([1e-5, 1e-6, 0.0])),
        norm_before_residual=draw(st.booleans()),
        norm_output=draw(st.booleans()),
        provenance=draw(st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)),
        **({before_fc: True} if before_fc else {}),
    )
    if is_wide or draw(st.booleans()):
        noise = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        own = torch.randn(VOCAB, head.config.hidden_size, generator=noise)
        head.embedding = own.bfloat16().float()
    return head


@settings(max_examples=60, deadline=None)
@given(head=heads(), layout=st.sampled_from(LAYOUTS))
def test_what_is_written_is_read_and_says_what_the_reference_says(
    head: HeadCheckpoint, layout: Layout, target_folder: Path
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if layout == "flat" and head.config.norm_output:
            with pytest.raises(ConfigError, match="--format flat: norm_output"):
                save_head(folder, head, layout=layout)
            assert not list(folder.iterdir())
            return
        save_head(folder, head, layout=layout)
        read, embedding = load(folder, target_folder)
        assert read.config == head.config
        assert torch.equal(read.draft_token_ids, head.draft_token_ids)
        assert read.weights.keys() == head.weights.keys()
        assert all(torch.equal(read.weights[name], head.weights[name]) for name in head.weights)
        if head.embedding is None:
            assert read.embedding is None and embedding is SHARED["embed_tokens.weight"]
        else:
            assert read.embedding is not None and torch.equal(read.embedding, head.embedding)
        if head.config.rope.rope_type == "default":
            check_against_reference(folder, target_folder)


def golden(folder: Path, layout: Layout, **options: Any) -> Path:
    """A head of 3 captured layers, like those that are published."""
    head = tiny_head(capture_layers=options.pop("capture_layers", (2, 4, 6)), **options)
    save_head(folder, head, layout=layout)
    return folder


def with_prefix(tensors: dict[str, Tensor]) -> None:
    """As torch saves a wrapped module; d2t and t2d are buffers of the wrapper."""
    for name in list(tensors):
        if name not in ("d2t", "t2d", "lm_head.weight"):
            tensors["model." + name] = tensors.pop(name)


def test_flat_as_specforge_exports_it(tmp_path: Path, target_folder: Path) -> None:
    folder = golden(tmp_path, "flat")
    edit(folder, specrt=..., head_dim=..., eagle_config=..., target_hidden_size=...)
    head = check_against_reference(folder, target_folder)
    assert head.config.capture_layers == (2, 4, 6), "the default of 9 layers"


def test_flat_as_angelslim_exports_it(tmp_path: Path, target_folder: Path) -> None:
    folder = golden(tmp_path, "flat")
    edit(folder, with_prefix, architectures=["Eagle3LlamaForCausalLM"], specrt=...)
    check_against_reference(folder, target_folder)


def test_flat_as_safeailab_pickles_it(tmp_path: Path, target_folder: Path) -> None:
    folder = golden(tmp_path, "flat")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    check_against_reference(folder, target_folder)


def test_flat_as_nvidia_borrows_the_lm_head(tmp_path: Path, target_folder: Path) -> None:
    folder = golden(tmp_path, "flat", draft_vocab_size=VOCAB)

    def drop(tensors: dict[str, Tensor]) -> None:
        for name in ("lm_head.weight", "t2d"):
            del tensors[name]
        tensors["d2t"].zero_()

    edit(folder, drop, draft_vocab_size=None)
    head = check_against_reference(folder, target_folder)
    assert torch.equal(head.weights["lm_head.weight"], SHARED["lm_head.weight"])


def test_a_tied_head_reads_its_own_embedding(tmp_path: Path, target_folder: Path) -> None:
    """A copied `tie_word_embeddings` does nothing to a head that has an lm_head."""
    folder = golden(tmp_path, "flat", draft_vocab_size=VOCAB)
    edit(folder, tie_word_embeddings=True)
    check_against_reference(folder, target_folder)
    own = torch.randn(VOCAB, WIDTH).bfloat16()

    def tie(tensors: dict[str, Tensor]) -> None:
        del tensors["lm_head.weight"]
        tensors["embed_tokens.weight"] = own

    edit(folder, tie)
    head, _ = load(folder, target_folder)
    assert torch.equal(head.weights["lm_head.weight"], own.float())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_aux", [1, 5])
def test_other_numbers_of_captured_layers(
    tmp_path: Path, target_folder: Path, layout: Layout, num_aux: int
) -> None:
    folder = golden(tmp_path, layout, capture_layers=tuple(range(1, 1 + num_aux)))
    edit(folder, num_aux_hidden_states=num_aux)
    check_against_reference(folder, target_folder)


@pytest.mark.parametrize(
    "variant", ["fc_norm", "norm_before_fc", "norm_before_residual", "norm_output", ""]
)
@pytest.mark.parametrize("name", ["Eagle3Speculator", "Eagle3DraftModel"])
def test_speculators_variants(tmp_path: Path, target_folder: Path, name: str, variant: str) -> None:
    folder = golden(tmp_path, "speculators", **({variant: True} if variant else {}))

    def add_the_targets(tensors: dict[str, Tensor]) -> None:
        tensors["verifier_norm.weight"] = torch.ones(WIDTH)
        tensors["verifier_lm_head.weight"] = torch.ones(200, WIDTH)

    edit(folder, add_the_targets, architectures=[name], specrt=..., target_hidden_size=None)
    check_against_reference(folder, target_folder)


def test_speculators_without_layer_ids_reads_the_default_ones(
    tmp_path: Path, target_folder: Path
) -> None:
    folder = golden(tmp_path, "speculators")
    edit(folder, eagle_aux_hidden_state_layer_ids=None)
    assert check_against_reference(folder, target_folder).config.capture_layers == (2, 4, 6)


def test_speculators_without_the_key_starts_the_residual_normed(
    tmp_path: Path, target_folder: Path
) -> None:
    folder = golden(tmp_path, "speculators", norm_before_residual=True)
    edit(folder, norm_before_residual=...)
    assert check_against_reference(folder, target_folder).config.norm_before_residual
    flat = golden(tmp_path / "flat", "flat")
    assert not check_against_reference(flat, target_folder).config.norm_before_residual


def test_speculators_with_a_whole_vocabulary_has_no_map(
    tmp_path: Path, target_folder: Path
) -> None:
    folder = golden(tmp_path, "speculators", draft_vocab_size=VOCAB)
    assert not {"d2t", "t2d"} & load_file(folder / "model.safetensors").keys()
    check_against_reference(folder, target_folder)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_transformers_leaves_out_is_what_its_llama_config_has(
    tmp_path: Path, target_folder: Path, layout: Layout
) -> None:
    """Read only: a layer of that size would be large."""
    from transformers import LlamaConfig

    config = tiny_head(capture_layers=(2, 4, 6)).config
    whole = LlamaConfig(num_hidden_layers=1, vocab_size=VOCAB)
    left = {key: value for key, value in whole.to_diff_dict().items() if key != "torch_dtype"}
    head = HeadCheckpoint(config, tiny_head().weights, torch.arange(200))
    save_head(tmp_path, head, layout=layout)
    path = tmp_path / "config.json"
    raw = json.loads(path.read_text())
    if layout == "flat":
        kept = {"architectures", "draft_vocab_size", "eagle_config"}
        raw = {key: value for key, value in raw.items() if key in kept} | left
    else:
        raw["transformer_layer_config"] = left
    path.write_text(json.dumps(raw | {"target_hidden_size": WIDTH}))
    found = read_config(tmp_path, TargetConfig.from_folder(target_folder)).config
    assert (found.hidden_size, found.intermediate_size) == (4096, 11008)
    assert (found.num_heads, found.num_kv_heads, found.head_dim) == (32, 32, 128)
    assert (found.max_positions, found.rms_norm_eps) == (2048, 1e-6)
    assert found.rope == RopeConfig(theta=10000.0)


@pytest.mark.parametrize(
    ("changes", "layer", "message"),
    [
        ({"speculators_model_type": "dspark"}, {}, "speculators_model_type 'dspark'"),
        ({"speculators_config": {"algorithm": "eagle"}}, {}, "speculators_config.algorithm"),
        ({}, {"model_type": "qwen3"}, "model_type 'qwen3'"),
        ({}, {"model_type": ...}, "transformer_layer_config.model_type is missing"),
        ({}, {"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ({}, {"attention_bias": True}, "attention_bias"),
        ({}, {"layer_types": ["sliding_attention"]}, "layer_types"),
        ({}, {"rope_parameters": {"rope_type": "dynamic"}}, "RoPE type 'dynamic'"),
        ({"fc_norm": True, "norm_before_fc": True}, {}, "exclude each other"),
        ({"norm_output": "yes"}, {}, "'norm_output' must be true or false"),
        ({"transformer_layer_config": None}, {}, "'transformer_layer_config' must be an object"),
        ({"eagle_aux_hidden_state_layer_ids": [9]}, {}, r"reads the layers \[9\]"),
        ({"draft_vocab_size": 400}, {}, r"draft_vocab_size \(400\)"),
    ],
)
def test_other_heads_in_the_speculators_layout_are_refused_by_name(
    tmp_path: Path,
    target_folder: Path,
    changes: dict[str, Any],
    layer: dict[str, Any],
    message: str,
) -> None:
    folder = golden(tmp_path, "speculators")
    raw = json.loads((folder / "config.json").read_text())["transformer_layer_config"] | layer
    kept = {key: value for key, value in raw.items() if value is not ...}
    edit(folder, **{"transformer_layer_config": kept, **changes})
    with pytest.raises(ConfigError, match=message):
        load(folder, target_folder)


def test_names_of_one_layout_in_the_other_are_refused(tmp_path: Path, target_folder: Path) -> None:
    folder = golden(tmp_path, "speculators")
    tensors = load_file(folder / "model.safetensors")
    edit(folder, lambda t: t.update({"model.norm.weight": tensors["norm.weight"]}))
    with pytest.raises(ConfigError, match="two tensors of one name"):
        load(folder, target_folder)
    flat = golden(tmp_path / "flat", "flat")
    edit(flat, lambda t: t.update({"layers.0.x": torch.ones(1)}))
    with pytest.raises(ConfigError, match="layers.0"):
        load(flat, target_folder)


def test_the_variants_change_what_a_head_says(tmp_path: Path, target_folder: Path) -> None:
    """Otherwise the comparisons above would compare nothing."""
    plain = tiny_head(capture_layers=(2, 4, 6), norm_before_fc=True)
    tokens = [5, 6, 7, 8, 9, 10, 11]
    captured = torch.randn(4, 3 * WIDTH, generator=torch.Generator().manual_seed(0))
    found = []
    for change in (
        {},
        {"norm_before_residual": True},
        {"norm_output": True},
        {"norm_before_fc": False},
    ):
        head = dataclasses.replace(plain, config=dataclasses.replace(plain.config, **change))
        found.append(runtime_logits(head, SHARED["embed_tokens.weight"], tokens, captured, 2))
    for index, one in enumerate(found):
        for other in found[:index]:
            assert not torch.allclose(one[-1], other[-1], atol=1e-2)
