r"""Sets of Unicode code points, and the classes of ECMA-262 and Python where they differ.

A class escape does not mean the same everywhere: Python's `\w` knows all letters, ECMA's only
ASCII, and Unicode grows. So a class is two sets: `sure` holds what every reading has in it,
`possible` what some reading has. Whoever must not accept too much takes the one, whoever must
exclude enough the other.
"""

from __future__ import annotations

import bisect
import re
import sys
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np

from specrt.grammars.schema.unsupported import UnsupportedError

# Inclusive ranges: sorted, apart from each other, without surrogates.
CodePoints = tuple[tuple[int, int], ...]

SURROGATES = (0xD800, 0xDFFF)
ALL: CodePoints = ((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, sys.maxunicode))


def code_points(ranges: Iterable[tuple[int, int]]) -> CodePoints:
    """The set of some ranges in any order; surrogates are dropped."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return intersection(tuple(merged), ALL)


def characters(text: str) -> CodePoints:
    """The set of the characters of a text."""
    return code_points((ord(character), ord(character)) for character in text)


@lru_cache(maxsize=256)
def union(*sets: CodePoints) -> CodePoints:
    """What is in any of them."""
    return code_points(pair for ranges in sets for pair in ranges)


def intersection(left: CodePoints, right: CodePoints) -> CodePoints:
    """What is in both."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first, last = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first <= last:
            found.append((first, last))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(found)


@lru_cache(maxsize=256)
def complement(ranges: CodePoints) -> CodePoints:
    """Every other code point."""
    gaps: list[tuple[int, int]] = []
    start = 0
    for first, last in ranges:
        if start < first:
            gaps.append((start, first - 1))
        start = last + 1
    if start <= sys.maxunicode:
        gaps.append((start, sys.maxunicode))
    return intersection(tuple(gaps), ALL)


def has(ranges: CodePoints, code_point: int) -> bool:
    """Is the code point in the set?"""
    index = bisect.bisect_right(ranges, (code_point, sys.maxunicode)) - 1
    return index >= 0 and ranges[index][0] <= code_point <= ranges[index][1]


def count(ranges: CodePoints) -> int:
    """How many code points are in the set."""
    return sum(last - first + 1 for first, last in ranges)


class CharacterClass(NamedTuple):
    """A class as different readers understand it.

    Attributes:
        sure: in it for all of them.
        possible: in it for at least one.
    """

    sure: CodePoints
    possible: CodePoints

    def negated(self) -> CharacterClass:
        """`[^...]`."""
        return CharacterClass(complement(self.possible), complement(self.sure))


def exactly(ranges: CodePoints) -> CharacterClass:
    """A class that everybody understands in the same way."""
    return CharacterClass(ranges, ranges)


def any_of(classes: Iterable[CharacterClass]) -> CharacterClass:
    """`[...]` with several items."""
    items = tuple(classes)
    return CharacterClass(
        union(*(item.sure for item in items)), union(*(item.possible for item in items))
    )


# ECMA: WhiteSpace and LineTerminator. Python: str.isspace, which has the separators U+001C to
# U+001F and U+0085, and not U+FEFF.
_BOTH_SPACES = characters(
    "\t\n\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
SPACE = CharacterClass(
    _BOTH_SPACES, union(_BOTH_SPACES, characters("\x1c\x1d\x1e\x1f\x85\ufeff\u180e"))
)

# `.`: ECMA stops at four line terminators, Python at one.
DOT = CharacterClass(
    complement(characters("\n\r\u2028\u2029")),
    complement(characters("\n")),
)

_DIGITS = characters("0123456789")
_WORD = union(_DIGITS, code_points([(0x41, 0x5A), (0x61, 0x7A)]), characters("_"))


@cache
def digit() -> CharacterClass:
    r"""`\d`: ASCII for ECMA, every decimal digit for Python."""
    return CharacterClass(_DIGITS, _of_python(r"\d+"))


@cache
def word() -> CharacterClass:
    r"""`\w`: ASCII for ECMA, every letter and number for Python."""
    return CharacterClass(_WORD, _of_python(r"\w+"))


def _of_python(runs: str) -> CodePoints:
    """The set of a class of Python's, from a regex of runs of it."""
    found: list[tuple[int, int]] = []
    for first, last in ALL:
        text = np.arange(first, last + 1, dtype="<u4").tobytes().decode("utf-32-le")
        for run in re.finditer(runs, text):
            found.append((first + run.start(), first + run.end() - 1))
    return code_points(found)


@cache
def unicode_property(name: str) -> CharacterClass:
    r"""`\p{name}`: a general category, `Any` or `ASCII`.

    What this Python's Unicode has not assigned yet may be in the class for a newer one.

    Raises:
        UnsupportedError: another property.
    """
    key, _, value = name.partition("=")
    if name == "Any":
        return exactly(ALL)
    if name == "ASCII":
        return exactly(((0, 0x7F),))
    if value and key not in ("General_Category", "gc"):
        raise UnsupportedError(f"\\p{{{name}}}: only general categories are supported")
    category = _CATEGORY_NAMES.get(value or key, value or key)
    if category not in _CATEGORY_NAMES.values():
        raise UnsupportedError(f"\\p{{{name}}}: only general categories are supported")
    members = _category(category)
    return CharacterClass(members, union(members, _category("Cn")))


@cache
def _categories() -> dict[str, list[tuple[int, int]]]:
    """Ranges of every two-letter category (and of surrogates, which code_points() drops)."""
    runs: dict[str, list[tuple[int, int]]] = {}
    code_point = 0
    for category, run in groupby(map(unicodedata.category, map(chr, range(sys.maxunicode + 1)))):
        length = sum(1 for _ in run)
        runs.setdefault(category, []).append((code_point, code_point + length - 1))
        code_point += length
    return runs


@cache
def _category(name: str) -> CodePoints:
    names = ("Lu", "Ll", "Lt") if name == "LC" else (name,)
    return code_points(
        pair
        for category, ranges in _categories().items()
        if category.startswith(names)
        for pair in ranges
    )


_CATEGORY_NAMES = {
    "Letter": "L",
    "Cased_Letter": "LC",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Punctuation": "P",
    "punct": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Format": "Cf",
    "Private_Use": "Co",
    "Unassigned": "Cn",
}
