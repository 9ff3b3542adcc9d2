"""Unions of shapes, sorted by JSON type: the disjunctive normal form of a schema.

A type that is absent has no shape: no value of that type is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from specrt.grammars.schema.normal import BooleanShape, NullShape
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.terms import ArrayTerm, ObjectTerm, Term
from specrt.grammars.schema.unsupported import UnsupportedError

MAX_TERMS = 500  # of one type
MAX_STEPS = 100_000  # intersections of two terms, by their size, in a whole schema

Branches = Mapping[str, tuple[Term, ...]]

EVERYTHING: Branches = {
    "null": (NullShape(),),
    "boolean": (BooleanShape(frozenset((False, True))),),
    "number": (NumberSet(),),
    "string": (StringSet(),),
    "array": (ArrayTerm(),),
    "object": (ObjectTerm({}),),
}
EMPTY: Branches = {}


class TooLargeError(UnsupportedError):
    """The work itself is too much: there is no use in going on without one keyword."""


class SpentError(Exception):
    """A part of the work has taken all that it may."""


class Budget:
    """Counts work, so that a hostile schema ends early."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._steps_left = steps
        self._reserve = 0  # what a part of the work may not touch

    def spend(self, steps: int = 1) -> None:
        """Count some work.

        Raises:
            SpentError: there is none left for this part of the work.
            TooLargeError: there is none left at all.
        """
        self._steps_left -= steps
        if self._steps_left < 0:
            raise TooLargeError("the schema is too large to work out: it has too many combinations")
        if self._steps_left < self._reserve:
            raise SpentError

    @contextmanager
    def limited(self, steps: int) -> Iterator[None]:
        """Some work that may take at most so many steps."""
        before = self._reserve
        self._reserve = max(before, self._steps_left - steps)
        try:
            yield
        finally:
            self._reserve = before


def only(kind: str, *terms: Term) -> Branches:
    """No more than some shapes of one type."""
    return {kind: terms} if terms else EMPTY


def with_type(kind: str, *terms: Term) -> Branches:
    """All values of the other types, and some shapes of one."""
    rest = {other: shapes for other, shapes in EVERYTHING.items() if other != kind}
    return {**rest, kind: terms} if terms else rest


def intersect(left: Branches, right: Branches, budget: Budget) -> Branches:
    """What is in two unions.

    Raises:
        UnsupportedError: too many combinations.
    """
    if left is EVERYTHING:
        return right
    if right is EVERYTHING:
        return left
    result = {}
    for kind, terms in left.items():
        others = right.get(kind)
        if not others:
            continue
        everything = EVERYTHING[kind]
        if terms == everything:
            result[kind] = others
        elif others == everything:
            result[kind] = terms
        else:
            found = simplified(kind, _products(terms, others, budget))
            if found:
                result[kind] = found
    return result


def unite(*branches: Branches) -> Branches:
    """What is in one of several unions.

    Raises:
        UnsupportedError: too many shapes.
    """
    if len(branches) == 1:
        return branches[0]
    result = {}
    for kind, everything in EVERYTHING.items():
        lists = [item[kind] for item in branches if kind in item]
        if not lists:
            continue
        if any(terms == everything for terms in lists):
            result[kind] = everything
        else:
            result[kind] = simplified(kind, [term for terms in lists for term in terms])
    return result


def intersect_terms(left: Term, right: Term) -> tuple[Term, ...]:
    """What is in two shapes of one type; () where it is plain to see that nothing is."""
    if isinstance(left, NullShape):
        return (left,)
    if isinstance(left, BooleanShape) and isinstance(right, BooleanShape):
        values = left.values & right.values
        return (BooleanShape(values),) if values else ()
    if isinstance(left, NumberSet) and isinstance(right, NumberSet):
        return left.intersect(right)
    if isinstance(left, StringSet) and isinstance(right, StringSet):
        return left.intersect(right)
    if isinstance(left, ArrayTerm) and isinstance(right, ArrayTerm):
        array = left.intersect(right)
        return () if array is None else (array,)
    if isinstance(left, ObjectTerm) and isinstance(right, ObjectTerm):
        term = left.intersect(right)
        return () if term is None else (term,)
    raise TypeError("two shapes of different types")


def simplified(kind: str, terms: Iterable[Term]) -> tuple[Term, ...]:
    """The same union in fewer shapes: no doubles, finite sets in one.

    Raises:
        UnsupportedError: too many shapes.
    """
    distinct: dict[object, Term] = {}
    for term in terms:
        distinct.setdefault(term.key() if isinstance(term, ObjectTerm) else term, term)
    found = tuple(distinct.values())
    if len(found) > 1:
        if kind == "boolean":
            values = [term.values for term in found if isinstance(term, BooleanShape)]
            found = (BooleanShape(frozenset().union(*values)),)
        elif kind in ("number", "string"):
            found = _with_one_finite_set(found)
    if len(found) > MAX_TERMS:
        raise UnsupportedError(f"more than {MAX_TERMS} combinations of alternatives")
    return found


def _with_one_finite_set(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    finite = [term for term in terms if isinstance(term, NumberSet | StringSet) and term.values]
    if len(finite) < 2:
        return terms
    values = tuple(dict.fromkeys(value for term in finite for value in term.values or ()))
    joined = type(finite[0])(values=values)
    rest = [term for term in terms if not getattr(term, "values", None)]
    return (joined, *rest)


def _products(left: Iterable[Term], right: tuple[Term, ...], budget: Budget) -> list[Term]:
    found: list[Term] = []
    for one in left:
        for other in right:
            size = 0
            if isinstance(one, ObjectTerm) and isinstance(other, ObjectTerm):
                size = (len(one.properties) + len(other.properties)) // 4
            budget.spend(1 + size)
            found.extend(intersect_terms(one, other))
            if len(found) > 2 * MAX_TERMS:
                raise UnsupportedError(f"more than {MAX_TERMS} combinations of alternatives")
    return found
