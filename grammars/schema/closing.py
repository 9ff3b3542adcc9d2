"""Objects closed where a schema is silent: only the properties that it lists.

By JSON Schema an object may have properties that nobody mentioned. In the arguments of a tool they
are inventions, and each closing brace would be a decision. What a schema says of other properties
(additionalProperties, patternProperties, propertyNames, ...) stays.
"""

from __future__ import annotations

from dataclasses import replace

from specrt.grammars.schema.normal import (
    ArrayShape,
    Extra,
    NormalSchema,
    NullShape,
    ObjectShape,
    Rule,
    Shape,
)
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema_walk import subschemas


def says_open(document: object) -> bool:
    """Does a schema say anywhere that an object is open? Then its author means what is left out."""
    return any(
        node.get(keyword) in (True, {}) and node.get(keyword) is not None
        for _, node, _ in subschemas(document)
        for keyword in ("additionalProperties", "unevaluatedProperties")
    )


def closed(schema: NormalSchema) -> NormalSchema:
    """The schema without properties of which it says nothing; objects that list none stay open."""
    rules = {
        rule_id: Rule(rule.pointer, tuple(_closed(shape, schema) for shape in rule.shapes))
        for rule_id, rule in schema.rules.items()
    }
    return replace(schema, rules=rules)


def _closed(shape: Shape, schema: NormalSchema) -> Shape:
    if not isinstance(shape, ObjectShape) or len(shape.extras) != 1 or not shape.properties:
        return shape
    extra = shape.extras[0]
    others = StringSet(excluded_values=extra.keys.excluded_values)
    if (
        extra.keys != others
        or not _is_anything(extra, schema)
        or shape.min_properties > len(shape.properties)
    ):
        return shape
    return replace(shape, extras=())


def _is_anything(extra: Extra, schema: NormalSchema) -> bool:
    """May the values be anything at all?"""
    shapes = schema.rules[extra.rule].shapes
    anything = (
        NullShape(),
        NumberSet(),
        StringSet(),
        ArrayShape((), extra.rule),
        ObjectShape((), (Extra(StringSet(), extra.rule),)),
    )
    return all(shape in shapes for shape in anything)
