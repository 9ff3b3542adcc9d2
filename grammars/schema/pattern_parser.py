r"""Parser of regular expressions as JSON Schema has them: ECMA-262 with the `u` flag.

What people write without the flag is read too where ECMA's Annex B and Python agree (`\-`, `\_`,
a `{` that begins no quantifier). What means different things to different readers, or cannot be
part of a regular language, is refused.
"""

from __future__ import annotations

import re
from typing import NoReturn

from specrt.grammars.schema import code_points as cp
from specrt.grammars.schema.code_points import CharacterClass, exactly
from specrt.grammars.schema.pattern_tree import (
    Characters,
    Choice,
    End,
    LookAhead,
    Node,
    Repeat,
    Start,
    choice,
    sequence,
)
from specrt.grammars.schema.unsupported import UnsupportedError

_MAX_DEPTH = 50

_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_BRACES = re.compile(r"\{([0-9]+)(?:(,)([0-9]*))?\}")
_GROUP_NAME = re.compile(r"\?P?<[^\W\d]\w*>")
_REFUSED_GROUPS = {
    "?<=": "look-behind is not supported",
    "?<!": "look-behind is not supported",
    "?P=": "back-references are not supported",
    "?>": "atomic groups are no part of ECMA-262",
    "?#": "comments are no part of ECMA-262",
    "?(": "conditions are no part of ECMA-262",
}


def parse(source: str) -> Node:
    """The tree of a regular expression.

    Raises:
        UnsupportedError: it is not one, or has parts that are not supported.
    """
    return _Parser(source).parse()


