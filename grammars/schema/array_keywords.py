"""Keywords about arrays, except `unevaluatedItems`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specrt.grammars.schema.branches import EMPTY, EVERYTHING, Branches, only, with_type
from specrt.grammars.schema.dialects import Dialect
from specrt.grammars.schema.document import Node
from specrt.grammars.schema.terms import (
    ANYTHING,
    NOTHING,
    ArrayTerm,
    ContainsTerm,
    Entry,
    Literal,
    Origin,
    closed_array,
)
from specrt.grammars.schema.unsupported import UnsupportedError

if TYPE_CHECKING:
    from specrt.grammars.schema.expand import Expander

MAX_PREFIX = 1_000


def assert_items(expander: Expander, node: Node, _: Branches) -> Branches:
    """`prefixItems`, `items` and `additionalItems`."""
    prefix, rest, _keyword = _items(expander, node)
    tracks = expander.tracks_evaluated
    return _branches(
        ArrayTerm(
            prefix=tuple(Entry(expander.place_of(item), tracks) for item in prefix),
            rest=Entry(ANYTHING) if rest is None else Entry(expander.place_of(rest), tracks),
        )
    )


def deny_items(expander: Expander, literal: Literal) -> Branches:
    """Not `prefixItems`, `items` and `additionalItems`: an item does not satisfy its schema."""
    prefix, rest, keyword = _items(expander, literal.node)
    terms = []
    for index, item in enumerate(prefix):
        denied = expander.denied(Origin(literal.node, keyword, literal), item)
        if denied != NOTHING:
            entries = (*[Entry(ANYTHING)] * index, Entry(denied))
            terms.append(ArrayTerm(prefix=entries, minimum=index + 1))
    if rest is not None:
        denied = expander.denied(Origin(literal.node, "items", literal), rest)
        if denied == ANYTHING:
            terms.append(ArrayTerm(minimum=len(prefix) + 1))
        elif denied != NOTHING:
            if prefix:
                raise UnsupportedError("an item after listed ones that does not satisfy a schema")
            origin = Origin(literal.node, "items", literal)
            contains = ContainsTerm(denied, 1, None, False, origin)
            terms.append(ArrayTerm(contains=frozenset((contains,))))
    return only("array", *terms)


def _items(expander: Expander, node: Node) -> tuple[list[Node], Node | None, str]:
    """Schemas of the first items, of the others (None: anything), and where the first stand."""
    fields, document = node.fields, expander.document
    keyword = "prefixItems" if node.dialect >= Dialect.DRAFT2020 else "items"
    first, others = fields.get(keyword), "items"
    if keyword == "items":
        others = "additionalItems" if isinstance(first, list) else "items"
    if not isinstance(first, list):
        first = []
    if len(first) > MAX_PREFIX:
        raise UnsupportedError(f"more than {MAX_PREFIX} listed items")
    prefix = [document.child(node, keyword, index) for index in range(len(first))]
    rest = document.child(node, others) if others in fields else None
    return prefix, rest, keyword


def assert_min_items(_: Expander, node: Node, __: Branches) -> Branches:
    """`minItems`."""
    return _branches(ArrayTerm(minimum=int(node.fields["minItems"])))


def assert_max_items(_: Expander, node: Node, __: Branches) -> Branches:
    """`maxItems`."""
    return _branches(ArrayTerm(maximum=int(node.fields["maxItems"])))


def deny_min_items(_: Expander, literal: Literal) -> Branches:
    """Not `minItems`."""
    minimum = int(literal.node.fields["minItems"])
    return only("array", ArrayTerm(maximum=minimum - 1)) if minimum else EMPTY


def deny_max_items(_: Expander, literal: Literal) -> Branches:
    """Not `maxItems`."""
    return only("array", ArrayTerm(minimum=int(literal.node.fields["maxItems"]) + 1))


def assert_unique_items(_: Expander, node: Node, __: Branches) -> Branches:
    """`uniqueItems`."""
    if not node.fields["uniqueItems"]:
        return EVERYTHING
    return _branches(ArrayTerm(unique=frozenset((Origin(node, "uniqueItems"),))))


def deny_unique_items(_: Expander, literal: Literal) -> Branches:
    """Not `uniqueItems`."""
    if not literal.node.fields["uniqueItems"]:
        return EMPTY
    raise UnsupportedError("items that are equal")


def assert_contains(expander: Expander, node: Node, _: Branches) -> Branches:
    """`contains`, `minContains` and `maxContains`."""
    minimum, maximum = _counts(node)
    return _branches(_containing(expander, node, minimum, maximum, None))


def deny_contains(expander: Expander, literal: Literal) -> Branches:
    """Not `contains`: too few items satisfy it, or too many."""
    minimum, maximum = _counts(literal.node)
    terms = []
    if minimum > 0:
        terms.append(_containing(expander, literal.node, 0, minimum - 1, literal))
    if maximum is not None:
        terms.append(_containing(expander, literal.node, maximum + 1, None, literal))
    return only("array", *(term for term in terms if term is not None))


def _counts(node: Node) -> tuple[int, int | None]:
    fields = node.fields
    maximum = fields.get("maxContains")
    return int(fields.get("minContains", 1)), None if maximum is None else int(maximum)


def _containing(
    expander: Expander, node: Node, minimum: int, maximum: int | None, literal: Literal | None
) -> ArrayTerm | None:
    """An array of which between `minimum` and `maximum` items satisfy `contains`."""
    if maximum is not None and minimum > maximum:
        return None
    item = expander.document.child(node, "contains")
    place = expander.place_of(item)
    origin = Origin(node, "contains", literal)
    does_evaluate = (
        expander.tracks_evaluated and literal is None and node.dialect >= Dialect.DRAFT2020
    )
    if place == ANYTHING:
        rest = Entry(ANYTHING, does_evaluate)
        return ArrayTerm(rest=rest, minimum=minimum, maximum=maximum)
    if place == NOTHING:
        return None if minimum else ArrayTerm()
    if maximum == 0:
        return ArrayTerm(rest=Entry(expander.denied(origin, item)))
    contains = ContainsTerm(place, minimum, maximum, does_evaluate, origin)
    if maximum is not None:
        expander.denied(origin, item)  # what the other items satisfy
    return ArrayTerm(minimum=minimum, contains=frozenset((contains,)))


def _branches(term: ArrayTerm | None) -> Branches:
    term = None if term is None else closed_array(term)
    return with_type("array") if term is None else with_type("array", term)
