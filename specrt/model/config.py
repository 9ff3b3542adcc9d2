"""TargetConfig: what a transformers config.json says about a model, checked by name.

No torch here: the server process reads this too. What the decoder cannot run is refused with the
name of the key, since a model that runs with one setting ignored gives wrong tokens silently.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specrt.errors import ConfigError

# Architecture -> the parts that its checkpoint has regardless of config.json.
_ARCHITECTURES: dict[str, dict[str, bool]] = {
    "LlamaForCausalLM": {},
    "MistralForCausalLM": {"qkv_bias": False, "o_bias": False, "mlp_bias": False},
    "Qwen2ForCausalLM": {"qkv_bias": True, "o_bias": False, "mlp_bias": False},
    "Qwen3ForCausalLM": {"mlp_bias": False, "qk_norm": True},
}
SUPPORTED_ARCHITECTURES = tuple(_ARCHITECTURES)
_ORIGINAL = "original_max_position_embeddings"
# RoPE type -> the numbers that it cannot do without.
_ROPE_KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL),
    "yarn": ("factor", _ORIGINAL),
}
_YARN_OPTIONS = ("attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow")
SUPPORTED_ROPE_TYPES = tuple(_ROPE_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies.
        rope_type: how the frequencies are scaled.
        factor: scaling factor (all types but "default").
        low_freq_factor: "llama3": wavelengths above original_max_positions / this are divided.
        high_freq_factor: "llama3": wavelengths below original_max_positions / this are kept.
        original_max_positions: "llama3", "yarn": context length before scaling (tokens).
        beta_fast: "yarn": pairs that turn more often than this over that length are kept.
        beta_slow: "yarn": pairs that turn less often are divided by the factor.
        truncate: "yarn": those bounds fall on whole pairs.
        attention_factor: "yarn": cosines and sines are multiplied by it.
    """

    theta: float
    rope_type: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    @classmethod
    def parse(cls, source: Path, theta: float, scaling: dict[str, Any] | None) -> RopeConfig:
        """Read `rope_parameters` (transformers 5) or `rope_scaling` (before).

        What may be left out is what transformers lets one leave out, and means the same.

        Raises:
            ConfigError: a type, key or value that is not supported; names it and `source`.
        """
        scaling = scaling or {}
        if not isinstance(theta, (int, float)):
            raise ConfigError(f"{source}: rope_theta must be a number, got {theta!r}")
        if any(isinstance(value, dict) for value in scaling.values()):
            raise ConfigError(f"{source}: rope_parameters that differ by layer are not supported")
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind not in SUPPORTED_ROPE_TYPES:
            raise ConfigError(
                f"{source}: RoPE type {kind!r} is not supported; supported: "
                f"{', '.join(SUPPORTED_ROPE_TYPES)}"
            )
        keys = _ROPE_KEYS[kind]
        options = [o for o in _YARN_OPTIONS if kind == "yarn" and scaling.get(o) is not None]
        for key in (*keys, *options):
            value = scaling.get(key)
            if not isinstance(value, (int, float)) or value < 0 or (key in keys and not value):
                raise ConfigError(
                    f"{source}: RoPE type {kind!r} needs the number {key!r} above 0, got {value!r}"
                )
        values = {key: scaling[key] for key in (*keys, *options)}
        if kind == "yarn" and "attention_factor" not in values:
            values["attention_factor"] = _attention_factor(values)
        return cls(
            theta=float(theta),
            rope_type=kind,
            factor=float(values.get("factor", 1.0)),
            low_freq_factor=float(values.get("low_freq_factor", 1.0)),
            high_freq_factor=float(values.get("high_freq_factor", 4.0)),
            original_max_positions=int(values.get(_ORIGINAL, 0)),
            beta_fast=float(values.get("beta_fast") or 32.0),
            beta_slow=float(values.get("beta_slow") or 1.0),
            truncate=bool(scaling.get("truncate", True)),
            attention_factor=float(values.get("attention_factor", 1.0)),
        )


