"""A way through a grammar, and how much choice there was at each token."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from specrt.errors import GrammarError
from specrt.grammars.base import DEAD, Grammar, GrammarState
from specrt.grammars.vocabulary import Vocabulary

_MAX_TOKENS = 2_000
_MAX_WIDTH = 4  # allowed tokens are counted up to here
# What ends a value: taken as soon as it is allowed.
_STRING_CLOSERS = (b'"',)
_CLOSERS = (b"}", b"]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


@dataclass(slots=True)
class Sample:
    """A way from the start of a grammar.

    Attributes:
        text: the bytes on the way.
        token_ids: the tokens.
        widths: how many tokens were allowed at each step; None = more than 4. A token that the
            grammar forces counts as 1.
        is_whole: the grammar may end here.
        reason: why it is not whole.
    """

    text: bytes = b""
    token_ids: list[int] = field(default_factory=list)
    widths: list[int | None] = field(default_factory=list)
    is_whole: bool = True
    reason: str = ""


def make_sample(grammar: Grammar, vocabulary: Vocabulary) -> Sample:
    """A short output: ends what can be ended, takes short tokens, and none again and again.

    Args:
        grammar: any.
        vocabulary: its tokens.
    """
    state = grammar.open()
    sample = Sample()
    node, taken = state.root, Counter[int]()
    try:
        while not state.is_final(node):
            if len(sample.widths) == _MAX_TOKENS:
                sample.is_whole, sample.reason = False, "found no short one: give --instance"
                break
            token_id = state.forced(node)
            if token_id is None:
                closers = _STRING_CLOSERS if _is_in_string(sample.text) else _CLOSERS
                allowed = _allowed(state, node, vocabulary)
                token_id = _choose(allowed, vocabulary, closers, taken)
            _step(sample, state, node, vocabulary, token_id)
            taken[token_id] += 1
            node = state.advance(node, token_id)
            state.commit(node)
    except GrammarError as error:
        sample.is_whole, sample.reason = False, str(error)
    return sample


def follow(grammar: Grammar, vocabulary: Vocabulary, text: bytes) -> Sample:
    """The way of `text`, in the model's own tokens and the grammar's where it forces them.

    Args:
        grammar: any.
        vocabulary: its tokens.
        text: a whole output, if the grammar allows it.
    """
    state = grammar.open()
    sample = Sample()
    node = state.root
    planned = list(vocabulary.encode(text))[::-1]
    try:
        while len(sample.text) < len(text):
            rest = text[len(sample.text) :]
            token_id = state.forced(node)
            if token_id is None or not rest.startswith(vocabulary.token_bytes[token_id]):
                token_id = planned[-1] if planned else _longest(state, node, vocabulary, rest)
            child = DEAD if token_id is None else state.advance(node, token_id)
            if token_id is None or child == DEAD:
                where = rest[:20].decode(errors="replace")
                sample.is_whole = False
                sample.reason = f"byte {len(sample.text)}, {where!r}, is not allowed"
                return sample
            if planned and planned.pop() != token_id:
                planned = []  # out of step: from here on piece by piece
            _step(sample, state, node, vocabulary, token_id)
            node = child
            state.commit(node)
        sample.is_whole = state.is_final(node)
        sample.reason = "" if sample.is_whole else "the value is not finished"
    except GrammarError as error:
        sample.is_whole, sample.reason = False, str(error)
    return sample


def _step(
    sample: Sample, state: GrammarState, node: int, vocabulary: Vocabulary, token_id: int
) -> None:
    allowed = state.allowed(node, _MAX_WIDTH)
    is_forced = state.forced(node) is not None
    sample.widths.append(1 if is_forced else None if allowed is None else len(allowed))
    sample.token_ids.append(token_id)
    sample.text += vocabulary.token_bytes[token_id]


def _allowed(state: GrammarState, node: int, vocabulary: Vocabulary) -> list[int]:
    """All allowed tokens in ascending order."""
    row = np.zeros((1, vocabulary.num_words), dtype=np.int32)
    state.masks([node], row)
    bits = np.unpackbits(row[0].view(np.uint8), bitorder="little")
    ids: list[int] = np.flatnonzero(bits).tolist()
    if not ids:
        raise GrammarError("no token is allowed")
    return ids


def _is_in_string(text: bytes) -> bool:
    """Does JSON text end inside a string?"""
    return b'"' in _STRING.sub(b"", text)


def _choose(
    allowed: list[int], vocabulary: Vocabulary, closers: tuple[bytes, ...], taken: Counter[int]
) -> int:
    text = vocabulary.token_bytes
    for closer in closers:
        for token_id in allowed:
            if text[token_id] == closer:
                return token_id
    return min(allowed, key=lambda token_id: (taken[token_id], len(text[token_id]), token_id))


def _longest(state: GrammarState, node: int, vocabulary: Vocabulary, rest: bytes) -> int | None:
    """The longest allowed token that `rest` begins with."""
    text = vocabulary.token_bytes
    fitting = [i for i in _allowed(state, node, vocabulary) if text[i] and rest.startswith(text[i])]
    return max(fitting, key=lambda token_id: len(text[token_id]), default=None)
