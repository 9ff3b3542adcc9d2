"""From --model-path to a model: finds the folder, loads the weights, packs the decoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specrt.errors import ConfigError
from specrt.model.config import TargetConfig
from specrt.model.converted import converted_folder
from specrt.model.embedded import EMBEDDED_NAME, find_embedded
from specrt.model.weights import check_files, load_folder

if TYPE_CHECKING:
    from torch import Tensor

    from specrt.model.decoder import TargetModel


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Where a model lies, before anything heavy is loaded.

    Attributes:
        folder: transformers folder with config, weights and tokenizer.
        name: the model's own name in the API.
        config: its sizes.
    """

    folder: Path
    name: str
    config: TargetConfig


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        config: its sizes.
        model: the decoder.
        folder: where its tokenizer lies.
        name: the model's own name in the API.
        shared: "embed_tokens.weight" and "lm_head.weight", float32 [V, H], for a draft head that
            borrows them.
    """

    config: TargetConfig
    model: TargetModel
    folder: Path
    name: str
    shared: dict[str, Tensor]


def resolve_model_folder(model_path: str | None) -> ModelFolder:
    """Find the model and check its config and that its files are there; loads no weights.

    A .gguf file and the embedded model are converted on first use (seconds).

    Args:
        model_path: transformers folder or .gguf file; None = the embedded model.

    Raises:
        ConfigError: nothing usable is there; names what and how to get it.
    """
    if model_path is None:
        folder, name = find_embedded(), EMBEDDED_NAME
    else:
        path = Path(model_path).expanduser()
        if path.suffix.lower() == ".gguf":
            folder, name = converted_folder(path), path.stem
        elif path.is_dir():
            folder, name = path, path.resolve().name
        else:
            raise ConfigError(
                f"--model-path: expected a transformers model folder or a .gguf file, got "
                f"{model_path!r}, which is {'neither' if path.exists() else 'not there'}"
            )
    config = TargetConfig.from_folder(folder)
    check_files(folder)
    return ModelFolder(folder, name, config)


def load_target(model_path: str | None) -> LoadedModel:
    """Load and pack a target model; set the number of torch threads before.

    Args:
        model_path: see resolve_model_folder.

    Raises:
        ConfigError: see resolve_model_folder and weights.load_folder.
    """
    from specrt.model.decoder import TargetModel

    found = resolve_model_folder(model_path)
    config, weights = load_folder(found.folder)
    embedding = weights["model.embed_tokens.weight"]
    shared = {
        "embed_tokens.weight": embedding,
        "lm_head.weight": embedding if config.tied else weights["lm_head.weight"],
    }
    return LoadedModel(config, TargetModel(config, weights), found.folder, found.name, shared)
