"""Reads config.json of an EAGLE-3 head in the two public layouts, checked by name.

flat: a Llama config with `draft_vocab_size` (SafeAILab, SpecForge; what SGLang, vLLM and llama.cpp
read). speculators: the layer's config nested in one of the library's (vLLM reads it too).

What this runtime would compute differently from what the head was trained for is refused with the
name of the key: a head that runs with one setting ignored still answers, only slowly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

from specrt.draft_heads.config import VARIANTS, HeadConfig, default_capture_layers
from specrt.errors import ConfigError
from specrt.model.config import RopeConfig, TargetConfig, read_json, read_size

Layout = Literal["flat", "speculators"]
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"

_FLAT = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
_SPECULATORS = ("Eagle3Speculator", "Eagle3DraftModel")
# EAGLE and EAGLE-2 heads: one feature layer, no draft vocabulary.
_OLDER = ("LlamaForCausalLMEagle", "EagleLlamaForCausalLM", "EAGLEModel", "EagleModel")
# Parts of a layer that no head here has: key -> what it means.
_REFUSED = {
    "bias": "biases",
    "attention_bias": "attention biases",
    "mlp_bias": "MLP biases",
    "sliding_window": "sliding-window attention",
    "additional_layers": "further layers",
}
# What a key means when it is absent: transformers leaves out what its LlamaConfig has anyway.
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-6,
}


class HeadFile(NamedTuple):
    """What a config.json says.

    Attributes:
        config: the head.
        layout: how its folder is laid out.
        is_tied: a missing lm_head is the head's embedding.
    """

    config: HeadConfig
    layout: Layout
    is_tied: bool


def read_config(folder: Path, target: TargetConfig) -> HeadFile:
    """Read config.json of a checkpoint and check that the head fits its target.

    Args:
        folder: the checkpoint.
        target: the model it shall draft for.

    Raises:
        ConfigError: no EAGLE-3 head in one of the layouts, or one of another model.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"--speculative-draft-model-path: {folder} holds no config.json; expected the"
            " folder of an EAGLE-3 head (config.json and model.safetensors)"
        )
    raw = read_json(path)
    layout = _layout(path, raw)
    layer = raw if layout == "flat" else _object(path, raw, "transformer_layer_config")
    if layout == "speculators" and "model_type" not in layer:
        raise ConfigError(
            f"{path}: transformer_layer_config.model_type is missing, which means qwen3: not"
            " supported, only llama"
        )
    _refuse_other_layers(path, layer)
    if raw.get("quantization_config"):
        raise ConfigError(f"{path}: quantization_config (quantised weights) is not supported")
    config = _head(path, raw, {**_LLAMA, **layer}, layout, target)
    if config.fc_norm and config.norm_before_fc:
        raise ConfigError(f"{path}: fc_norm and norm_before_fc exclude each other")
    for name, own, other in (
        ("target_hidden_size", config.target_hidden_size, target.hidden_size),
        ("vocab_size", config.vocab_size, target.vocab_size),
    ):
        if own != other:
            raise ConfigError(
                f"{path}: the head was made for another model: its {name} is {own}, the"
                f" target's is {other}"
            )
    if config.num_heads % config.num_kv_heads or config.draft_vocab_size > config.vocab_size:
        raise ConfigError(
            f"{path}: expected num_key_value_heads ({config.num_kv_heads}) to divide"
            f" num_attention_heads ({config.num_heads}), and draft_vocab_size"
            f" ({config.draft_vocab_size}) to be at most vocab_size ({config.vocab_size})"
        )
    return HeadFile(config, layout, raw.get("tie_word_embeddings") is True)


def _layout(path: Path, raw: dict[str, Any]) -> Layout:
    """Which layout a file has; heads of other kinds are refused."""
    names = raw.get("architectures") or []
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    kind = raw.get("speculators_model_type")
    if name in _SPECULATORS or kind is not None:
        algorithm = _object(path, raw, "speculators_config", {}).get("algorithm", "eagle3")
        for key, value in (
            ("speculators_model_type", kind),
            ("speculators_config.algorithm", algorithm),
        ):
            if value != "eagle3":
                raise ConfigError(f"{path}: {key} {value!r} is not supported, only 'eagle3'")
        return "speculators"
    if name in _OLDER:
        raise ConfigError(f"{path}: {name} is an EAGLE or EAGLE-2 head; only EAGLE-3 is supported")
    if name not in _FLAT:
        raise ConfigError(
            f"{path}: architecture {name!r} is no EAGLE-3 head; expected one of"
            f" {', '.join((*_FLAT, *_SPECULATORS))}"
        )
    return "flat"


