"""The normal form of a schema, as far as the commands ask about it: order and annotations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specrt.grammar_check.key_order import in_schema_order
from specrt.grammars.schema.arrange import arrange
from specrt.grammars.schema.expand import ImpossibleError, normalise
from specrt.grammars.schema.normal import ArrayShape, NormalSchema, ObjectShape, RuleId
from specrt.grammars.schema.unsupported import UnsupportedError


def normal_form(document: object, *, strict: bool) -> NormalSchema | None:
    """The normal form, or None where a schema has none."""
    try:
        return normalise(document, strict=strict)
    except (ImpossibleError, UnsupportedError):
        return None


def arranged(normal: NormalSchema | None, document: object, value: Any) -> Any:
    """The value with its keys in the order in which the grammar writes them.

    Where the normal form does not hold the value, they are in the order of the schema.
    """
    if normal is not None:
        try:
            ordered = arrange(normal, value)
        except UnsupportedError:
            ordered = None
        # None is the answer for null as well, and null has no order.
        if ordered is not None:
            return ordered
    return in_schema_order(document, value)


def property_orders(normal: NormalSchema) -> Iterator[tuple[str, list[str]]]:
    """(pointer, names) of each object in the order in which the grammar writes it.

    An optional name ends in "?", "..." says that names follow that are not listed.
    """
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for rule_id in _reachable(normal):
        rule = normal.rules[rule_id]
        for shape in rule.shapes:
            if isinstance(shape, ObjectShape):
                names = [p.name if p.required else p.name + "?" for p in shape.properties]
                names += ["..."] if shape.extras else []
                if (rule.pointer, tuple(names)) not in seen:
                    seen.add((rule.pointer, tuple(names)))
                    yield rule.pointer, names


def _reachable(normal: NormalSchema) -> Iterator[RuleId]:
    """Rules from the root on, each once, outer ones first."""
    pending, seen = [normal.root], {normal.root}
    for rule_id in pending:
        yield rule_id
        for shape in normal.rules[rule_id].shapes:
            children: list[RuleId | None] = []
            if isinstance(shape, ObjectShape):
                children += [entry.rule for entry in shape.properties]
                children += [extra.rule for extra in shape.extras]
            elif isinstance(shape, ArrayShape):
                children += [*shape.prefix, shape.rest]
                if shape.contains is not None:
                    children += [shape.contains.hit, shape.contains.miss]
            for child in children:
                if child is not None and child not in seen:
                    seen.add(child)
                    pending.append(child)
