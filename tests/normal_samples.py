"""Random schemas in normal form, values for them, and what the normal form says about a value.

Values are as `parse` makes them: objects are lists of pairs, numbers keep their spelling.
"""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

from specrt.grammars.schema.normal import (
    ArrayShape,
    BooleanShape,
    Contains,
    Extra,
    NormalSchema,
    NullShape,
    ObjectShape,
    Property,
    Rule,
    Shape,
)
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet

NAMES = ["a", "b", 'q"\\', "é", "tab\t", "{}[].*", "x y", "", "\x01"]
WORDS = ["red", "été", 'say "hi"', "line\nbreak", "", "a|b", "$^.*[]"]


class Number(str):
    """A number as it is spelled."""


class Members(list[tuple[str, Any]]):
    """An object."""


def parse(text: str) -> Any:
    """Read JSON. Raises ValueError."""
    return json.loads(
        text,
        object_pairs_hook=Members,
        parse_int=Number,
        parse_float=Number,
        parse_constant=lambda name: json.loads("!"),
    )


def write(value: Any, item: str = ", ", key: str = ": ") -> str:
    """Spell a value in the one way."""
    if isinstance(value, Members):
        return "{" + item.join(f"{write(n)}{key}{write(v, item, key)}" for n, v in value) + "}"
    if isinstance(value, list):
        return "[" + item.join(write(v, item, key) for v in value) + "]"
    if isinstance(value, Number):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def allows(schema: NormalSchema, rule_id: int, value: Any) -> bool:
    """Does a rule allow a value?"""
    return any(_allows(schema, shape, value) for shape in schema.rules[rule_id].shapes)


def _allows(schema: NormalSchema, shape: Shape, value: Any) -> bool:
    if isinstance(shape, NullShape):
        return value is None
    if isinstance(shape, BooleanShape):
        return isinstance(value, bool) and value in shape.values
    if isinstance(shape, NumberSet):
        if not isinstance(value, Number):
            return False
        if shape.values is not None:
            return value in shape.values
        is_integer = value.lstrip("-").isdigit() and value != "-0"
        return is_integer and len(value.lstrip("-")) <= 64 and shape.contains(Fraction(value))
    if isinstance(shape, StringSet):
        return isinstance(value, str) and not isinstance(value, Number) and shape.contains(value)
    if isinstance(shape, ArrayShape):
        return type(value) is list and _allows_items(schema, shape, value)
    return isinstance(value, Members) and _allows_members(schema, shape, value)


def _allows_items(schema: NormalSchema, shape: ArrayShape, items: list[Any]) -> bool:
    most = len(items) if shape.max_items is None else shape.max_items
    if not shape.min_items <= len(items) <= most:
        return False
    if shape.rest is None and len(items) > len(shape.prefix):
        return False
    rules = [*shape.prefix, *[shape.rest] * len(items)][: len(items)]
    if not all(allows(schema, rule, item) for rule, item in zip(rules, items, strict=True)):
        return False
    if shape.distinct and len({write(item) for item in items}) < len(items):
        return False
    if shape.contains is not None:
        hits = sum(allows(schema, shape.contains.hit, item) for item in items)
        high = len(items) if shape.contains.maximum is None else shape.contains.maximum
        return shape.contains.minimum <= hits <= high
    return True


def _allows_members(schema: NormalSchema, shape: ObjectShape, members: Members) -> bool:
    names = [name for name, _ in members]
    listed = [member for member in shape.properties if member.name in names]
    if names[: len(listed)] != [member.name for member in listed]:
        return False
    if any(member.required and member not in listed for member in shape.properties):
        return False
    for member, (_, value) in zip(listed, members, strict=False):
        if not allows(schema, member.rule, value):
            return False
    for name, value in members[len(listed) :]:
        extra = next((extra for extra in shape.extras if extra.keys.contains(name)), None)
        if extra is None or not allows(schema, extra.rule, value):
            return False
    most = len(members) if shape.max_properties is None else shape.max_properties
    return shape.min_properties <= len(members) <= most


