"""What the normal form means: is a value in it, and how are its keys arranged?

A plain reference: slow, without any engine, to test engines and the front end against.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from specrt.grammars.schema.normal import (
    ArrayShape,
    BooleanShape,
    Contains,
    NormalSchema,
    NullShape,
    ObjectShape,
    RuleId,
    Shape,
)
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet


class Absent:
    """What `arrange` cannot give: the value is not in the normal form."""


_ABSENT = Absent()


def arrange(schema: NormalSchema, value: object) -> object | None:
    """The value with object keys in the order in which the grammar writes them.

    Args:
        schema: the normal form.
        value: a parsed JSON value.

    Returns:
        An equal value, or None when the normal form does not contain it. None too for a null that
        it contains: ask `contains`.
    """
    found = _arranged(schema, schema.root, value)
    return None if isinstance(found, Absent) else found


def contains(schema: NormalSchema, value: object) -> bool:
    """Is a value in the normal form?"""
    return not isinstance(_arranged(schema, schema.root, value), Absent)


def _arranged(schema: NormalSchema, rule: RuleId, value: object) -> object:
    for shape in schema.rules[rule].shapes:
        found = _in_shape(schema, shape, value)
        if not isinstance(found, Absent):
            return found
    return _ABSENT


def _in_shape(schema: NormalSchema, shape: Shape, value: object) -> object:
    is_in = False
    if isinstance(shape, NullShape):
        is_in = value is None
    elif isinstance(shape, BooleanShape):
        is_in = isinstance(value, bool) and value in shape.values
    elif isinstance(shape, NumberSet):
        # Integers are written without a fraction, so that 1.0 is not among them.
        kinds = int if shape.is_integer else int | float | Decimal
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        is_in = is_number and shape.contains(value)  # type: ignore[arg-type]
    elif isinstance(shape, StringSet):
        is_in = isinstance(value, str) and shape.contains(value)
    elif isinstance(shape, ArrayShape):
        return _in_array(schema, shape, value) if isinstance(value, list) else _ABSENT
    else:
        return _in_object(schema, shape, value) if isinstance(value, dict) else _ABSENT
    return value if is_in else _ABSENT


def _in_object(schema: NormalSchema, shape: ObjectShape, value: dict[str, object]) -> object:
    if len(value) < shape.min_properties:
        return _ABSENT
    if shape.max_properties is not None and len(value) > shape.max_properties:
        return _ABSENT
    arranged: dict[str, object] = {}
    for item in shape.properties:
        if item.name in value:
            arranged[item.name] = _arranged(schema, item.rule, value[item.name])
        elif item.required:
            return _ABSENT
    for name, inner in value.items():
        if name not in arranged:
            rules = [extra.rule for extra in shape.extras if extra.keys.contains(name)]
            if not rules:
                return _ABSENT
            arranged[name] = _arranged(schema, rules[0], inner)
    return _ABSENT if any(isinstance(x, Absent) for x in arranged.values()) else arranged


def _in_array(schema: NormalSchema, shape: ArrayShape, value: list[object]) -> object:
    if len(value) < shape.min_items:
        return _ABSENT
    if shape.max_items is not None and len(value) > shape.max_items:
        return _ABSENT
    if len(value) > len(shape.prefix) and shape.rest is None:
        return _ABSENT
    if shape.distinct and any(_are_equal(*pair) for pair in _pairs(value)):
        return _ABSENT
    if shape.contains is not None:
        return _with_hits(schema, shape, shape.contains, value)
    arranged = []
    for index, item in enumerate(value):
        rule = shape.prefix[index] if index < len(shape.prefix) else shape.rest
        found = _ABSENT if rule is None else _arranged(schema, rule, item)
        if isinstance(found, Absent):
            return _ABSENT
        arranged.append(found)
    return arranged


def _with_hits(
    schema: NormalSchema, shape: ArrayShape, contains: Contains, value: list[object]
) -> object:
    arranged, num_hits = [], 0
    for item in value:
        found = _arranged(schema, contains.hit, item)
        if not isinstance(found, Absent):
            num_hits += 1
        else:
            rule = shape.rest if contains.miss is None else contains.miss
            found = _ABSENT if rule is None else _arranged(schema, rule, item)
        if isinstance(found, Absent):
            return _ABSENT
        arranged.append(found)
    is_enough = num_hits >= contains.minimum
    is_few = contains.maximum is None or num_hits <= contains.maximum
    return arranged if is_enough and is_few else _ABSENT


def _pairs(values: list[object]) -> Iterator[tuple[object, object]]:
    for index, left in enumerate(values):
        for right in values[index + 1 :]:
            yield left, right


def _are_equal(left: object, right: object) -> bool:
    """Equal as JSON: true is not 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)
