"""The tokenizer in a GGUF file's metadata -> tokenizer.json and tokenizer_config.json.

Byte-level BPE only (GGUF tokenizer model "gpt2"); the split before BPE has a name there, and only
names whose rule is known are taken, since a wrong rule gives other tokens without an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrt.errors import ConfigError

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SUPPORTED_SPLITS = ("gpt-2", "llama-bpe", "smollm")

# Token types of the GGUF specification.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


def write_tokenizer(
    source: Path, metadata: dict[str, Any], folder: Path, max_length: int
) -> list[int]:
    """Write tokenizer.json and tokenizer_config.json into `folder`.

    Args:
        source: the GGUF file, for messages.
        metadata: its key-value pairs.
        folder: where to.
        max_length: context in tokens.

    Returns:
        The ids that end a turn: the eos id, then the end-of-turn id when it is another one.

    Raises:
        ConfigError: metadata are missing, or the tokenizer is of an unsupported kind.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models

    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise ConfigError(
            f"{source}: GGUF tokenizer model {model!r} is not supported; supported: gpt2 "
            "(byte-level BPE). Use the model's transformers folder instead"
        )
    split = metadata.get("tokenizer.ggml.pre")
    if split not in SUPPORTED_SPLITS:
        raise ConfigError(
            f"{source}: GGUF pre-tokenizer {split!r} is not supported; supported: "
            f"{', '.join(SUPPORTED_SPLITS)}. Use the model's transformers folder instead"
        )
    for key in ("tokens", "token_type", "merges", "eos_token_id"):
        if f"tokenizer.ggml.{key}" not in metadata:
            raise ConfigError(f"{source}: metadata tokenizer.ggml.{key} is missing")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    merges = [tuple(pair.split(" ", 1)) for pair in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: index for index, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=split == "llama-bpe",
        )
    )
    tokenizer.pre_tokenizer = _pre_tokenizer(split)
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, special=kind in (_CONTROL, _UNKNOWN), normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED)
    ]
    # One call keeps the order; every one is in the vocabulary already and keeps its id.
    tokenizer.add_tokens(added)
    tokenizer.save(str(folder / "tokenizer.json"))

    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            config[f"{name}_token"] = tokens[index]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    ends = [metadata["tokenizer.ggml.eos_token_id"], metadata.get("tokenizer.ggml.eot_token_id")]
    return [int(index) for index in dict.fromkeys(ends) if index is not None]


def _pre_tokenizer(split: str) -> PreTokenizer:
    from tokenizers import Regex, pre_tokenizers

    if split == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split == "smollm":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
