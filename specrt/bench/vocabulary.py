"""The vocabulary of a model from its tokenizer.json, without torch and without its weights."""

from __future__ import annotations

from specrt.errors import ConfigError
from specrt.grammars.vocabulary import Vocabulary
from specrt.model.loader import resolve_model_folder


def load_vocabulary(model_path: str | None) -> Vocabulary:
    """Read the tokens of a model.

    Args:
        model_path: transformers folder or .gguf file; None = the embedded model.

    Raises:
        ConfigError: there is no model, or it has no usable tokenizer.json.
    """
    found = resolve_model_folder(model_path)
    path = found.folder / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); expected a tokenizer.json") from None
    return Vocabulary(text, found.config.vocab_size, found.config.eos_token_ids)