def leading_look_aheads(source: str) -> tuple[list[tuple[str, bool]], str]:
    """The look-aheads right behind a `^` at the start, where all of the pattern stands behind them.

    Returns:
        ([(text of what is looked for, is it negative?)], the rest of the pattern).

    Raises:
        UnsupportedError: the pattern cannot be read.
    """
    return _Parser(source).leading_look_aheads()


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._position = 0
        self._depth = 0

    def parse(self) -> Node:
        node = self._choice()
        if self._position < len(self._source):
            self._refuse("unmatched )")
        return node

    def leading_look_aheads(self) -> tuple[list[tuple[str, bool]], str]:
        found: list[tuple[str, bool]] = []
        if isinstance(self.parse(), Choice):
            return found, self._source
        self._position = 0
        if not self._take("^"):
            return found, self._source
        while self._peek("(?=") or self._peek("(?!"):
            start = self._position
            self._atom()
            text = self._source[start + 3 : self._position - 1]
            found.append((text, self._source[start + 2] == "!"))
        return found, self._source[self._position :]

    def _refuse(self, reason: str) -> NoReturn:
        raise UnsupportedError(f"pattern {self._source[:80]!r}: {reason}")

    def _peek(self, text: str) -> bool:
        return self._source.startswith(text, self._position)

    def _take(self, text: str) -> bool:
        if self._peek(text):
            self._position += len(text)
            return True
        return False

    def _next(self) -> str:
        if self._position >= len(self._source):
            self._refuse("ends too early")
        self._position += 1
        return self._source[self._position - 1]

    def _choice(self) -> Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return choice(*options)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._position < len(self._source) and not self._peek("|") and not self._peek(")"):
            parts.append(self._quantified())
        return sequence(*parts)

    def _quantified(self) -> Node:
        part = self._atom()
        bounds = self._quantifier()
        if bounds is None:
            return part
        if isinstance(part, Start | End | LookAhead):
            self._refuse("a quantifier after an assertion")
        minimum, maximum = bounds
        if maximum is not None and maximum < minimum:
            self._refuse("a quantifier with its bounds the wrong way round")
        self._take("?")  # Lazy or not: the language is the same.
        if self._peek("+") or self._peek("*") or self._peek("?") or self._braces():
            self._refuse("a quantifier after a quantifier")
        return Repeat(part, minimum, maximum)

    def _braces(self) -> re.Match[str] | None:
        return _BRACES.match(self._source, self._position)

    def _quantifier(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        found = self._braces()
        if found is None:
            return None
        self._position = found.end()
        if any(len(number or "") > 9 for number in (found[1], found[3])):
            self._refuse("a repeat count of more than nine digits")
        minimum = int(found[1])
        return minimum, minimum if found[2] is None else int(found[3]) if found[3] else None

    def _atom(self) -> Node:
        if re.compile(r"\{,[0-9]*\}").match(self._source, self._position):
            self._refuse("{,n} is a text for ECMA-262 and a quantifier for others")
        if self._braces():
            self._refuse("a quantifier after nothing")
        character = self._next()
        match character:
            case "^":
                return Start()
            case "$":
                return End()
            case ".":
                return Characters(cp.DOT)
            case "(":
                return self._group()
            case "[":
                return Characters(self._class())
            case "*" | "+" | "?":
                self._refuse("a quantifier after nothing")
            case "\\":
                if self._peek("b") or self._peek("B"):
                    self._refuse("word boundaries are not supported")
                return Characters(self._escape())
            case _:
                return Characters(self._single(ord(character)))

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._refuse(f"groups nested deeper than {_MAX_DEPTH}")
        for opening, reason in _REFUSED_GROUPS.items():
            if self._peek(opening):
                self._refuse(reason)
        look_ahead: bool | None = None
        if self._take("?="):
            look_ahead = False
        elif self._take("?!"):
            look_ahead = True
        elif not self._take("?:"):
            name = _GROUP_NAME.match(self._source, self._position)
            if name:
                self._position = name.end()
            elif self._peek("?"):
                self._refuse("flags in a group are not supported")
        node = self._choice()
        if not self._take(")"):
            self._refuse("a group is not closed")
        self._depth -= 1
        return node if look_ahead is None else LookAhead(node, look_ahead)

    def _class(self) -> CharacterClass:
        is_negated = self._take("^")
        if self._peek("]"):
            self._refuse("a class that begins with ]")
        items: list[CharacterClass] = []
        while not self._take("]"):
            first = self._class_item()
            if self._peek("-") and not self._peek("-]"):
                mark = self._position
                self._next()
                last = self._class_item()
                low, high = _code_point(first), _code_point(last)
                if low is None or high is None:
                    # `[\w-.]`: a hyphen as it is, as Annex B has it.
                    self._position = mark
                    items += [first, self._single(ord(self._next()))]
                    continue
                if low > high:
                    self._refuse("a range with its ends the wrong way round")
                items.append(exactly(cp.code_points([(low, high)])))
            else:
                items.append(first)
        members = cp.any_of(items)
        return members.negated() if is_negated else members

    def _class_item(self) -> CharacterClass:
        character = self._next()
        if character != "\\":
            return self._single(ord(character))
        if self._take("b"):
            return self._single(0x08)
        if self._take("-"):
            return self._single(ord("-"))
        return self._escape()

    def _single(self, code_point: int) -> CharacterClass:
        if cp.SURROGATES[0] <= code_point <= cp.SURROGATES[1]:
            self._refuse("surrogates are not supported")
        return exactly(((code_point, code_point),))

    def _escape(self) -> CharacterClass:
        """What a backslash (already read) and the text after it stand for."""
        character = self._next()
        match character:
            case "d":
                return cp.digit()
            case "D":
                return cp.digit().negated()
            case "w":
                return cp.word()
            case "W":
                return cp.word().negated()
            case "s":
                return cp.SPACE
            case "S":
                return cp.SPACE.negated()
            case "p" | "P":
                return self._property(is_negated=character == "P")
            case "t" | "n" | "v" | "f" | "r":
                return self._single(ord(_CONTROLS[character]))
            case "c":
                letter = self._next()
                if not (letter.isascii() and letter.isalpha()):
                    self._refuse(r"\c without a letter")
                return self._single(ord(letter) % 32)
            case "x":
                return self._single(self._hexadecimal(2))
            case "u":
                return self._single(self._unicode())
            case "0" if not re.match("[0-9]", self._source[self._position :]):
                return self._single(0)
            case "k":
                self._refuse("back-references are not supported")
        if character.isascii() and character.isdigit():
            self._refuse("back-references and octal escapes are not supported")
        if character.isalpha():
            self._refuse(f"unknown escape \\{character}")
        return self._single(ord(character))

    def _property(self, *, is_negated: bool) -> CharacterClass:
        found = re.compile(r"\{([A-Za-z0-9_=]+)\}").match(self._source, self._position)
        if found is None:
            self._refuse(r"\p without {name}")
        self._position = found.end()
        members = cp.unicode_property(found[1])
        return members.negated() if is_negated else members

    def _unicode(self) -> int:
        found = re.compile(r"\{([0-9A-Fa-f]{1,8})\}").match(self._source, self._position)
        if found:
            self._position = found.end()
            if int(found[1], 16) > cp.ALL[-1][1]:
                self._refuse("an escape beyond U+10FFFF")
            return int(found[1], 16)
        high = self._hexadecimal(4)
        low = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})").match(self._source, self._position)
        if 0xD800 <= high < 0xDC00 and low:
            self._position = low.end()
            return 0x10000 + ((high - 0xD800) << 10) + (int(low[1], 16) - 0xDC00)
        return high

    def _hexadecimal(self, digits: int) -> int:
        text = self._source[self._position : self._position + digits]
        if not re.fullmatch(f"[0-9A-Fa-f]{{{digits}}}", text):
            self._refuse(f"an escape without {digits} hexadecimal digits")
        self._position += digits
        return int(text, 16)


def _code_point(members: CharacterClass) -> int | None:
    """The one code point of a class, None if there are several."""
    if len(members.sure) == 1 and members.sure == members.possible:
        first, last = members.sure[0]
        return first if first == last else None
    return None
