"""Schemas to normal form, keyword by keyword and dialect by dialect."""

from __future__ import annotations

from typing import Any

import pytest

from specrt.grammars.schema.arrange import arrange, contains
from specrt.grammars.schema.expand import ImpossibleError, normalise
from specrt.grammars.schema.normal import ArrayShape, NormalSchema, ObjectShape, StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

DRAFT4 = "http://json-schema.org/draft-04/schema#"
DRAFT7 = "http://json-schema.org/draft-07/schema#"
DRAFT2019 = "https://json-schema.org/draft/2019-09/schema"


def strictly(schema: Any, dialect: str | None = None) -> NormalSchema:
    return normalise(schema, strict=True, dialect=dialect)


def names(normal: NormalSchema) -> list[str]:
    """The properties of the root's first object shape."""
    shapes = normal.rules[normal.root].shapes
    first = next(shape for shape in shapes if isinstance(shape, ObjectShape))
    return [item.name for item in first.properties]


CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [None, 1, "a", [], {}], []),
    ({}, [None, 1, "a", [1, "a"], {"a": {}}], []),
    ({"type": ["string", "null"]}, ["a", None], [1, []]),
    ({"type": "integer", "minimum": 1, "exclusiveMaximum": 3}, [1, 2], [0, 3, 1.5]),
    ({"multipleOf": 0.01}, [0.07, 3, "a"], [0.005]),
    ({"type": "integer", "enum": [1, 2.5, "a", 3.0]}, [1, 3], [2.5, "a"]),
    ({"enum": [1, None, "a", [1], {"a": 1}]}, [1, None, [1], {"a": 1}], [True, [1, 1], {"a": 2}]),
    ({"const": {"a": [True], "b": {}}}, [{"a": [True], "b": {}}], [{"a": [1], "b": {}}, {}]),
    ({"not": {"const": {"a": 1}}}, [{}, {"a": 2}, {"a": 1, "b": 1}, 1], [{"a": 1}]),
    ({"not": {"const": [1, 2]}}, [[1], [1, 3], [1, 2, 3]], [[1, 2]]),
    ({"not": {"enum": ["a", 1, True, None]}}, ["b", 0, False, []], ["a", 1, True, None]),
    ({"minLength": 1, "maxLength": 2, "pattern": "^a"}, ["a", "ab", 1], ["", "abc", "b"]),
    ({"not": {"pattern": "^a"}, "type": "string"}, ["b", ""], ["a", 1]),
    (
        {"properties": {"a": {"type": "string"}}, "required": ["a", "b"]},
        [{"a": "", "b": 1}, 1],
        [{"a": ""}, {"a": 1, "b": 1}],
    ),
    (
        {"patternProperties": {"^x": {"type": "string"}}, "additionalProperties": False},
        [{}, {"x": "", "xa": ""}],
        [{"x": 1}, {"a": 1}],
    ),
    (
        {"properties": {"xa": {"minLength": 1}}, "patternProperties": {"^x": {"maxLength": 1}}},
        [{"xa": "a"}, {"xb": ""}, {"b": "bbb"}],
        [{"xa": ""}, {"xa": "aa"}, {"xb": "bb"}],
    ),
    ({"propertyNames": {"pattern": "^a"}}, [{}, {"a": 1}], [{"b": 1}]),
    ({"propertyNames": {"enum": ["a", "b"]}, "minProperties": 2}, [{"a": 1, "b": 1}], [{"a": 1}]),
    ({"minProperties": 1, "maxProperties": 2}, [{"a": 1}], [{}, {"a": 1, "b": 1, "c": 1}]),
    ({"prefixItems": [{"const": 1}], "items": {"const": 2}}, [[], [1], [1, 2]], [[2], [1, 1]]),
    ({"items": {"type": "string"}, "minItems": 1, "maxItems": 2}, [["a"]], [[], [1], ["a"] * 3]),
    ({"contains": {"const": 1}}, [[1], [2, 1]], [[], [2]]),
    ({"contains": {"const": 1}, "minContains": 0, "maxContains": 1}, [[], [1, 2]], [[1, 1]]),
    ({"contains": {"const": 1}, "maxItems": 2, "prefixItems": [{}]}, [[1], [2, 1]], [[2, 2]]),
    ({"not": {"contains": {"const": 1}}}, [[], [2]], [[1], [2, 1], 1]),
    ({"not": {"items": {"const": 1}}}, [[2], [1, 2]], [[], [1], 3]),
    ({"items": {"type": "boolean"}, "uniqueItems": True}, [[], [True, False]], [[True, True]]),
    ({"items": {"enum": ["a", 1]}, "uniqueItems": True}, [["a", 1]], [["a", "a"], [1] * 3]),
    ({"uniqueItems": True, "maxItems": 1}, [[], [{}]], [[1, 2]]),
    ({"anyOf": [{"type": "string"}, {"minimum": 3}]}, ["a", 3, None], [2]),
    (
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
        [{"a": 1}, {"b": 1, "c": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}], "type": "integer"}, [2, 3], [1, 6]),
    ({"not": {"oneOf": [{"minimum": 1}, {"minimum": 2}]}, "type": "number"}, [0, 2, 3], [1]),
    (
        {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "else": False},
        [{"b": 1}, {"a": 1, "b": 1}],
        [{}, {"a": 1}, {"a": 2}],
    ),
    ({"not": {"if": {"minimum": 1}, "then": {"maximum": 2}}, "type": "number"}, [3], [0, 1, 2]),
    ({"dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}, 1], [{"a": 1}]),
    (
        {"dependentSchemas": {"a": {"properties": {"b": {"const": 1}}, "required": ["b"]}}},
        [{}, {"b": 2}, {"a": 1, "b": 1}],
        [{"a": 1}, {"a": 1, "b": 2}],
    ),
    (
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
        [{}, {"a": 1}],
        [{"b": 1}, {"a": 1, "b": 1}],
    ),
    (
        {
            "anyOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {}}}],
            "unevaluatedProperties": False,
        },
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 2}, {"a": 2, "b": 1}, {"c": 1}],
    ),
    ({"prefixItems": [{}], "unevaluatedItems": {"const": 2}}, [[1], [1, 2]], [[1, 1]]),
    ({"contains": {"const": 1}, "unevaluatedItems": {"const": 2}}, [[1], [2, 1]], [[2], [1, 3]]),
    (
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "array", "items": {"$ref": "#"}}}},
        [[], [[], [[]]]],
        [1, [1]],
    ),
    (
        {
            "$ref": "#tree",
            "$defs": {"t": {"$anchor": "tree", "items": {"$ref": "#tree"}, "type": "array"}},
        },
        [[[]]],
        [[1]],
    ),
    (
        {
            "$id": "http://example.com/root",
            "properties": {"a": {"$ref": "other#/$defs/x"}},
            "$defs": {"o": {"$id": "other", "$defs": {"x": {"type": "string"}}}},
        },
        [{"a": ""}],
        [{"a": 1}],
    ),
    (
        {
            "$id": "http://example.com/tree",
            "$dynamicAnchor": "node",
            "properties": {"child": {"$dynamicRef": "#node"}, "x": {"type": "string"}},
        },
        [{"child": {"child": {"x": ""}}}],
        [{"child": {"x": 1}}],
    ),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}}, [{"a": {"a": {}}}], [{"a": 1}]),
    ({"title": "t", "nullable": True, "type": "string", "x-a": 1}, ["a"], [None]),
    ({"type": "string", "format": "int32"}, ["a"], []),
    ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29", "a"]),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES)
