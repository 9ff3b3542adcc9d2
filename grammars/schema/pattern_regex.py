r"""Trees over code points, written as regexes over the spelled contents of JSON strings.

Every character is spelled in one way: `"`, `\` and what stands below U+0020 as an escape, all else
as it is. So a class becomes a class of raw characters and a few escapes.
"""

from __future__ import annotations

import json
from functools import lru_cache

from specrt.grammars.schema import code_points as cp
from specrt.grammars.schema.code_points import ALL, CodePoints
from specrt.grammars.schema.pattern_tree import (
    Characters,
    Choice,
    Node,
    Repeat,
    Sequence,
    is_nothing,
)

_ESCAPED = cp.union(((0x00, 0x1F),), cp.characters('"\\'))
_RAW = cp.complement(_ESCAPED)
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_ ,:;@%='!<>")


def spell(text: str) -> str:
    """A text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def escape(text: str) -> str:
    """A regex for exactly `text`, in Rust's syntax and in Python's."""
    return "".join(_code(ord(character)) for character in text)


def regex(node: Node, *, possible: bool = False) -> str:
    """The regex of the spelled texts that a node matches as a whole.

    Args:
        node: without assertions; something must match it.
        possible: take the larger reading of each class.

    Raises:
        ValueError: nothing matches.
    """
    if is_nothing(node, possible=possible):
        raise ValueError("expected a node that something matches")
    return _write(node, possible)


def _write(node: Node, possible: bool) -> str:
    match node:
        case Characters(members):
            return _character(members.possible if possible else members.sure)
        case Sequence(parts):
            return "".join(
                f"(?:{_write(part, possible)})"
                if isinstance(part, Choice)
                else _write(part, possible)
                for part in parts
            )
        case Choice(options):
            return "|".join(
                _write(option, possible)
                for option in options
                if not is_nothing(option, possible=possible)
            )
        case Repeat(part, minimum, maximum):
            if maximum == 0 or is_nothing(part, possible=possible):
                return ""
            inner = _write(part, possible)
            if not inner or (minimum, maximum) == (1, 1):
                return f"(?:{inner})" if isinstance(part, Choice) else inner
            return _grouped(part, inner) + _times(minimum, maximum)
    raise AssertionError(node)


def _grouped(part: Node, inner: str) -> str:
    """`inner` as one unit for a quantifier."""
    if isinstance(part, Characters) and (inner[0] == "[" or len(inner) == 1):
        return inner
    is_group = isinstance(part, Characters) and inner.startswith("(?:")
    return inner if is_group else f"(?:{inner})"


def _times(minimum: int, maximum: int | None) -> str:
    match minimum, maximum:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
        case _, None:
            return f"{{{minimum},}}"
        case _ if minimum == maximum:
            return f"{{{minimum}}}"
        case _:
            return f"{{{minimum},{maximum}}}"


@lru_cache(maxsize=4096)
def _character(members: CodePoints) -> str:
    """One spelled character of a set."""
    raw = cp.intersection(members, _RAW)
    options = [_class(raw)] if raw else []
    escaped = [
        code
        for first, last in cp.intersection(members, _ESCAPED)
        for code in range(first, last + 1)
    ]
    options += _escapes([spell(chr(code)) for code in escaped])
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


def _escapes(spellings: list[str]) -> list[str]:
    """A regex for escapes, at most one: they share the backslash and the first digits."""
    short = [spelling[1] for spelling in spellings if len(spelling) == 2]
    options = [_letters(short)] if short else []
    by_high: dict[str, list[str]] = {}
    for spelling in spellings:
        if len(spelling) > 2:
            by_high.setdefault(spelling[4], []).append(spelling[5])
    if by_high:
        digits = "|".join(high + _letters(low) for high, low in sorted(by_high.items()))
        options.append(f"u00(?:{digits})")
    if not options:
        return []
    return [rf"\\(?:{'|'.join(options)})" if len(options) > 1 else rf"\\{options[0]}"]


def _letters(letters: list[str]) -> str:
    return _class(cp.characters("".join(letters)))


def _class(members: CodePoints) -> str:
    """A class of raw characters; by what it leaves out where that is shorter."""
    if len(members) == 1 and members[0][0] == members[0][1]:
        return _code(members[0][0])
    left_out = cp.intersection(cp.complement(members), ALL)
    if members[-1][1] == ALL[-1][1] and len(left_out) <= len(members):
        return f"[^{_ranges(left_out)}]"
    return f"[{_ranges(members)}]"


def _ranges(ranges: CodePoints) -> str:
    return "".join(
        _code(first) if first == last else f"{_code(first)}-{_code(last)}" for first, last in ranges
    )


def _code(code_point: int) -> str:
    character = chr(code_point)
    if character in _PLAIN:
        return character
    if code_point < 0x80:
        return f"\\x{code_point:02x}" if not character.isprintable() else f"\\{character}"
    return character if character.isprintable() else f"\\x{{{code_point:x}}}"
