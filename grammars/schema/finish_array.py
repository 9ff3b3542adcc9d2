"""Array terms as array shapes: `contains` beside listed items, and `uniqueItems`."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from specrt.grammars.schema.normal import ArrayShape, BooleanShape, Contains, NullShape
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.terms import (
    NOTHING,
    ArrayTerm,
    ContainsTerm,
    Entry,
    Literal,
    Place,
    Term,
    both,
    closed_array,
    least,
)
from specrt.grammars.schema.unsupported import UnsupportedError

if TYPE_CHECKING:
    from specrt.grammars.schema.expand import Expander

MAX_DISTINCT = 6  # values that items which differ from each other may have
MAX_PARTS = 100  # choices of items
MAX_PLACES = 6  # items of which some must satisfy a `contains`, when they are told apart


def array_shapes(expander: Expander, term: ArrayTerm) -> list[ArrayShape]:
    """The shapes whose union is an array term."""
    found = []
    for part in _without_contains(expander, term):
        shape = _shape(expander, part)
        if shape is not None:
            found.append(shape)
    return found


def _without_contains(expander: Expander, term: ArrayTerm) -> list[ArrayTerm]:
    """The term as a union of terms with at most one `contains`, and that without listed items."""
    items = list(_merged(term))
    for item in items:
        if item.maximum == 0:
            return _without_contains(expander, _with_no_hit(expander, term, item))
        if not term.prefix and item.place <= term.rest.place:  # every item satisfies it
            maximum = least(term.maximum, item.maximum)
            rest = frozenset(items) - {item}
            minimum = max(term.minimum, item.minimum)
            counted = closed_array(replace(term, contains=rest, minimum=minimum, maximum=maximum))
            return _without_contains(expander, counted) if counted is not None else []
    term = replace(term, contains=frozenset(items))
    if not items or (len(items) == 1 and not term.prefix):
        return [term]
    parts = [term]
    for item in items:
        found = _all_told_apart(expander, parts, item)
        if found is None:
            error = UnsupportedError("`contains` beside listed items or another `contains`")
            expander.ledger.give_up([item.origin for item in items], error)
            return [replace(term, contains=frozenset())]
        parts = found
    return parts


def _all_told_apart(
    expander: Expander, terms: list[ArrayTerm], item: ContainsTerm
) -> list[ArrayTerm] | None:
    found = []
    for term in terms:
        parts = _told_apart(expander, term, item)
        if parts is None:
            return None
        for part in parts:
            expander.budget.spend(1 + len(part.prefix))
            if not any(expander.is_empty_place(entry.place) for entry in part.prefix):
                found.append(part)
    return found if len(found) <= MAX_PARTS else None


def _merged(term: ArrayTerm) -> list[ContainsTerm]:
    """The `contains` that say something, one for each place."""
    found: dict[Place, ContainsTerm] = {}
    for item in sorted(term.contains, key=lambda item: (item.origin.node.serial, item.minimum)):
        other = found.get(item.place, item)
        maximum = least(item.maximum, other.maximum)
        if maximum is not None and term.maximum is not None and maximum >= term.maximum:
            maximum = None
        minimum = max(item.minimum, other.minimum)
        found[item.place] = item._replace(minimum=minimum, maximum=maximum)
    return [item for item in found.values() if item.minimum or item.maximum is not None]


def _negated(expander: Expander, item: ContainsTerm) -> Place:
    """The place of an item that does not count."""
    (literal,) = item.place
    if isinstance(literal, Literal) and not literal.is_negated:
        return expander.denied(item.origin, literal.node)
    if isinstance(literal, Literal):
        return expander.place_of(literal.node)
    raise UnsupportedError("the negation of several schemas")


def _with_no_hit(expander: Expander, term: ArrayTerm, item: ContainsTerm) -> ArrayTerm:
    contains = frozenset(other for other in term.contains if other.place != item.place)
    try:
        miss = Entry(_negated(expander, item))
    except UnsupportedError as error:
        expander.ledger.give_up([item.origin], error)
        return replace(term, contains=contains)
    joined = ArrayTerm(rest=miss).intersect(replace(term, contains=contains))
    return joined if joined is not None else replace(term, contains=contains, maximum=0)


def _told_apart(expander: Expander, term: ArrayTerm, item: ContainsTerm) -> list[ArrayTerm] | None:
    """One term for each choice of items that satisfy `item`; None if that cannot be done."""
    if item.maximum is not None:
        return None
    length = len(term.prefix)
    others = term.contains - {item}
    hit_in_rest = both(term.rest.place, item.place)
    if not expander.is_empty_place(hit_in_rest):
        # Only listed items can be told apart: all of them must be listed.
        if term.maximum is None or term.maximum > MAX_PLACES:
            return None
        length = term.maximum
    if length > MAX_PLACES and item.minimum > 1:
        return None
    parts = []
    for chosen in combinations(range(length), item.minimum):
        last = max(chosen)
        size = max(len(term.prefix), last + 1)
        entries = [term.item(index) for index in range(size)]
        for index in chosen:
            place = both(entries[index].place, item.place)
            entries[index] = Entry(place)
        minimum = max(term.minimum, last + 1)
        part = replace(term, prefix=tuple(entries), minimum=minimum, contains=others)
        closed = closed_array(part)
        if closed is not None:
            parts.append(closed)
    return parts


def _shape(expander: Expander, term: ArrayTerm) -> ArrayShape | None:
    contains = None
    for item in term.contains:
        hit = both(term.rest.place, item.place)
        miss = None
        maximum = item.maximum
        if maximum is not None:
            try:
                miss = expander.rule(both(term.rest.place, _negated(expander, item)))
            except UnsupportedError as error:
                expander.ledger.give_up([item.origin], error)
                maximum = None
        if item.minimum or maximum is not None:
            contains = Contains(expander.rule(hit), miss, item.minimum, maximum)
    term, is_distinct = _distinct(expander, term)
    if term.maximum is not None and term.minimum > term.maximum:
        return None
    has_rest = term.rest.place != NOTHING
    return ArrayShape(
        prefix=tuple(expander.rule(entry.place) for entry in term.prefix),
        rest=expander.rule(term.rest.place) if has_rest else None,
        min_items=term.minimum,
        max_items=term.maximum if has_rest else least(term.maximum, len(term.prefix)),
        contains=contains,
        distinct=is_distinct,
    )


def _distinct(expander: Expander, term: ArrayTerm) -> tuple[ArrayTerm, bool]:
    """Does `uniqueItems` have to be said, and how long can the array be then?"""
    if not term.unique or (term.maximum is not None and term.maximum <= 1):
        return term, False
    is_short = term.rest.place == NOTHING and len(term.prefix) <= MAX_PLACES
    if is_short and all(
        expander.is_empty_place(both(left.place, right.place))
        for left, right in combinations(term.prefix, 2)
    ):
        return term, False
    try:
        if term.prefix or term.contains:
            raise UnsupportedError("unique items beside listed items or `contains`")
        count = _num_values(expander, term.rest.place)
        if count is None:
            reason = f"only for items from at most {MAX_DISTINCT} listed values, or one item"
            raise UnsupportedError(reason)
        return replace(term, maximum=least(term.maximum, count)), count > 1
    except UnsupportedError as error:
        expander.ledger.give_up(sorted(term.unique, key=lambda origin: origin.node.serial), error)
        return term, False


def _num_values(expander: Expander, place: Place) -> int | None:
    """The number of values that satisfy a place, None if they are many."""
    count = 0
    for terms in expander.place(place).values():
        for term in terms:
            num_values = _size(term)
            if num_values is None:
                return None
            count += num_values
    return count if count <= MAX_DISTINCT else None


def _size(term: Term) -> int | None:
    """The number of values of a scalar shape, None if they are many."""
    if isinstance(term, NullShape):
        return 1
    if isinstance(term, BooleanShape):
        return len(term.values)
    if isinstance(term, NumberSet | StringSet) and term.values is not None:
        return len(term.values)
    if isinstance(term, NumberSet) and term.is_integer:
        values = term.multiples(MAX_DISTINCT)
        return None if values is None else len(values)
    return None
