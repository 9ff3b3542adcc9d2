"""The normal form of a JSON Schema: rules, each a union of shapes of one JSON type.

`expand.py` makes it, the engines write it down as text. Everything that JSON Schema can say in
many ways (references, allOf, not, if, dependencies, drafts) is gone: a rule says which bytes may
stand at one place, and no more than that. Rules may refer to each other in circles.

Objects are written in one order: listed properties as they are listed, then all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet

RuleId = int


class Finding(NamedTuple):
    """A keyword that is not enforced.

    Attributes:
        pointer: its JSON pointer; "" is the whole schema.
        keyword: the keyword, "" for all of the schema there.
        reason: why not.
    """

    pointer: str
    keyword: str
    reason: str


@dataclass(frozen=True, slots=True)
class NullShape:
    """null."""


@dataclass(frozen=True, slots=True)
class BooleanShape:
    """true and/or false."""

    values: frozenset[bool]


@dataclass(frozen=True, slots=True)
class Contains:
    """Some items of an array satisfy a rule.

    Attributes:
        hit: rule of an item that counts (already intersected with what every item must be).
        miss: rule of an item that does not; None where any item may stand (maximum is None then).
        minimum: how many must.
        maximum: how many may; None = no bound.
    """

    hit: RuleId
    miss: RuleId | None
    minimum: int
    maximum: int | None


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """An array.

    Attributes:
        prefix: rules of the first items; none of them has to be there unless `min_items` says so.
        rest: rule of every further item; None = there are none.
        min_items: least number of items.
        max_items: greatest number; None = no bound. Never beyond the prefix where rest is None.
        contains: at most one, and then the prefix is empty and all items share the rule `rest`.
        distinct: items must differ from each other. Only with items from a small finite set.
    """

    prefix: tuple[RuleId, ...]
    rest: RuleId | None
    min_items: int = 0
    max_items: int | None = None
    contains: Contains | None = None
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Property:
    """A property with a name of its own.

    Attributes:
        name: unique in the shape.
        rule: its value.
        required: must it be there?
    """

    name: str
    rule: RuleId
    required: bool


@dataclass(frozen=True, slots=True)
class Extra:
    """Properties whose names are not listed.

    Attributes:
        keys: their names; disjoint from the other extras' and without the listed names.
        rule: their values.
    """

    keys: StringSet
    rule: RuleId


@dataclass(frozen=True, slots=True)
class ObjectShape:
    """An object.

    Attributes:
        properties: the listed ones, in the order in which they are written.
        extras: what may follow them, in any order. A grammar cannot see that a key comes twice, so
            shapes whose meaning would depend on it (`min_properties` reached by extras) are refused
            when the normal form is made.
        min_properties: least number of properties.
        max_properties: greatest number; None = no bound.
    """

    properties: tuple[Property, ...]
    extras: tuple[Extra, ...] = ()
    min_properties: int = 0
    max_properties: int | None = None


Shape = NullShape | BooleanShape | NumberSet | StringSet | ArrayShape | ObjectShape


@dataclass(slots=True)
class Rule:
    """What may stand at one place: any of its shapes; nothing when there are none.

    Shapes of one rule may overlap (anyOf).

    Attributes:
        pointer: of the schema that it comes from, for messages.
        shapes: the union.
    """

    pointer: str
    shapes: tuple[Shape, ...] = ()


@dataclass(frozen=True, slots=True)
class NormalSchema:
    """A schema in normal form.

    Attributes:
        rules: by id. Every rule that a shape names can be satisfied by a finite value (shapes that
            cannot be are gone: an optional property or extra goes, a required one takes its shape
            along), except perhaps the root.
        root: the rule of the whole value.
        findings: what it does not enforce (never any in strict mode).
        annotations: keywords and formats that assert nothing by the specification, by pointer.
    """

    rules: Mapping[RuleId, Rule]
    root: RuleId
    findings: tuple[Finding, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
