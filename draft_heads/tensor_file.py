"""The tensors in a checkpoint's folder, which the public layouts name differently."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from specrt.draft_heads.config_reader import Layout
from specrt.errors import ConfigError

WEIGHTS_FILE = "model.safetensors"
_PICKLED_FILE = "pytorch_model.bin"
# Layout -> what the names of the decoder layer begin with.
_PREFIX: dict[Layout, str] = {"flat": "midlayer.", "speculators": "layers.0."}
# Of the target, kept by some trainers beside the head.
_NOT_OURS = ("verifier_lm_head.weight", "verifier_norm.weight")


def read_tensors(folder: Path, layout: Layout) -> tuple[Path, dict[str, Tensor]]:
    """Read the tensors of a checkpoint.

    Args:
        folder: with model.safetensors, or else pytorch_model.bin (no code in it is run).
        layout: of the folder.

    Returns:
        The file, and its tensors under the names of the flat layout, without `model.`.

    Raises:
        ConfigError: there is no file, or it is damaged or holds something else.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / WEIGHTS_FILE
    if not path.is_file() and (folder / _PICKLED_FILE).is_file():
        path = folder / _PICKLED_FILE
    try:
        if path.name == WEIGHTS_FILE:
            tensors = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: neither {WEIGHTS_FILE} nor {_PICKLED_FILE} is there"
        ) from None
    except (SafetensorError, OSError, ValueError, RuntimeError, EOFError) as error:
        raise ConfigError(f"{path}: damaged or cut short ({error})") from error
    except Exception as error:  # unpickling may fail in any way
        raise ConfigError(f"{path}: not a file of tensors ({error})") from error
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise ConfigError(f"{path}: expected tensors by name, got something else")
    names = {
        name: _renamed(name.removeprefix("model."), _PREFIX[layout], _PREFIX["flat"])
        for name in tensors
        if name not in _NOT_OURS
    }
    if len(set(names.values())) < len(names):
        raise ConfigError(f"{path}: two tensors of one name, with and without `model.`")
    return path, {names[name]: tensors[name] for name in names}


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], layout: Layout) -> None:
    """Write model.safetensors, whole or not at all.

    Args:
        folder: where to.
        tensors: by their names in the flat layout.
        layout: of the folder.
    """
    from safetensors.torch import save_file

    named = {
        _renamed(name, _PREFIX["flat"], _PREFIX[layout]): tensor.contiguous()
        for name, tensor in tensors.items()
    }
    partial = folder / (WEIGHTS_FILE + ".partial")
    save_file(named, partial, metadata={"format": "pt"})
    os.replace(partial, folder / WEIGHTS_FILE)


def _renamed(name: str, prefix: str, new_prefix: str) -> str:
    return new_prefix + name[len(prefix) :] if name.startswith(prefix) else name
