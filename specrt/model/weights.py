"""Weights of a transformers folder: found, checked by name and shape, loaded as float32.

Reads safetensors only: other checkpoint formats run code when they are loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specrt.errors import ConfigError
from specrt.model.config import TargetConfig, read_json

if TYPE_CHECKING:
    from torch import Tensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
LAYER = "model.layers.{}."
# Buffers that old checkpoints carry; the values follow from config.json.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)
_MAX_LISTED = 5


def weight_shapes(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the decoder needs, by its name in a transformers checkpoint."""
    hidden, head_dim = config.hidden_size, config.head_dim
    num_query, num_kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
    projections = {  # name -> (out, in, has bias)
        "self_attn.q_proj": (num_query, hidden, config.qkv_bias),
        "self_attn.k_proj": (num_kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (num_kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, num_query, config.o_bias),
        "mlp.gate_proj": (config.intermediate_size, hidden, config.mlp_bias),
        "mlp.up_proj": (config.intermediate_size, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, config.intermediate_size, config.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if config.qk_norm:
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = LAYER.format(layer)
        for name, (rows, columns, has_bias) in projections.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        for name, size in norms.items():
            shapes[f"{prefix}{name}.weight"] = (size,)
    return shapes


def load_folder(folder: Path) -> tuple[TargetConfig, dict[str, Tensor]]:
    """Load config and weights of a transformers folder.

    Returns:
        The config, and float32 tensors by name: exactly those of weight_shapes(config).

    Raises:
        ConfigError: a file is missing or damaged, the model is not supported, or tensors are
            missing, unexpected or of the wrong shape.
    """
    config = TargetConfig.from_folder(folder)
    expected = weight_shapes(config)
    tensors: dict[str, Tensor] = {}
    for path, names in _files(folder).items():
        loaded = _load_file(path)
        missing = sorted(names - loaded.keys())
        if missing:
            raise ConfigError(
                f"{path}: lacks tensors that {INDEX_FILE} places in it: {_list(missing)}; "
                "download the folder again"
            )
        for name, tensor in loaded.items():
            is_tied_copy = name == "lm_head.weight" and config.tied
            if name.endswith(_IGNORED_SUFFIXES) or is_tied_copy:
                continue
            if name not in expected:
                raise ConfigError(
                    f"{path}: unexpected tensor {name!r} for {config.architecture}; the folder "
                    "holds another kind of model than its config.json says"
                )
            if tuple(tensor.shape) != expected[name]:
                raise ConfigError(
                    f"{path}: tensor {name!r} must have shape {list(expected[name])} by "
                    f"config.json, got {list(tensor.shape)}; config and weights do not match"
                )
            tensors[name] = tensor.float()
    missing = sorted(expected.keys() - tensors.keys())
    if missing:
        raise ConfigError(f"{folder}: missing tensors: {_list(missing)}; download the folder again")
    return config, tensors


def check_files(folder: Path) -> None:
    """Raise ConfigError unless the weight files of a folder exist; reads no weights."""
    _files(folder)


def _files(folder: Path) -> dict[Path, set[str]]:
    """Weight file -> the tensors that the index places in it (empty for a single file)."""
    index = folder / INDEX_FILE
    if not index.is_file():
        if not (folder / SINGLE_FILE).is_file():
            raise ConfigError(
                f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there; expected a "
                "transformers model folder with safetensors weights"
            )
        return {folder / SINGLE_FILE: set()}
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in places.values()
    ):
        raise ConfigError(f"{index}: 'weight_map' must map tensors to files; download it again")
    files: dict[Path, set[str]] = {}
    for tensor, name in places.items():
        files.setdefault(folder / name, set()).add(tensor)
    for path in files:
        if not path.is_file():
            raise ConfigError(f"{path}: no such file, but {INDEX_FILE} names it; download it")
    return files


def _load_file(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ConfigError(f"{path}: damaged or cut short ({error}); download it again") from error


def _list(names: list[str]) -> str:
    rest = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {rest} more" if rest > 0 else "")
