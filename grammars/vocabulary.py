"""The tokens of a model as byte strings: what every grammar engine starts from.

It knows no grammar. Ids that stand for no text (special tokens, end of sequence, rows of the logits
beyond the tokenizer) have empty bytes and never extend anything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache

import llguidance
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from specrt.errors import ConfigError

# Sets of tokens whose masks llguidance keeps ready: what a JSON string may hold, and the same
# without the characters that tool-call markers begin with, for free text between calls.
_PLAIN = r"[^\x00-\x1F\x7F\x22\x5C]"
_TEXT = r"[^\x00-\x1F\x7F\x22\x5C<\[{]"
_SLICES = [f"{_TEXT}+", f"{_PLAIN}{{1,10}}", f"{_PLAIN}{{1,30}}", f"{_PLAIN}+"]

BIT = (np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)  # 1 << i as int32

# Both caches hold short strings only: canonical.py asks about windows of forced text.
_CACHE_ENTRIES = 16_384


class Vocabulary:
    """Token bytes, special ids, extension look-up and the real tokenisation of bytes.

    Shared by all grammars of a model; immutable but for its caches, safe between threads.

    Attributes:
        vocab_size: width of the logits (>= the tokenizer's own size).
        num_words: int32 words of one token bitmask row, ceil(vocab_size / 32).
        eos_token_ids: every id that ends an output, ascending.
        special_ids: ids that no grammar may emit as text (eos ids and padding included).
        token_bytes: vocab_size entries; b"" for special ids.
        ll_tokenizer: the same vocabulary as llguidance wants it.
        special_texts: special tokens that a format may name, as text -> id.
        max_token_bytes: bytes of the longest token.
        eos_mask: int32 [num_words] with the end-of-sequence ids set; not to be modified.
        closing_ids: tokens that hold a closing bracket, ascending.
        max_closings: closing brackets in one token at most.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Read a Hugging Face `tokenizer.json`.

        Args:
            tokenizer_json: the file's text.
            vocab_size: width of the model's logits.
            eos_token_ids: at least one id below vocab_size.

        Raises:
            ConfigError: the text is no tokenizer, or the sizes and ids do not fit together.
        """
        try:
            self._tokenizer = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # tokenizers raises bare Exception
            raise ConfigError(f"expected the text of a tokenizer.json: {error}") from error
        known = self._tokenizer.get_vocab_size(with_added_tokens=True)
        if known > vocab_size:
            raise ConfigError(
                f"the tokenizer has {known} tokens, the model's logits only {vocab_size}: "
                "tokenizer and model do not belong together"
            )
        self.eos_token_ids = tuple(sorted(set(eos_token_ids)))
        if (
            not self.eos_token_ids
            or not 0 <= self.eos_token_ids[0] <= self.eos_token_ids[-1] < known
        ):
            raise ConfigError(
                f"expected end-of-sequence ids between 0 and {known - 1}, got {list(eos_token_ids)}"
            )
        # Text such as "<|im_end|>" inside an enum value is text, never the special token.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size = vocab_size
        self.num_words = (vocab_size + 31) // 32
        try:
            self.ll_tokenizer = llguidance.LLTokenizer(
                tokenizer_json,
                n_vocab=vocab_size,
                eos_token=list(self.eos_token_ids),
                slices=_SLICES,
            )
        except ValueError as error:
            raise ConfigError(f"llguidance cannot use this tokenizer: {error}") from error
        self.special_ids = frozenset(
            token_id
            for token_id in range(vocab_size)
            if token_id >= known or self.ll_tokenizer.is_special_token(token_id)
        ) | frozenset(self.eos_token_ids)
        self.token_bytes: list[bytes] = [
            b"" if token_id in self.special_ids else self.ll_tokenizer.decode_bytes([token_id])
            for token_id in range(vocab_size)
        ]
        by_bytes = sorted(
            (text, token_id) for token_id, text in enumerate(self.token_bytes) if text
        )
        self._sorted_bytes = [text for text, _ in by_bytes]
        self._sorted_ids = np.array([token_id for _, token_id in by_bytes], dtype=np.int32)
        self.special_texts = {
            str(token): token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token_id in self.special_ids and token_id not in self.eos_token_ids
        }
        self.max_token_bytes = max(map(len, self._sorted_bytes), default=1)
        self.eos_mask = np.zeros(self.num_words, dtype=np.int32)
        for token_id in self.eos_token_ids:
            self.eos_mask[token_id >> 5] |= BIT[token_id & 31]
        closings = [(i, t.count(b"}") + t.count(b"]")) for i, t in enumerate(self.token_bytes)]
        self.closing_ids = tuple(token_id for token_id, count in closings if count)
        self.max_closings = max((count for _, count in closings), default=0)
        self.pieces = lru_cache(maxsize=_CACHE_ENTRIES)(self._pieces)
        self.encode = lru_cache(maxsize=_CACHE_ENTRIES)(self._encode)
        self.extensions = lru_cache(maxsize=_CACHE_ENTRIES)(self._extensions)

    def _encode(self, data: bytes) -> tuple[int, ...]:
        """The model's own tokenisation of UTF-8 `data`; () when it does not give `data` back.

        Raises:
            UnicodeDecodeError: `data` is not whole UTF-8 characters.
        """
        ids: list[int] = self._tokenizer.encode(data.decode(), add_special_tokens=False).ids
        if b"".join(self.token_bytes[token_id] for token_id in ids) != data:
            return ()  # a normalizer or a prefix space changed the text
        return tuple(ids)

    def _pieces(self, data: bytes) -> tuple[int, ...] | None:
        """Tokens that spell `data`, which need not be whole characters; None when none do."""
        ids = []
        while data:
            for length in range(min(len(data), self.max_token_bytes), 0, -1):
                index = bisect_left(self._sorted_bytes, data[:length])
                if self._sorted_bytes[index : index + 1] == [data[:length]]:
                    break
            else:
                return None
            ids.append(int(self._sorted_ids[index]))
            data = data[length:]
        return tuple(ids)

    def _extensions(self, prefix: bytes) -> npt.NDArray[np.int32]:
        """The ids whose bytes begin with `prefix` and go on: int32 [n], not to be modified."""
        first = bisect_right(self._sorted_bytes, prefix)
        last = bisect_left(self._sorted_bytes, _successor(prefix), lo=first)
        return self._sorted_ids[first:last]


def _successor(prefix: bytes) -> bytes:
    """The smallest byte string above all that begin with `prefix` (UTF-8 has no 0xFF)."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\xff" * (len(prefix) + 64)
