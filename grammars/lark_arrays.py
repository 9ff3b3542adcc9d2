"""Arrays as Lark rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from specrt.grammars.lark_lists import Value, counted_items, distinct_items, finite_values
from specrt.grammars.lark_rules import Rules, bracketed
from specrt.grammars.lark_terminals import times
from specrt.grammars.schema.normal import ArrayShape, Contains
from specrt.grammars.schema.unsupported import UnsupportedError


def write_array(rules: Rules, shape: ArrayShape) -> str:
    """An expression for an array.

    Raises:
        UnsupportedError: it cannot be written.
    """
    least, most = shape.min_items, shape.max_items
    if shape.rest is None:
        most = len(shape.prefix) if most is None else min(most, len(shape.prefix))
    if most is not None and least > most:
        raise UnsupportedError("no array has so many items")
    contains = shape.contains
    if shape.distinct and (most is None or most > 1):
        options = _distinct_items(rules, shape, least, most)
    elif contains and (contains.minimum or contains.maximum is not None):
        options = _counted_items(rules, shape, contains, least, most)
    else:
        options = [] if most == 0 else [_items(rules, shape, max(least, 1), most)]
    may_be_empty = not least and not (contains and contains.minimum)
    return bracketed("[", options, "]", may_be_empty=may_be_empty)


def _items(rules: Rules, shape: ArrayShape, least: int, most: int | None) -> str:
    """At least one item, whichever they are."""
    separator = rules.item_separator
    listed = [rules.reference(rule_id) for rule_id in shape.prefix[:most]]
    parts, tail = listed[:least], ""
    if shape.rest is not None and (most is None or most > len(listed)):
        rest = rules.reference(shape.rest)
        if not parts:
            parts = [rest]
        seen = max(len(listed), len(parts))
        tail = times(
            f"{separator} {rest}", max(least - seen, 0), None if most is None else most - seen
        )
    for item in reversed(listed[least:]):
        tail = f"({rules.helper(f'{separator} {item} {tail}')})?"
    return f"{f' {separator} '.join(parts)} {tail}"


def _counted_items(
    rules: Rules, shape: ArrayShape, contains: Contains, least: int, most: int | None
) -> list[str]:
    """At least one item, with as many hits as there must be."""
    if shape.prefix or shape.rest is None:
        raise UnsupportedError("contains beside items that are not all alike")
    hit, miss = (
        rules.reference(rule_id) if rules.shapes(rule_id) else ""
        for rule_id in (contains.hit, shape.rest if contains.miss is None else contains.miss)
    )
    if most is None and least <= contains.minimum:
        least = 0  # enough hits are enough items
    bounds = (contains.minimum, contains.maximum)
    names = rules.lists(counted_items(hit, miss, hits=bounds, items=(least, most)))
    return [
        name
        for (hits, length), name in names.items()
        if hits >= contains.minimum and length >= least
    ]


def _distinct_items(rules: Rules, shape: ArrayShape, least: int, most: int | None) -> list[str]:
    """At least one item, all different."""
    prefix = [finite_values(rules.shapes(rule_id)) for rule_id in shape.prefix]
    rest: Mapping[Value, str] = {}
    if shape.rest is not None:
        rest = finite_values(rules.shapes(shape.rest))
    hits: Iterable[Value] = ()
    minimum, maximum = 0, None
    if shape.contains:
        hits = finite_values(rules.shapes(shape.contains.hit))
        minimum, maximum = shape.contains.minimum, shape.contains.maximum
    names = rules.lists(distinct_items(prefix, rest, most))
    return [
        name
        for used, name in names.items()
        if len(used) >= least
        and minimum <= len(used.intersection(hits))
        and (maximum is None or len(used.intersection(hits)) <= maximum)
    ]
