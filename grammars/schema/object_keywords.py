"""Keywords about objects, except those that apply schemas to the object as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specrt.grammars.schema.branches import EMPTY, EVERYTHING, Branches, only, with_type
from specrt.grammars.schema.document import Node
from specrt.grammars.schema.pattern import Pattern
from specrt.grammars.schema.string_emptiness import is_surely_empty
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.terms import (
    ALL_KEYS,
    ANYTHING,
    MAX_KEY_CLASSES,
    NOTHING,
    Entry,
    KeyClass,
    Literal,
    ObjectTerm,
    Origin,
    Place,
    SomeKey,
    both,
    closed_object,
)
from specrt.grammars.schema.unsupported import UnsupportedError

if TYPE_CHECKING:
    from specrt.grammars.schema.expand import Expander


def assert_properties(expander: Expander, node: Node, _: Branches) -> Branches:
    """`properties`, `patternProperties` and `additionalProperties`."""
    document, tracks = expander.document, expander.tracks_evaluated
    listed = node.fields.get("properties", {})
    patterns = [
        (
            StringSet(patterns=(_pattern(node, source),)),
            expander.place_of(document.child(node, "patternProperties", source)),
        )
        for source in node.fields.get("patternProperties", {})
    ]
    rest = Entry(ANYTHING)
    if "additionalProperties" in node.fields:
        rest = Entry(expander.place_of(document.child(node, "additionalProperties")), tracks)
    properties = {}
    for name in listed:
        place = expander.place_of(document.child(node, "properties", name))
        for keys, value in patterns:
            # Where readers disagree whether the pattern is found, the value has to suit both.
            if not any(other.contains(name) for other in keys.negate()):
                place = both(place, value)
        properties[name] = Entry(place, tracks)
    term = ObjectTerm(properties, extras=_key_classes(patterns, rest, tracks))
    return with_type("object", term)


def relaxed_properties(expander: Expander, node: Node, _: Branches) -> Branches:
    """`properties` alone."""
    properties = {
        name: Entry(expander.place_of(expander.document.child(node, "properties", name)))
        for name in node.fields.get("properties", {})
    }
    return with_type("object", ObjectTerm(properties))


def deny_properties(expander: Expander, literal: Literal) -> Branches:
    """Not `properties` ...: some property has a value that does not satisfy its schema."""
    node, document = literal.node, expander.document
    terms = []
    for name in node.fields.get("properties", {}):
        origin = Origin(node, "properties", literal)
        denied = expander.denied(origin, document.child(node, "properties", name))
        if denied != NOTHING:
            terms.append(ObjectTerm({name: Entry(denied)}, frozenset((name,))))
    others: tuple[StringSet, ...] = (
        StringSet(excluded_values=frozenset(node.fields.get("properties", {}))),
    )
    for source in node.fields.get("patternProperties", {}):
        keys = StringSet(patterns=(_pattern(node, source),))
        origin = Origin(node, "patternProperties", literal)
        denied = expander.denied(origin, document.child(node, "patternProperties", source))
        if denied != NOTHING:
            terms.append(_with_some_key(keys, denied, origin))
        others = tuple(
            part for rest in others for without in keys.negate() for part in rest.intersect(without)
        )
    if "additionalProperties" in node.fields:
        origin = Origin(node, "additionalProperties", literal)
        denied = expander.denied(origin, document.child(node, "additionalProperties"))
        if denied != NOTHING:
            terms.extend(_with_some_key(keys, denied, origin) for keys in others)
    return only("object", *terms)


def _with_some_key(keys: StringSet, place: Place, origin: Origin) -> ObjectTerm:
    return ObjectTerm({}, some=frozenset((SomeKey(keys, place, origin),)))


def _pattern(node: Node, source: str) -> Pattern:
    try:
        return Pattern(source)
    except UnsupportedError as error:
        reason = f"{source[:100]!r}: {error.reason}"
        raise UnsupportedError(reason, keyword="patternProperties") from None


def _key_classes(
    patterns: list[tuple[StringSet, Place]], rest: Entry, is_evaluated: bool
) -> tuple[KeyClass, ...]:
    """Names sorted by which of the patterns are found in them."""
    classes = [KeyClass(ALL_KEYS, rest)]
    found_nowhere = {0}  # the class of what no pattern was found in
    for keys, place in patterns:
        split: list[KeyClass] = []
        nowhere = set()
        without = keys.negate()
        if len(without) > 1:
            raise UnsupportedError("look-aheads in a pattern for names", "", "patternProperties")
        for index, one in enumerate(classes):
            for part in one.keys.intersect(keys):
                if not is_surely_empty(part):
                    value = place if index in found_nowhere else both(one.entry.place, place)
                    split.append(KeyClass(part, Entry(value, is_evaluated)))
            for part in [part for other in without for part in one.keys.intersect(other)]:
                if not is_surely_empty(part):
                    if index in found_nowhere:
                        nowhere.add(len(split))
                    split.append(KeyClass(part, one.entry))
        classes, found_nowhere = split, nowhere
        if len(classes) > MAX_KEY_CLASSES:
            raise UnsupportedError("too many combinations of patterns", "", "patternProperties")
    return tuple(one for one in classes if one.entry.place != NOTHING)


def assert_required(_: Expander, node: Node, __: Branches) -> Branches:
    """`required`."""
    return _closed(requiring(*node.fields["required"]))


def deny_required(_: Expander, literal: Literal) -> Branches:
    """Not `required`: one of them is not there."""
    names = dict.fromkeys(literal.node.fields["required"])
    return only("object", *(without(name) for name in names))


def requiring(*names: str) -> ObjectTerm:
    """Objects with some properties."""
    return ObjectTerm({name: Entry(ANYTHING) for name in names}, frozenset(names))


def without(name: str) -> ObjectTerm:
    """Objects without a property."""
    return ObjectTerm({name: Entry(NOTHING)})


def assert_min_properties(_: Expander, node: Node, __: Branches) -> Branches:
    """`minProperties`."""
    origin = Origin(node, "minProperties")
    return _closed(_at_least(int(node.fields["minProperties"]), origin))


def assert_max_properties(_: Expander, node: Node, __: Branches) -> Branches:
    """`maxProperties`."""
    return _closed(ObjectTerm({}, maximum=int(node.fields["maxProperties"])))


def deny_min_properties(_: Expander, literal: Literal) -> Branches:
    """Not `minProperties`."""
    minimum = int(literal.node.fields["minProperties"])
    return only("object", ObjectTerm({}, maximum=minimum - 1)) if minimum else EMPTY


def deny_max_properties(_: Expander, literal: Literal) -> Branches:
    """Not `maxProperties`."""
    maximum = int(literal.node.fields["maxProperties"])
    origin = Origin(literal.node, "maxProperties", literal)
    return only("object", _at_least(maximum + 1, origin))


def _at_least(minimum: int, origin: Origin) -> ObjectTerm:
    return ObjectTerm({}, minimum=minimum, minimum_origins=frozenset((origin,)))


def assert_property_names(expander: Expander, node: Node, _: Branches) -> Branches:
    """`propertyNames`."""
    classes: list[StringSet] = []
    place = expander.place_of(expander.document.child(node, "propertyNames"))
    for keys in _strings(expander.place(place)):
        parts = [keys]
        for earlier in classes:  # classes of names must be disjoint
            if keys.values is not None and earlier.values is None:
                parts = [
                    StringSet(values=tuple(v for v in part.values or () if not earlier.contains(v)))
                    for part in parts
                ]
                continue
            others = earlier.negate()
            if len(others) > 1:
                parts = [p for p in parts if not _is_surely_disjoint(p, earlier)]
                if parts:
                    raise UnsupportedError("names that overlap")
                parts = [keys]
            else:
                parts = [p for part in parts for other in others for p in part.intersect(other)]
        classes.extend(part for part in parts if not is_surely_empty(part))
        if len(classes) > MAX_KEY_CLASSES:
            raise UnsupportedError("too many alternatives for names")
    if classes == [ALL_KEYS]:
        return EVERYTHING
    return with_type(
        "object", ObjectTerm({}, extras=tuple(KeyClass(keys, Entry(ANYTHING)) for keys in classes))
    )


def _is_surely_disjoint(left: StringSet, right: StringSet) -> bool:
    return all(is_surely_empty(part) for part in left.intersect(right))


def deny_property_names(expander: Expander, literal: Literal) -> Branches:
    """Not `propertyNames`: some name does not satisfy its schema."""
    origin = Origin(literal.node, "propertyNames", literal)
    denied = expander.denied(origin, expander.document.child(literal.node, "propertyNames"))
    sets = _strings(expander.place(denied))
    return only("object", *(_with_some_key(keys, ANYTHING, origin) for keys in sets))


def _strings(branches: Branches) -> list[StringSet]:
    return [term for term in branches.get("string", ()) if isinstance(term, StringSet)]


def _closed(term: ObjectTerm) -> Branches:
    closed = closed_object(term)
    return with_type("object") if closed is None else with_type("object", closed)
