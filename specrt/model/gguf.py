"""GGUF file -> transformers folder: weights without loss, config, tokenizer, generation config.

Knows llama.cpp's tensor names and its row order of Q and K; knows no cache folder (converted.py).
Source: the GGUF specification (ggml) and llama.cpp's conversion of Llama checkpoints.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specrt.errors import ConfigError
from specrt.model.gguf_tokenizer import write_tokenizer

if TYPE_CHECKING:
    from gguf import GGUFReader
    from torch import Tensor

logger = logging.getLogger(__name__)

SUPPORTED_ARCHITECTURES = ("llama",)

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
# What a damaged file makes the reader raise; anything else is our own fault and must show.
_DAMAGE = (ValueError, IndexError, KeyError, OverflowError, OSError, TypeError, AttributeError)


def convert(source: Path, folder: Path) -> None:
    """Write `source` as config.json, model.safetensors, tokenizer files, generation_config.json.

    Tensors stored as F16 or BF16 keep their type; all others (quantized ones too) become float32,
    which holds their values exactly.

    Args:
        source: a GGUF file of a llama-architecture model.
        folder: an existing folder to write into.

    Raises:
        ConfigError: the file is missing or damaged, or holds a model that is not supported.
    """
    from safetensors.torch import save_file

    try:
        from gguf import GGUFReader
    except ImportError:
        raise ConfigError(
            f"{source}: reading GGUF needs the package gguf; run: pip install gguf"
        ) from None
    if not source.is_file():
        raise ConfigError(f"{source}: no such file; give the path of a .gguf file")
    try:
        reader = GGUFReader(source)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except _DAMAGE as error:
        raise _damaged(source, error) from error
    config = _config(source, metadata, reader)
    try:
        tensors = _tensors(source, reader, config)
    except _DAMAGE as error:
        raise _damaged(source, error) from error
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    end_ids = write_tokenizer(source, metadata, folder, config["max_position_embeddings"])
    generation = {"eos_token_id": end_ids}
    if config["bos_token_id"] is not None:
        generation["bos_token_id"] = config["bos_token_id"]
    _write_json(folder / "generation_config.json", generation)


def _damaged(source: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"{source}: not a readable GGUF file, or damaged ({error}); download it again"
    )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(source: Path, metadata: dict[str, Any], reader: GGUFReader) -> dict[str, Any]:
    architecture = metadata.get("general.architecture")
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise ConfigError(
            f"{source}: GGUF architecture {architecture!r} is not supported; supported: "
            f"{', '.join(SUPPORTED_ARCHITECTURES)}. Use the model's transformers folder instead"
        )

    def value(key: str, default: Any = None) -> Any:
        found = metadata.get(f"{architecture}.{key}", default)
        if found is None:
            raise ConfigError(
                f"{source}: metadata {architecture}.{key} is missing; use another copy"
            )
        return found

    if value("expert_count", 0):
        raise ConfigError(f"{source}: mixture-of-experts models are not supported; use a dense one")
    shapes = {tensor.name: [int(n) for n in tensor.shape] for tensor in reader.tensors}
    if "token_embd.weight" not in shapes:
        raise ConfigError(f"{source}: tensor token_embd.weight is missing; use another copy")
    hidden_size, num_heads = int(value("embedding_length")), int(value("attention.head_count"))
    head_dim = int(value("attention.key_length", hidden_size // num_heads))
    if int(value("rope.dimension_count", head_dim)) != head_dim:
        raise ConfigError(f"{source}: rotary embedding over a part of each head is not supported")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shapes["token_embd.weight"][1],
        "hidden_size": hidden_size,
        "intermediate_size": int(value("feed_forward_length")),
        "num_hidden_layers": int(value("block_count")),
        "num_attention_heads": num_heads,
        "num_key_value_heads": int(value("attention.head_count_kv", num_heads)),
        "head_dim": head_dim,
        "max_position_embeddings": int(value("context_length")),
        "rms_norm_eps": _shortest(value("attention.layer_norm_rms_epsilon")),
        "hidden_act": "silu",
        "attention_bias": any(name.endswith("attn_q.bias") for name in shapes),
        "mlp_bias": any(name.endswith("ffn_gate.bias") for name in shapes),
        "tie_word_embeddings": "output.weight" not in shapes,
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.get("tokenizer.ggml.eos_token_id"),
        "dtype": "float32",
        **_rope(source, metadata, architecture, reader, head_dim),
    }


def _shortest(number: float) -> float:
    """The shortest decimal that is the same float32 (1e-05, not 9.999999747378752e-06)."""
    return float(str(np.float32(number)))


def _rope(
    source: Path, metadata: dict[str, Any], prefix: str, reader: GGUFReader, head_dim: int
) -> dict[str, Any]:
    theta = _shortest(metadata.get(f"{prefix}.rope.freq_base", 10000.0))
    kind = metadata.get(f"{prefix}.rope.scaling.type", "none")
    scaling: dict[str, Any] | None = None
    if kind == "linear":
        scaling = {
            "rope_type": "linear",
            "factor": _shortest(metadata[f"{prefix}.rope.scaling.factor"]),
        }
    elif kind != "none":
        raise ConfigError(
            f"{source}: RoPE scaling {kind!r} is not supported; supported: none, linear, llama3"
        )
    factors = next((t.data for t in reader.tensors if t.name == _ROPE_FACTORS), None)
    if factors is not None:
        scaling = _llama3_scaling(source, np.asarray(factors, np.float32), theta, head_dim)
    return {"rope_theta": theta, "rope_scaling": scaling}


def _llama3_scaling(
    source: Path, factors: npt.NDArray[np.float32], theta: float, head_dim: int
) -> dict[str, Any]:
    """llama.cpp stores llama3 scaling as one divisor per frequency; find what made them."""
    from specrt.model.config import RopeConfig
    from specrt.model.rope import inverse_frequencies

    scaling = {
        "rope_type": "llama3",
        "factor": float(factors.max()),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain = inverse_frequencies(RopeConfig(theta=theta), head_dim)
    scaled = inverse_frequencies(RopeConfig.parse(source, theta, scaling), head_dim)
    if factors.shape != (head_dim // 2,) or not np.allclose(
        (plain / scaled).numpy(), factors, rtol=1e-4
    ):
        raise ConfigError(
            f"{source}: the RoPE factors in {_ROPE_FACTORS} are not those of llama3 scaling; "
            "use the model's transformers folder instead"
        )
    return scaling


def _tensors(source: Path, reader: GGUFReader, config: dict[str, Any]) -> dict[str, Tensor]:
    import torch
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    half_types = {
        GGMLQuantizationType.F16: torch.float16,
        GGMLQuantizationType.BF16: torch.bfloat16,
    }
    tensors: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        if tensor.name == _ROPE_FACTORS:
            continue
        name, part = _transformers_name(source, tensor.name)
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if list(values.shape) != [int(n) for n in reversed(tensor.shape)]:
            raise ValueError(f"tensor {tensor.name} is cut short")
        if part in heads:
            values = _rotary_halves(values, heads[part])
        dtype = half_types.get(tensor.tensor_type, torch.float32)
        tensors[name] = torch.from_numpy(np.array(values, order="C")).to(dtype)
    return tensors


def _transformers_name(source: Path, name: str) -> tuple[str, str]:
    """The name in a transformers checkpoint, and the part of the block ("" outside blocks)."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name], ""
    pieces = name.split(".")
    if len(pieces) == 4 and pieces[0] == "blk" and pieces[2] in _BLOCK_NAMES:
        _, layer, part, kind = pieces
        return f"model.layers.{layer}.{_BLOCK_NAMES[part]}.{kind}", part
    raise ConfigError(f"{source}: tensor {name!r} is not part of a supported llama model")


def _rotary_halves(rows: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Undo llama.cpp's order of Q and K rows (rotary pairs side by side -> halves)."""
    pairs = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
