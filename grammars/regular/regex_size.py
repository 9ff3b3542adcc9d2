"""How large the automaton of a regex can get, told from its text: repeats multiplied out.

outlines-core can neither be cancelled nor limited, so what would keep it busy for minutes is found
before it is started. The text is in the syntax of Rust's regex crate; whether it is correct is for
outlines-core to say.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_UNESCAPED = re.compile(r"[^\\\[(){}|*+?]+")
_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}[?]?")
_GROUP_HEAD = re.compile(r"\(\?(?:P?<[^>]*>|[a-zA-Z-]*:|[a-zA-Z-]+(?=\)))?")
_ESCAPE = re.compile(
    r"\\(?:[pP](?:\{[^}]*\}|.)|x(?:\{[^}]*\}|..)|u(?:\{[^}]*\}|....)|U(?:\{[^}]*\}|.{8})|.)", re.S
)
_WIDE_ESCAPES = "pPwWdDsS"  # Unicode classes: hundreds of byte ranges
_WIDE_CLASS_SIZE = 100
_CLASS_SIZE = 4  # [^"] over UTF-8: a character is up to four bytes


class RegexSize(NamedTuple):
    """How large a regex is.

    Attributes:
        positions: bytes and classes, each as often as its repeats ask for; an unbounded repeat of
            at least n counts n + 1 times. An estimate.
        depth: groups inside each other.
    """

    positions: int
    depth: int


def regex_size(regex: str) -> RegexSize:
    """The size of a regex, counted repeats multiplied out.

    Args:
        regex: in the syntax of Rust's regex crate; unbalanced brackets are taken as they come.
    """
    sums = [0]  # of the groups that are open
    last = 0  # size of the item that a repeat would apply to
    at = depth = 0
    while at < len(regex):
        head = regex[at]
        if head == "(":
            match = _GROUP_HEAD.match(regex, at)
            at = match.end() if match else at + 1
            sums.append(0)
            depth = max(depth, len(sums) - 1)
            last = 0
            continue
        if head == ")":
            last = sums.pop() if len(sums) > 1 else 0
            sums[-1] += last
            at += 1
        elif head == "{" and (repeat := _REPEAT.match(regex, at)):
            low, high = repeat.group(1), repeat.group(2)
            count = int(low) + 1 if high == "" else int(high or low)
            sums[-1] += last * (count - 1)
            last *= count
            at = repeat.end()
        elif head == "[":
            at, last = _class_end(regex, at)
            sums[-1] += last
        elif head == "\\" and (escape := _ESCAPE.match(regex, at)):
            last = _WIDE_CLASS_SIZE if regex[at + 1] in _WIDE_ESCAPES else 1
            sums[-1] += last
            at = escape.end()
        elif literal := _UNESCAPED.match(regex, at):
            last = len(literal.group()[-1].encode(errors="replace"))
            sums[-1] += len(literal.group().encode(errors="replace"))
            at = literal.end()
        else:  # | * + ? and stray brackets
            at += 1
    return RegexSize(sum(sums), depth)


def _class_end(regex: str, at: int) -> tuple[int, int]:
    """The place behind the class that begins at `at`, and its size."""
    depth = 0
    size = _CLASS_SIZE
    start = at
    while at < len(regex):
        head = regex[at]
        if head == "\\" and (escape := _ESCAPE.match(regex, at)):
            if regex[at + 1] in _WIDE_ESCAPES:
                size = _WIDE_CLASS_SIZE
            at = escape.end()
            continue
        if head == "[":
            depth += 1
        elif head == "]" and at > start + 1:
            depth -= 1
        at += 1
        if depth == 0:
            break
    return at, size
