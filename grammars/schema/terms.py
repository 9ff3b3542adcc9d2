"""Shapes while they are being worked out: like those of normal.py, with places instead of rules.

A place is a conjunction of literals, each a subschema or its negation: what stands there must
satisfy all of them. It is expanded only when it is asked for, so that recursion does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from specrt.grammars.schema.document import Node
from specrt.grammars.schema.normal import BooleanShape, NullShape
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_emptiness import is_surely_empty
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

MAX_KEY_CLASSES = 32


class Literal(NamedTuple):
    """A subschema that a value must satisfy, or must not."""

    node: Node
    is_negated: bool = False


class Choice(NamedTuple):
    """A literal that is satisfied where one of its places is.

    Attributes:
        places: at least two.
        node: the schema that it comes from.
    """

    places: frozenset[frozenset[Literal | Choice | Nothing]]
    node: Node


class Nothing(NamedTuple):
    """A literal that nothing satisfies."""


Place = frozenset[Literal | Choice | Nothing]
ANYTHING: Place = frozenset()
NOTHING: Place = frozenset((Nothing(),))


def place_of(node: Node, *, is_negated: bool = False) -> Place:
    """The place of what satisfies a schema (or does not)."""
    if isinstance(node.schema, bool):
        return ANYTHING if node.schema != is_negated else NOTHING
    return frozenset((Literal(node, is_negated),))


def both(left: Place, right: Place) -> Place:
    """What satisfies two places."""
    if left == right or not right:
        return left
    if not left:
        return right
    if left == NOTHING or right == NOTHING:
        return NOTHING
    joined = left | right
    for literal in joined:
        if not isinstance(literal, Literal) or not literal.is_negated:
            continue
        if Literal(literal.node) in joined:
            return NOTHING
    return joined


class Entry(NamedTuple):
    """What stands at a property, or an item.

    Attributes:
        place: its value.
        is_evaluated: is it none of an `unevaluated...` keyword's business?
    """

    place: Place
    is_evaluated: bool = False

    def both(self, other: Entry) -> Entry:
        """What satisfies two entries."""
        return Entry(both(self.place, other.place), self.is_evaluated or other.is_evaluated)


class Origin(NamedTuple):
    """The keyword that a constraint comes from.

    Attributes:
        node: the schema.
        keyword: its keyword.
        literal: the negated literal that it is expanded for, None where there is no negation.
    """

    node: Node
    keyword: str
    literal: Literal | None = None


class ContainsTerm(NamedTuple):
    """A number of items satisfy a place.

    Attributes:
        place: what such an item satisfies.
        minimum: how many must.
        maximum: how many may; None = no bound.
        does_evaluate: are such items evaluated?
        origin: for messages.
    """

    place: Place
    minimum: int
    maximum: int | None
    does_evaluate: bool
    origin: Origin


@dataclass(frozen=True, slots=True)
class ArrayTerm:
    """An array.

    Attributes:
        prefix: the first items, as far as they are there.
        rest: every further item.
        minimum: least number of items.
        maximum: greatest number; None = no bound.
        contains: all of them hold.
        unique: the `uniqueItems` that hold.
    """

    prefix: tuple[Entry, ...] = ()
    rest: Entry = Entry(ANYTHING)
    minimum: int = 0
    maximum: int | None = None
    contains: frozenset[ContainsTerm] = frozenset()
    unique: frozenset[Origin] = frozenset()

    def item(self, index: int) -> Entry:
        """What stands at an index."""
        return self.prefix[index] if index < len(self.prefix) else self.rest

    def intersect(self, other: ArrayTerm) -> ArrayTerm | None:
        """What is in both, None where it is plain to see that nothing is."""
        length = max(len(self.prefix), len(other.prefix))
        return closed_array(
            ArrayTerm(
                tuple(self.item(index).both(other.item(index)) for index in range(length)),
                self.rest.both(other.rest),
                max(self.minimum, other.minimum),
                least(self.maximum, other.maximum),
                self.contains | other.contains,
                self.unique | other.unique,
            )
        )


def closed_array(term: ArrayTerm) -> ArrayTerm | None:
    """The term with its impossible items cut off, None if too few are left."""
    maximum = term.maximum
    for index, entry in enumerate((*term.prefix, term.rest)):
        if entry.place == NOTHING:
            maximum = least(maximum, index)
            break
    if maximum is not None and term.minimum > maximum:
        return None
    prefix = term.prefix if maximum is None else term.prefix[:maximum]
    rest = term.rest
    if maximum is not None and maximum <= len(prefix):
        rest = Entry(NOTHING, rest.is_evaluated)
    if any(item.maximum is not None and item.minimum > item.maximum for item in term.contains):
        return None
    return replace(term, prefix=prefix, rest=rest, maximum=maximum)


class KeyClass(NamedTuple):
    """Names of properties that are not listed, and what stands there."""

    keys: StringSet
    entry: Entry


class SomeKey(NamedTuple):
    """A property of some name must have some value.

    Attributes:
        keys: the names.
        place: the value.
        origin: for messages.
    """

    keys: StringSet
    place: Place
    origin: Origin


ALL_KEYS = StringSet()
OPEN = (KeyClass(ALL_KEYS, Entry(ANYTHING)),)


@dataclass(frozen=True, slots=True)
class ObjectTerm:
    """An object.

    Attributes:
        properties: the listed ones; a place of NOTHING forbids the name.
        required: listed names that must be there.
        extras: other names; disjoint; what is in none of them is forbidden. Their keys may hold
            listed names, for which `properties` alone counts.
        minimum: least number of properties.
        maximum: greatest number; None = no bound.
        minimum_origins: where `minimum` comes from.
        some: properties that must be there under some name.
    """

    properties: Mapping[str, Entry]
    required: frozenset[str] = frozenset()
    extras: tuple[KeyClass, ...] = OPEN
    minimum: int = 0
    maximum: int | None = None
    minimum_origins: frozenset[Origin] = frozenset()
    some: frozenset[SomeKey] = frozenset()

    def key(self) -> tuple[object, ...]:
        """What two equal terms share: `properties` cannot be hashed."""
        return (
            frozenset(self.properties.items()),
            self.required,
            self.extras,
            self.minimum,
            self.maximum,
            self.some,
        )

    def entry(self, name: str) -> Entry:
        """What may stand under a name."""
        listed = self.properties.get(name)
        if listed is not None:
            return listed
        for extra in self.extras:
            if extra.keys is ALL_KEYS or extra.keys.contains(name):
                return extra.entry
        return Entry(NOTHING)

    def intersect(self, other: ObjectTerm) -> ObjectTerm | None:
        """What is in both, None where it is plain to see that nothing is."""
        if other.extras == OPEN and not other.properties:
            properties, extras = self.properties, self.extras
        else:
            names = dict.fromkeys((*self.properties, *other.properties))
            properties = {name: self.entry(name).both(other.entry(name)) for name in names}
            extras = tuple(_common_classes(self.extras, other.extras))
        return closed_object(
            ObjectTerm(
                properties,
                self.required | other.required,
                extras,
                max(self.minimum, other.minimum),
                least(self.maximum, other.maximum),
                self.minimum_origins | other.minimum_origins,
                self.some | other.some,
            )
        )


def closed_object(term: ObjectTerm) -> ObjectTerm | None:
    """The term with its required names listed, None where one is forbidden or they are too many."""
    unlisted = [name for name in term.required if name not in term.properties]
    if unlisted:
        added = {name: term.entry(name) for name in sorted(unlisted)}
        term = replace(term, properties={**term.properties, **added})
    if any(term.properties[name].place == NOTHING for name in term.required):
        return None
    if term.maximum is not None and max(len(term.required), term.minimum) > term.maximum:
        return None
    return term


def least(left: int | None, right: int | None) -> int | None:
    """The lesser of two upper bounds, None = no bound."""
    if left is None or right is None:
        return right if left is None else left
    return min(left, right)


def _common_classes(left: Iterable[KeyClass], right: tuple[KeyClass, ...]) -> Iterable[KeyClass]:
    count = 0
    for one in left:
        for other in right:
            entry = one.entry.both(other.entry)
            if entry.place == NOTHING:
                continue
            if one.keys is ALL_KEYS or other.keys is ALL_KEYS:
                sets: tuple[StringSet, ...] = (other.keys if one.keys is ALL_KEYS else one.keys,)
            elif one.keys == other.keys:
                sets = (one.keys,)
            else:
                sets = tuple(
                    keys for keys in one.keys.intersect(other.keys) if not is_surely_empty(keys)
                )
            for keys in sets:
                count += 1
                if count > MAX_KEY_CLASSES:
                    raise UnsupportedError("too many combinations of patterns for names")
                yield KeyClass(keys, entry)


Term = NullShape | BooleanShape | NumberSet | StringSet | ArrayTerm | ObjectTerm
