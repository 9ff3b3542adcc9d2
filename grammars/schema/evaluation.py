"""`unevaluatedProperties` and `unevaluatedItems`.

Each entry of a term knows whether a keyword has evaluated it, in that one combination of
alternatives. A value that satisfies several alternatives of an anyOf has the properties of all of
them evaluated: so there is a term for every combination.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from specrt.grammars.schema.branches import EMPTY, Branches, intersect, simplified, unite
from specrt.grammars.schema.document import Node
from specrt.grammars.schema.terms import (
    ANYTHING,
    NOTHING,
    ArrayTerm,
    Choice,
    Entry,
    KeyClass,
    Literal,
    ObjectTerm,
    Place,
    Term,
    both,
    closed_array,
    closed_object,
)
from specrt.grammars.schema.unsupported import UnsupportedError

if TYPE_CHECKING:
    from specrt.grammars.schema.expand import Expander

MAX_COMBINATIONS = 256


def all_combinations(branches: list[Branches], base: Branches, expander: Expander) -> Branches:
    """What satisfies at least one of several branches, sorted by which of them it satisfies."""
    parts: list[Branches] = []
    for branch in branches:
        more = []
        for part in parts:
            joined = intersect(part, branch, expander.budget)
            evaluating = {kind: joined[kind] for kind in ("array", "object") if kind in joined}
            if evaluating and expander.pruned(intersect(evaluating, base, expander.budget)):
                more.append(evaluating)
        parts += [*more, branch]
        if len(parts) > MAX_COMBINATIONS:
            raise UnsupportedError("too many combinations for the unevaluated... keywords")
    return unite(EMPTY, *parts)


def close_properties(expander: Expander, node: Node, base: Branches) -> Branches:
    """`base` under `unevaluatedProperties`."""
    place = expander.place_of(expander.document.child(node, "unevaluatedProperties"))

    def closed(entry: Entry) -> Entry:
        return entry if entry.is_evaluated else Entry(both(entry.place, place), is_evaluated=True)

    terms: list[Term] = []
    for term in base.get("object", ()):
        if isinstance(term, ObjectTerm):
            found = closed_object(
                replace(
                    term,
                    properties={name: closed(entry) for name, entry in term.properties.items()},
                    extras=tuple(KeyClass(one.keys, closed(one.entry)) for one in term.extras),
                )
            )
            terms += [] if found is None else [found]
    return _with("object", terms, base)


def close_items(expander: Expander, node: Node, base: Branches) -> Branches:
    """`base` under `unevaluatedItems`."""
    place = expander.place_of(expander.document.child(node, "unevaluatedItems"))
    terms: list[Term] = []
    for term in base.get("array", ()):
        if not isinstance(term, ArrayTerm):
            continue
        evaluating = [item.place for item in term.contains if item.does_evaluate]
        wanted = _any_of([*evaluating, place], node)

        def closed(entry: Entry, wanted: Place = wanted) -> Entry:
            if entry.is_evaluated:
                return entry
            return Entry(both(entry.place, wanted), is_evaluated=True)

        found = closed_array(
            replace(term, prefix=tuple(map(closed, term.prefix)), rest=closed(term.rest))
        )
        terms += [] if found is None else [found]
    return _with("array", terms, base)


def deny_unevaluated(_: Expander, __: Literal) -> Branches:
    """Not `unevaluated...`."""
    raise UnsupportedError("under a negation")


def forgotten(branches: Branches) -> Branches:
    """The same, with nothing evaluated."""

    def fresh(term: Term) -> Term:
        if isinstance(term, ObjectTerm):
            return replace(
                term,
                properties={name: Entry(entry.place) for name, entry in term.properties.items()},
                extras=tuple(KeyClass(one.keys, Entry(one.entry.place)) for one in term.extras),
            )
        if isinstance(term, ArrayTerm):
            contains = (item._replace(does_evaluate=False) for item in term.contains)
            return replace(
                term,
                prefix=tuple(Entry(entry.place) for entry in term.prefix),
                rest=Entry(term.rest.place),
                contains=frozenset(contains),
            )
        return term

    return {kind: tuple(map(fresh, terms)) for kind, terms in branches.items()}


def _any_of(places: list[Place], node: Node) -> Place:
    possible = frozenset(place for place in places if place != NOTHING)
    if ANYTHING in possible:
        return ANYTHING
    if not possible:
        return NOTHING
    return next(iter(possible)) if len(possible) == 1 else frozenset((Choice(possible, node),))


def _with(kind: str, terms: list[Term], base: Branches) -> Branches:
    result = {other: found for other, found in base.items() if other != kind}
    return {**result, kind: simplified(kind, terms)} if terms else result
