"""Schemas that no honest tool has: each must end in a refusal or in a grammar that works."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

Schema = Any
NASTY_NAMES = (
    "",
    " ",
    '"',
    "\\",
    '\\"',
    '":"',
    '", "b": ',
    "}",
    "}}</tool_call>",
    "</tool_call>",
    "<tool_call>",
    "<|im_end|>",
    "\x00",
    "\x01\x1f",
    "\n\r\t\b\f",
    "\x7f\x80",
    "\u2028\u2029",
    "\ufeff",
    "a\u0301",
    "á",
    "👩\u200d💻",
    "🏳️‍🌈",
    "/",
    "~0~1",
    "%25",
    "$ref",
    "__proto__",
    "x-guidance",
    "\\u0041",
    "[\\s\\S]*",
    "start: /.*/",
)


def closed(properties: dict[str, Schema], *required: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required or properties),
        "additionalProperties": False,
    }


def nested_arrays(depth: int) -> Schema:
    schema: Schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def nested_objects(depth: int) -> Schema:
    schema: Schema = {"type": "boolean"}
    for _ in range(depth):
        schema = closed({"a": schema})
    return schema


def counted_arrays(*counts: int) -> Schema:
    schema: Schema = {"type": "integer"}
    for count in counts:
        schema = {"type": "array", "items": schema, "maxItems": count}
    return schema


def union_tree(depth: int) -> Schema:
    schema: Schema = {"type": "integer"}
    for level in range(depth):
        schema = {"anyOf": [closed({f"k{level}": schema}), closed({f"l{level}": schema})]}
    return schema


def billion_laughs(levels: int) -> Schema:
    definitions: dict[str, Schema] = {"l0": {"type": "string"}}
    for level in range(1, levels):
        below = {"$ref": f"#/$defs/l{level - 1}"}
        definitions[f"l{level}"] = {"anyOf": [below, closed({f"p{level}": below})]}
    return {"$ref": f"#/$defs/l{levels - 1}", "$defs": definitions}


def product_of_laughs(levels: int) -> Schema:
    definitions: dict[str, Schema] = {"l0": {"type": "boolean"}}
    for level in range(1, levels):
        below = {"$ref": f"#/$defs/l{level - 1}"}
        definitions[f"l{level}"] = closed({"a": below, "b": below})
    return {"$ref": f"#/$defs/l{levels - 1}", "$defs": definitions}


def nots(depth: int) -> Schema:
    schema: Schema = {"type": "string", "minLength": 2}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


def conditions(depth: int) -> Schema:
    schema: Schema = {"properties": {"end": {"const": 1}}}
    for level in range(depth):
        schema = {
            "if": {"properties": {f"c{level}": {"const": level}}, "required": [f"c{level}"]},
            "then": schema,
            "else": {"required": [f"e{level}"]},
        }
    return {"type": "object", **schema}


def dependent_chain(length: int) -> Schema:
    return {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer"} for i in range(length)},
        "dependentSchemas": {
            f"p{i}": {
                "required": [f"p{i + 1}"],
                "properties": {f"p{i + 1}": {"minimum": i}},
            }
            for i in range(length - 1)
        },
        "additionalProperties": False,
    }


def overlapping_objects(keyword: str, count: int) -> Schema:
    return {
        keyword: [
            {
                "type": "object",
                "properties": {f"p{j}": {"type": "integer", "minimum": i} for j in range(i, i + 5)},
                "required": [f"p{i}"],
            }
            for i in range(count)
        ]
    }


def string(**keywords: Any) -> Schema:
    return {"type": "string", **keywords}


def number(**keywords: Any) -> Schema:
    return {"type": "number", **keywords}


HOSTILE: dict[str, Callable[[], Schema]] = {
    # Repeats.
    "maxLength 64": lambda: string(maxLength=64),
    "maxLength 100,000": lambda: string(maxLength=100_000),
    "maxLength 2**31": lambda: string(maxLength=2**31),
    "minLength 2**31 - 1": lambda: string(minLength=2**31 - 1),
    "maxItems 100 cubed": lambda: counted_arrays(100, 100, 100),
    "maxItems 10 to the 6th": lambda: counted_arrays(*[10] * 6),
    "strings of 64, 100 of them": lambda: {
        "type": "array",
        "items": string(maxLength=64),
        "minItems": 50,
        "maxItems": 100,
    },
    "minItems 2**31 - 1": lambda: {"type": "array", "minItems": 2**31 - 1},
    "minItems 10,000": lambda: {"type": "array", "items": {"type": "null"}, "minItems": 10_000},
    "minProperties 1,000": lambda: {"type": "object", "minProperties": 1_000},
    "contains 1,000 times": lambda: {
        "type": "array",
        "contains": {"const": 1},
        "minContains": 1_000,
    },
    # Depth.
    "arrays, 8 deep": lambda: nested_arrays(8),
    "arrays, 40 deep": lambda: nested_arrays(40),
    "arrays, 200 deep": lambda: nested_arrays(200),
    "arrays, 2,000 deep": lambda: nested_arrays(2_000),
    "objects, 20 deep": lambda: nested_objects(20),
    "objects, 200 deep": lambda: nested_objects(200),
    "objects, 2,000 deep": lambda: nested_objects(2_000),
    "const, 200 deep": lambda: {"const": json.loads("[" * 200 + "]" * 200)},
    "not, 21 deep": lambda: nots(21),
    "not, 200 deep": lambda: nots(200),
    "conditions, 12 deep": lambda: conditions(12),
    "conditions, 20 deep": lambda: conditions(20),
    # Unions.
    "anyOf, 6 deep": lambda: union_tree(6),
    "anyOf, 12 deep": lambda: union_tree(12),
    "anyOf, 16 deep": lambda: union_tree(16),
    "anyOf of 1,000": lambda: {"anyOf": [string(pattern=f"^{i}a*$") for i in range(1_000)]},
    "allOf of 50 overlapping objects": lambda: overlapping_objects("allOf", 50),
    "anyOf of 50 overlapping objects": lambda: overlapping_objects("anyOf", 50),
    "oneOf of 40 overlapping objects": lambda: overlapping_objects("oneOf", 40),
    "oneOf of 40 overlapping intervals": lambda: {
        "oneOf": [{"type": "integer", "minimum": i, "maximum": i + 20} for i in range(40)]
    },
    "allOf of anyOf of two, 20 times": lambda: {
        "allOf": [{"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)],
        "type": "object",
        "additionalProperties": False,
        "properties": {f"{x}{i}": {"type": "null"} for x in "ab" for i in range(20)},
    },
    "unevaluatedProperties over 10 anyOf": lambda: {
        "type": "object",
        "allOf": [
            {
                "anyOf": [
                    {"properties": {f"a{i}": {"type": "integer"}}, "required": [f"a{i}"]},
                    {"properties": {f"b{i}": {"type": "string"}}},
                ]
            }
            for i in range(10)
        ],
        "unevaluatedProperties": False,
    },
    "dependentSchemas in a chain of 20": lambda: dependent_chain(20),
    "dependentSchemas in a chain of 200": lambda: dependent_chain(200),
    "dependentRequired in a circle": lambda: {
        "type": "object",
        "properties": {f"p{i}": {"type": "null"} for i in range(30)},
        "additionalProperties": False,
        "dependentRequired": {f"p{i}": [f"p{(i + 1) % 30}"] for i in range(30)},
    },
    # References.
    "recursive tree": lambda: {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": closed(
                {"v": {"type": "integer"}, "kids": {"items": {"$ref": "#/$defs/node"}}}, "v"
            )
        },
    },
    "no finite value": lambda: closed({"again": {"$ref": "#"}}),
    "reference to itself": lambda: {"$ref": "#"},
    "references in a circle": lambda: {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": {"allOf": [{"$ref": "#/$defs/b"}]},
            "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]},
        },
    },
    "not itself": lambda: {"not": {"$ref": "#"}},
    "billion laughs, 12 levels": lambda: billion_laughs(12),
    "billion laughs, 40 levels": lambda: billion_laughs(40),
    "binary tree, 10 levels": lambda: product_of_laughs(10),
    "binary tree, 45 levels": lambda: product_of_laughs(45),
    "reference to no schema": lambda: {
        "$ref": "#/properties/a/const",
        "properties": {"a": {"const": 3}},
    },  # noqa: E501
    "reference to a list": lambda: {"$ref": "#/anyOf", "anyOf": [{"type": "null"}]},
    "reference to nowhere": lambda: {"$ref": "#/$defs/none"},
    "reference to an array's middle": lambda: {"$ref": "#/allOf/00", "allOf": [{}]},
    "remote reference": lambda: {"$ref": "http://127.0.0.1:9/schema.json"},
    "file reference": lambda: {"$ref": "file:///etc/passwd"},
    "reference with a broken escape": lambda: {"$ref": "#/%zz/~3"},
    "reference of 100 kB": lambda: {"$ref": "#/" + "a/" * 50_000},
    "$id moves the base": lambda: {
        "$id": "http://example.com/root.json",
        "$ref": "other.json#/$defs/x",
        "$defs": {"a": {"$id": "other.json", "$defs": {"x": {"type": "null"}}}},
    },
    "two $id alike": lambda: {
        "$defs": {"a": {"$id": "urn:x", "type": "null"}, "b": {"$id": "urn:x", "type": "string"}},
        "$ref": "urn:x",
    },
    "$id is a number": lambda: {"$id": 3, "type": "null"},
    "$anchor twice": lambda: {
        "$defs": {"a": {"$anchor": "x", "type": "null"}, "b": {"$anchor": "x"}},
        "$ref": "#x",
    },
    "$dynamicRef to itself": lambda: {"$dynamicAnchor": "n", "$dynamicRef": "#n"},
    "unknown $schema": lambda: {"$schema": "http://example.com/own-dialect", "type": "null"},
    "$schema is the schema's own $id": lambda: {"$schema": "urn:me", "$id": "urn:me"},
    "the meta-schema": lambda: {"$ref": "https://json-schema.org/draft/2020-12/schema"},
    # Literals.
    "enum of 2,000": lambda: {"enum": [f"value number {i}" for i in range(2_000)]},
    "enum of 10,000": lambda: {"enum": [f"v{i}" for i in range(10_000)]},
    "enum of 1,500 objects": lambda: {"enum": [{"a": i, "b": [i]} for i in range(1_500)]},
    "enum of one prefix": lambda: {"enum": ["a" * i for i in range(400)]},
    "empty enum": lambda: {"enum": []},
    "const of 7 kB": lambda: {"const": "x" * 7_000},
    "const of 100 kB": lambda: {"const": "x" * 100_000},
    "const of escapes": lambda: {"const": '"\\\x00\x1f\u2028' * 300},
    "const with a lone surrogate": lambda: {"const": "\ud800"},
    "const outside its type": lambda: {"type": "integer", "const": "x"},
    "uniqueItems of an enum of 1,000": lambda: {
        "type": "array",
        "items": {"enum": list(range(1_000))},
        "uniqueItems": True,
    },
    "uniqueItems, all of 12": lambda: {
        "type": "array",
        "items": {"enum": list(range(12))},
        "uniqueItems": True,
        "minItems": 12,
    },
    # Names.
    "nasty names": lambda: closed({name: {"type": "null"} for name in NASTY_NAMES}),
    "nasty names that are optional": lambda: {
        "type": "object",
        "properties": {name: {"enum": [name]} for name in NASTY_NAMES},
        "additionalProperties": False,
    },
    "nasty enum": lambda: {"enum": list(NASTY_NAMES)},
    "nasty patterns of names": lambda: {
        "type": "object",
        "patternProperties": {'^["\\\\]+$': {"type": "null"}, "\\u0000|\\n": {"const": "\x00"}},
        "additionalProperties": False,
    },
    "names that are empty": lambda: {
        "properties": {"": {"$ref": "#/properties/"}},
        "required": [""],
    },  # noqa: E501
    "a name of 50 kB": lambda: closed({"n" * 50_000: {"type": "null"}}),
    "100 optional properties": lambda: {
        "type": "object",
        "properties": {f"p{i}": string() for i in range(100)},
        "additionalProperties": False,
    },
    "500 optional properties": lambda: {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer"} for i in range(500)},
    },
    "300 optional properties, 1 to 5 of them": lambda: {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer"} for i in range(300)},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 5,
    },
    "patternProperties with 10 patterns": lambda: {
        "type": "object",
        "patternProperties": {f"[{chr(97 + i)}-z]{{{i},}}": {"minimum": i} for i in range(10)},
        "additionalProperties": False,
    },
    "propertyNames of everything": lambda: {
        "type": "object",
        "propertyNames": {"pattern": "^(a|b)*a(a|b){12}$", "not": {"enum": ["a" * 13]}},
    },
    # Patterns.
    "NUL in a pattern": lambda: string(pattern="^a\x00b$"),
    "NUL escaped in a pattern": lambda: string(pattern="^\\x00+$"),
    "sentinels in a pattern": lambda: string(pattern="^[\\x00-\\x20]{3}$"),
    "(a|b)*a(a|b){14}": lambda: string(pattern="^(a|b)*a(a|b){14}$"),
    "(a|b)*a(a|b){40}": lambda: string(pattern="(a|b)*a(a|b){40}"),
    "((a{0,100}){0,100}){0,100}": lambda: string(pattern="^((a{0,100}){0,100}){0,100}$"),
    "\\w{1,500}": lambda: string(pattern="^\\w{1,500}$"),
    "\\p{L}{1,200} unanchored": lambda: string(pattern="\\p{L}{1,200}\\d"),
    "(a+)+b": lambda: string(pattern="^(a+)+b$"),
    "(.*a){20}": lambda: string(pattern="^(.*a){20}$"),
    "look-aheads": lambda: string(pattern="^(?=.*\\d)(?=.*[a-z])(?=.*[A-Z])(?=.*[!-/]).{8,64}$"),
    "look-behind": lambda: string(pattern="(?<=a)b"),
    "back-reference": lambda: string(pattern="^(a*)\\1$"),
    "a pattern out of the string": lambda: closed({"a": string(pattern='^[^x]+", "b": "$')}),
    "a pattern without an end": lambda: string(pattern="(((((((((("),
    "1,000 groups": lambda: string(pattern="(" * 200 + "a" + ")" * 200),
    "a pattern of 100 kB": lambda: string(pattern="(a|b)" * 20_000),
    "no string at all": lambda: string(pattern="^a$b"),
    "pattern and maxLength apart": lambda: string(pattern="^a{10}$", maxLength=5),
    "20 patterns at once": lambda: {
        "type": "string",
        "allOf": [{"pattern": f"{chr(97 + i)}.{{{i}}}z"} for i in range(20)],
    },
    "every format": lambda: {
        "allOf": [
            string(format=name)
            for name in ("uri", "email", "ipv6", "date-time", "hostname", "iri", "json-pointer")
        ]
    },
    "uri of 1,000": lambda: string(format="uri", maxLength=1_000),
    # Numbers.
    "multipleOf 99,991": lambda: {"type": "integer", "multipleOf": 99_991},
    "multipleOf 997 and 991": lambda: {
        "type": "integer",
        "allOf": [{"multipleOf": 997}, {"multipleOf": 991}],
    },
    "multipleOf 1e-300": lambda: number(multipleOf=1e-300),
    "multipleOf 0": lambda: number(multipleOf=0),
    "multipleOf 0.07 in an interval": lambda: number(multipleOf=0.07, minimum=0.001, maximum=1e9),
    "maximum 1e400": lambda: json.loads('{"type": "number", "maximum": 1e400}'),
    "maximum 10**4000": lambda: {"type": "integer", "maximum": 10**4000, "minimum": 10**3999},
    "minimum 1e308": lambda: number(minimum=1e308),
    "minimum above maximum": lambda: {"type": "integer", "minimum": 5, "maximum": 4},
    "an interval without an integer": lambda: {"type": "integer", "minimum": 0.1, "maximum": 0.9},
    "an interval of 10**17": lambda: {
        "type": "integer",
        "minimum": -(10**17) + 7,
        "maximum": 10**17 - 11,
    },
    "an interval of 1e-15": lambda: number(exclusiveMinimum=0.1, exclusiveMaximum=0.1 + 1e-15),
    "maxLength is negative": lambda: string(maxLength=-1),
    "maxLength is 1e400": lambda: json.loads('{"type": "string", "maxLength": 1e400}'),
    "maxLength is text": lambda: string(maxLength="5"),
    # What is no schema, and what is all.
    "true": lambda: True,
    "false": lambda: False,
    "nothing": lambda: {},
    "a list": lambda: [{"type": "null"}],
    "null": lambda: None,
    "text": lambda: "string",
    "types that exclude each other": lambda: {"allOf": [{"type": "null"}, {"type": "string"}]},
    "a type that is none": lambda: {"type": "strin"},
    "all types": lambda: {"type": ["null", "boolean", "number", "string", "array", "object"]},
    "properties is a list": lambda: {"properties": [1]},
    "false in a required place": lambda: closed({"a": False}),
    "own options": lambda: {
        "type": "integer",
        "x-guidance": {"whitespace_pattern": ".*", "coerce_one_of": True, "lenient": True},
    },
    "a description of 300 kB": lambda: {"type": "null", "description": "d" * 300_000},
    "20,000 values": lambda: {"type": "null", "examples": list(range(20_000))},
}


def small_schemas(count: int) -> Iterator[Schema]:
    """Schemas that differ from each other in a way that no cache can share."""
    for index in range(count):
        properties = {
            f"field_{index}": string(maxLength=5 + index % 20),
            "kind": {"enum": [f"k{index}", f"k{index + 1}", "other"]},
            "size": {"type": "integer", "minimum": index, "maximum": 3 * index + 10},
        }
        if index % 8 == 0:
            properties["when"] = string(pattern=f"^[a-f]{{1,5}}-{index}$")
        yield closed(properties, f"field_{index}")