def _attention_factor(values: dict[str, Any]) -> float:
    """What YaRN (arXiv 2309.00071) recommends for the factor; `mscale` as DeepSeek uses it."""

    def at(scale: float) -> float:
        return 1.0 if values["factor"] <= 1 else 0.1 * scale * math.log(values["factor"]) + 1.0

    if values.get("mscale") and values.get("mscale_all_dim"):
        return at(values["mscale"]) / at(values["mscale_all_dim"])
    return at(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """The sizes and parts of a target model.

    Attributes:
        architecture: transformers class name.
        vocab_size: width of the logits (the tokenizer may have fewer ids).
        hidden_size: width of the residual stream.
        intermediate_size: width of the MLP.
        num_layers: decoder layers.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides num_heads.
        head_dim: size of one head.
        max_positions: context in tokens.
        rms_norm_eps: of every norm.
        rope: rotary embedding.
        qkv_bias: Q, K and V projections have a bias.
        o_bias: the output projection has one.
        mlp_bias: gate, up and down projections have one.
        qk_norm: Q and K heads are normalised before the rotation.
        tied: the logits use the embedding matrix.
        eos_token_ids: ids that end an output, from generation_config.json when it has them.
        bos_token_id: first id of a text, if any.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    rope: RopeConfig
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> TargetConfig:
        """Read config.json and generation_config.json of a transformers folder.

        Raises:
            ConfigError: a file is missing or malformed, or the model is not supported.
        """
        path = folder / "config.json"
        raw = read_json(path)
        _refuse_unsupported(path, raw)
        architecture = raw["architectures"][0]
        hidden_size = read_size(path, raw, "hidden_size")
        num_heads = read_size(path, raw, "num_attention_heads")
        num_kv_heads = read_size(path, raw, "num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise ConfigError(
                f"{path}: num_attention_heads ({num_heads}) must be a multiple of "
                f"num_key_value_heads ({num_kv_heads})"
            )
        if raw.get("head_dim") is None and hidden_size % num_heads:
            raise ConfigError(
                f"{path}: hidden_size ({hidden_size}) must be a multiple of num_attention_heads "
                f"({num_heads}) when head_dim is not given"
            )
        head_dim = read_size(path, raw, "head_dim", hidden_size // num_heads)
        if head_dim % 2:
            raise ConfigError(f"{path}: head_dim ({head_dim}) must be even for rotary embedding")
        eps = raw.get("rms_norm_eps")
        if not isinstance(eps, (int, float)):
            raise ConfigError(f"{path}: key 'rms_norm_eps' must be a number, got {eps!r}")
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise ConfigError(f"{path}: rope_parameters must be an object, got {rope!r}")
        max_positions = read_size(path, raw, "max_position_embeddings")
        original = raw.get(_ORIGINAL) or rope.get(_ORIGINAL) or max_positions
        theta = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
        if rope.get("partial_rotary_factor", raw.get("partial_rotary_factor") or 1) != 1:
            raise ConfigError(f"{path}: partial_rotary_factor other than 1 is not supported")
        attention_bias = bool(raw.get("attention_bias", False))
        parts = {
            "qkv_bias": attention_bias,
            "o_bias": attention_bias,
            "mlp_bias": bool(raw.get("mlp_bias", False)),
            **_ARCHITECTURES[architecture],
        }
        generation_path = folder / "generation_config.json"
        generation = read_json(generation_path) if generation_path.is_file() else {}
        eos_ids = _ids(generation_path, generation.get("eos_token_id"))
        return cls(
            architecture=architecture,
            vocab_size=read_size(path, raw, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=read_size(path, raw, "intermediate_size"),
            num_layers=read_size(path, raw, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            max_positions=max_positions,
            rms_norm_eps=float(eps),
            rope=RopeConfig.parse(path, theta, {**rope, _ORIGINAL: original}),
            tied=bool(raw.get("tie_word_embeddings", False)),
            eos_token_ids=eos_ids or _ids(path, raw.get("eos_token_id")),
            bos_token_id=next(iter(_ids(path, raw.get("bos_token_id"))), None),
            **parts,
        )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ConfigError: the file is missing, unreadable or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; --model-path must be a transformers model folder (config.json, "
            "*.safetensors, tokenizer.json) or a .gguf file"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_size(path: Path, raw: dict[str, Any], key: str, default: int | None = None) -> int:
    """A whole number above 0 from a config.json; `default` where the key is absent or null.

    Raises:
        ConfigError: it is none; names the file and the key.
    """
    value = raw.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{path}: key {key!r} must be a whole number above 0, got {value!r}")
    return value


def _ids(path: Path, value: Any) -> tuple[int, ...]:
    """A token id or a list of them, as a tuple; () for null."""
    if value is None:
        return ()
    ids = tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(index, int) and index >= 0 for index in ids):
        raise ConfigError(f"{path}: token ids must be whole numbers, got {value!r}")
    return ids


def _refuse_unsupported(path: Path, raw: dict[str, Any]) -> None:
    """Raise for anything that the decoder would otherwise ignore."""
    names = raw.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in _ARCHITECTURES:
        raise ConfigError(
            f"{path}: architecture {names!r} is not supported; supported: "
            f"{', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    if raw.get("quantization_config"):
        raise ConfigError(
            f"{path}: quantized checkpoints are not supported (quantization_config is "
            f"{raw['quantization_config']}); use the unquantized model or a .gguf file"
        )
    if raw.get("sliding_window") is not None and raw.get("use_sliding_window", True):
        raise ConfigError(
            f"{path}: sliding_window = {raw['sliding_window']} is not supported, only full "
            "attention; use a model without a sliding window"
        )
    others = sorted(set(raw.get("layer_types") or ()) - {"full_attention"})
    if others:
        raise ConfigError(f"{path}: layer_types {others} are not supported, only full_attention")
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(
            f"{path}: hidden_act {raw['hidden_act']!r} is not supported; supported: silu"
        )
