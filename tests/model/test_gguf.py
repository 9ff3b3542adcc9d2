"""GGUF conversion: a tiny file written with the gguf package, read back, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import gguf_writer
import numpy as np
import pytest
import torch
from fakes import CHAT_TEMPLATE, tiny_model_folder
from gguf_writer import write_gguf

from specrt.errors import ConfigError
from specrt.model.config import RopeConfig, TargetConfig
from specrt.model.gguf import convert
from specrt.model.rope import inverse_frequencies
from specrt.model.weights import load_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_model_folder(tmp_path / "tiny", tie_word_embeddings=False)


def _convert(source: Path, tmp_path: Path) -> Path:
    target = tmp_path / "converted"
    target.mkdir()
    convert(source, target)
    return target


def test_round_trip_is_exact(tmp_path: Path, folder: Path) -> None:
    converted = _convert(write_gguf(tmp_path / "m.gguf", folder), tmp_path)
    config, weights = load_folder(folder)
    own_config, own_weights = load_folder(converted)
    assert own_weights.keys() == weights.keys()
    assert all(torch.equal(own_weights[name], weights[name]) for name in weights)
    for name in TargetConfig.__dataclass_fields__:
        if name != "eos_token_ids":
            assert getattr(own_config, name) == getattr(config, name), name
    assert own_config.eos_token_ids == (2, 0)


def test_tied_model_has_no_lm_head(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "tied")
    config, weights = load_folder(_convert(write_gguf(tmp_path / "m.gguf", folder), tmp_path))
    assert config.tied and "lm_head.weight" not in weights


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_stored_types_keep_their_values(tmp_path: Path, folder: Path, kind: str) -> None:
    quantization = gguf.GGMLQuantizationType[kind]
    source = write_gguf(tmp_path / "m.gguf", folder, kind=quantization)
    _, weights = load_folder(folder)
    _, own = load_folder(_convert(source, tmp_path))
    for name in ("model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight"):
        expected = gguf.quants.dequantize(
            gguf.quants.quantize(weights[name].numpy(), quantization), quantization
        )
        assert np.array_equal(own[name].numpy(), expected)


def test_tokenizer_is_rebuilt(tmp_path: Path, folder: Path) -> None:
    from specrt.tokenizer import Tokenizer

    converted = _convert(write_gguf(tmp_path / "m.gguf", folder), tmp_path)
    own, expected = Tokenizer(converted, 320, (2, 0)), Tokenizer(folder, 320)
    for text in ("the weather 2024  \n\n\t x", "<|im_start|>user\nhé 😀", '{"name": "a"}  12'):
        assert own.encode(text) == expected.encode(text)
        assert own.decode(own.encode(text)) == text
    assert own.special_token_ids == expected.special_token_ids == {0, 1, 2}
    assert own.chat_template == CHAT_TEMPLATE
    assert own.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def test_linear_rope(tmp_path: Path, folder: Path) -> None:
    source = write_gguf(
        tmp_path / "m.gguf",
        folder,
        llama__rope__scaling__type="linear",
        llama__rope__scaling__factor=4.0,
    )
    rope = TargetConfig.from_folder(_convert(source, tmp_path)).rope
    assert (rope.rope_type, rope.factor) == ("linear", 4.0)


def test_llama3_factors_become_its_parameters(tmp_path: Path, folder: Path) -> None:
    scaled = RopeConfig(theta=10000.0, rope_type="llama3", factor=32.0, original_max_positions=8192)
    factors = inverse_frequencies(RopeConfig(theta=10000.0), 16) / inverse_frequencies(scaled, 16)
    source = write_gguf(tmp_path / "m.gguf", folder, factors=factors.numpy())
    assert TargetConfig.from_folder(_convert(source, tmp_path)).rope == scaled


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "gemma"}, "GGUF architecture 'gemma' is not supported; supported: llama"),
        ({"tokenizer_model": "llama"}, "tokenizer model 'llama' is not supported; supported: gpt2"),
        ({"tokenizer_pre": "falcon"}, "pre-tokenizer 'falcon' is not supported; supported: gpt-2"),
        ({"llama__rope__scaling__type": "yarn"}, "RoPE scaling 'yarn' is not supported"),
        ({"factors": np.linspace(1, 9, 8)}, "are not those of llama3 scaling"),
        ({"leave_out": "token_embd.weight"}, "token_embd.weight is missing"),
    ],
)
def test_refused_by_name(
    tmp_path: Path, folder: Path, changes: dict[str, Any], message: str
) -> None:
    source = write_gguf(tmp_path / "m.gguf", folder, **changes)
    with pytest.raises(ConfigError, match=message) as caught:
        _convert(source, tmp_path)
    assert str(source) in str(caught.value)


def test_unknown_tensor(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gguf_writer.NAMES, "mlp.up_proj", "ffn_up_exps")
    source = write_gguf(tmp_path / "m.gguf", folder)
    with pytest.raises(ConfigError, match=r"'blk\.0\.ffn_up_exps\.weight' is not part of"):
        _convert(source, tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.03, 0.5, 0.99])
def test_damaged_files(tmp_path: Path, folder: Path, share: float) -> None:
    source = write_gguf(tmp_path / "m.gguf", folder)
    content = source.read_bytes()
    source.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ConfigError, match=r"m\.gguf: not a readable GGUF file, or damaged"):
        _convert(source, tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.gguf: no such file"):
        convert(tmp_path / "none.gguf", tmp_path)
