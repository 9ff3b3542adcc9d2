from __future__ import annotations

import json

import pytest

from specrt.errors import SchemaError
from specrt.grammars.schema_check import MAX_DEPTH, check_schema, validate_instance
from specrt.grammars.schema_walk import document_pointer, resolve_reference, subschemas


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


GOOD = [
    True,
    False,
    {},
    {"type": "object", "properties": {"$ref": {"type": "string"}, "$id": {"type": "string"}}},
    {"$defs": {"a/b": {"type": "string"}}, "$ref": "#/$defs/a~1b"},
    {"definitions": {"é x": {}}, "items": {"$ref": "#/definitions/%C3%A9%20x"}},
    {"properties": {"a": {"$ref": "#/properties/b/anyOf/1"}, "b": {"anyOf": [{}, {}]}}},
    {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]},
    {"default": {"$ref": "http://not.a.reference"}, "examples": [{"type": 5}]},
    {"enum": ["\u2028", "\U0001f600", None, 1.5, {"a": []}]},
    {"multipleOf": 10**9},
    nested(MAX_DEPTH - 3),
]


@pytest.mark.parametrize("schema", GOOD, ids=lambda s: json.dumps(s)[:40])
def test_sane_schemas_pass(schema):
    check_schema(schema, "tools")


def loop():
    value = {}
    value["items"] = value
    return value


BAD = [
    ([], "", "an array"),
    (None, "", "null"),
    ("string", "", "a string"),
    ({"type": "objekt"}, "/type", "not a valid JSON Schema"),
    ({"properties": {"a": {"minLength": "x"}}}, "/properties/a/minLength", "not a valid"),
    ({"properties": {"a": 5}}, "/properties/a", "not a valid JSON Schema"),
    ({"items": [{"type": "string"}]}, "/items", "not a valid JSON Schema"),
    ({"pattern": "a\0"}, "/pattern", "NUL"),
    ({"pattern": "a\\x00"}, "/pattern", "NUL"),
    ({"patternProperties": {"\\u0000": {}}}, "/patternProperties", "NUL"),
    ({"pattern": "a" * 2000}, "/pattern", "1024 bytes"),
    ({"enum": list(range(2001))}, "/enum", "2000 values"),
    ({"enum": ["x" * 9000]}, "/enum", "8192 bytes"),
    ({"enum": [f"{i}" + "x" * 8000 for i in range(20)]}, "/enum", "131072 bytes"),
    ({"const": "x" * 9000}, "/const", "8192 bytes"),
    ({"maxLength": 2**31}, "/maxLength", "2147483647"),
    ({"multipleOf": 99991}, "/multipleOf", "power of ten"),
    ({"minimum": float("inf")}, "/minimum", "finite"),
    ({"const": float("nan")}, "/const", "finite"),
    ({"const": "\ud800"}, "/const", "surrogate"),
    ({"description": "x" * 300_000}, "", "262144 bytes"),
    ({"enum": [[0] * 100 for _ in range(200)]}, "", "10000 values"),
    (nested(MAX_DEPTH + 5), "", "48 levels"),
    (nested(5000), "", "48 levels"),
    (loop(), "", "48 levels"),
]


@pytest.mark.parametrize(("schema", "pointer", "message"), BAD, ids=range(len(BAD)))
def test_hostile_schemas_are_refused(schema, pointer, message):
    with pytest.raises(SchemaError, match=message) as caught:
        check_schema(schema, "tools[0].function.parameters")
    assert caught.value.pointer == pointer
    assert caught.value.param == "tools[0].function.parameters"


def test_too_many_properties_are_refused_before_the_engine_gives_up_on_them() -> None:
    schema = {"type": "object", "properties": {f"p{i}": True for i in range(520)}}
    with pytest.raises(SchemaError, match="at most 400 properties, got 520") as caught:
        check_schema(schema)
    assert caught.value.pointer == "/properties"


def test_union_nesting_is_bounded():
    schema = {"type": "string"}
    for _ in range(9):
        schema = {"anyOf": [schema]}
    with pytest.raises(SchemaError, match="nested at most 8"):
        check_schema(schema)


