"""EAGLE-3 checkpoints on disk: two public layouts, read strictly and written whole.

A tensor is in the file, or borrowed from the target by a rule that this module names, or an error:
a head with one random tensor still answers, only slowly.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specrt.draft_heads.config import HeadConfig
from specrt.draft_heads.config_reader import Layout, read_config
from specrt.draft_heads.config_writer import config_json
from specrt.draft_heads.tensor_file import read_tensors, write_tensors
from specrt.errors import ConfigError
from specrt.model.config import TargetConfig, read_json

EMBEDDING = "embed_tokens.weight"
LM_HEAD = "lm_head.weight"


@dataclass(slots=True)
class HeadCheckpoint:
    """A head's tensors.

    Attributes:
        config: its sizes.
        weights: name in the flat layout -> float32 tensor, exactly those of `head_shapes(config)`.
        draft_token_ids: int64 [draft_vocab_size], ascending target token ids of the lm_head's rows.
        embedding: its own, float32 [V, H]; None = the target's.
    """

    config: HeadConfig
    weights: dict[str, Tensor]
    draft_token_ids: Tensor
    embedding: Tensor | None = None


def head_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of a head's own tensors; embedding and vocabulary maps not among them."""
    hidden, heads = config.hidden_size, config.num_heads * config.head_dim
    kv_heads = config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (hidden, len(config.capture_layers) * config.target_hidden_size),
        "midlayer.input_layernorm": (hidden,),
        "midlayer.hidden_norm": (hidden,),
        "midlayer.post_attention_layernorm": (hidden,),
        "midlayer.self_attn.q_proj": (heads, 2 * hidden),
        "midlayer.self_attn.k_proj": (kv_heads, 2 * hidden),
        "midlayer.self_attn.v_proj": (kv_heads, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, heads),
        "midlayer.mlp.gate_proj": (config.intermediate_size, hidden),
        "midlayer.mlp.up_proj": (config.intermediate_size, hidden),
        "midlayer.mlp.down_proj": (hidden, config.intermediate_size),
        "norm": (hidden,),
        "lm_head": (config.draft_vocab_size, hidden),
    }
    count, width = len(config.capture_layers), config.target_hidden_size
    if config.norm_before_fc:
        shapes["input_norm"] = (count * width,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{index}": (width,) for index in range(count)}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def load_head(
    folder: Path, target: TargetConfig, shared: Mapping[str, Tensor], target_folder: Path
) -> tuple[HeadCheckpoint, Tensor]:
    """Load a head for a target.

    Borrowed where the file has none: from the target the embedding, if the widths are equal, and
    the lm_head, if the head drafts the whole vocabulary (from its own embedding, if the config ties
    the two).

    Args:
        folder: the checkpoint.
        target: config of the target.
        shared: its embedding and lm_head, as `LoadedModel.shared`.
        target_folder: its folder, for the vocabulary.

    Returns:
        The head, and the embedding that it reads, its own or the target's, float32 [V, H].

    Raises:
        ConfigError: the checkpoint is damaged, incomplete, of another kind or of another model.
    """
    config, layout, is_tied = read_config(folder, target)
    _check_vocabulary(folder, config, target_folder)
    source, tensors = read_tensors(folder, layout)
    embedding = tensors.pop(EMBEDDING, None)
    has_own = embedding is not None
    offsets, is_drafted = tensors.pop("d2t", None), tensors.pop("t2d", None)
    whole_vocabulary = config.draft_vocab_size == config.vocab_size
    can_borrow = config.hidden_size == target.hidden_size
    if embedding is None:
        if not can_borrow:
            raise ConfigError(
                f"{source}: {EMBEDDING} is missing, and the target's is"
                f" {target.hidden_size} wide where the head needs {config.hidden_size}"
            )
        embedding = shared[EMBEDDING]
    if LM_HEAD not in tensors and whole_vocabulary:
        if is_tied:
            tensors[LM_HEAD] = embedding
        elif can_borrow:
            tensors[LM_HEAD] = shared[LM_HEAD]
    _check_shapes(source, config, tensors, embedding)
    ids = _draft_token_ids(source, config, offsets, is_drafted)
    weights = {name: tensor.float() for name, tensor in tensors.items()}
    embedding = embedding.float()
    return HeadCheckpoint(config, weights, ids, embedding if has_own else None), embedding


