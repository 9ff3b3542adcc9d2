"""Looking ahead: is it plain to see that nothing satisfies a shape, or two alternatives at once?

Looking ahead expands places inside a shape while the shape's own schema is still being expanded. A
question that leads back there is given up: the answer is then "not plain to see".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from specrt.grammars.schema.branches import (
    EVERYTHING,
    Branches,
    SpentError,
    TooLargeError,
    intersect_terms,
)
from specrt.grammars.schema.document import Node
from specrt.grammars.schema.normal import BooleanShape
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_emptiness import is_plainly_empty, is_surely_empty
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.terms import (
    NOTHING,
    ArrayTerm,
    Literal,
    ObjectTerm,
    Place,
    Term,
    both,
)
from specrt.grammars.schema.unsupported import UnsupportedError

if TYPE_CHECKING:
    from specrt.grammars.schema.expand import Expander

MAX_LOOK_AHEAD = 3  # levels of values inside values
MAX_AUTOMATA = 50  # sets of strings that need one, in a whole schema
MAX_LEVELS = 5  # of questions inside questions
MAX_STEPS = 3_000  # of work for one question

Key = tuple[Literal, bool]


class _InterruptedError(Exception):
    """A question leads back to a literal that is being expanded."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level


class Prober:
    """Answers such questions for one expander, and knows what is being expanded."""

    def __init__(self, expander: Expander) -> None:
        self._expander = expander
        self._level = 0  # of questions inside questions
        self._answers: dict[tuple[Place, bool, int], bool] = {}
        self._num_spent = 0  # questions that were too hard
        self._sets_asked: set[StringSet] = set()
        self._active: dict[Key, int] = {}  # literals being expanded, and at which level

    def enter(self, key: Key, limit: int) -> None:
        """Note that a literal is being expanded.

        Raises:
            UnsupportedError: it leads back to itself, or is nested too deep.
        """
        node = key[0].node
        level = self._active.get(key)
        if level is not None:
            if level < self._level:
                raise _InterruptedError(level)
            raise UnsupportedError("references that lead back to themselves", node.pointer, "$ref")
        if len(self._active) >= limit:
            raise UnsupportedError(f"more than {limit} schemas inside each other", node.pointer)
        self._active[key] = self._level

    def leave(self, key: Key) -> None:
        """The literal has been expanded, or given up."""
        self._active.pop(key, None)

    def pruned(self, branches: Branches) -> Branches:
        """The same without shapes that are plainly empty."""
        kept = {
            kind: tuple(term for term in terms if not self._ask(partial(self._is_empty, term)))
            for kind, terms in branches.items()
        }
        return {kind: terms for kind, terms in kept.items() if terms}

    def is_empty_place(self, place: Place) -> bool:
        """Is it plain to see that nothing satisfies a place?"""
        return self._ask(partial(self._is_empty_place, place))

    def is_empty_set(self, strings: StringSet) -> bool:
        """Is it known that no string is in a set? Automata are asked for a few sets only."""
        found = is_plainly_empty(strings)
        if found is None and len(self._sets_asked) < MAX_AUTOMATA:
            self._sets_asked.add(strings)
        return is_surely_empty(strings) if strings in self._sets_asked else bool(found)

    def overlaps(self, children: Sequence[Node], base: Branches) -> list[list[int]]:
        """For each alternative, those that may hold together with it."""
        expander = self._expander
        found: list[list[int]] = [[] for _ in children]
        if expander.document.has_formats:
            base = {**base, "string": EVERYTHING["string"]}
        for left in range(len(children)):
            for right in range(left + 1, len(children)):
                if not expander.without_asserting_formats(
                    partial(
                        self._ask, partial(self._is_disjoint, children[left], children[right], base)
                    )
                ):
                    found[left].append(right)
                    found[right].append(left)
        return found

    def _ask(self, question: Callable[[int], bool]) -> bool:
        if self._level >= MAX_LEVELS:
            return False
        self._level += 1
        try:
            # Where questions keep being too hard, ever less is spent on them.
            with self._expander.budget.limited(max(100, MAX_STEPS >> self._num_spent)):
                return question(MAX_LOOK_AHEAD)
        except TooLargeError:
            raise
        except UnsupportedError:
            return False
        except SpentError:
            self._num_spent += 1
            return False
        except _InterruptedError as error:
            if error.level + 1 < self._level:
                raise
            return False
        finally:
            self._level -= 1

    def _is_disjoint(self, left: Node, right: Node, base: Branches, depth: int) -> bool:
        expander = self._expander
        first, second = expander.schema(left), expander.schema(right)
        for kind, terms in first.items():
            around = base.get(kind, ())
            for term in terms:
                for other in second.get(kind, ()):
                    expander.budget.spend()
                    if self._have_no_common_property(term, other, depth):
                        continue
                    for joined in intersect_terms(term, other):
                        if self._is_empty(joined, depth):
                            continue
                        expander.budget.spend(len(around))
                        for outer in around:
                            for whole in intersect_terms(joined, outer):
                                if not self._is_empty(whole, depth):
                                    return False
        return True

    def _have_no_common_property(self, left: Term, right: Term, depth: int) -> bool:
        """Is there a required property whose values are disjoint, such as a discriminator?"""
        if not isinstance(left, ObjectTerm) or not isinstance(right, ObjectTerm):
            return False
        return any(
            self._are_disjoint(left.entry(name).place, right.entry(name).place, depth - 1)
            for name in left.required & right.required
        )

    def _are_disjoint(self, left: Place, right: Place, depth: int) -> bool:
        if depth <= 0:
            return False
        first, second = self._expander.place(left), self._expander.place(right)
        for kind, terms in first.items():
            for term in terms:
                for other in second.get(kind, ()):
                    self._expander.budget.spend()
                    if not all(self._is_empty(x, depth) for x in intersect_terms(term, other)):
                        return False
        return True

    def _is_empty(self, term: Term, depth: int) -> bool:
        self._expander.budget.spend()
        if isinstance(term, BooleanShape):
            return not term.values
        if isinstance(term, StringSet):
            return self.is_empty_set(term)
        if isinstance(term, NumberSet):
            try:
                return term.is_empty()
            except UnsupportedError:
                return False
        if isinstance(term, ArrayTerm):
            return self._is_empty_array(term, depth)
        if isinstance(term, ObjectTerm):
            return any(
                self._is_empty_place(term.properties[name].place, depth - 1)
                for name in sorted(term.required)
            )
        return False

    def _is_empty_array(self, term: ArrayTerm, depth: int) -> bool:
        length = min(term.minimum, len(term.prefix) + 1)
        if any(self._is_empty_place(term.item(index).place, depth - 1) for index in range(length)):
            return True
        return not term.prefix and any(
            item.minimum > 0 and self._is_empty_place(both(item.place, term.rest.place), depth - 1)
            for item in term.contains
        )

    def _is_empty_place(self, place: Place, depth: int) -> bool:
        if not place or depth <= 0:
            return False
        if place == NOTHING:
            return True
        key = (place, self._expander.asserts_formats, depth)
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._has_no_shape(place, depth)
        return found

    def _has_no_shape(self, place: Place, depth: int) -> bool:
        try:
            branches = self._expander.place(place)
        except TooLargeError:
            raise
        except UnsupportedError:
            return False
        return all(self._is_empty(term, depth) for terms in branches.values() for term in terms)
