"""Which part of an output the next token belongs to: a key, punctuation, a value, or free text.

One small state per position, made from the bytes so far: reports ask for each emitted token, a
drafter may ask for each node of its tree. It checks nothing: what a grammar let through is JSON.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from specrt.grammars.base import GrammarRecipe
from specrt.grammars.formats import load_format

Region = Literal["key", "punctuation", "value", "free text"]
REGIONS: Final[tuple[Region, ...]] = ("key", "punctuation", "value", "free text")

# Before a key, inside one, behind its backslash; before a colon; before a value, inside a string,
# behind its backslash, inside a number or a literal; behind a value; text, and text in which the
# next bracket opens JSON.
_TO_KEY, _KEY, _KEY_ESCAPE, _COLON = range(4)
_TO_VALUE, _STRING, _STRING_ESCAPE, _SCALAR, _BEHIND, _TEXT, _ARMED = range(4, 11)

_REGION_OF: Final[tuple[Region, ...]] = (
    *("key",) * 3,
    "punctuation",
    *("value",) * 4,
    "punctuation",
    *("free text",) * 2,
)
_QUOTE, _BACKSLASH, _COMMA, _COLON_SIGN = b'"\\,:'
_SPACE = b" \t\r\n"
_CLOSING = (b"}", b"]")
_SCALAR_ENDS = (*_CLOSING, b",", b"")


class JsonPlace(NamedTuple):
    """Where an output stands.

    Attributes:
        trigger: what announces JSON in text; empty = the output is JSON from its start. Its first
            byte may not occur in it again.
        mode: see above.
        open: the brackets that are open, the innermost last.
        matched: bytes of the trigger that the text ends with.
    """

    trigger: bytes = b""
    mode: int = _ARMED
    open: bytes = b""
    matched: int = 0

    @classmethod
    def text(cls) -> JsonPlace:
        """A place in text that JSON never interrupts."""
        return cls(mode=_TEXT)

    @classmethod
    def start(cls, trigger: str = "") -> JsonPlace:
        """The start of an output in which JSON stands behind `trigger`, or of one that is JSON."""
        return cls(trigger.encode(), _TEXT if trigger else _ARMED)

    @property
    def region(self) -> Region:
        """What the next token is expected to belong to."""
        return _REGION_OF[self.mode]

    @property
    def is_in_string(self) -> bool:
        """Does the next byte belong to a string value, and is it not escaped?"""
        return self.mode == _STRING

    def region_of(self, token: bytes) -> Region:
        """What a token with these bytes belongs to, by its beginning.

        It differs from `region` where brackets close at once, and behind a number or a literal,
        which may go on.
        """
        if self.mode in (_TO_KEY, _TO_VALUE, _SCALAR):
            ends = _CLOSING if self.mode != _SCALAR else _SCALAR_ENDS
            if token.lstrip(b" ")[:1] in ends:
                return "punctuation"
        return _REGION_OF[self.mode]

    def advance(self, data: bytes) -> JsonPlace:
        """The place behind `data`, which may begin and end anywhere."""
        trigger, mode, brackets, matched = self
        for byte in data:
            if mode in (_STRING, _KEY):
                if byte == _QUOTE:
                    mode = _BEHIND if mode == _STRING else _COLON
                elif byte == _BACKSLASH:
                    mode += 1
            elif mode in (_STRING_ESCAPE, _KEY_ESCAPE):
                mode -= 1
            elif mode == _TEXT:
                if not trigger:
                    break
                expected = trigger[matched]
                matched = matched + 1 if byte == expected else int(byte == trigger[0])
                if matched == len(trigger):
                    mode, matched = _ARMED, 0
            elif byte in b"{[":
                brackets += bytes((byte,))
                mode = _TO_KEY if byte in b"{" else _TO_VALUE
            elif mode == _ARMED:
                continue
            elif byte in b"}]":
                brackets = brackets[:-1]
                mode = _BEHIND if brackets else (_TEXT if trigger else _ARMED)
            elif byte == _QUOTE:
                mode = _KEY if mode == _TO_KEY else _STRING
            elif byte == _COMMA:
                mode = _TO_KEY if brackets.endswith(b"{") else _TO_VALUE
            elif byte == _COLON_SIGN:
                mode = _TO_VALUE
            elif byte in _SPACE:
                mode = _BEHIND if mode == _SCALAR else mode
            else:
                mode = _SCALAR
        return JsonPlace(trigger, mode, brackets, matched)


def output_place(recipe: GrammarRecipe | None) -> JsonPlace:
    """Where an output with this grammar starts."""
    if recipe is None or recipe.kind in ("regex", "lark"):
        return JsonPlace.text()
    return JsonPlace.start(
        load_format(recipe.tool_format).json_trigger if recipe.kind == "tools" else ""
    )
