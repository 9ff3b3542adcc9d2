"""A normal form without recursion as one regex over JSON text: exact, or refused.

Values are spelled in the one way that all grammars here spell them, so what the regex matches as a
whole is what the schema allows. What needs a stack, or too large an automaton, raises `NotRegular`
and is another engine's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction

from specrt.grammars.regular.item_writer import ItemWriter
from specrt.grammars.regular.regex_piece import (
    NotRegular,
    Piece,
    RegexText,
    literal,
    placeholder,
    repeat,
    sequence,
    union,
)
from specrt.grammars.schema.normal import (
    ArrayShape,
    BooleanShape,
    NormalSchema,
    NullShape,
    ObjectShape,
    Property,
    RuleId,
    Shape,
)
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

__all__ = ["NotRegular", "RegexWriter", "predicted_size", "to_regex"]

MAX_LEVELS = 60  # of values inside each other
MAX_OPTIONAL = 30  # properties of an object none of which is required

# JSON text holds no control characters, and separators no others than these.
_MARKS = [chr(code) for code in range(4, 0x20) if chr(code) not in "\t\n\r"]
_NOTHING = literal("")
_OPEN_ARRAY, _CLOSE_ARRAY = literal("["), literal("]")
_OPEN_OBJECT, _CLOSE_OBJECT = literal("{"), literal("}")


def to_regex(schema: NormalSchema, *, item_separator: str, key_separator: str) -> str:
    """Write a schema as a regex in the syntax of Rust's regex crate.

    Args:
        schema: the normal form.
        item_separator: between items and between properties, as ", ".
        key_separator: between a property's name and its value, as ": ".

    Raises:
        NotRegular: with the reason and the pointer of the schema that it is about.
        UnsupportedError: no value satisfies the schema.
    """
    return RegexWriter(schema, item_separator, key_separator).write().whole()


def predicted_size(schema: NormalSchema) -> int:
    """Positions of the regex, repeats multiplied out: tells what its automaton costs to build.

    Raises:
        NotRegular: as to_regex.
        UnsupportedError: as to_regex.
    """
    return RegexWriter(schema, ",", ":").write().positions


class RegexWriter:
    """Writes one schema; a rule that is used in several places is written once and copied."""

    def __init__(self, schema: NormalSchema, item_separator: str, key_separator: str) -> None:
        self._schema = schema
        self._item_separator = literal(item_separator)
        self._key_separator = literal(key_separator)
        self._marks: dict[str, str] = {}  # regex of a part -> its control character
        self._written: dict[RuleId, Piece] = {}
        self._open: dict[RuleId, None] = {}
        self._items = ItemWriter(self._item_separator, self._rule, self._finite_values)

    def write(self) -> RegexText:
        """The regex of the whole value. Raises as `to_regex`."""
        if not self._schema.rules[self._schema.root].shapes:
            raise UnsupportedError("no value satisfies this schema")
        skeleton, positions, _ = self._rule(self._schema.root)
        return RegexText(skeleton, {m: regex for regex, m in self._marks.items()}, positions)

    def _rule(self, rule_id: RuleId) -> Piece:
        piece = self._written.get(rule_id)
        if piece is not None:
            return piece
        rule = self._schema.rules[rule_id]
        try:
            if rule_id in self._open:
                raise NotRegular("a value may hold values of its own kind, without end")
            if len(self._open) >= MAX_LEVELS:
                raise NotRegular("nested too deeply for an automaton")
            self._open[rule_id] = None
            piece = union([self._shape(shape) for shape in rule.shapes])
        except UnsupportedError as error:
            if isinstance(error, NotRegular) and error.pointer:
                raise
            raise NotRegular(error.reason, error.pointer or rule.pointer, error.keyword) from error
        del self._open[rule_id]
        self._written[rule_id] = piece
        return piece

    def _shape(self, shape: Shape) -> Piece:
        if isinstance(shape, NullShape):
            return literal("null")
        if isinstance(shape, BooleanShape):
            return union([literal(json.dumps(value)) for value in sorted(shape.values)])
        if isinstance(shape, NumberSet):
            return self._part(shape.regex())
        if isinstance(shape, StringSet):
            return self._string(shape)
        if isinstance(shape, ArrayShape):
            return sequence(_OPEN_ARRAY, self._items.write(shape), _CLOSE_ARRAY)
        return sequence(_OPEN_OBJECT, self._members(shape), _CLOSE_OBJECT)

    def _string(self, strings: StringSet) -> Piece:
        if strings.values is not None:
            return union([literal(_spelled(value)) for value in strings.values])
        spellings = strings.spellings()
        if len(spellings.required) != 1 or spellings.excluded:
            raise NotRegular("a string under several conditions that no one regex says")
        return self._part(f'"(?:{spellings.required[0]})"')

    def _part(self, regex: str) -> Piece:
        """A regex that is no fixed text."""
        mark = self._marks.get(regex)
        if mark is None:
            if len(self._marks) == len(_MARKS):
                raise NotRegular(f"more than {len(_MARKS)} kinds of numbers and strings")
            mark = self._marks[regex] = _MARKS[len(self._marks)]
        return placeholder(mark, regex)

    def _finite_values(self, rule_id: RuleId) -> list[Piece]:
        """The values of a rule as they are spelled; no two are equal."""
        spellings: dict[str, None] = {}
        numbers: set[Fraction] = set()
        for shape in self._schema.rules[rule_id].shapes:
            if isinstance(shape, NullShape):
                spellings["null"] = None
            elif isinstance(shape, BooleanShape):
                spellings.update(dict.fromkeys(json.dumps(value) for value in shape.values))
            elif isinstance(shape, StringSet) and shape.values is not None:
                spellings.update(dict.fromkeys(map(_spelled, shape.values)))
            elif isinstance(shape, NumberSet) and shape.values is not None:
                numbers.update(map(Fraction, shape.values))
                spellings.update(dict.fromkeys(shape.values))
            else:
                raise NotRegular("uniqueItems with values without end", "", "uniqueItems")
        if sum(spelling[0] in "-0123456789" for spelling in spellings) != len(numbers):
            raise NotRegular("uniqueItems with two spellings of a number", "", "uniqueItems")
        return [literal(spelling) for spelling in spellings]

    def _members(self, shape: ObjectShape) -> Piece:
        """What stands between the braces of an object."""
        properties = shape.properties
        required = [index for index, member in enumerate(properties) if member.required]
        most_extras = self._most_extras(shape, len(required))
        # Extras are one more member behind the listed ones: at least one, or none of them.
        members = [self._property(member) for member in properties]
        is_optional = [not member.required for member in properties]
        if shape.extras and most_extras != 0:
            members.append(self._items.list_of(self._extra(shape), 1, most_extras))
            is_optional.append(True)
        if required:
            anchor = required[0]
            pieces = [
                repeat(sequence(member, self._item_separator), 0, 1) for member in members[:anchor]
            ]
            pieces.append(members[anchor])
            pieces.append(self._following(members[anchor + 1 :], is_optional[anchor + 1 :]))
            return sequence(*pieces)
        if not members:
            return _NOTHING
        if len(members) > MAX_OPTIONAL:
            raise NotRegular(f"more than {MAX_OPTIONAL} properties, none of them required")
        return repeat(self._some_of(members), min(shape.min_properties, 1), 1)

    def _most_extras(self, shape: ObjectShape, num_required: int) -> int | None:
        """How many extras there may be; the bounds on the number of properties say no more."""
        if shape.min_properties > max(num_required, 1):
            raise NotRegular("a least number of properties", keyword="minProperties")
        if shape.max_properties is None:
            return None
        if num_required == len(shape.properties):
            return shape.max_properties - num_required
        if shape.extras or shape.max_properties < len(shape.properties):
            raise NotRegular("a greatest number of properties", keyword="maxProperties")
        return None

    def _property(self, member: Property) -> Piece:
        return sequence(
            literal(_spelled(member.name)), self._key_separator, self._rule(member.rule)
        )

    def _extra(self, shape: ObjectShape) -> Piece:
        return union(
            [
                sequence(self._string(extra.keys), self._key_separator, self._rule(extra.rule))
                for extra in shape.extras
            ]
        )

    def _following(self, members: Sequence[Piece], is_optional: Sequence[bool]) -> Piece:
        """Members behind another one."""
        return sequence(
            *[
                repeat(sequence(self._item_separator, member), 0 if optional else 1, 1)
                for member, optional in zip(members, is_optional, strict=True)
            ]
        )

    def _some_of(self, members: Sequence[Piece]) -> Piece:
        """At least one of the members, in their order; each is written log2(n) times."""
        if len(members) == 1:
            return members[0]
        middle = len(members) // 2
        behind = members[middle:]
        return union(
            [
                sequence(
                    self._some_of(members[:middle]), self._following(behind, [True] * len(behind))
                ),
                self._some_of(behind),
            ]
        )


def _spelled(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise NotRegular("a lone surrogate, which UTF-8 cannot hold")
    return json.dumps(text, ensure_ascii=False)
