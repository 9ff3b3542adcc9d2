"""Canonical tokens of forced text: one definition for every grammar engine.

Where the grammar forces a run of bytes, the model has no choice of text, only of tokenisation. The
canonical run is what the tokenizer makes of those bytes, minus trailing tokens that a longer legal
token could still replace. It depends on the forced bytes, the vocabulary and what the grammar
allows at the token boundaries: so it is a function of the grammar state alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from specrt.grammars.vocabulary import Vocabulary

# Forced text beyond this is looked at when its turn comes: a constant of 8 kB would otherwise be
# tokenised again at each of its tokens. Longer than almost every token of any vocabulary.
WINDOW_BYTES = 256

CanFollow = Callable[[tuple[int, ...], npt.NDArray[np.int32]], bool]


def whole_characters(data: bytes) -> bytes:
    """The part of `data` that is whole UTF-8 characters; b"" when it begins inside one."""
    if not data or 0x80 <= data[0] < 0xC0:
        return b""
    return data.decode(errors="ignore").encode() if data[-1] >= 0x80 else data


def canonical_run(forced: bytes, vocabulary: Vocabulary, can_follow: CanFollow) -> tuple[int, ...]:
    """The tokens that must come next where the grammar forces `forced`.

    Args:
        forced: the longest byte string that every legal output continues with.
        vocabulary: the model's tokens.
        can_follow: (tokens of the run, candidate ids int32 [n]) -> may one of the candidates stand
            after those tokens, as far as the grammar alone is concerned?

    Returns:
        Token ids, () when there is a decision to take.
    """
    is_cut = len(forced) > WINDOW_BYTES
    text = whole_characters(forced[:WINDOW_BYTES])
    if not text:
        return ()
    tokens = vocabulary.encode(text)
    offset = 0
    for index, token_id in enumerate(tokens):
        candidates = vocabulary.extensions(text[offset:])
        # What stands behind a cut is not known here: any longer token counts as legal there.
        if len(candidates) and (is_cut or can_follow(tokens[:index], candidates)):
            return tokens[:index]
        offset += len(vocabulary.token_bytes[token_id])
    return tokens


def run_after_first(
    forced: bytes, run: tuple[int, ...], vocabulary: Vocabulary
) -> tuple[int, ...] | None:
    """The canonical run after the first token of `run`, without asking the grammar again.

    Args:
        forced: the forced bytes that `run` was made from.
        run: at least one token.
        vocabulary: the model's tokens.

    Returns:
        What `canonical_run` returns there, or None when only it can tell.
    """
    if len(forced) > WINDOW_BYTES:
        return None
    text = whole_characters(forced)
    rest = whole_characters(text[len(vocabulary.token_bytes[run[0]]) :])
    # The same boundaries as before were all asked about: the same token is the first to go.
    if rest and vocabulary.encode(rest) == vocabulary.encode(text)[1:]:
        return run[1:]
    return None