def test_keywords(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    normal = strictly(schema)
    assert normal.findings == ()
    assert [value for value in valid if not contains(normal, value)] == []
    assert [value for value in invalid if contains(normal, value)] == []


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"$schema": DRAFT4, "type": "string", "format": "hostname"}, ["ab--c"], ["a..b"]),
        ({"type": "string", "format": "hostname"}, ["a--b"], ["ab--c"]),
        ({"$schema": DRAFT4, "minimum": 1, "exclusiveMinimum": True}, [2], [1]),
        ({"$schema": DRAFT4, "id": "http://a.b/", "$ref": "#/definitions/a",
          "definitions": {"a": {"type": "string"}}}, ["a"], [1]),
        ({"$schema": DRAFT4, "const": 1}, [2], []),
        ({"$schema": DRAFT7, "items": [{"const": 1}], "additionalItems": False}, [[1]], [[1, 1]]),
        ({"$schema": DRAFT7, "items": [{"const": 1}]}, [[1, 2]], [[2]]),
        ({"$schema": DRAFT7, "dependencies": {"a": ["b"]}}, [{"b": 1}], [{"a": 1}]),
        ({"$schema": DRAFT7, "$ref": "#/definitions/a", "maxLength": 1,
          "definitions": {"a": {"type": "string"}}}, ["aaa"], [1]),
        ({"$schema": DRAFT7, "dependentRequired": {"a": ["b"]}}, [{"a": 1}], []),
        ({"$schema": DRAFT2019, "$ref": "#/$defs/a", "maxLength": 1,
          "$defs": {"a": {"type": "string"}}}, ["a"], [1, "aaa"]),
        ({"$schema": DRAFT2019, "$recursiveAnchor": True, "type": "object",
          "additionalProperties": {"$recursiveRef": "#"}}, [{"a": {}}], [{"a": 1}]),
    ],
)  # fmt: skip
def test_dialects(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    normal = strictly(schema)
    assert [value for value in valid if not contains(normal, value)] == []
    assert [value for value in invalid if contains(normal, value)] == []


def test_dialect_of_a_schema_without_one() -> None:
    schema = {"items": [{"type": "string"}]}
    assert not contains(strictly(schema, "draft7"), [1])
    assert not contains(strictly(schema, DRAFT4), [1])
    with pytest.raises(UnsupportedError, match="unknown dialect"):
        strictly(schema, "draft5000")


def test_order_of_properties() -> None:
    base = {"properties": {"z": {}, "a": {}}, "required": ["q"]}
    schema = {
        "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"m": {}, "z": {"type": "string"}},
        "required": ["first", "m"],
        "$defs": {"base": base},
    }
    assert names(strictly(base)) == ["z", "a", "q"]
    assert names(strictly(schema)) == ["m", "z", "a", "first", "q"]
    value = {"q": 1, "z": "", "first": 1, "m": 1, "other": 1}
    assert list(arrange(strictly(schema), value)) == ["m", "z", "first", "q", "other"]  # type: ignore[call-overload]


def test_shared_rules() -> None:
    schema = {"properties": {name: {"type": "string", "title": name} for name in "abcd"}}
    normal = strictly({**schema, "type": "object", "additionalProperties": False})
    assert len(normal.rules) == 2
    assert [rule.shapes for rule in normal.rules.values()][1:] == [(StringSet(),)]


def test_what_has_no_finite_value_is_left_out() -> None:
    endless = {"type": "object", "required": ["e"], "properties": {"e": {"$ref": "#/$defs/e"}}}
    schema = {
        "type": "object",
        "properties": {"e": {"$ref": "#/$defs/e"}, "s": {"type": "string"}},
        "$defs": {"e": endless},
    }
    assert names(strictly(schema)) == ["s"]
    array = strictly({"type": "array", "items": {"$ref": "#/$defs/e"}, "$defs": {"e": endless}})
    assert array.rules[array.root].shapes == (ArrayShape((), None, 0, 0),)
    with pytest.raises(ImpossibleError) as caught:
        strictly({**schema, "required": ["e"]})
    assert caught.value.pointer == "/$defs/e"


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "string", "enum": [1, 2]},
        {"type": "object", "required": ["a"], "properties": {"a": False}},
        {"allOf": [{"type": "string"}, {"type": "number"}]},
        {"type": "integer", "minimum": 1, "maximum": 0},
        {"type": "array", "minItems": 2, "maxItems": 1},
        {"type": "array", "items": {"enum": ["a"]}, "uniqueItems": True, "minItems": 2},
    ],
)
def test_impossible(schema: Any) -> None:
    for strict in (True, False):
        with pytest.raises(ImpossibleError):
            normalise(schema, strict=strict)


