from __future__ import annotations

import pytest

from specrt.grammars.schema.arrange import contains
from specrt.grammars.schema.closing import closed, says_open
from specrt.grammars.schema.expand import normalise

LISTED = {"type": "object", "properties": {"a": {"type": "integer"}}}


def is_closed(schema, value):
    return not contains(closed(normalise(schema, strict=True)), value)


@pytest.mark.parametrize(
    "schema",
    [
        LISTED,
        {"allOf": [LISTED, {"properties": {"c": {"type": "integer"}}}]},
        {"$ref": "#/$defs/x", "$defs": {"x": LISTED}},
        {**LISTED, "not": {"required": ["d"]}},
        {"anyOf": [LISTED, {"type": "object", "properties": {"e": {}}}]},
    ],
)
def test_what_is_not_mentioned_is_not_written(schema):
    assert contains(normalise(schema, strict=True), {"a": 1, "b": 2})
    assert is_closed(schema, {"a": 1, "b": 2})
    assert not is_closed(schema, {"a": 1})
    assert not is_closed(schema, {})


def test_parts_of_an_all_of_are_closed_together():
    schema = {"allOf": [LISTED, {"properties": {"c": {"type": "integer"}}}]}
    assert not is_closed(schema, {"a": 1, "c": 2})


def test_nested_objects_are_closed_too():
    schema = {"type": "object", "properties": {"x": LISTED, "free": {"type": "object"}}}
    assert is_closed(schema, {"x": {"b": 1}})
    assert not is_closed(schema, {"x": {"a": 1}, "free": {"anything": [1]}})


@pytest.mark.parametrize(
    "more",
    [
        {"additionalProperties": {"type": "string"}},
        {"patternProperties": {"^b": {}}, "additionalProperties": False},
        {"required": ["a"], "minProperties": 2},
        {"propertyNames": {"maxLength": 3}},
    ],
)
def test_what_the_schema_says_of_others_stays(more):
    assert not is_closed({**LISTED, **more}, {"a": 1, "b": "x"})


def test_recursion_stays():
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert not is_closed(schema, {"next": {"next": {}}})
    assert is_closed(schema, {"next": {"other": 1}})


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (LISTED, False),
        ({**LISTED, "additionalProperties": False}, False),
        ({**LISTED, "additionalProperties": {"type": "string"}}, False),
        ({**LISTED, "additionalProperties": True}, True),
        ({"properties": {"x": {**LISTED, "additionalProperties": {}}}}, True),
        ({"anyOf": [LISTED, {"unevaluatedProperties": True}]}, True),
        ({"properties": {"additionalProperties": {"type": "boolean"}}}, False),
        (True, False),
    ],
)
def test_an_author_who_says_open_means_it(schema, expected):
    assert says_open(schema) is expected
