from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specrt.errors import ConfigError
from specrt.model.config import RopeConfig, TargetConfig

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _read(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> TargetConfig:
    """A key set to ... is left out."""
    config = {k: v for k, v in {**CONFIG, **changes}.items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return TargetConfig.from_folder(folder)


def test_reads_sizes(tmp_path: Path) -> None:
    config = _read(tmp_path, bos_token_id=1, tie_word_embeddings=True)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.head_dim, config.max_positions, config.tied) == (16, 512, True)
    assert (config.eos_token_ids, config.bos_token_id) == ((2,), 1)
    assert config.rope == RopeConfig(theta=10000.0)


def test_defaults_of_old_files(tmp_path: Path) -> None:
    config = _read(tmp_path, num_key_value_heads=..., rope_theta=...)
    assert (config.num_kv_heads, config.rope.theta, config.tied) == (4, 10000.0, False)
    assert _read(tmp_path, head_dim=24).head_dim == 24


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        {"rope_theta": ..., "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    ],
)
def test_llama3_rope_in_both_spellings(tmp_path: Path, rope: dict[str, Any]) -> None:
    assert _read(tmp_path, **rope).rope == RopeConfig(
        theta=5e5,
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=8192,
    )


def test_linear_rope_in_the_oldest_spelling(tmp_path: Path) -> None:
    rope = _read(tmp_path, rope_scaling={"type": "linear", "factor": 2}).rope
    assert (rope.rope_type, rope.factor, rope.theta) == ("linear", 2.0, 10000.0)


YARN = {"rope_type": "yarn", "factor": 4.0}


def test_yarn_rope_and_what_it_may_leave_out(tmp_path: Path) -> None:
    plain = _read(tmp_path, rope_scaling=YARN).rope
    assert (plain.rope_type, plain.factor, plain.original_max_positions) == ("yarn", 4.0, 512)
    assert (plain.beta_fast, plain.beta_slow, plain.truncate) == (32.0, 1.0, True)
    assert plain.attention_factor == pytest.approx(1.1386294)
    options = {"original_max_position_embeddings": 128, "beta_fast": 16, "truncate": False}
    full = _read(tmp_path, rope_scaling={**YARN, **options, "attention_factor": 1.5}).rope
    assert (full.original_max_positions, full.beta_fast, full.truncate) == (128, 16.0, False)
    assert full.attention_factor == 1.5
    outside = _read(tmp_path, rope_scaling=YARN, original_max_position_embeddings=256).rope
    assert outside.original_max_positions == 256


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": [5, 7]}, (5, 7)),
        ({"eos_token_id": 9}, (9,)),
        ({"temperature": 0.6}, (2,)),
        (None, (2,)),
    ],
)
def test_eos_ids(tmp_path: Path, generation: dict[str, Any] | None, expected: Any) -> None:
    assert _read(tmp_path, generation).eos_token_ids == expected


def test_parts_by_architecture(tmp_path: Path) -> None:
    qwen2 = _read(tmp_path, architectures=["Qwen2ForCausalLM"])
    assert (qwen2.qkv_bias, qwen2.o_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = _read(tmp_path, architectures=["Qwen3ForCausalLM"])
    assert (qwen3.qkv_bias, qwen3.o_bias, qwen3.qk_norm) == (False, False, True)
    llama = _read(tmp_path, attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.o_bias, llama.mlp_bias) == (True, True, True)


def test_a_window_that_is_off_is_fine(tmp_path: Path) -> None:
    _read(tmp_path, sliding_window=None, layer_types=["full_attention"] * 2)
    _read(
        tmp_path,
        architectures=["Qwen2ForCausalLM"],
        sliding_window=4096,
        use_sliding_window=False,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["Gemma3ForCausalLM"]},
            r"architecture \['Gemma3ForCausalLM'\] is not supported; supported: LlamaForCausalLM",
        ),
        ({"architectures": ...}, r"architecture None is not supported"),
        ({"architectures": []}, r"architecture \[\] is not supported"),
        ({"rope_scaling": {"rope_type": "yarn"}}, r"'yarn' needs the number 'factor' .* got None"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": "x"}},
            r"'yarn' needs the number 'beta_fast' above 0, got 'x'",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
            r"RoPE type 'dynamic' is not supported; supported: default, linear, llama3, yarn",
        ),
        ({"rope_parameters": {"rope_type": "longrope"}}, r"RoPE type 'longrope'"),
        ({"rope_scaling": {"rope_type": "linear"}}, r"needs the number 'factor' above 0, got None"),
        (
            {"rope_scaling": {**LLAMA3, "low_freq_factor": "x"}},
            r"needs the number 'low_freq_factor' above 0, got 'x'",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, r"differ by layer"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor"),
        ({"sliding_window": 4096}, r"sliding_window = 4096"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, r"\['sliding_attention'\]"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantization_config is .*gptq"),
        ({"rope_theta": "x"}, r"rope_theta must be a number, got 'x'"),
        ({"rope_scaling": "linear"}, r"must be an object, got 'linear'"),
        ({"hidden_act": "gelu"}, r"hidden_act 'gelu'"),
        ({"num_key_value_heads": 3}, r"num_attention_heads \(4\) must be a multiple"),
        ({"hidden_size": 65}, r"hidden_size \(65\) must be a multiple"),
        ({"rms_norm_eps": ...}, r"'rms_norm_eps' must be a number, got None"),
        ({"vocab_size": -1}, r"'vocab_size' must be a whole number above 0, got -1"),
        ({"num_hidden_layers": "2"}, r"'num_hidden_layers' must be .* got '2'"),
        ({"head_dim": 15}, r"head_dim \(15\) must be even"),
        ({"eos_token_id": "x"}, r"token ids must be whole numbers"),
    ],
)
def test_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        _read(tmp_path, **changes)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    ],
)
def test_missing_sizes_are_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' must be a whole number above 0, got None"):
        _read(tmp_path, **{key: ...})


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "\x00\xff"])
def test_malformed_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="config.json"):
        TargetConfig.from_folder(tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config.json: no such file; --model-path must be"):
        TargetConfig.from_folder(tmp_path)
