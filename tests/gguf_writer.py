"""Writes a tiny transformers folder as a GGUF file, the way llama.cpp would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from fakes import CHAT_TEMPLATE

from specrt.model.weights import load_folder

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def _interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's order: row 2i of a head is its i-th, row 2i + 1 its (half + i)-th."""
    half = rows.shape[0] // num_heads // 2
    order = [
        head * 2 * half + i + part * half
        for head in range(num_heads)
        for i in range(half)
        for part in (0, 1)
    ]
    return rows[order]


def write_gguf(
    path: Path,
    folder: Path,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    factors: np.ndarray | None = None,
    architecture: str = "llama",
    leave_out: str = "",
    **metadata: Any,
) -> Path:
    """Write a tiny transformers folder as GGUF; `metadata` are extra string or float pairs."""
    config, weights = load_folder(folder)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model(metadata.pop("tokenizer_model", "gpt2"))
    writer.add_tokenizer_pre(metadata.pop("tokenizer_pre", "smollm"))
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)
    for key, value in metadata.items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(key.replace("__", "."), value)
    for name, tensor in weights.items():
        values = tensor.numpy()
        if name in TOP_NAMES:
            target = TOP_NAMES[name]
        else:
            _, _, layer, *middle, suffix = name.split(".")
            target = f"blk.{layer}.{NAMES['.'.join(middle)]}.{suffix}"
        if "attn_q." in target or "attn_k." in target:
            heads = config.num_heads if "attn_q" in target else config.num_kv_heads
            values = _interleave(values, heads)
        own = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(np.ascontiguousarray(values), own)
        if target != leave_out:
            writer.add_tensor(target, data, raw_dtype=own)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
