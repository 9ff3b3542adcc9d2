from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fakes import tiny_model_folder
from safetensors.torch import load_file, save_file
from torch import Tensor

from specrt.errors import ConfigError
from specrt.model.weights import INDEX_FILE, load_folder, weight_shapes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_model_folder(tmp_path)


def _rewrite(folder: Path, changes: dict[str, Tensor | None]) -> None:
    """Change tensors of model.safetensors; None takes one out."""
    path = folder / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: t.clone() for name, t in tensors.items() if t is not None}, path)


def test_loads_what_the_decoder_needs(folder: Path) -> None:
    config, weights = load_folder(folder)
    assert {n: tuple(t.shape) for n, t in weights.items()} == weight_shapes(config)
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())


def test_sharded_folder_loads_the_same(tmp_path: Path) -> None:
    _, single = load_folder(tiny_model_folder(tmp_path / "single", num_hidden_layers=3))
    sharded = tiny_model_folder(tmp_path / "sharded", num_hidden_layers=3, max_shard_size="100KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    _, weights = load_folder(sharded)
    assert weights.keys() == single.keys()
    assert all(torch.equal(weights[name], single[name]) for name in single)


def test_half_precision_is_widened(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
    _, weights = load_folder(folder)
    assert weights["model.norm.weight"].dtype == torch.float32


def test_old_buffers_and_a_tied_copy_are_ignored(folder: Path) -> None:
    _rewrite(
        folder,
        {
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
            "lm_head.weight": torch.ones(320, 64),
        },
    )
    config, weights = load_folder(folder)
    assert weights.keys() == weight_shapes(config).keys()


def test_missing_tensor(folder: Path) -> None:
    _rewrite(folder, {"model.layers.1.mlp.up_proj.weight": None})
    with pytest.raises(ConfigError, match=r"missing tensors: model\.layers\.1\.mlp\.up_proj"):
        load_folder(folder)


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    _rewrite(
        folder,
        dict.fromkeys(load_file(folder / "model.safetensors"))
        | {"model.norm.weight": torch.ones(64)},
    )
    with pytest.raises(ConfigError, match=r"missing tensors: .* and 14 more"):
        load_folder(folder)


def test_untied_without_lm_head(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    with pytest.raises(ConfigError, match=r"missing tensors: lm_head\.weight"):
        load_folder(folder)


def test_unexpected_tensor(folder: Path) -> None:
    _rewrite(folder, {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)})
    with pytest.raises(ConfigError, match=r"unexpected tensor 'model\.layers\.0.*q_proj\.bias'"):
        load_folder(folder)


def test_wrong_shape(folder: Path) -> None:
    _rewrite(folder, {"model.norm.weight": torch.ones(63)})
    with pytest.raises(ConfigError, match=r"'model\.norm\.weight' must have shape \[64\].*\[63\]"):
        load_folder(folder)


@pytest.mark.parametrize("keep", [0, 4, 100, 20000])
def test_cut_short(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"model\.safetensors: damaged or cut short"):
        load_folder(folder)


def test_not_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 5000)
    with pytest.raises(ConfigError, match=r"model\.safetensors: damaged"):
        load_folder(folder)


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="neither model.safetensors nor"):
        load_folder(folder)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return tiny_model_folder(tmp_path, max_shard_size="100KB")


def test_missing_shard(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ConfigError, match=f"{shard.name}: no such file, but {INDEX_FILE}"):
        load_folder(sharded)


def test_shard_without_its_tensor(sharded: Path) -> None:
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    save_file({"model.norm.weight": torch.ones(64)}, shard)
    with pytest.raises(ConfigError, match=f"{shard.name}: lacks tensors"):
        load_folder(sharded)


@pytest.mark.parametrize(
    "index", ["{", "{}", '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../x.safetensors"}}']
)
def test_malformed_index(sharded: Path, index: str) -> None:
    (sharded / INDEX_FILE).write_text(index)
    with pytest.raises(ConfigError, match=INDEX_FILE):
        load_folder(sharded)
