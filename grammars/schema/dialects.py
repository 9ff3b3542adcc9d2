"""Which keywords there are in which draft, and which of them assert nothing."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Dialect(IntEnum):
    """A draft of the specification; later ones compare as greater."""

    DRAFT4 = 4
    DRAFT6 = 6
    DRAFT7 = 7
    DRAFT2019 = 2019
    DRAFT2020 = 2020


URIS = {
    Dialect.DRAFT4: "http://json-schema.org/draft-04/schema",
    Dialect.DRAFT6: "http://json-schema.org/draft-06/schema",
    Dialect.DRAFT7: "http://json-schema.org/draft-07/schema",
    Dialect.DRAFT2019: "https://json-schema.org/draft/2019-09/schema",
    Dialect.DRAFT2020: "https://json-schema.org/draft/2020-12/schema",
}
OLD_DRAFTS = tuple(f"http://json-schema.org/draft-0{n}/schema" for n in (1, 2, 3))
_NAMES: dict[str, Dialect] = {
    **{uri: dialect for dialect, uri in URIS.items()},
    **{uri.replace("http:", "https:"): dialect for dialect, uri in URIS.items()},
    "draft4": Dialect.DRAFT4,
    "draft6": Dialect.DRAFT6,
    "draft7": Dialect.DRAFT7,
    "draft2019-09": Dialect.DRAFT2019,
    "draft2020-12": Dialect.DRAFT2020,
}

# keyword -> first and last draft that has it.
_ALWAYS = (Dialect.DRAFT4, Dialect.DRAFT2020)
_ASSERTIONS: dict[str, tuple[Dialect, Dialect]] = {
    **dict.fromkeys(
        (
            *("type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
            *("multipleOf", "minLength", "maxLength", "pattern", "format", "items", "minItems"),
            *("maxItems", "uniqueItems", "properties", "patternProperties", "required"),
            *("additionalProperties", "minProperties", "maxProperties", "$ref", "allOf", "anyOf"),
            *("oneOf", "not"),
        ),
        _ALWAYS,
    ),
    # Gone since 2019-09, but implementations may go on with it, and people do mean it.
    "dependencies": _ALWAYS,
    "additionalItems": (Dialect.DRAFT4, Dialect.DRAFT2019),
    **dict.fromkeys(("const", "contains", "propertyNames"), (Dialect.DRAFT6, Dialect.DRAFT2020)),
    **dict.fromkeys(("if", "then", "else"), (Dialect.DRAFT7, Dialect.DRAFT2020)),
    **dict.fromkeys(
        (
            *("dependentRequired", "dependentSchemas", "minContains", "maxContains"),
            *("unevaluatedItems", "unevaluatedProperties"),
        ),
        (Dialect.DRAFT2019, Dialect.DRAFT2020),
    ),
    "$recursiveRef": (Dialect.DRAFT2019, Dialect.DRAFT2019),
    **dict.fromkeys(("prefixItems", "$dynamicRef"), (Dialect.DRAFT2020, Dialect.DRAFT2020)),
}
# What asserts nothing in any draft and says nothing about a value either.
_SILENT = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"),
        *("$vocabulary", "$defs", "definitions"),
    }
)


def dialect_of(name: str) -> Dialect | None:
    """The dialect that a `$schema` URI or a name such as "draft7" stands for, None if unknown."""
    return _NAMES.get(name.rstrip("#"))


def assertions(schema: Mapping[str, Any], dialect: Dialect) -> Mapping[str, Any]:
    """The part of a schema that asserts something."""
    if "$ref" in schema and dialect <= Dialect.DRAFT7:
        return {"$ref": schema["$ref"]}
    found = {}
    for keyword, value in schema.items():
        drafts = _ASSERTIONS.get(keyword)
        if drafts is not None and drafts[0] <= dialect <= drafts[1]:
            found[keyword] = value
    return found


def unasserted(schema: Mapping[str, Any], dialect: Dialect) -> dict[str, str]:
    """Keywords that a user may expect to assert something, and why they do not."""
    active = assertions(schema, dialect)
    found = {}
    for keyword in schema:
        if keyword in active or keyword in _SILENT:
            continue
        if "$ref" in active and dialect <= Dialect.DRAFT7:
            found[keyword] = "stands beside a $ref, which hides it in this draft"
        elif keyword in _ASSERTIONS:
            found[keyword] = "is no keyword of this draft"
        else:
            found[keyword] = "is no keyword of the specification that asserts anything"
    return found
