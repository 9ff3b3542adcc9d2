"""From a JSON Schema document to its normal form.

A place in the output is a conjunction of subschemas and negated subschemas. It is expanded one
level deep, keyword by keyword, into a union of shapes (keywords.py); the places inside those shapes
(values of properties, items) are conjunctions again and wait in a list. There are finitely many, so
recursion comes to an end. Then finite.py removes what no finite value satisfies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specrt.grammars.schema import finish
from specrt.grammars.schema.branches import (
    EMPTY,
    EVERYTHING,
    Branches,
    Budget,
    TooLargeError,
    intersect,
    unite,
)
from specrt.grammars.schema.dialects import Dialect, unasserted
from specrt.grammars.schema.document import Document, Node
from specrt.grammars.schema.emptiness import Prober
from specrt.grammars.schema.evaluation import forgotten
from specrt.grammars.schema.finite import ImpossibleError, pruned_schema
from specrt.grammars.schema.keywords import Assertion, units_of
from specrt.grammars.schema.leaf_keywords import container_schema
from specrt.grammars.schema.ledger import Ledger
from specrt.grammars.schema.normal import NormalSchema, Rule, RuleId
from specrt.grammars.schema.property_order import PropertyOrder
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.terms import (
    Choice,
    Literal,
    Nothing,
    Origin,
    Place,
    place_of,
)
from specrt.grammars.schema.unsupported import UnsupportedError
from specrt.grammars.schema_walk import join_pointer

MAX_RULES = 20_000
MANY_TERMS = 16  # of one type: then it pays to look which of them are empty
MAX_DEPTH = 48  # of schemas inside schemas that all apply to one value

__all__ = ["ImpossibleError", "normalise"]


def normalise(document: object, *, strict: bool, dialect: str | None = None) -> NormalSchema:
    """The normal form of a JSON Schema.

    Args:
        document: the parsed schema; check_schema passed.
        strict: refuse what cannot be enforced exactly; otherwise the normal form accepts more than
            the schema there, and says so in its findings.
        dialect: the dialect of a schema without `$schema`: its URI, or a name such as "draft7";
            default is 2020-12.

    Raises:
        UnsupportedError: with pointer, keyword and reason of the first thing that cannot be
            enforced exactly; without `strict` only for a schema that is too large.
        ImpossibleError: no finite value satisfies the schema.
    """
    if not isinstance(document, dict | bool):
        raise UnsupportedError("expected a JSON Schema (an object or a boolean)")
    try:
        return Expander(Document(document, dialect), strict=strict).normal_schema()
    except RecursionError:
        raise TooLargeError("the schema is nested too deep") from None


class Expander:
    """Expands the places of one document.

    Attributes:
        document: the schema.
        budget: the work that may still be done.
        ledger: what is not enforced.
        order: the order of properties.
        tracks_evaluated: must terms know what is evaluated?
        asserts_formats: is `format` an assertion? It is none while proving that alternatives of a
            oneOf are disjoint, which must hold for readers that ignore formats too.
    """

    def __init__(self, document: Document, *, strict: bool) -> None:
        self.document = document
        self.budget = Budget()
        self.tracks_evaluated = document.has_unevaluated
        self.asserts_formats = True
        self.ledger = Ledger(is_strict=strict)
        self._literals: dict[tuple[Literal, bool], Branches] = {}
        self._places: dict[tuple[Place, bool], Branches] = {}
        self._containers: dict[tuple[int, Dialect], tuple[object, dict[str, Any]]] = {}
        self._rule_ids: dict[Place, RuleId] = {}
        self._pending: list[Place] = []
        self._prober = Prober(self)
        self.order = PropertyOrder(document)

    def normal_schema(self) -> NormalSchema:
        """The whole document."""
        root = self.rule(self.place_of(self.document.root))
        rules: dict[RuleId, Rule] = {}
        while self._pending:
            place = self._pending.pop()
            rule_id = self._rule_ids[place]
            pointer = self._pointer(place)
            shapes = finish.shapes(self, place, self.place(place))
            rules[rule_id] = Rule(pointer, shapes)
        return pruned_schema(
            rules, root, tuple(self.ledger.findings.values()), self.ledger.annotations
        )

    def rule(self, place: Place) -> RuleId:
        """The rule of a place; it is expanded later."""
        rule_id = self._rule_ids.get(place)
        if rule_id is None:
            if len(self._rule_ids) >= MAX_RULES:
                raise TooLargeError(f"the schema has more than {MAX_RULES} different places")
            rule_id = self._rule_ids[place] = len(self._rule_ids)
            self._pending.append(place)
        return rule_id

    def place_of(self, node: Node) -> Place:
        """The place of what satisfies a schema."""
        return place_of(self._plain(node))

    def denied(self, origin: Origin, node: Node) -> Place:
        """The place of what does not satisfy a schema.

        Args:
            origin: the keyword that asks for it.
            node: the schema.
        """
        place = place_of(self._plain(node), is_negated=True)
        for literal in place:
            if isinstance(literal, Literal):
                self.ledger.trace(literal, origin)
        return place

    def place(self, place: Place) -> Branches:
        """What satisfies all literals of a place.

        Raises:
            UnsupportedError: something cannot be expanded, and strict.
        """
        key = (place, self._mode)
        found = self._places.get(key)
        if found is None:
            found = EVERYTHING
            for literal in sorted(place, key=_rank):
                try:
                    found = self.intersect(found, self._branches(literal))
                except TooLargeError:
                    raise
                except UnsupportedError as error:
                    self.ledger.give_up_literal(literal, error)
            self._places[key] = found
        return found

    def schema(self, node: Node) -> Branches:
        """What satisfies a schema."""
        return self.literal(Literal(node))

    def denial(self, node: Node, origin: Origin) -> Branches:
        """What does not satisfy a schema.

        Args:
            node: the schema.
            origin: the keyword that asks for it.

        Raises:
            UnsupportedError: it cannot be expanded; without a pointer for an outermost negation,
                because it is the negation as a whole that cannot be enforced.
        """
        literal = Literal(node, is_negated=True)
        self.ledger.trace(literal, origin)
        if origin.literal is not None:
            return self.literal(literal)
        try:
            return self.literal(literal)
        except TooLargeError:
            raise
        except UnsupportedError as error:
            what = f"{error.keyword} at {error.pointer}" if error.keyword else "the schema"
            raise UnsupportedError(f"{what} cannot be negated: {error.reason}") from None

    def literal(self, literal: Literal) -> Branches:
        """What satisfies a literal.

        Raises:
            UnsupportedError: something cannot be expanded; for a literal that is not negated only
                if strict, or if it leads back to itself.
        """
        node = literal.node
        if isinstance(node.schema, bool):
            return EVERYTHING if node.schema != literal.is_negated else EMPTY
        key = (literal, self._mode)
        found = self._literals.get(key)
        if found is None:
            self._prober.enter(key, MAX_DEPTH)
            try:
                found = self._deny(literal) if literal.is_negated else self._assert(node)
            finally:
                self._prober.leave(key)
            self._literals[key] = found
        return found

    def overlaps(self, children: Sequence[Node], base: Branches) -> list[list[int]]:
        """For each alternative, those that may hold together with it."""
        return self._prober.overlaps(children, base)

    def pruned(self, branches: Branches) -> Branches:
        """The same without shapes that are plainly empty a few levels down."""
        return self._prober.pruned(branches)

    def intersect(self, left: Branches, right: Branches) -> Branches:
        """What is in two unions, without plainly empty shapes where there are many."""
        found = intersect(left, right, self.budget)
        if any(len(terms) > MANY_TERMS for terms in found.values()):
            return self.pruned(found)
        return found

    def is_empty_place(self, place: Place) -> bool:
        """Is it plain to see that nothing satisfies a place?"""
        return self._prober.is_empty_place(place)

    def is_empty_set(self, strings: StringSet) -> bool:
        """Is it known that no string is in a set?"""
        return self._prober.is_empty_set(strings)

    def container_schema(
        self, value: list[Any] | dict[str, Any], dialect: Dialect
    ) -> dict[str, Any]:
        """The schema that says what a literal array or object says; one per literal."""
        key = (id(value), dialect)
        if key not in self._containers:
            self._containers[key] = (value, container_schema(value, dialect))
        return self._containers[key][1]

    def without_asserting_formats(self, ask: Callable[[], bool]) -> bool:
        """The answer to a question under which formats are annotations."""
        before = self.asserts_formats
        self.asserts_formats = False
        try:
            return ask()
        finally:
            self.asserts_formats = before

    @property
    def _mode(self) -> bool:
        return self.asserts_formats or not self.document.has_formats

    def _plain(self, node: Node) -> Node:
        try:
            return self.document.plain(node)
        except UnsupportedError:
            return node  # it is refused when it is expanded, or what it stands in is left out

    def _branches(self, literal: Literal | Choice | Nothing) -> Branches:
        if isinstance(literal, Nothing):
            return EMPTY
        if isinstance(literal, Choice):
            places = sorted(literal.places, key=lambda place: sorted(map(_rank, place)))
            return unite(*(self.place(place) for place in places))
        return self.literal(literal)

    def _assert(self, node: Node) -> Branches:
        if isinstance(node.schema, dict) and len(node.schema) > len(node.fields):
            for keyword, reason in unasserted(node.schema, node.dialect).items():
                self.ledger.annotate(node, keyword, reason)
        result = EVERYTHING
        for unit in units_of(node.fields):
            keyword = next(name for name in unit.keywords if name in node.fields)
            try:
                if unit.is_last_word:
                    if self.ledger.findings:
                        # What is not enforced is not known to be evaluated either.
                        raise UnsupportedError("other keywords are not enforced")
                    result = unit.assert_(self, node, result)
                else:
                    part = unit.assert_(self, node, result)
                    result = self.intersect(result, part)
            except UnsupportedError as error:
                error.keyword = error.keyword or keyword
                error.pointer = error.pointer or join_pointer(node.pointer, error.keyword)
                if self.ledger.is_strict or isinstance(error, TooLargeError):
                    raise
                for name in unit.given_up(node.fields):
                    self.ledger.note(join_pointer(node.pointer, name), name, error.reason)
                if unit.relaxed is not None:
                    result = self._relaxed(unit.relaxed, node, result)
        return result

    def _relaxed(self, assertion: Assertion, node: Node, base: Branches) -> Branches:
        try:
            return intersect(base, assertion(self, node, base), self.budget)
        except TooLargeError:
            raise
        except UnsupportedError:
            return base

    def _deny(self, literal: Literal) -> Branches:
        node = literal.node
        parts: list[Branches] = [EMPTY]
        for unit in units_of(node.fields):
            keyword = next(name for name in unit.keywords if name in node.fields)
            try:
                parts.append(unit.deny(self, literal))
            except UnsupportedError as error:
                error.keyword = error.keyword or keyword
                error.pointer = error.pointer or join_pointer(node.pointer, error.keyword)
                raise
        result = unite(*parts)
        return forgotten(result) if self.tracks_evaluated else result

    def _pointer(self, place: Place) -> str:
        for literal in sorted(place, key=_rank):
            if not isinstance(literal, Nothing):
                return literal.node.pointer
        return ""


def _rank(literal: Literal | Choice | Nothing) -> tuple[int, int]:
    """A fixed order of literals: positive ones first, as they stand in the document."""
    if isinstance(literal, Literal):
        return int(literal.is_negated), literal.node.serial
    return (2, literal.node.serial) if isinstance(literal, Choice) else (3, 0)