REFUSED: list[tuple[Any, str, str]] = [
    ({"$ref": "#"}, "/$ref", "$ref"),
    ({"$ref": "#/nowhere"}, "/$ref", "$ref"),
    ({"$ref": "http://example.com/a.json"}, "/$ref", "$ref"),
    ({"anyOf": [{"$ref": "#"}, {}]}, "/anyOf/0/$ref", "$ref"),
    ({"properties": {"a": {"uniqueItems": True}}}, "/properties/a/uniqueItems", "uniqueItems"),
    ({"minProperties": 2}, "/minProperties", "minProperties"),
    ({"pattern": r"(a)\1"}, "/pattern", "pattern"),
    ({"patternProperties": {r"\ba": {}}}, "/patternProperties", "patternProperties"),
    ({"format": "regex"}, "/format", "format"),
    ({"not": {"format": "date"}}, "/not", "not"),
    ({"oneOf": [{"format": "date"}, {"format": "time"}]}, "/oneOf", "oneOf"),
    ({"not": {"uniqueItems": True}}, "/not", "not"),
    ({"if": {"format": "date"}, "then": {"maxLength": 1}}, "/if", "if"),
    ({"not": {"properties": {"a": {"format": "date"}}}}, "/not", "not"),
    (
        {"not": {"patternProperties": {"^a": {"const": 1}}}},
        "/not",
        "not",
    ),
    (
        {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(5)]} for i in range(9)]},
        "/allOf",
        "allOf",
    ),
]


