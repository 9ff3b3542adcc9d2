"""Checkpoints: a round trip, and every way in which one can be wrong has its own error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_heads import tiny_head, tiny_head_folder
from fakes import tiny_model_folder
from safetensors.torch import load_file, save_file

from specrt.draft_heads.checkpoint import HeadCheckpoint, load_head, save_head, vocabulary_hash
from specrt.draft_heads.config_reader import read_config
from specrt.errors import ConfigError
from specrt.model.config import TargetConfig


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_head_folder(tmp_path / "head")


def load(folder: Path, target_folder: Path) -> tuple[HeadCheckpoint, torch.Tensor]:
    target = TargetConfig.from_folder(target_folder)
    shape = (target.vocab_size, target.hidden_size)
    shared = {"embed_tokens.weight": torch.ones(shape), "lm_head.weight": torch.full(shape, 2.0)}
    return load_head(folder, target, shared, target_folder)


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_what_is_saved_is_loaded(folder: Path, target_folder: Path) -> None:
    written = tiny_head()
    read, embedding = load(folder, target_folder)
    assert read.config == written.config
    assert torch.equal(read.draft_token_ids, written.draft_token_ids)
    assert read.weights.keys() == written.weights.keys()
    for name, weight in written.weights.items():
        assert torch.equal(read.weights[name], weight), name
    assert torch.equal(embedding, torch.ones(320, 64)), "not borrowed from the target"


def test_own_embedding_and_other_loaders_names(folder: Path, target_folder: Path) -> None:
    own = torch.randn(320, 64).bfloat16().float()
    save_head(folder, tiny_head(), own)
    edit_tensors(
        folder,
        lambda t: t.update({"model." + name: t.pop(name) for name in list(t) if "." in name}),
    )
    edit_config(folder, architectures=["Eagle3LlamaForCausalLM"])
    _, embedding = load(folder, target_folder)
    assert torch.equal(embedding, own)


def test_a_whole_vocabulary_head_borrows_the_lm_head(tmp_path: Path, target_folder: Path) -> None:
    folder = tiny_head_folder(tmp_path / "whole", draft_vocab_size=320)

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("lm_head.weight", "d2t", "t2d"):
            del tensors[name]

    edit_tensors(folder, drop)
    edit_config(folder, draft_vocab_size=None)
    head, _ = load(folder, target_folder)
    assert torch.equal(head.weights["lm_head.weight"], torch.full((320, 64), 2.0))
    assert head.draft_token_ids.tolist() == list(range(320))


def test_pickled_weights_are_read_without_running_code(folder: Path, target_folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    load(folder, target_folder)
    torch.save([1], folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="tensors by name"):
        load(folder, target_folder)
    torch.save({"fc.weight": Path("x")}, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="pytorch_model.bin"):
        load(folder, target_folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["LlamaForCausalLMEagle"]}, "EAGLE-2"),
        ({"architectures": ["Eagle3Speculator"]}, "speculators_model_type None"),
        ({"speculators_model_type": "dflash"}, "speculators_model_type 'dflash'"),
        ({"speculators_model_type": "eagle3"}, "'transformer_layer_config' must be an object"),
        ({"architectures": ["LlamaForCausalLM"]}, "no EAGLE-3 head"),
        ({"architectures": []}, "no EAGLE-3 head"),
        ({"model_type": "qwen3"}, "qwen3"),
        ({"fc_norm": True}, "missing tensors: fc_norm.0.weight, fc_norm.1.weight"),
        ({"norm_before_fc": True}, "missing tensors: input_norm.weight"),
        ({"fc_norm": True, "norm_before_fc": True}, "fc_norm and norm_before_fc exclude"),
        ({"norm_before_residual": 1}, "'norm_before_residual' must be true or false, got 1"),
        ({"norm_output": True}, "norm_output is not supported in the flat layout"),
        ({"num_aux_hidden_states": 5}, "num_aux_hidden_states is 5"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3]}, r"\[2, 3\] and .* \[-1, 0\] disagree"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"sliding_window": 64}, "sliding_window"),
        ({"layer_types": ["sliding_attention"]}, "layer_types"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"additional_layers": 1}, "additional_layers"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_bias": True}, "attention_bias"),
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "EAGLE-2"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 5]}}, r"\[1, 6\]"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["0", "1"]}}, "whole numbers"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": 1}}, "whole numbers"),
        ({"eagle_config": [1]}, "'eagle_config' must be an object"),
        ({"rope_scaling": [1]}, "'rope_scaling' must be an object"),
        ({"rms_norm_eps": "abc"}, "'rms_norm_eps' must be a number"),
        ({"num_attention_heads": 128, "head_dim": None}, "multiple of num_attention_heads"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"target_hidden_size": 128}, "another model: its target_hidden_size is 128"),
        ({"vocab_size": 400}, "another model: its vocab_size is 400"),
        ({"num_key_value_heads": 3}, "divide"),
        ({"intermediate_size": 96}, "mlp.down_proj"),
        ({"specrt": {"vocabulary_sha256": "0", "target": "X-1B"}}, "X-1B"),
    ],
)
def test_other_heads_are_refused_by_name(
    folder: Path, target_folder: Path, changes: dict[str, Any], message: str
) -> None:
    edit_config(folder, **changes)
    with pytest.raises(ConfigError, match=message):
        load(folder, target_folder)


def shuffle(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"] = tensors["d2t"].flip(0).contiguous()


def drift(tensors: dict[str, torch.Tensor]) -> None:
    tensors["d2t"][-1] += 1 if tensors["d2t"][-1] + 200 < 320 else -1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("fc.weight"), "missing tensors: fc.weight"),
        (lambda t: t.pop("lm_head.weight"), "missing tensors: lm_head.weight"),
        (lambda t: t.pop("d2t"), "missing tensor: d2t"),
        (lambda t: t.update({"layers.0.x": torch.ones(1)}), "EAGLE-2 head"),
        (lambda t: t.update({"fc.bias": torch.ones(64)}), "unexpected tensors: fc.bias"),
        (lambda t: t.update({"norm.weight": torch.ones(65)}), "norm.weight"),
        (lambda t: t["norm.weight"].fill_(float("nan")), "NaN"),
        (shuffle, "d2t is not the draft vocabulary"),
        (drift, "d2t"),
        (lambda t: t.update({"d2t": torch.zeros(3, dtype=torch.int64)}), "d2t must have shape"),
        (lambda t: t["t2d"].logical_not_(), "d2t and t2d disagree"),
    ],
)
def test_damaged_tensors_are_named(
    folder: Path,
    target_folder: Path,
    change: Callable[[dict[str, torch.Tensor]], None],
    message: str,
) -> None:
    edit_tensors(folder, change)
    with pytest.raises(ConfigError, match=message):
        load(folder, target_folder)


def test_cut_and_absent_files(folder: Path, target_folder: Path, tmp_path: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    for size in (0, 7, len(whole) // 2):
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(ConfigError, match="damaged"):
            load(folder, target_folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="neither"):
        load(folder, target_folder)
    with pytest.raises(ConfigError, match="holds no config.json"):
        load(tmp_path / "nowhere", target_folder)


def test_a_wider_head_needs_its_own_embedding(tmp_path: Path, target_folder: Path) -> None:
    folder = tiny_head_folder(tmp_path / "wide", hidden_size=96, head_dim=16)
    with pytest.raises(ConfigError, match="64 wide where the head needs 96"):
        load(folder, target_folder)


def test_the_vocabulary_hash_knows_the_tokenizer(tmp_path: Path, target_folder: Path) -> None:
    target = TargetConfig.from_folder(target_folder)
    own = vocabulary_hash(target_folder)
    save_head(tmp_path, tiny_head(provenance={"vocabulary_sha256": own}))
    assert read_config(tmp_path, target).config.provenance["vocabulary_sha256"] == own
    load(tmp_path, target_folder)
    other = json.loads((target_folder / "tokenizer.json").read_text())
    other["added_tokens"][0]["content"] = "<other>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(other))
    assert vocabulary_hash(tmp_path) != own