class SchemaMaker:
    """Makes a random schema that the regular engine takes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._rules: dict[int, Rule] = {}

    def schema(self, levels: int = 3) -> NormalSchema:
        root = self._rule(levels)
        return NormalSchema(rules=self._rules, root=root)

    def _rule(self, levels: int) -> int:
        rng = self._rng
        if self._rules and levels < 3 and rng.random() < 0.1:
            return max(self._rules)  # the rule written last is whole: no recursion
        count = rng.choice([1, 1, 1, 2, 3])
        return self._add(*[self._shape(levels) for _ in range(count)])

    def _add(self, *shapes: Shape) -> int:
        rule_id = len(self._rules)
        self._rules[rule_id] = Rule(pointer=f"/{rule_id}", shapes=shapes)
        return rule_id

    def _shape(self, levels: int) -> Shape:
        rng = self._rng
        kinds = ["null", "boolean", "number", "string"] + ["array", "object"] * 2 * (levels > 0)
        kind = rng.choice(kinds)
        if kind == "null":
            return NullShape()
        if kind == "boolean":
            return BooleanShape(frozenset(rng.sample([True, False], rng.randint(1, 2))))
        if kind == "number":
            if rng.random() < 0.5:
                return NumberSet(values=tuple(rng.sample(["1", "1.5", "-7", "1e+16", "12"], 3)))
            low = rng.randint(-50, 50)
            high = Fraction(low + rng.randint(0, 200)) if rng.random() < 0.7 else None
            return NumberSet(is_integer=True, minimum=Fraction(low), maximum=high)
        if kind == "string":
            if rng.random() < 0.5:
                return StringSet(values=tuple(rng.sample(WORDS, rng.randint(1, 4))))
            low = rng.randint(0, 2)
            high = rng.choice([None, low, low + 3])
            return StringSet(min_length=low, max_length=high)
        return self._array(levels - 1) if kind == "array" else self._object(levels - 1)

    def _array(self, levels: int) -> ArrayShape:
        rng = self._rng
        if rng.random() < 0.2:
            values = tuple(rng.sample(WORDS, 2))
            rest = self._add(StringSet(values=values), NullShape(), BooleanShape(frozenset([True])))
            high = rng.choice([None, 1, 2, 3])
            return ArrayShape((), rest, rng.randint(0, 1), high, distinct=True)
        if rng.random() < 0.2:
            hit = self._add(StringSet(values=("red", "a|b")))
            miss = self._add(NullShape(), NumberSet(values=("1",)))
            both = self._add(*self._rules[hit].shapes, *self._rules[miss].shapes)
            low = rng.randint(0, 2)
            high = rng.choice([None, low, low + 1])
            return ArrayShape(
                (), both, 0, None, Contains(hit, None if high is None else miss, low, high)
            )
        prefix = tuple(self._rule(levels) for _ in range(rng.choice([0, 0, 1, 2, 3])))
        rest = self._rule(levels) if rng.random() < 0.7 else None
        longest = len(prefix) if rest is None else len(prefix) + 3
        low = rng.randint(0, longest)
        high = rng.randint(low, longest) if rng.random() < 0.5 or rest is None else None
        return ArrayShape(prefix, rest, low, high)

    def _object(self, levels: int) -> ObjectShape:
        rng = self._rng
        names = rng.sample(NAMES, rng.randint(0, 5))
        p_required = rng.choice([0, 0.5, 1])
        properties = tuple(
            Property(name, self._rule(levels), rng.random() < p_required) for name in names
        )
        num_required = sum(member.required for member in properties)
        extras: tuple[Extra, ...] = ()
        if rng.random() < 0.3:
            keys = StringSet(excluded_values=frozenset(names))
            extras = (Extra(keys, self._rule(levels)),)
        low, high = 0, None
        if not num_required and properties and rng.random() < 0.3:
            low = 1
        if num_required == len(properties) and rng.random() < 0.3:
            high = num_required + rng.randint(0, 2)
            low = min(low, high)
        return ObjectShape(properties, extras, low, high)


class ValueMaker:
    """Makes random values that a schema allows, most of the time."""

    def __init__(self, rng: random.Random, schema: NormalSchema) -> None:
        self._rng = rng
        self._schema = schema

    def value(self, rule_id: int) -> Any:
        rng = self._rng
        shape = rng.choice(self._schema.rules[rule_id].shapes)
        if isinstance(shape, NullShape):
            return None
        if isinstance(shape, BooleanShape):
            return rng.choice(sorted(shape.values))
        if isinstance(shape, NumberSet):
            if shape.values is not None:
                return Number(rng.choice(shape.values))
            low = int(shape.minimum or 0)
            high = low + 10 ** rng.randint(1, 17) if shape.maximum is None else int(shape.maximum)
            return Number(rng.randint(low, high))
        if isinstance(shape, StringSet):
            if shape.values is not None:
                return rng.choice(shape.values)
            return self._text(shape)
        if isinstance(shape, ArrayShape):
            return self._items(shape)
        members = Members()
        p_there = rng.random()
        for member in shape.properties:
            if member.required or rng.random() < p_there:
                members.append((member.name, self.value(member.rule)))
        while shape.extras and rng.random() < 0.5:
            extra = rng.choice(shape.extras)
            members.append((self._text(extra.keys), self.value(extra.rule)))
        return members

    def _text(self, strings: StringSet) -> str:
        rng = self._rng
        longest = strings.min_length + 5 if strings.max_length is None else strings.max_length
        count = rng.randint(strings.min_length, longest)
        return "".join(rng.choices('ab "\\/\n\x00\x1f\x7fé\u2028日\U0001f600{}', k=count))

    def _items(self, shape: ArrayShape) -> list[Any]:
        rng = self._rng
        longest = shape.min_items + 3 if shape.max_items is None else shape.max_items
        if shape.rest is None:
            longest = min(longest, len(shape.prefix))
        rules = [*shape.prefix, *[shape.rest] * longest][: rng.randint(shape.min_items, longest)]
        return [self.value(rule) for rule in rules if rule is not None]


def spoil(rng: random.Random, value: Any) -> Any:
    """Another value: something swapped, dropped, doubled or replaced somewhere in it."""
    if isinstance(value, list) and value and rng.random() < 0.8:
        changed = type(value)(value)
        place = rng.randrange(len(changed))
        action = rng.choice(["drop", "double", "swap", "inside", "inside"])
        if action == "drop":
            del changed[place]
        elif action == "double":
            changed.insert(rng.randint(0, len(changed)), changed[place])
        elif action == "swap":
            changed[0], changed[place] = changed[place], changed[0]
        elif isinstance(value, Members):
            name, inner = changed[place]
            changed[place] = (
                (rng.choice(NAMES), inner) if rng.random() < 0.3 else (name, spoil(rng, inner))
            )
        else:
            changed[place] = spoil(rng, changed[place])
        return changed
    if isinstance(value, str) and not isinstance(value, Number) and rng.random() < 0.5:
        return value + rng.choice(["x", '"', "\n", ""])
    return rng.choice([None, True, False, Number("1"), Number("-51"), "red", "", [], Members()])
