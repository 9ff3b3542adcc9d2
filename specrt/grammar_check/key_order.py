"""In which order the keys of an instance are written: a grammar takes one order only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from specrt.grammars.schema_walk import resolve_reference

_MAX_SCHEMAS = 200  # that apply at one place; only for the order, so the rest may be missed
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_BESIDE = ("if", "then", "else")


def in_schema_order(document: object, value: Any) -> Any:
    """The value with the keys of its objects in the order in which the schema lists them.

    Keys that the schema does not list come last, in their own order. It judges nothing.

    Args:
        document: the whole schema.
        value: the instance.
    """
    return _ordered(document, [document], value)


def _ordered(document: object, schemas: list[object], value: Any) -> Any:
    if not isinstance(value, dict | list):
        return value
    applicable = list(_applicable(document, schemas))
    if isinstance(value, list):
        return [
            _ordered(document, list(_item_schemas(applicable, index)), item)
            for index, item in enumerate(value)
        ]
    listed = [name for schema in applicable for name in _properties(schema) if name in value]
    return {
        name: _ordered(document, list(_member_schemas(applicable, name)), value[name])
        for name in dict.fromkeys([*listed, *value])
    }


def _applicable(document: object, schemas: list[object]) -> Iterator[dict[str, Any]]:
    """All schema objects that speak about one place, in document order."""
    pending = schemas[::-1]
    seen: set[int] = set()
    while pending and len(seen) < _MAX_SCHEMAS:
        schema = pending.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        below: list[object] = []
        if isinstance(schema.get("$ref"), str):
            with contextlib.suppress(LookupError):  # an anchor or a remote reference: no order
                below.append(resolve_reference(document, schema["$ref"])[1])
        for keyword in _IN_PLACE:
            branches = schema.get(keyword)
            below += branches if isinstance(branches, list) else []
        below += [schema.get(keyword) for keyword in _BESIDE]
        for keyword in ("dependentSchemas", "dependencies"):
            branches = schema.get(keyword)
            below += branches.values() if isinstance(branches, dict) else []
        pending += below[::-1]


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _member_schemas(applicable: list[dict[str, Any]], name: str) -> Iterator[object]:
    for schema in applicable:
        yield _properties(schema).get(name, schema.get("additionalProperties"))


def _item_schemas(applicable: list[dict[str, Any]], index: int) -> Iterator[object]:
    for schema in applicable:
        for keyword, rest in (("prefixItems", "items"), ("items", "additionalItems")):
            prefix = schema.get(keyword)
            if isinstance(prefix, list):
                yield prefix[index] if index < len(prefix) else schema.get(rest)
                break
        else:
            yield schema.get("items")
