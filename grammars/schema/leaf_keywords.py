"""Keywords about a value's type, and about literals, numbers and strings."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from specrt.grammars.schema.branches import (
    EMPTY,
    EVERYTHING,
    MAX_TERMS,
    Branches,
    intersect,
    only,
    unite,
    with_type,
)
from specrt.grammars.schema.dialects import Dialect
from specrt.grammars.schema.document import Node
from specrt.grammars.schema.normal import BooleanShape, NullShape
from specrt.grammars.schema.number_set import NumberSet, exact
from specrt.grammars.schema.pattern import Pattern
from specrt.grammars.schema.string_formats import OLD_HOSTNAME, is_asserted, string_format
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.terms import Literal
from specrt.grammars.schema.unsupported import UnsupportedError

if TYPE_CHECKING:
    from specrt.grammars.schema.expand import Expander


def assert_type(_: Expander, node: Node, __: Branches) -> Branches:
    """`type`."""
    return unite(*(_of_type(name) for name in _type_names(node)))


def deny_type(_: Expander, literal: Literal) -> Branches:
    """Not `type`."""
    names = _type_names(literal.node)
    result = {kind: terms for kind, terms in EVERYTHING.items() if kind not in names}
    if "integer" in names and "number" not in names:
        result["number"] = (NumberSet(is_integer=False),)
    return result


def _type_names(node: Node) -> list[str]:
    names = node.fields["type"]
    names = [names] if isinstance(names, str) else names
    for name in names:
        if name != "integer" and name not in EVERYTHING:
            raise UnsupportedError(f"unknown type {str(name)[:100]!r}")
    return list(names)


def _of_type(name: str) -> Branches:
    if name == "integer":
        return only("number", NumberSet(is_integer=True))
    return only(name, *EVERYTHING[name])


def assert_const(expander: Expander, node: Node, _: Branches) -> Branches:
    """`const`."""
    return _literals(expander, node, "const", [node.fields["const"]])


def assert_enum(expander: Expander, node: Node, _: Branches) -> Branches:
    """`enum`."""
    return _literals(expander, node, "enum", node.fields["enum"])


def deny_const(expander: Expander, literal: Literal) -> Branches:
    """Not `const`."""
    return _other_literals(expander, literal.node, "const", [literal.node.fields["const"]])


def deny_enum(expander: Expander, literal: Literal) -> Branches:
    """Not `enum`."""
    return _other_literals(expander, literal.node, "enum", literal.node.fields["enum"])


def _literals(expander: Expander, node: Node, keyword: str, values: list[Any]) -> Branches:
    scalars = _scalars(values)
    parts: list[Branches] = []
    if None in values:
        parts.append(only("null", NullShape()))
    if scalars["boolean"]:
        parts.append(only("boolean", BooleanShape(frozenset(scalars["boolean"]))))
    if scalars["number"]:
        spellings = tuple(_number_text(node, value) for value in scalars["number"])
        parts.append(only("number", *NumberSet().intersect(NumberSet(values=spellings))))
    if scalars["string"]:
        parts.append(only("string", StringSet(values=tuple(dict.fromkeys(scalars["string"])))))
    for schema in _containers(expander, node, keyword, values):
        parts.append(expander.literal(Literal(schema)))
    return unite(*parts) if parts else EMPTY


def _other_literals(expander: Expander, node: Node, keyword: str, values: list[Any]) -> Branches:
    scalars = _scalars(values)
    result: Branches = EVERYTHING
    if None in values:
        result = intersect(result, with_type("null"), expander.budget)
    if scalars["boolean"]:
        others = frozenset((False, True)) - frozenset(scalars["boolean"])
        terms = (BooleanShape(others),) if others else ()
        result = intersect(result, with_type("boolean", *terms), expander.budget)
    if scalars["number"]:
        spellings = tuple(_number_text(node, value) for value in scalars["number"])
        others_ = NumberSet(values=spellings).negate()
        result = intersect(result, with_type("number", *others_), expander.budget)
    if scalars["string"]:
        others__ = StringSet(values=tuple(scalars["string"])).negate()
        result = intersect(result, with_type("string", *others__), expander.budget)
    for schema in _containers(expander, node, keyword, values):
        denied = expander.literal(Literal(schema, is_negated=True))
        result = intersect(result, denied, expander.budget)
    return result


def _scalars(values: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"boolean": [], "number": [], "string": []}
    for value in values:
        if isinstance(value, bool):
            found["boolean"].append(value)
        elif isinstance(value, int | float):
            found["number"].append(value)
        elif isinstance(value, str):
            found["string"].append(value)
    return found


def _number_text(node: Node, value: int | float) -> str:
    if node.dialect == Dialect.DRAFT4 and isinstance(value, float) and value.is_integer():
        return str(int(value))  # the same number, which is an integer only so in draft 4
    return json.dumps(value)


def _containers(expander: Expander, node: Node, keyword: str, values: list[Any]) -> list[Node]:
    """A schema for each array and object among literals."""
    nodes: list[Node] = []
    for value in values:
        if isinstance(value, list | dict):
            if len(nodes) == MAX_TERMS:
                raise UnsupportedError(f"more than {MAX_TERMS} arrays and objects")
            schema = expander.container_schema(value, node.dialect)
            nodes.append(expander.document.synthetic(node, schema, keyword))
    return nodes


def container_schema(value: list[Any] | dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """What a `const` with an array or an object says, in simpler keywords."""

    def constant(item: Any) -> dict[str, Any]:
        return {"enum": [item]}

    if isinstance(value, dict):
        return {
            "type": "object",
            "properties": {name: constant(item) for name, item in value.items()},
            "required": list(value),
            "additionalProperties": False,
        }
    items = [constant(item) for item in value]
    if not items:
        return {"type": "array", "maxItems": 0}
    if dialect >= Dialect.DRAFT2020:
        prefix: dict[str, Any] = {"prefixItems": items}
    else:
        prefix = {"items": items}
    return {"type": "array", **prefix, "minItems": len(items), "maxItems": len(items)}


def assert_number(keyword: str) -> Callable[[Expander, Node, Branches], Branches]:
    """`minimum` and its like."""

    def assert_(_: Expander, node: Node, __: Branches) -> Branches:
        return with_type("number", _number_set(node, keyword))

    return assert_


def deny_number(keyword: str) -> Callable[[Expander, Literal], Branches]:
    """Not `minimum` and its like."""

    def deny(_: Expander, literal: Literal) -> Branches:
        return only("number", *_number_set(literal.node, keyword).negate())

    return deny


def _number_set(node: Node, keyword: str) -> NumberSet:
    value = node.fields[keyword]
    if isinstance(value, bool):  # of draft 4: it only says what `minimum` means
        return NumberSet()
    bound = _fraction(value)
    is_exclusive = False
    if node.dialect == Dialect.DRAFT4 and keyword in ("minimum", "maximum"):
        is_exclusive = node.fields.get(f"exclusive{keyword.title()}") is True
    if keyword in ("minimum", "exclusiveMinimum"):
        return NumberSet(
            minimum=bound, exclusive_minimum=is_exclusive or keyword == "exclusiveMinimum"
        )
    if keyword in ("maximum", "exclusiveMaximum"):
        return NumberSet(
            maximum=bound, exclusive_maximum=is_exclusive or keyword == "exclusiveMaximum"
        )
    return NumberSet(multiple_of=bound)


def _fraction(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedError("expected a number")
    return exact(value)


def assert_string(keyword: str) -> Callable[[Expander, Node, Branches], Branches]:
    """`minLength` and its like."""

    def assert_(expander: Expander, node: Node, __: Branches) -> Branches:
        strings = _string_set(expander, node, keyword)
        return EVERYTHING if strings is None else with_type("string", strings)

    return assert_


def deny_string(keyword: str) -> Callable[[Expander, Literal], Branches]:
    """Not `minLength` and its like."""

    def deny(expander: Expander, literal: Literal) -> Branches:
        strings = _string_set(expander, literal.node, keyword)
        return EMPTY if strings is None else only("string", *strings.negate())

    return deny


def _string_set(expander: Expander, node: Node, keyword: str) -> StringSet | None:
    value = node.fields[keyword]
    if keyword == "minLength":
        return StringSet(min_length=int(value))
    if keyword == "maxLength":
        return StringSet(max_length=int(value))
    if keyword == "pattern":
        return StringSet(patterns=(Pattern(value),))
    if not is_asserted(value):
        expander.ledger.annotate(
            node, "format", f"{value[:100]!r} is no format of the specification"
        )
        return None
    if not expander.asserts_formats:
        return None
    if value == "hostname" and node.dialect <= Dialect.DRAFT6:
        value = OLD_HOSTNAME
    string_format(value)
    return StringSet(formats=frozenset((value,)))