@pytest.mark.parametrize(("schema", "pointer", "keyword"), REFUSED)
def test_refused(schema: Any, pointer: str, keyword: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        strictly(schema)
    assert (caught.value.pointer, caught.value.keyword) == (pointer, keyword)
    assert caught.value.reason


@pytest.mark.parametrize(("schema", "pointer", "keyword"), REFUSED)
def test_lenient_accepts_more_and_says_so(schema: Any, pointer: str, keyword: str) -> None:
    del keyword
    normal = normalise(schema, strict=False)
    assert pointer in [finding.pointer for finding in normal.findings]
    assert all(finding.reason for finding in normal.findings)


def test_lenient_keeps_what_can_be_enforced() -> None:
    schema = {
        "type": "array",
        "items": {"type": "string", "pattern": r"\bword", "maxLength": 3},
        "uniqueItems": True,
    }
    normal = normalise(schema, strict=False)
    assert {f.keyword for f in normal.findings} == {"pattern", "uniqueItems"}
    assert contains(normal, ["abc", "abc"])
    assert not contains(normal, ["abcd"])
    either = {"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "time"}]}
    assert not contains(normalise(either, strict=False), 1)


def test_annotations_are_named() -> None:
    schema = {
        "title": "not worth a word",
        "properties": {"a": {"type": "string", "format": "int32", "nullable": True}},
        "divisibleBy": 2,
    }
    assert set(strictly(schema).annotations) == {
        "/properties/a/format",
        "/properties/a/nullable",
        "/divisibleBy",
    }


def test_pydantic_and_zod() -> None:
    pydantic = {
        "$defs": {
            name.title(): {
                "properties": {"kind": {"const": name}}, "required": ["kind"], "type": "object",
            }
            for name in ("cat", "dog")
        },
        "properties": {
            "pet": {
                "discriminator": {"mapping": {"cat": "#/$defs/Cat"}, "propertyName": "kind"},
                "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            },
            "age": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "other": {"allOf": [{"$ref": "#/$defs/Cat"}], "description": "d"},
            "pair": {
                "maxItems": 2, "minItems": 2, "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
            },
        },
        "required": ["pet"],
        "type": "object",
        "additionalProperties": False,
    }  # fmt: skip
    normal = strictly(pydantic)
    assert names(normal) == ["pet", "age", "other", "pair"]
    assert contains(normal, {"pet": {"kind": "dog"}, "age": None, "pair": [1, "a"]})
    assert not contains(normal, {"pet": {"kind": "cow"}})
    assert not contains(normal, {"pet": {"kind": "cat"}, "pair": [1]})
    assert not contains(normal, {"pet": {"kind": "cat"}, "other": {"kind": "dog"}})


def test_a_discriminated_union_stays_small() -> None:
    branches = [
        {
            "if": {"properties": {"kind": {"const": k}}, "required": ["kind"]},
            "then": {"required": [k]},
        }
        for k in "abcdefgh"
    ]
    normal = strictly({"type": "object", "allOf": branches})
    assert len(normal.rules[normal.root].shapes) <= 10
    assert contains(normal, {"kind": "c", "c": 1})
    assert not contains(normal, {"kind": "c", "d": 1})


def test_hostile_schemas_end_early() -> None:
    laughs: dict[str, Any] = {
        f"d{i}": {"properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "abcdefgh"}}
        for i in range(40)
    }
    laughs["d40"] = {"type": "string"}
    assert len(strictly({"$ref": "#/$defs/d0", "$defs": laughs}).rules) < 50
    chain: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}
    chain["d3000"] = {"type": "string"}
    with pytest.raises(UnsupportedError):
        strictly({"$ref": "#/$defs/d0", "$defs": chain})
    many = {"contains": {"enum": list(range(5))}, "maxItems": 6}
    with pytest.raises(UnsupportedError):
        strictly({"allOf": [{**many, "contains": {"const": i}} for i in range(12)]})
