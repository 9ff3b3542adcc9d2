"""The reference semantics of the normal form, on rules written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from specrt.grammars.schema.arrange import arrange, contains
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
from specrt.grammars.schema.pattern import Pattern
from specrt.grammars.schema.string_set import StringSet

STRING, INTEGER, ANY_BOOLEAN = 1, 2, 3


def schema(*shapes: Shape) -> NormalSchema:
    """A root of some shapes, beside rules for strings, integers and booleans."""
    rules = {
        0: Rule("", shapes),
        STRING: Rule("/string", (StringSet(),)),
        INTEGER: Rule("/integer", (NumberSet(is_integer=True),)),
        ANY_BOOLEAN: Rule("/boolean", (BooleanShape(frozenset((False, True))),)),
    }
    return NormalSchema(rules, 0)


@pytest.mark.parametrize(
    ("shape", "inside", "outside"),
    [
        (NullShape(), [None], [False, 0, "", [], {}]),
        (BooleanShape(frozenset((True,))), [True], [False, 1, None]),
        (NumberSet(is_integer=True), [0, -5], [0.5, 1.0, True, "0"]),
        (NumberSet(), [0, 1.0, 0.5], [True, "0"]),
        (NumberSet(values=("1", "2.5")), [1, 2.5], [2, True]),
        (StringSet(min_length=2), ["ab"], ["a", 2]),
        (ArrayShape((), STRING), [[], ["a", "b"]], [["a", 1], "a", {}]),
        (ArrayShape((STRING, INTEGER), None, 1, 2), [["a"], ["a", 1]], [[], [1], ["a", 1, 2]]),
        (ArrayShape((), INTEGER, 1, 2), [[1], [1, 1]], [[], [1, 2, 3]]),
        (ArrayShape((), ANY_BOOLEAN, 0, 2, distinct=True), [[True, False]], [[True, True]]),
    ],
)
def test_shapes(shape: Shape, inside: list[Any], outside: list[Any]) -> None:
    normal = schema(shape)
    assert [value for value in inside if not contains(normal, value)] == []
    assert [value for value in outside if contains(normal, value)] == []


def test_objects_are_arranged_in_the_order_of_the_shape() -> None:
    extra = Extra(StringSet(patterns=(Pattern("^x"),)), INTEGER)
    properties = (Property("b", STRING, True), Property("a", INTEGER, False))
    normal = schema(ObjectShape(properties, (extra,)))
    found = arrange(normal, {"x2": 2, "a": 1, "x1": 1, "b": ""})
    assert isinstance(found, dict)
    assert list(found.items()) == [("b", ""), ("a", 1), ("x2", 2), ("x1", 1)]
    for value in ({"a": 1}, {"b": 1}, {"b": "", "y": 1}, {"b": "", "x": ""}):
        assert arrange(normal, value) is None


def test_number_of_properties() -> None:
    normal = schema(ObjectShape((), (Extra(StringSet(), STRING),), 1, 2))
    assert contains(normal, {"a": ""})
    assert not contains(normal, {})
    assert not contains(normal, {"a": "", "b": "", "c": ""})


def test_contains_counts_hits() -> None:
    at_most_one = schema(ArrayShape((), INTEGER, contains=Contains(STRING, INTEGER, 1, 1)))
    assert contains(at_most_one, [1, "a", 2])
    assert not contains(at_most_one, [1])
    assert not contains(at_most_one, ["a", "b"])
    assert not contains(at_most_one, ["a", True])


def test_the_first_shape_that_fits_arranges() -> None:
    first = ObjectShape((Property("a", STRING, False), Property("b", INTEGER, True)))
    second = ObjectShape((Property("b", STRING, True), Property("a", STRING, False)))
    normal = schema(first, second)
    assert list(arrange(normal, {"b": "", "a": ""}) or ()) == ["b", "a"]  # type: ignore[call-overload]
    assert list(arrange(normal, {"b": 1, "a": ""}) or ()) == ["a", "b"]  # type: ignore[call-overload]


def test_null_is_told_apart_from_absent() -> None:
    assert arrange(schema(NullShape()), None) is None
    assert contains(schema(NullShape()), None)
    assert not contains(schema(StringSet()), None)
