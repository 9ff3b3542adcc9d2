"""Vocabularies and walks that the grammar tests share."""

from __future__ import annotations

import json
import random
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from fakes import tiny_tokenizer_folder

from specrt.grammars.base import DEAD, GrammarState
from specrt.grammars.vocabulary import Vocabulary
from specrt.model.converted import cache_folder


@cache
def tiny_vocabulary() -> Vocabulary:
    """320 tokens in logits 331 wide, two end-of-sequence ids."""
    with tempfile.TemporaryDirectory() as folder:
        path = tiny_tokenizer_folder(Path(folder)) / "tokenizer.json"
        return Vocabulary(path.read_text(), 331, (2, 0))


@cache
def real_vocabulary() -> Vocabulary:
    """SmolLM2's 49,152 tokens; skips where the embedded model is not in the cache."""
    path = next(cache_folder().glob("models/SmolLM2*/tokenizer.json"), None)
    if path is None:
        pytest.skip("needs the embedded model")
    return Vocabulary(path.read_text(), 49152, (2, 0))


def feed(state: GrammarState, token_ids: tuple[int, ...]) -> int:
    """The node after `token_ids` from the root, DEAD when they are not allowed."""
    node = state.root
    for token_id in token_ids:
        node = state.advance(node, token_id)
        if node == DEAD:
            break
    return node


def takes(state: GrammarState, vocabulary: Vocabulary, text: str) -> bool:
    """Is `text` a whole output?"""
    node = feed(state, vocabulary.encode(text.encode()))
    return node != DEAD and state.is_final(node)


def mask_of(state: GrammarState, node: int, vocabulary: Vocabulary) -> npt.NDArray[np.int32]:
    """One mask row: int32 [num_words]."""
    rows = np.full((1, vocabulary.num_words), -1, dtype=np.int32)
    state.masks([node], rows)
    return rows[0]


def ids_of(mask: npt.NDArray[np.int32]) -> list[int]:
    """The ids of a mask row's bits."""
    bits: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return bits


def random_output(
    state: GrammarState, vocabulary: Vocabulary, rng: random.Random, max_tokens: int
) -> tuple[bytes, int]:
    """Walk through the masks, commit each token, and stop as soon as that is allowed late on.

    Short tokens and closing characters are preferred, more so the longer it takes.
    """
    output, node = b"", state.root
    for step in range(max_tokens):
        ids = ids_of(mask_of(state, node, vocabulary))
        assert ids, "a mask without a bit"
        eos = [i for i in ids if i in vocabulary.eos_token_ids]
        if eos and (len(eos) == len(ids) or rng.random() < 0.2 + step / max_tokens):
            return output, state.advance(node, rng.choice(eos))
        ids = [i for i in ids if i not in vocabulary.eos_token_ids]
        closing = [i for i in ids if vocabulary.token_bytes[i].strip() in (b'"', b"}", b"]", b'"}')]
        if closing and rng.random() < 0.3 + step / max_tokens:
            ids = closing
        token_id = rng.choice(ids)
        output += vocabulary.token_bytes[token_id]
        node = state.advance(node, token_id)
        assert node != DEAD
        state.commit(node)
    return output, DEAD


def raw_json_lark(schema: dict[str, object]) -> str:
    """llguidance's own reading of a schema, spelled in the style of the grammars here."""
    options = {
        "item_separator": ", ",
        "key_separator": ": ",
        "whitespace_flexible": False,
        "json_allowed_escapes": '"\\bfnrt',
    }
    document = json.dumps({**schema, "x-guidance": options})
    return f'%llguidance {{"no_forcing": true}}\nstart: %json {document}\n'