def _refuse_other_layers(path: Path, layer: dict[str, Any]) -> None:
    if layer.get("model_type", "llama") != "llama":
        raise ConfigError(
            f"{path}: model_type {layer['model_type']!r} is not supported, only llama"
        )
    for key, meaning in _REFUSED.items():
        if layer.get(key):
            raise ConfigError(f"{path}: {key} ({meaning}) is not supported")
    others = sorted(set(layer.get("layer_types") or ()) - {"full_attention"})
    if others:
        raise ConfigError(f"{path}: layer_types {others} are not supported, only full_attention")
    rope = layer.get("rope_parameters") or layer.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ConfigError(f"{path}: key 'rope_scaling' must be an object, got {rope!r}")
    if rope.get("partial_rotary_factor", layer.get("partial_rotary_factor") or 1) != 1:
        raise ConfigError(f"{path}: partial_rotary_factor other than 1 is not supported")
    if layer.get("num_hidden_layers", 1) != 1:
        raise ConfigError(
            f"{path}: num_hidden_layers is {layer['num_hidden_layers']}; an EAGLE-3 head has one"
        )
    if layer.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{path}: hidden_act {layer['hidden_act']!r} is not supported, only silu")


def _head(
    path: Path, raw: dict[str, Any], layer: dict[str, Any], layout: Layout, target: TargetConfig
) -> HeadConfig:
    """The head, not yet compared with its target."""
    num_heads = read_size(path, layer, "num_attention_heads")
    hidden_size = read_size(path, layer, "hidden_size")
    vocab_size = read_size(path, layer, "vocab_size")
    if layer.get("head_dim") is None and hidden_size % num_heads:
        raise ConfigError(
            f"{path}: hidden_size ({hidden_size}) must be a multiple of num_attention_heads"
            f" ({num_heads}) when head_dim is not given"
        )
    rope = layer.get("rope_parameters") or layer.get("rope_scaling") or {}
    theta = rope.get("rope_theta", layer.get("rope_theta", 10000.0))
    eps = layer["rms_norm_eps"]
    if not isinstance(eps, (int, float)):
        raise ConfigError(f"{path}: key 'rms_norm_eps' must be a number, got {eps!r}")
    return HeadConfig(
        hidden_size=hidden_size,
        target_hidden_size=read_size(path, raw, "target_hidden_size", hidden_size),
        intermediate_size=read_size(path, layer, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=read_size(path, layer, "num_key_value_heads", num_heads),
        head_dim=read_size(path, layer, "head_dim", hidden_size // num_heads),
        max_positions=read_size(path, layer, "max_position_embeddings"),
        rms_norm_eps=float(eps),
        rope=RopeConfig.parse(path, theta, rope),
        vocab_size=vocab_size,
        draft_vocab_size=read_size(path, raw, "draft_vocab_size", vocab_size),
        capture_layers=_capture_layers(path, raw, target.num_layers),
        **_variants(path, raw, layout),
        provenance=_object(path, raw, "specrt", {}),
    )


def _variants(path: Path, raw: dict[str, Any], layout: Layout) -> dict[str, bool]:
    # vLLM reads heads of this layout without the key so; those of the library always have it.
    found = {name: layout == "speculators" and name == "norm_before_residual" for name in VARIANTS}
    for name in VARIANTS:
        value = raw.get(name)
        if value is not None:
            if not isinstance(value, bool):
                raise ConfigError(f"{path}: key {name!r} must be true or false, got {value!r}")
            found[name] = value
    if layout == "flat" and found["norm_output"]:
        raise ConfigError(
            f"{path}: norm_output is not supported in the flat layout, where it means either that"
            " the lm_head reads a normed row (SpecForge: then delete the key) or that the normed"
            " row is fed back (EAGLE-3.1: then convert the head to the speculators layout)"
        )
    return found


def _capture_layers(path: Path, raw: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    """The layers that a head reads, by either of two keys that count them differently."""
    nested = _object(path, raw, "eagle_config", {})
    if nested.get("use_aux_hidden_state", True) is not True:
        raise ConfigError(
            f"{path}: eagle_config.use_aux_hidden_state is false: a head over one layer (EAGLE-2)"
            " is not supported, only EAGLE-3"
        )
    by_output, by_input = nested.get(LAYER_IDS), raw.get(LAYER_IDS)
    for given in (by_output, by_input):
        is_list = isinstance(given, list) and all(type(layer) is int for layer in given)
        if given is not None and not is_list:
            raise ConfigError(
                f"{path}: key {LAYER_IDS!r} must be a list of whole numbers, got {given!r}"
            )
    if by_output is not None:
        ids = [layer + 1 for layer in by_output]
        if by_input is not None and by_input != ids:
            raise ConfigError(
                f"{path}: {LAYER_IDS} {by_input} and eagle_config.{LAYER_IDS} {by_output}"
                " disagree: the latter names layers by their output, one less"
            )
    elif by_input is not None:
        ids = list(by_input)
    else:
        ids = list(default_capture_layers(num_layers))
    count = raw.get("num_aux_hidden_states")
    if count is not None and count != len(ids):
        raise ConfigError(
            f"{path}: num_aux_hidden_states is {count!r}, but the head reads the layers {ids}; name"
            f" them all in {LAYER_IDS}"
        )
    if ids != sorted(set(ids)) or not all(0 <= layer < num_layers for layer in ids):
        raise ConfigError(
            f"{path}: the head reads the layers {ids}; expected ascending ones below the target's"
            f" {num_layers}"
        )
    return tuple(ids)


def _object(
    path: Path, raw: dict[str, Any], key: str, default: dict[str, Any] | None = None
) -> dict[str, Any]:
    """An object of a config; the default where it is absent or null."""
    value = raw.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: key {key!r} must be an object, got {value!r}")
    return value
