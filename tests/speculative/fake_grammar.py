"""A hand-written automaton over 12 tokens, behind the grammar seam.

1 --{--> 2 --K--> 3 --:--> 4 --A or B--> 5 --}--> 7 (final)        forced: 1, 2, 3
         ^                 4 --"--> 6    5 --,--> 2
         |                          6 --x, y, z or ,--> 6 --"--> 5
         +-- , --
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specrt.grammars.base import DEAD

END, OPEN, CLOSE, COMMA, KEY, COLON, A, B, QUOTE, X, Y, Z = range(12)
TEXT = ["$", "{", "}", ",", "K", ":", "A", "B", '"', "x", "y", "z"]

MOVES: dict[int, dict[int, int]] = {
    1: {OPEN: 2},
    2: {KEY: 3},
    3: {COLON: 4},
    4: {A: 5, B: 5, QUOTE: 6},
    5: {COMMA: 2, CLOSE: 7},
    6: {X: 6, Y: 6, Z: 6, COMMA: 6, QUOTE: 5},
    7: {END: 8},
    8: {},
}
FORCED = {1: OPEN, 2: KEY, 3: COLON}


class FakeTokens:
    """A tokenizer with one character a token."""

    def encode_plain(self, text: str) -> list[int]:
        return [TEXT.index(character) for character in text]

    def token_bytes(self, token_id: int) -> bytes:
        return TEXT[token_id].encode()


TOKENS = FakeTokens()


class FakeGrammar:
    """GrammarState over the automaton; counts how often it is asked."""

    def __init__(self, root: int = 1) -> None:
        self.root = root
        self.num_asked = 0

    def advance(self, node: int, token_id: int) -> int:
        return MOVES.get(node, {}).get(token_id, DEAD)

    def masks(self, nodes: Sequence[int], out: npt.NDArray[np.int32]) -> None:
        for row, node in enumerate(nodes):
            out[row] = sum(1 << token_id for token_id in MOVES[node])

    def allowed(self, node: int, limit: int) -> list[int] | None:
        self.num_asked += 1
        tokens = sorted(MOVES[node])
        return tokens if len(tokens) <= limit else None

    def forced(self, node: int) -> int | None:
        self.num_asked += 1
        return FORCED.get(node)

    def is_final(self, node: int) -> bool:
        return node == 7

    def commit(self, node: int) -> None:
        self.root = node
