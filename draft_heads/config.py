"""HeadConfig: what the config.json of an EAGLE-3 checkpoint says about a head, checked by name.

Reads the flat layout (a Llama config with `draft_vocab_size`), vanilla EAGLE-3 only. What this
runtime would compute differently from what the head was trained for is refused with its name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specrt.errors import ConfigError
from specrt.model.config import RopeConfig, TargetConfig, read_json, read_size

ARCHITECTURE = "LlamaForCausalLMEagle3"
_FLAT = (ARCHITECTURE, "Eagle3LlamaForCausalLM")
_NESTED = ("Eagle3Speculator", "Eagle3DraftModel")
# EAGLE and EAGLE-2 heads: one feature layer, no draft vocabulary.
_OLDER = ("LlamaForCausalLMEagle", "EagleLlamaForCausalLM", "EAGLEModel", "EagleModel")
# Variants of the architecture that change the computation: key -> what it does.
_VARIANTS = {
    "fc_norm": "norms before fc (EAGLE-3.1)",
    "norm_before_fc": "a norm before fc",
    "norm_before_residual": "the normed feature in the residual",
    "norm_output": "the normed output fed back",
    "bias": "biases",
    "attention_bias": "attention biases",
    "mlp_bias": "MLP biases",
    "sliding_window": "sliding-window attention",
    "additional_layers": "further layers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """The sizes of a vanilla EAGLE-3 head: one decoder layer over (token, feature).

    Attributes:
        hidden_size: width H of the head.
        target_hidden_size: width of the target's residual stream.
        intermediate_size: width of the MLP.
        num_heads: query heads.
        num_kv_heads: key and value heads.
        head_dim: size of one head.
        max_positions: context in tokens it was made for.
        rms_norm_eps: of every norm.
        rope: rotary embedding.
        vocab_size: the target's vocabulary; the head reads all of it.
        draft_vocab_size: tokens that it can propose.
        capture_layers: layers whose incoming residual streams make a feature, low to high
            (hidden_states[i] of transformers).
        provenance: what `train-draft` noted (target, vocabulary hash, training settings).
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    rope: RopeConfig
    vocab_size: int
    draft_vocab_size: int
    capture_layers: tuple[int, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_folder(cls, folder: Path, target: TargetConfig) -> HeadConfig:
        """Read config.json of a checkpoint and check that the head fits its target.

        Args:
            folder: the checkpoint.
            target: the model it shall draft for.

        Raises:
            ConfigError: no vanilla EAGLE-3 head in the flat layout, or one of another model.
        """
        path = folder / "config.json"
        if not path.is_file():
            raise ConfigError(
                f"--speculative-draft-model-path: {folder} holds no config.json; expected the"
                " folder of an EAGLE-3 head (config.json and model.safetensors)"
            )
        raw = read_json(path)
        _refuse_other_kinds(path, raw)
        num_heads = read_size(path, raw, "num_attention_heads")
        hidden_size = read_size(path, raw, "hidden_size")
        vocab_size = read_size(path, raw, "vocab_size")
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise ConfigError(f"{path}: key 'rope_scaling' must be an object, got {rope!r}")
        eps = raw.get("rms_norm_eps", target.rms_norm_eps)
        if not isinstance(eps, (int, float)):
            raise ConfigError(f"{path}: key 'rms_norm_eps' must be a number, got {eps!r}")
        if raw.get("head_dim") is None and hidden_size % num_heads:
            raise ConfigError(
                f"{path}: hidden_size ({hidden_size}) must be a multiple of num_attention_heads"
                f" ({num_heads}) when head_dim is not given"
            )
        theta = rope.get("rope_theta", raw.get("rope_theta", 10000.0))
        provenance = raw.get("specrt", {})
        if not isinstance(provenance, dict):
            raise ConfigError(f"{path}: key 'specrt' must be an object, got {provenance!r}")
        config = cls(
            hidden_size=hidden_size,
            target_hidden_size=read_size(path, raw, "target_hidden_size", hidden_size),
            intermediate_size=read_size(path, raw, "intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=read_size(path, raw, "num_key_value_heads", num_heads),
            head_dim=read_size(path, raw, "head_dim", hidden_size // num_heads),
            max_positions=read_size(path, raw, "max_position_embeddings", target.max_positions),
            rms_norm_eps=float(eps),
            rope=RopeConfig.parse(path, theta, rope),
            vocab_size=vocab_size,
            draft_vocab_size=read_size(path, raw, "draft_vocab_size", vocab_size),
            capture_layers=_capture_layers(path, raw, target.num_layers),
            provenance=provenance,
        )
        for name, own, other in (
            ("target_hidden_size", config.target_hidden_size, target.hidden_size),
            ("vocab_size", config.vocab_size, target.vocab_size),
        ):
            if own != other:
                raise ConfigError(
                    f"{path}: the head was made for another model: its {name} is {own}, the"
                    f" target's is {other}"
                )
        if config.num_heads % config.num_kv_heads or config.draft_vocab_size > vocab_size:
            raise ConfigError(
                f"{path}: expected num_key_value_heads ({config.num_kv_heads}) to divide"
                f" num_attention_heads ({num_heads}), and draft_vocab_size"
                f" ({config.draft_vocab_size}) to be at most vocab_size ({vocab_size})"
            )
        return config

    def to_json(self) -> dict[str, Any]:
        """config.json in the flat layout, as SGLang, vLLM and llama.cpp read it."""
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.target_hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": 1,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope.theta,
            "rope_scaling": _rope_scaling(self.rope),
            "max_position_embeddings": self.max_positions,
            "vocab_size": self.vocab_size,
            "draft_vocab_size": self.draft_vocab_size,
            # Other loaders would take the embedding for the lm_head if this were true.
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "eagle_config": {
                "use_aux_hidden_state": True,
                # In this key a layer is named by its output: one less than the layer that reads it.
                "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in self.capture_layers],
            },
            "specrt": dict(self.provenance),
        }


def default_capture_layers(num_layers: int) -> tuple[int, int, int]:
    """The layers that EAGLE-3 reads: 2, N // 2 and N - 3 (EAGLE-3, arXiv 2503.01840).

    Raises:
        ConfigError: the target has too few layers for three different ones.
    """
    if num_layers < 7:
        raise ConfigError(
            "an EAGLE-3 head reads three layers of its target, 2, N // 2 and N - 3: expected a"
            f" target of 7 layers or more, got {num_layers}"
        )
    return 2, num_layers // 2, num_layers - 3


def _rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    """`rope_scaling` as transformers names its keys; None without scaling."""
    if rope.rope_type == "default":
        return None
    scaling = dataclasses.asdict(rope)
    del scaling["theta"]
    scaling["original_max_position_embeddings"] = scaling.pop("original_max_positions")
    return scaling


def _capture_layers(path: Path, raw: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    nested = raw.get("eagle_config") or {}
    if not isinstance(nested, dict):
        raise ConfigError(f"{path}: key 'eagle_config' must be an object, got {nested!r}")
    if nested.get("use_aux_hidden_state", True) is not True:
        raise ConfigError(
            f"{path}: eagle_config.use_aux_hidden_state is false: a head over one layer (EAGLE-2)"
            " is not supported, only EAGLE-3"
        )
    ids = nested.get("eagle_aux_hidden_state_layer_ids")
    top = raw.get("eagle_aux_hidden_state_layer_ids")
    for given in (ids, top):
        is_list = isinstance(given, list) and all(type(layer) is int for layer in given)
        if given is not None and not is_list:
            raise ConfigError(
                f"{path}: key 'eagle_aux_hidden_state_layer_ids' must be a list of whole numbers,"
                f" got {given!r}"
            )
    if ids is not None:
        ids = [layer + 1 for layer in ids]
    elif top is not None:
        ids = list(top)
    else:
        ids = list(default_capture_layers(num_layers))
    if ids != sorted(set(ids)) or not all(0 <= layer < num_layers for layer in ids):
        raise ConfigError(
            f"{path}: the head reads the layers {ids}; expected ascending ones below the target's"
            f" {num_layers}"
        )
    return tuple(ids)


def _refuse_other_kinds(path: Path, raw: dict[str, Any]) -> None:
    names = raw.get("architectures") or []
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    if name in _NESTED or "speculators_model_type" in raw:
        raise ConfigError(
            f"{path}: the nested speculators layout ({name}) is not supported, only the flat one"
            f" ({', '.join(_FLAT)})"
        )
    if name in _OLDER:
        raise ConfigError(f"{path}: {name} is an EAGLE or EAGLE-2 head; only EAGLE-3 is supported")
    if name not in _FLAT:
        raise ConfigError(
            f"{path}: architecture {name!r} is no EAGLE-3 head; expected one of {', '.join(_FLAT)}"
        )
    if raw.get("model_type", "llama") != "llama":
        raise ConfigError(f"{path}: model_type {raw['model_type']!r} is not supported, only llama")
    for key, meaning in _VARIANTS.items():
        if raw.get(key):
            raise ConfigError(f"{path}: {key} ({meaning}) is not supported, only vanilla EAGLE-3")
    if raw.get("num_hidden_layers", 1) != 1:
        raise ConfigError(
            f"{path}: num_hidden_layers is {raw['num_hidden_layers']}; an EAGLE-3 head has one"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"{path}: hidden_act {raw['hidden_act']!r} is not supported, only silu")
