"""Tokenizer: text to token ids and back, byte for byte; and the incremental Detokenizer.

Knows no chat message, no tool format and no model weights. transformers finds and builds the
tokenizer; encoding and decoding then go to its Rust backend, which adds and cleans up nothing.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from specrt.errors import ConfigError, RequestError

# What a tokenizer must give back unchanged. transformers 5 rebuilds some tokenizers from their
# vocabulary instead of reading tokenizer.json, and may then drop spaces without an error.
_ROUND_TRIPS = (
    "one two  three   four",
    "  leading and trailing ",
    "line\nbreak\n\n\tand\ttab\r\n  indented",
    "0 12 345 6789 3.14159 -1e10 2024-12-31",
    '{"name": "get_weather", "arguments": {"city": "São Paulo", "days": [1, 2]}}',
    "naïve Ωμέγα русский 日本語 עברית 👩\u200d💻 e\u0301",
    "don't `code` <tool_call>\\n</tool_call> #!?",
)
_NO_DECODER_HELP = "use a model with a byte-level BPE or a SentencePiece BPE tokenizer.json"


class Tokenizer:
    """The tokenizer of one model.

    Attributes:
        vocab_size: width of the model's logits; ids from len(tokenizer) on have no text.
        eos_token_ids: ids that end an output, ascending; at least one.
        special_token_ids: ids of control tokens (never part of ordinary text).
        special_tokens: names used by chat templates -> text ("bos_token": "<s>").
        chat_template: the model's Jinja template, if it has one.
        fingerprint: SHA-256 (hex) of tokenizer_json().
    """

    def __init__(
        self, folder: Path | str, vocab_size: int, eos_token_ids: Sequence[int] = ()
    ) -> None:
        """Load and check a tokenizer.

        Args:
            folder: transformers model folder.
            vocab_size: width of the model's logits.
            eos_token_ids: the model's own; empty = the tokenizer's.

        Raises:
            ConfigError: no usable tokenizer is there, or it does not give text back unchanged.
        """
        loaded = _load(Path(folder))
        self._backend = loaded.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._json: str = self._backend.to_str()
        self.fingerprint = hashlib.sha256(self._json.encode()).hexdigest()
        self._plain = type(self._backend).from_str(self._json)
        self._plain.encode_special_tokens = True
        self.vocab_size = vocab_size
        added: dict[int, Any] = self._backend.get_added_tokens_decoder()
        self._token_bytes = _all_token_bytes(Path(folder), self._json, added)
        if len(self._token_bytes) > vocab_size:
            raise ConfigError(
                f"{folder}: the tokenizer has ids up to {len(self._token_bytes) - 1}, but the "
                f"model has logits for {vocab_size}; tokenizer and model do not belong together"
            )
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        own_eos = () if loaded.eos_token_id is None else (int(loaded.eos_token_id),)
        self.eos_token_ids = tuple(sorted(set(eos_token_ids or own_eos)))
        if not self.eos_token_ids or self.eos_token_ids[-1] >= len(self._token_bytes):
            raise ConfigError(
                f"{folder}: expected end-of-sequence ids below {len(self._token_bytes)}, got "
                f"{list(self.eos_token_ids)}; set eos_token_id in generation_config.json"
            )
        self.special_tokens = {
            name: str(text)
            for name, text in loaded.special_tokens_map.items()
            if isinstance(text, str)
        }
        template = loaded.chat_template
        self.chat_template: str | None = (
            template.get("default") if isinstance(template, dict) else template
        )
        self._check_round_trips(Path(folder))

    def __len__(self) -> int:
        """Number of ids that have text."""
        return len(self._token_bytes)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special-token text becomes its id, nothing is added.

        Raises:
            RequestError: the text cannot be written as UTF-8 (a lone surrogate).
        """
        return _encode(self._backend, text)

    def encode_plain(self, text: str) -> list[int]:
        """Like `encode`, but the text of special tokens stays ordinary text."""
        return _encode(self._plain, text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a whole sequence, special tokens included; bad UTF-8 becomes U+FFFD."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=False)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token inside a text; b"" for an id without text."""
        return self._token_bytes[token_id] if token_id < len(self._token_bytes) else b""

    def tokenizer_json(self) -> str:
        """The tokenizer in the `tokenizers` library's JSON format."""
        return self._json

    def detokenizer(self, *, skipped_ids: Collection[int] = ()) -> Detokenizer:
        """A Detokenizer for one output; `skipped_ids` have no text in it."""
        return Detokenizer(self, skipped_ids)

    def _check_round_trips(self, folder: Path) -> None:
        ends = [self.token_bytes(index).decode() for index in self.eos_token_ids]
        for text in (*_ROUND_TRIPS, *(f"a{end}b" for end in ends)):
            got = self.decode(self.encode(text))
            if got != text:
                raise ConfigError(
                    f"{folder}: this tokenizer changes text: {text!r} comes back as {got!r}; it is "
                    "damaged, or this version of transformers rebuilds it wrongly (try another)"
                )
        for index, end in zip(self.eos_token_ids, ends, strict=True):
            if self.encode(end) != [index]:
                raise ConfigError(
                    f"{folder}: the text {end!r} of end-of-sequence id {index} encodes to "
                    f"{self.encode(end)}; expected [{index}]; the tokenizer is damaged"
                )


class Detokenizer:
    """Turns the growing output of one request into text, whole characters only."""

    def __init__(self, tokenizer: Tokenizer, skipped_ids: Collection[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skipped = frozenset(skipped_ids)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete; the bytes of a half character wait."""
        return self._decoder.decode(
            b"".join(self._tokenizer.token_bytes(i) for i in token_ids if i not in self._skipped)
        )

    def flush(self) -> str:
        """What is left at the end of the output: "" or U+FFFD for a half character."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model")):
        raise ConfigError(
            f"{folder}: tokenizer.json is missing; expected a transformers model folder with its "
            "tokenizer files"
        )
    try:
        loaded = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the Rust side raises bare Exception for a damaged file
        raise ConfigError(
            f"{folder}: the tokenizer cannot be loaded ({error}); download its files again"
        ) from error
    if getattr(loaded, "backend_tokenizer", None) is None:
        raise ConfigError(
            f"{folder}: {type(loaded).__name__} has no Rust backend; " + _NO_DECODER_HELP
        )
    return loaded


def _encode(backend: Any, text: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"text must be valid Unicode, but the character at position {error.start} is a lone "
            "surrogate; send it as a pair, or remove it"
        ) from None
    ids: list[int] = backend.encode(text, add_special_tokens=False).ids
    return ids


def _all_token_bytes(folder: Path, tokenizer_json: str, added: dict[int, Any]) -> list[bytes]:
    """Bytes by id, from the kind of decoder that tokenizer.json names."""
    spec = json.loads(tokenizer_json)
    kinds = {step["type"] for step in _steps(spec.get("decoder"))}
    vocabulary = spec["model"].get("vocab")
    if not isinstance(vocabulary, dict):
        raise ConfigError(
            f"{folder}: tokenizer model {spec['model'].get('type')!r} is not supported; "
            + _NO_DECODER_HELP
        )
    table: dict[int, bytes]
    if "ByteLevel" in kinds:
        byte_of = {char: byte for byte, char in enumerate(_byte_level_alphabet())}
        table = {
            index: b"".join(
                bytes([byte_of[char]]) if char in byte_of else char.encode() for char in token
            )
            for token, index in vocabulary.items()
        }
    elif "ByteFallback" in kinds:
        table = {index: _fallback_bytes(token) for token, index in vocabulary.items()}
    else:
        raise ConfigError(
            f"{folder}: tokenizer decoder {sorted(kinds)} is not supported; " + _NO_DECODER_HELP
        )
    table.update((index, token.content.encode()) for index, token in added.items())
    return [table.get(index, b"") for index in range(max(table) + 1)]


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder is not None:
        yield decoder
        for step in decoder.get("decoders", ()):
            yield from _steps(step)


def _fallback_bytes(token: str) -> bytes:
    """SentencePiece BPE: "<0x0A>" is one byte, "▁" is a space."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


def _byte_level_alphabet() -> str:
    """The 256 characters that stand for bytes 0..255 in byte-level BPE (GPT-2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))