def save_head(
    folder: Path,
    head: HeadCheckpoint,
    embedding: Tensor | None = None,
    layout: Layout = "flat",
) -> None:
    """Write config.json and model.safetensors (bfloat16); either file is replaced whole.

    Args:
        folder: made if absent.
        head: what to write.
        embedding: float [V, H], the target's, for loaders that borrow nothing; a head's own one is
            always written.
        layout: how.

    Raises:
        ConfigError: the layout cannot express the head.
    """
    config = config_json(head.config, layout)
    folder.mkdir(parents=True, exist_ok=True)
    size, ids = head.config.draft_vocab_size, head.draft_token_ids
    is_drafted = torch.zeros(head.config.vocab_size, dtype=torch.bool)
    is_drafted[ids] = True
    tensors = {name: tensor.detach().bfloat16() for name, tensor in head.weights.items()}
    embedding = embedding if head.embedding is None else head.embedding
    if embedding is not None:
        tensors[EMBEDDING] = embedding.detach().bfloat16()
    if layout == "flat" or size < head.config.vocab_size:
        tensors |= {"d2t": ids - torch.arange(size), "t2d": is_drafted}
    write_tensors(folder, tensors, layout)
    partial = folder / "config.json.partial"
    partial.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, folder / "config.json")


def vocabulary_hash(target_folder: Path) -> str:
    """SHA-256 of the tokens and their ids in a tokenizer.json."""
    raw = read_json(target_folder / "tokenizer.json")
    vocabulary = dict(raw.get("model", {}).get("vocab", {}))
    vocabulary |= {token["content"]: token["id"] for token in raw.get("added_tokens", [])}
    ordered = sorted(vocabulary.items(), key=lambda item: (item[1], item[0]))
    return hashlib.sha256(json.dumps(ordered, ensure_ascii=False).encode()).hexdigest()


def _check_vocabulary(folder: Path, config: HeadConfig, target_folder: Path) -> None:
    expected = config.provenance.get("vocabulary_sha256")
    if expected is not None and expected != vocabulary_hash(target_folder):
        raise ConfigError(
            f"{folder}: the head was trained for {config.provenance.get('target', 'a model')!r},"
            f" whose tokenizer differs from the one in {target_folder}; train one for this model"
            " (specrt train-draft)"
        )


def _check_shapes(
    source: Path, config: HeadConfig, tensors: Mapping[str, Tensor], embedding: Tensor
) -> None:
    shapes = head_shapes(config)
    missing = sorted(shapes.keys() - tensors.keys())
    if missing:
        raise ConfigError(f"{source}: missing tensors: {', '.join(missing)}")
    unexpected = sorted(tensors.keys() - shapes.keys())
    if unexpected:
        hint = "; in the flat layout that config.json has, layers.0.* are names of an EAGLE-2 head"
        raise ConfigError(
            f"{source}: unexpected tensors: {', '.join(unexpected[:8])}"
            + (hint if any(name.startswith("layers.0.") for name in unexpected) else "")
        )
    shapes[EMBEDDING] = (config.vocab_size, config.hidden_size)
    for name, tensor in (*tensors.items(), (EMBEDDING, embedding)):
        if tuple(tensor.shape) != shapes[name]:
            raise ConfigError(
                f"{source}: tensor {name!r} must have shape {list(shapes[name])} by config.json,"
                f" got {list(tensor.shape)}"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise ConfigError(f"{source}: tensor {name!r} holds NaN or infinity")


def _draft_token_ids(
    source: Path, config: HeadConfig, offsets: Tensor | None, is_drafted: Tensor | None
) -> Tensor:
    """d2t holds offsets: row i of the lm_head is the token i + d2t[i]; t2d marks those tokens."""
    size, vocab_size = config.draft_vocab_size, config.vocab_size
    rows = torch.arange(size)
    if offsets is None:
        if size == vocab_size:
            return rows
        raise ConfigError(f"{source}: missing tensor: d2t (draft row -> token id)")
    if tuple(offsets.shape) != (size,):
        raise ConfigError(f"{source}: d2t must have shape [{size}], got {list(offsets.shape)}")
    ids = rows + offsets.long()
    if not bool((ids[1:] > ids[:-1]).all() and ids[0] >= 0 and ids[-1] < vocab_size):
        raise ConfigError(
            f"{source}: d2t is not the draft vocabulary: row + offset must ascend from 0 to at"
            f" most {vocab_size - 1}"
        )
    if is_drafted is not None and (
        tuple(is_drafted.shape) != (vocab_size,)
        or not torch.equal(is_drafted.bool().nonzero().squeeze(-1), ids)
    ):
        raise ConfigError(f"{source}: d2t and t2d disagree about the draft vocabulary")
    return ids
