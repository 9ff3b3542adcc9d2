"""Where things stand inside a JSON Schema: pointers, local references, subschemas.

It judges nothing: schema_check.py refuses, schema/ finds what a grammar cannot enforce.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import unquote

# Keywords whose value holds schemas: name -> schema, a list of schemas, one schema.
SCHEMA_MAPS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SCHEMA_VALUES = frozenset(
    {
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)

_MAX_HOPS = 16  # references that lead straight to references


def join_pointer(base: str, *parts: str | int) -> str:
    """The JSON pointer below `base` (RFC 6901 escapes)."""
    return base + "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in parts)


def resolve_reference(document: object, reference: str) -> tuple[str, object]:
    """Follow a local `$ref` such as "#/$defs/a~1b".

    Args:
        document: the whole schema.
        reference: the `$ref`'s text.

    Returns:
        The target's JSON pointer and the target.

    Raises:
        LookupError: the reference is not a local pointer, or leads nowhere.
    """
    if reference in ("#", "#/"):
        return "", document
    if not reference.startswith("#/"):
        raise LookupError(reference)
    target, pointer = document, ""
    for raw in reference[2:].split("/"):
        part = unquote(raw).replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target[part]
        elif isinstance(target, list) and part.isdecimal():
            target = target[int(part)]
        else:
            raise LookupError(reference)
        pointer = join_pointer(pointer, part)
    return pointer, target


def document_pointer(document: object, path: Iterable[str | int]) -> str:
    """The JSON pointer of a keyword path in which the steps over `$ref` are left out.

    That is how jsonschema reports where an error comes from.
    """
    node, pointer = document, ""
    for part in path:
        for _ in range(_MAX_HOPS):
            if not isinstance(node, dict) or part in node or "$ref" not in node:
                break
            pointer, node = resolve_reference(document, str(node["$ref"]))
        if isinstance(node, dict):
            node = node.get(str(part))
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        pointer = join_pointer(pointer, part)
    return pointer


def child_schemas(schema: dict[str, object]) -> Iterator[tuple[str, str, object]]:
    """The schemas directly inside a schema: (pointer below it, keyword, schema)."""
    for keyword, value in schema.items():
        here = join_pointer("", keyword)
        if keyword in SCHEMA_MAPS and isinstance(value, dict):
            for name, child in value.items():
                yield join_pointer(here, name), keyword, child
        elif isinstance(value, list) and (keyword in SCHEMA_LISTS or keyword == "items"):
            for index, child in enumerate(value):
                yield join_pointer(here, index), keyword, child
        elif keyword in SCHEMA_VALUES:
            yield here, keyword, value


def subschemas(schema: object) -> Iterator[tuple[str, dict[str, object], int]]:
    """All schema objects inside `schema`: (pointer, schema, number of unions around it)."""
    stack: list[tuple[str, object, int]] = [("", schema, 0)]
    while stack:
        pointer, node, num_unions = stack.pop()
        if isinstance(node, dict):
            yield pointer, node, num_unions
            for below, keyword, child in child_schemas(node):
                is_union = keyword in ("anyOf", "oneOf")
                stack.append((pointer + below, child, num_unions + is_union))
