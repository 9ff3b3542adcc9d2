"""The leaves of a Lark text: literals, strings and numbers, each one whole JSON token.

llguidance cuts text greedily into the terminals that may stand there, and one that ends where a
longer one could go on loses. JSON tokens as a whole never meet that: none that may follow another
continues it. So strings are terminals with their quotes, and nothing is split further.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

# The largest binary double below 2 ** 63: llguidance reads bounds as doubles.
_LARGEST = 2**63 - 1024

# llguidance's automaton for a remainder has this many states; beyond, it takes seconds to build.
_MAX_DIVISOR = 2_000

# llguidance keeps a state for each byte of a text that it must spell, 50,000 at most.
_MAX_LITERAL = 40_000

# Beyond, llguidance compiles an enum but gives up at its first mask.
_MAX_VALUES = 5_000


class Terminals:
    """The named terminals of a grammar; equal ones share a name.

    Attributes:
        lines: their definitions.
    """

    def __init__(self, prefix: str, item_separator: str, key_separator: str) -> None:
        """None yet.

        Args:
            prefix: begins every name; small letters, digits and underscores.
            item_separator: literal text between items.
            key_separator: literal text between a key and its value.
        """
        self.lines: list[str] = []
        self._prefix = prefix
        self._separators = {"item_separator": item_separator, "key_separator": key_separator}
        self._names: dict[str, str] = {}
        self._strings: dict[StringSet, str] = {}
        self._numbers: dict[NumberSet, str] = {}

    def string(self, strings: StringSet) -> str:
        """The name of a terminal for the quoted strings of a set.

        Raises:
            UnsupportedError: they cannot be spelled.
        """
        if strings not in self._strings:
            _check_values(strings.values or ())
            # Left-out values and the rest apart, each with its quotes: llguidance's token slices
            # then still apply (16 us a mask, against 900).
            required, excluded = replace(strings, excluded_values=frozenset()).spellings()
            if strings.excluded_values:
                values = StringSet(values=tuple(sorted(strings.excluded_values)))
                excluded += values.spellings().required
            quoted = [_slashed(f'"(?:{regex})"') for regex in required]
            quoted += ["~" + _slashed(f'"(?:{regex})"') for regex in excluded]
            self._strings[strings] = self._define(" & ".join(quoted))
        return self._strings[strings]

    def number(self, numbers: NumberSet) -> str:
        """The name of a terminal, or of a rule, for the numbers of a set.

        Raises:
            UnsupportedError: there is no regex, and llguidance cannot write them either.
        """
        if numbers not in self._numbers:
            try:
                body, is_rule = _slashed(f"(?:{numbers.regex()})"), False
            except UnsupportedError as refusal:
                schema = _json_schema(numbers)
                if schema is None:
                    raise refusal
                body, is_rule = self._json_leaf(schema), True
            self._numbers[numbers] = self._define(body, is_rule=is_rule)
        return self._numbers[numbers]

    def _define(self, body: str, *, is_rule: bool = False) -> str:
        if body not in self._names:
            name = f"{self._prefix}t{len(self._names)}"
            self._names[body] = name if is_rule else name.upper()
            self.lines.append(f"{self._names[body]}: {body}")
        return self._names[body]

    def _json_leaf(self, schema: dict[str, object]) -> str:
        options = {name: re.escape(text) for name, text in self._separators.items()}
        return "%json " + json.dumps(
            {**schema, "x-guidance": {**options, "whitespace_flexible": False}}
        )


def literal(text: str) -> str:
    """A Lark literal.

    Raises:
        UnsupportedError: the text has no UTF-8 spelling, or is empty.
    """
    if not text or any("\ud800" <= character <= "\udfff" for character in text):
        raise UnsupportedError("a lone surrogate cannot be written")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def choice(options: Iterable[str]) -> str:
    """Any of some expressions, each once; in parentheses when there are several."""
    distinct = list(dict.fromkeys(options))
    return distinct[0] if len(distinct) == 1 else f"({' | '.join(distinct)})"


def times(expression: str, minimum: int, maximum: int | None) -> str:
    """An expression repeated; "" when it may not stand there at all."""
    match minimum, maximum:
        case _, 0:
            return ""
        case 1, 1:
            return expression
        case 0, 1:
            return f"({expression})?"
        case 0, None:
            return f"({expression})*"
        case _, None:
            return f"({expression}){{{minimum},}}"
        case _:
            return f"({expression}){{{minimum},{maximum}}}"


def _check_values(values: tuple[str, ...]) -> None:
    """Refuse strings that llguidance would take, and give up on when it writes them."""
    if len(values) > _MAX_VALUES:
        raise UnsupportedError(f"more than {_MAX_VALUES:,} strings in one place")
    if any(len(value.encode(errors="ignore")) > _MAX_LITERAL for value in values):
        raise UnsupportedError(f"a text of more than {_MAX_LITERAL:,} bytes")


def _slashed(regex: str) -> str:
    """A regex between slashes, those in it escaped."""
    inner = re.sub(r"\\.|/", lambda match: r"\/" if match[0] == "/" else match[0], regex)
    return f"/{inner}/"


def _json_schema(numbers: NumberSet) -> dict[str, object] | None:
    """Integers that llguidance knows as a schema: bounds, and a divisor of fair size.

    Bounds are always written, so that integers keep to 64 digits.
    """
    divisor = numbers.multiple_of or Fraction(1)
    if (
        not numbers.is_integer
        or numbers.values is not None
        or numbers.not_multiple_of
        or divisor.numerator > _MAX_DIVISOR
    ):
        return None
    schema: dict[str, object] = {"type": "integer", "multipleOf": divisor.numerator}
    bounds = (
        ("Minimum", numbers.minimum, numbers.exclusive_minimum, -_LARGEST),
        ("Maximum", numbers.maximum, numbers.exclusive_maximum, _LARGEST),
    )
    for keyword, bound, is_exclusive, default in bounds:
        if bound is None:
            schema[keyword.lower()] = default
        elif bound.denominator != 1 or int(float(bound)) != bound or abs(bound) > _LARGEST:
            return None
        else:
            schema[f"exclusive{keyword}" if is_exclusive else keyword.lower()] = int(bound)
    return schema
