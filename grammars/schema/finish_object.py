"""Object terms as object shapes: names, how many of them, and names that only must be some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from specrt.grammars.schema.branches import TooLargeError
from specrt.grammars.schema.normal import Extra, ObjectShape, Property
from specrt.grammars.schema.string_emptiness import is_surely_empty
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.terms import (
    ALL_KEYS,
    NOTHING,
    Entry,
    KeyClass,
    ObjectTerm,
    SomeKey,
    both,
    closed_object,
)
from specrt.grammars.schema.unsupported import UnsupportedError

if TYPE_CHECKING:
    from specrt.grammars.schema.expand import Expander

MAX_FINITE_KEYS = 200
MAX_PARTS = 200  # ways to give names to properties that must be there
MAX_OPTIONAL = 5  # listed properties beside which some other one must be there


def object_shapes(
    expander: Expander, term: ObjectTerm, order: Mapping[str, int]
) -> list[ObjectShape]:
    """The shapes whose union is an object term.

    Args:
        expander: hands out rules.
        term: what is allowed.
        order: position of names that the schema lists.
    """
    found = []
    for part in _with_named(expander, _listed(term)):
        shape = _shape(expander, part, order)
        if shape is not None:
            found.append(shape)
    return found


def _listed(term: ObjectTerm) -> ObjectTerm:
    """The term with names from finite sets listed, and without names in its extras."""
    properties = dict(term.properties)
    extras = []
    for extra in term.extras:
        if extra.keys.values is not None and len(extra.keys.values) <= MAX_FINITE_KEYS:
            for name in extra.keys.values:
                properties.setdefault(name, extra.entry)
        else:
            extras.append(extra)
    names = list(properties)
    unlisted = []
    for keys, entry in extras:
        listed = frozenset(name for name in names if keys.contains(name))
        if keys is ALL_KEYS or keys == ALL_KEYS:
            sets: tuple[StringSet, ...] = (StringSet(excluded_values=listed),)
        else:
            sets = keys.intersect(StringSet(excluded_values=listed)) if listed else (keys,)
        unlisted += [KeyClass(left, entry) for left in sets if not is_surely_empty(left)]
    return replace(term, properties=properties, extras=tuple(unlisted))


def _allowed(term: ObjectTerm) -> list[str]:
    return [name for name, entry in term.properties.items() if entry.place != NOTHING]


def _with_named(expander: Expander, term: ObjectTerm) -> list[ObjectTerm]:
    """The term as a union of terms in which every property that must be there has a name."""
    parts = [term]
    wanted = sorted(term.some, key=lambda some: (some.origin.node.serial, some.origin.keyword))
    for some in wanted:
        try:
            found = [new for part in parts for new in _with_name(expander, part, some)]
            if len(found) > MAX_PARTS:
                raise UnsupportedError(f"more than {MAX_PARTS} combinations of names")
        except TooLargeError:
            raise
        except UnsupportedError as error:
            expander.ledger.give_up([some.origin], error)
            found = [replace(part, some=part.some - {some}) for part in parts]
        parts = found
    return parts


def _with_name(expander: Expander, term: ObjectTerm, some: SomeKey) -> list[ObjectTerm]:
    rest = replace(term, some=term.some - {some})
    parts = []
    for name in _allowed(term):
        if some.keys.contains(name):
            expander.budget.spend(1 + len(term.properties) // 4)
            entry = Entry(both(term.properties[name].place, some.place))
            properties = {**term.properties, name: entry}
            named = closed_object(
                replace(rest, properties=properties, required=rest.required | {name})
            )
            parts += [] if named is None else [named]
    return parts + _with_unnamed(rest, some)


def _with_unnamed(term: ObjectTerm, some: SomeKey) -> list[ObjectTerm]:
    """Terms in which the property that must be there is not a listed one."""
    possible = [
        extra
        for extra in term.extras
        if both(extra.entry.place, some.place) != NOTHING
        and any(not is_surely_empty(keys) for keys in extra.keys.intersect(some.keys))
    ]
    if not possible:
        return []
    outside = [
        KeyClass(keys, extra.entry)
        for extra in term.extras
        for without in some.keys.negate()
        for keys in extra.keys.intersect(without)
        if not is_surely_empty(keys)
    ]
    if outside and all(one.keys.values is not None for one in outside):
        # All other names are known: they become listed ones.
        names = {name: one.entry for one in outside for name in one.keys.values or ()}
        listed = replace(term, properties={**term.properties, **names})
        return _with_unnamed(_listed(listed), some)
    for extra in term.extras:
        if outside or not some.place <= extra.entry.place:
            raise UnsupportedError("a property with a certain value under one of many names")
    if term.some or term.minimum > len(term.required):
        raise UnsupportedError("several properties under one of many names")
    optional = [name for name in _allowed(term) if name not in term.required]
    if len(optional) > MAX_OPTIONAL:
        raise UnsupportedError(
            f"a property beside more than {MAX_OPTIONAL} optional ones, under one of many names"
        )
    parts = []
    for size in range(len(optional) + 1):
        for chosen in combinations(optional, size):
            absent = {name: Entry(NOTHING) for name in optional if name not in chosen}
            required = term.required | set(chosen)
            part = closed_object(
                replace(
                    term,
                    properties={**term.properties, **absent},
                    required=required,
                    minimum=len(required) + 1,
                )
            )
            parts += [] if part is None else [part]
    return parts


def _shape(expander: Expander, term: ObjectTerm, order: Mapping[str, int]) -> ObjectShape | None:
    expander.budget.spend(1 + len(term.properties) // 4)
    names = sorted(_allowed(term), key=lambda name: order.get(name, len(order)))
    extras, required = term.extras, term.required
    minimum = term.minimum if term.minimum > len(required) else 0
    maximum = term.maximum
    if minimum and not extras:
        if minimum > len(names):
            return None
        if minimum == len(names):
            required, minimum = frozenset(names), 0
    if minimum > len(required) + 1 and extras:
        error = UnsupportedError("several properties under any names: a name could come twice")
        origins = sorted(term.minimum_origins, key=lambda origin: origin.node.serial)
        expander.ledger.give_up(origins, error)
        minimum = len(required) + 1
    if maximum is not None:
        if maximum == len(required):
            names = [name for name in names if name in required]
            extras, maximum = (), None
        elif not extras and maximum >= len(names):
            maximum = None
    return ObjectShape(
        properties=tuple(
            Property(name, expander.rule(term.properties[name].place), name in required)
            for name in names
        ),
        extras=tuple(Extra(keys, expander.rule(entry.place)) for keys, entry in extras),
        min_properties=minimum,
        max_properties=maximum,
    )
