"""From terms to the shapes of the normal form: places become rules.

What the normal form cannot say is said in other words here (a property under one of several names
as a union of objects, say) or given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specrt.grammars.schema.branches import Branches
from specrt.grammars.schema.finish_array import array_shapes
from specrt.grammars.schema.finish_object import object_shapes
from specrt.grammars.schema.normal import BooleanShape, NullShape, Shape
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.terms import ArrayTerm, ObjectTerm, Place
from specrt.grammars.schema.unsupported import UnsupportedError

if TYPE_CHECKING:
    from specrt.grammars.schema.expand import Expander

MAX_LISTED = 6  # integers that are written one by one


def shapes(expander: Expander, place: Place, branches: Branches) -> tuple[Shape, ...]:
    """The shapes of a place's rule.

    Args:
        expander: hands out rules for the places inside.
        place: for the order of properties.
        branches: what satisfies the place.

    Raises:
        UnsupportedError: a shape is beyond the normal form, and strict.
    """
    found: list[Shape] = []
    names: dict[str, int] | None = None
    for terms in branches.values():
        for term in terms:
            if isinstance(term, ObjectTerm):
                if names is None:
                    names = expander.order.names(place)
                found += object_shapes(expander, term, names)
            elif isinstance(term, ArrayTerm):
                found += array_shapes(expander, term)
            else:
                found += _leaf_shapes(expander, term)
    return tuple(dict.fromkeys(found))


def _leaf_shapes(
    expander: Expander, term: NullShape | BooleanShape | NumberSet | StringSet
) -> list[Shape]:
    if isinstance(term, NumberSet):
        try:
            return [] if term.is_empty() else [_listed(term)]
        except UnsupportedError:
            return [term]
    if isinstance(term, StringSet):
        return [] if expander.is_empty_set(term) else [term]
    if isinstance(term, BooleanShape) and not term.values:
        return []
    return [term]


def _listed(numbers: NumberSet) -> NumberSet:
    """Few integers by their values."""
    if numbers.values is None and numbers.is_integer:
        values = numbers.multiples(MAX_LISTED)
        if values is not None:
            return NumberSet(values=tuple(str(value) for value in values))
    return numbers