def test_violations_point_into_the_document():
    schema = {
        "properties": {"a": {"$ref": "#/$defs/pos"}, "b": {"anyOf": [{"$ref": "#/$defs/pos"}]}},
        "required": ["c"],
        "if": {"required": ["a"]},
        "then": {"maxProperties": 1},
        "$defs": {"pos": {"type": "integer", "not": {"const": 3}}},
    }
    found = {v.pointer: v for v in validate_instance(json.dumps(schema), {"a": 3, "b": 3})}
    assert set(found) == {
        "/$defs/pos/not",
        "/properties/b/anyOf",
        "/required",
        "/then/maxProperties",
    }
    assert found["/$defs/pos/not"].keyword == "not"
    assert found["/$defs/pos/not"].message.startswith("/a: ")
    assert found["/required"].message.startswith("the value: ")
    assert found["/$defs/pos/not"].is_due_to("/$defs/pos/not")
    assert found["/properties/b/anyOf"].is_due_to("/$defs/pos/not")
    assert found["/then/maxProperties"].is_due_to("/then")
    assert not found["/required"].is_due_to("/then")
    assert not found["/required"].is_due_to("/requiredness")
    assert validate_instance(schema, {"c": 1}) == []


def test_a_false_schema_may_be_any_below():
    violations = validate_instance({"if": {"const": 1}, "then": False}, 1)
    assert violations[0].is_due_to("/then")


@pytest.mark.parametrize(
    ("divisor", "value", "is_valid"),
    [
        (0.01, 0.07, True),
        (0.1, 1.3, True),
        (0.1, 1.25, False),
        (7, 21, True),
        (7, 22, False),
        (7, True, True),
    ],
)
def test_multiple_of_is_decimal(divisor, value, is_valid):
    assert (validate_instance({"multipleOf": divisor}, value) == []) == is_valid


def test_an_infinite_number_is_no_multiple():
    assert validate_instance({"multipleOf": 3}, float("inf"))


def test_references_are_followed_and_never_fetched():
    document = {"$defs": {"a~b": [{"x": 1}]}}
    assert resolve_reference(document, "#/$defs/a~0b/0") == ("/$defs/a~0b/0", {"x": 1})
    assert resolve_reference(document, "#") == ("", document)
    for bad in ("#/$defs/x", "#/$defs/a~0b/7", "#x", "http://a/b"):
        with pytest.raises(LookupError):
            resolve_reference(document, bad)


def test_document_pointer_survives_endless_references():
    document = {"$ref": "#"}
    assert document_pointer(document, ["type"]) == "/type"


def test_subschemas_are_not_sought_in_values():
    schema = {
        "properties": {"properties": {"type": "object"}},
        "enum": [{"items": {}}],
        "default": {"anyOf": [{}]},
        "items": {"allOf": [{"not": {}}]},
    }
    assert {pointer for pointer, _, _ in subschemas(schema)} == {
        "",
        "/properties/properties",
        "/items",
        "/items/allOf/0",
        "/items/allOf/0/not",
    }


@pytest.mark.parametrize("reference", ["https://example.com/x", "#/$defs/no", "#anchor"])
def test_an_instance_that_cannot_be_checked_is_said_to_be_none(reference):
    (found,) = validate_instance({"properties": {"a": {"$ref": reference}}}, {"a": 1})
    assert found.keyword == "$ref" and "not checked" in found.message
    assert reference.removeprefix("#") in found.message
    assert validate_instance({"properties": {"a": {"$ref": reference}}}, {"b": 1}) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"x": {"$anchor": "here", "type": "integer"}}, "items": {"$ref": "#here"}},
        {
            "$id": "https://a.example/b",
            "items": {"$ref": "c#/$defs/i"},
            "$defs": {"d": {"$id": "c", "$defs": {"i": {"type": "integer"}}}},
        },
    ],
)
def test_anchors_and_nested_ids(schema):
    check_schema(schema)
    assert validate_instance(schema, [1]) == []
    (found,) = validate_instance(schema, ["x"])
    assert found.keyword == "type" and found.pointer


@pytest.mark.parametrize(
    ("name", "is_valid"),
    [
        (7, True),
        ("실례.테스트", True),
        ("a\u3002b", True),
        ("xn--ihqwcrb4cv8a8dqg056pqjye", True),
        ("\u05d0.\u05d1", True),
        ("", False),
        ("-a", False),
        ("a.", False),
        ("a\uff0e", False),
        ("xn--X", False),
        ("0a.\u05d0", False),  # no label may begin with a digit where one is written to the left
        ("a" * 64, False),
        (".".join(["a" * 60] * 5), False),
    ],
)
def test_internationalised_host_names(name, is_valid):
    found = validate_instance({"format": "idn-hostname"}, name)
    assert [violation.keyword for violation in found] == ([] if is_valid else ["format"])
