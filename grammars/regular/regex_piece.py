"""Pieces of a regex that know how large they are, so that no text is made that is too large to use.

Every piece may stand in a sequence as it is: alternatives are in a group of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from specrt.grammars.regular.regex_size import RegexSize, regex_size
from specrt.grammars.schema.unsupported import UnsupportedError

MAX_POSITIONS = 20_000
MAX_DEPTH = 200  # the regex crate stops at 250 groups inside each other

_META = re.compile(r"[\\.+*?()|\[\]{}^$]")


class NotRegular(UnsupportedError):  # noqa: N818
    """A schema is not for the regular engine; another one may take it."""


class RegexText(NamedTuple):
    """A regex whose parts that are no fixed text can be told apart.

    Attributes:
        skeleton: the regex with a control character in place of each such part.
        parts: control character -> the regex that it stands for.
        positions: bytes and classes, repeats multiplied out, parts included.
    """

    skeleton: str
    parts: dict[str, str]
    positions: int

    def whole(self) -> str:
        """The regex."""
        return self.skeleton.translate(
            {ord(mark): f"(?:{regex})" for mark, regex in self.parts.items()}
        )


class Piece(NamedTuple):
    """A part of a regex.

    Attributes:
        text: in the syntax of Rust's regex crate.
        positions: bytes and classes in it, repeats multiplied out.
        depth: groups inside each other.
    """

    text: str
    positions: int
    depth: int


def literal(text: str) -> Piece:
    """`text` itself."""
    positions = len(text.encode())
    _check(positions, 0)
    return Piece(_META.sub(r"\\\g<0>", text), positions, 0)


@lru_cache(maxsize=256)
def part_size(regex: str) -> RegexSize:
    """`regex_size` of a part; the same few come in every schema."""
    return regex_size(regex)


def placeholder(mark: str, regex: str) -> Piece:
    """A character that stands for a regex from elsewhere, as large as that."""
    size = part_size(regex)
    _check(size.positions, size.depth + 1)
    return Piece(mark, size.positions, size.depth + 1)


def sequence(*pieces: Piece) -> Piece:
    """One after the other."""
    positions = sum(piece.positions for piece in pieces)
    depth = max((piece.depth for piece in pieces), default=0)
    _check(positions, depth)
    return Piece("".join([piece.text for piece in pieces]), positions, depth)


def union(pieces: Iterable[Piece]) -> Piece:
    """Any one of at least one piece."""
    different = list(dict.fromkeys(pieces))
    if len(different) == 1:
        return different[0]
    positions = sum(piece.positions for piece in different)
    depth = max(piece.depth for piece in different) + 1
    _check(positions, depth)
    return Piece(f"(?:{'|'.join([piece.text for piece in different])})", positions, depth)


def repeat(piece: Piece, minimum: int, maximum: int | None) -> Piece:
    """`piece` as often as that; maximum None = without end."""
    if maximum == 0 or not piece.text:
        return literal("")
    if minimum == maximum == 1:
        return piece
    count = minimum + 1 if maximum is None else maximum
    _check(piece.positions * count, piece.depth + 1)
    times = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((minimum, maximum))
    if times is None:
        times = f"{{{minimum},{'' if maximum is None else maximum}}}"
    return Piece(f"(?:{piece.text}){times}", piece.positions * count, piece.depth + 1)


def _check(positions: int, depth: int) -> None:
    """Raise NotRegular for what is too large."""
    if positions > MAX_POSITIONS:
        raise NotRegular(f"too large for an automaton: more than {MAX_POSITIONS} positions")
    if depth > MAX_DEPTH:
        raise NotRegular("nested too deeply for an automaton")
