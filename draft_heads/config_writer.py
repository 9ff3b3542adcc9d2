"""Writes config.json of an EAGLE-3 head in the two public layouts; see `config_reader`."""

from __future__ import annotations

import dataclasses
from typing import Any

from specrt.draft_heads.config import VARIANTS, HeadConfig
from specrt.draft_heads.config_reader import LAYER_IDS, Layout
from specrt.errors import ConfigError
from specrt.model.config import RopeConfig

# Chain length that a speculators config proposes where training noted none.
_STEPS = 5


def config_json(config: HeadConfig, layout: Layout) -> dict[str, Any]:
    """config.json of a head.

    Args:
        config: the head.
        layout: how to write it.

    Raises:
        ConfigError: the layout has no unambiguous words for the head.
    """
    layer = {
        "model_type": "llama",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "rope_scaling": _rope_scaling(config.rope),
        "max_position_embeddings": config.max_positions,
        "vocab_size": config.vocab_size,
        # Other loaders would take the embedding for the lm_head if this were true.
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    variants = {name: getattr(config, name) for name in VARIANTS}
    if layout == "flat":
        return _flat_json(config, layer, variants)
    return {
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculator_model",
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        # Always written: readers differ about what the first means when it is missing.
        **variants,
        "embed_requires_grad": False,
        LAYER_IDS: list(config.capture_layers),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": config.provenance.get("steps", _STEPS),
                }
            ],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": config.provenance.get("target"),
                "architectures": [config.provenance.get("architecture", "LlamaForCausalLM")],
            },
        },
        "specrt": dict(config.provenance),
    }


def _flat_json(
    config: HeadConfig, layer: dict[str, Any], variants: dict[str, bool]
) -> dict[str, Any]:
    if config.norm_output:
        raise ConfigError(
            "--format flat: norm_output means different things to different loaders of this"
            " layout; write the head with --format speculators"
        )
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer,
        "target_hidden_size": config.target_hidden_size,
        "draft_vocab_size": config.draft_vocab_size,
        # A vanilla head does not name what it is not: older loaders know none of these keys.
        **{name: True for name, is_set in variants.items() if is_set},
        "eagle_config": {
            "use_aux_hidden_state": True,
            # In this key a layer is named by its output: one less than the layer that reads it.
            LAYER_IDS: [index - 1 for index in config.capture_layers],
        },
        "specrt": dict(config.provenance),
    }


def _rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    """`rope_scaling` as transformers names its keys; None without scaling."""
    if rope.rope_type == "default":
        return None
    scaling = dataclasses.asdict(rope)
    del scaling["theta"]
    scaling["original_max_position_embeddings"] = scaling.pop("original_max_positions")
    return scaling
