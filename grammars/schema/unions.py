"""Keywords that apply schemas to the value as a whole: references, anyOf, oneOf, not, if, ..."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING, Any

from specrt.grammars.schema.branches import (
    EMPTY,
    EVERYTHING,
    Branches,
    intersect,
    only,
    unite,
    with_type,
)
from specrt.grammars.schema.dialects import Dialect
from specrt.grammars.schema.document import Node
from specrt.grammars.schema.evaluation import all_combinations
from specrt.grammars.schema.object_keywords import requiring, without
from specrt.grammars.schema.terms import Literal, Origin
from specrt.grammars.schema.unsupported import UnsupportedError

if TYPE_CHECKING:
    from specrt.grammars.schema.expand import Expander

MAX_ONE_OF = 200


def assert_reference(keyword: str) -> Callable[[Expander, Node, Branches], Branches]:
    """`$ref` and its like."""

    def assert_(expander: Expander, node: Node, _: Branches) -> Branches:
        return expander.schema(expander.document.target(node, keyword))

    return assert_


def deny_reference(keyword: str) -> Callable[[Expander, Literal], Branches]:
    """Not `$ref` and its like."""

    def deny(expander: Expander, literal: Literal) -> Branches:
        return expander.denial(
            expander.document.target(literal.node, keyword), Origin(literal.node, keyword, literal)
        )

    return deny


def assert_all_of(expander: Expander, node: Node, _: Branches) -> Branches:
    """`allOf`."""
    result = EVERYTHING
    for child in _children(expander, node, "allOf"):
        result = expander.intersect(result, expander.schema(child))
    return result


def deny_all_of(expander: Expander, literal: Literal) -> Branches:
    """Not `allOf`."""
    origin = Origin(literal.node, "allOf", literal)
    children = _children(expander, literal.node, "allOf")
    return unite(EMPTY, *(expander.denial(child, origin) for child in children))


def assert_any_of(expander: Expander, node: Node, base: Branches) -> Branches:
    """`anyOf`."""
    branches = [expander.schema(child) for child in _children(expander, node, "anyOf")]
    if not expander.tracks_evaluated:
        return unite(EMPTY, *branches)
    return all_combinations(branches, base, expander)


def deny_any_of(expander: Expander, literal: Literal) -> Branches:
    """Not `anyOf`."""
    return _none_of(expander, literal, "anyOf")


def _none_of(expander: Expander, literal: Literal, keyword: str) -> Branches:
    origin = Origin(literal.node, keyword, literal)
    result = EVERYTHING
    for child in _children(expander, literal.node, keyword):
        result = expander.intersect(result, expander.denial(child, origin))
    return result


def assert_one_of(expander: Expander, node: Node, base: Branches) -> Branches:
    """`oneOf`: like anyOf where the branches are disjoint, else each without the others."""
    children = _children(expander, node, "oneOf")
    if len(children) > MAX_ONE_OF:
        raise UnsupportedError(f"more than {MAX_ONE_OF} alternatives")
    others = expander.overlaps(children, base)
    parts = []
    for index, child in enumerate(children):
        part = expander.schema(child)
        if others[index]:
            part = intersect(part, base, expander.budget)
        for other in others[index]:
            try:
                denied = expander.denial(children[other], Origin(node, "oneOf"))
            except UnsupportedError as error:
                error.reason = f"alternatives {index} and {other} may both hold: {error.reason}"
                raise
            part = expander.pruned(intersect(part, denied, expander.budget))
        parts.append(part)
    return unite(EMPTY, *parts)


def relaxed_one_of(expander: Expander, node: Node, base: Branches) -> Branches:
    """`oneOf` as far as it can be enforced in any case: as anyOf."""
    del base
    return unite(EMPTY, *(expander.schema(child) for child in _children(expander, node, "oneOf")))


def deny_one_of(expander: Expander, literal: Literal) -> Branches:
    """Not `oneOf`: none of the alternatives holds, or two do."""
    parts = [_none_of(expander, literal, "oneOf")]
    for left, right in combinations(_children(expander, literal.node, "oneOf"), 2):
        found = intersect(expander.schema(left), expander.schema(right), expander.budget)
        parts.append(expander.pruned(found))
    return unite(*parts)


def assert_not(expander: Expander, node: Node, _: Branches) -> Branches:
    """`not`."""
    return expander.denial(expander.document.child(node, "not"), Origin(node, "not"))


def deny_not(expander: Expander, literal: Literal) -> Branches:
    """Not `not`."""
    return expander.schema(expander.document.child(literal.node, "not"))


def assert_if(expander: Expander, node: Node, _: Branches) -> Branches:
    """`if`, `then` and `else`."""
    if not ({"then", "else"} & set(node.fields)) and not expander.tracks_evaluated:
        return EVERYTHING
    child = expander.document.child
    condition = child(node, "if")
    yes = expander.schema(condition)
    if "then" in node.fields:
        yes = intersect(yes, expander.schema(child(node, "then")), expander.budget)
    elif not expander.tracks_evaluated:
        yes = EVERYTHING if "else" not in node.fields else yes
    no = expander.denial(condition, Origin(node, "if"))
    if "else" in node.fields:
        no = intersect(no, expander.schema(child(node, "else")), expander.budget)
    return unite(yes, no)


def relaxed_if(expander: Expander, node: Node, base: Branches) -> Branches:
    """`if` as far as it can be enforced in any case: `then` or `else` holds."""
    del base
    branches = [
        expander.schema(expander.document.child(node, keyword))
        if keyword in node.fields
        else EVERYTHING
        for keyword in ("then", "else")
    ]
    return unite(*branches)


def deny_if(expander: Expander, literal: Literal) -> Branches:
    """Not `if`: the branch that counts does not hold."""
    node, child = literal.node, expander.document.child
    parts = [EMPTY]
    if "then" in node.fields:
        yes = expander.schema(child(node, "if"))
        denied = expander.denial(child(node, "then"), Origin(node, "if", literal))
        parts.append(intersect(yes, denied, expander.budget))
    if "else" in node.fields:
        no = expander.denial(child(node, "if"), Origin(node, "if", literal))
        denied = expander.denial(child(node, "else"), Origin(node, "if", literal))
        parts.append(intersect(no, denied, expander.budget))
    return unite(*parts)


def assert_dependencies(keyword: str) -> Callable[[Expander, Node, Branches], Branches]:
    """`dependentRequired`, `dependentSchemas` and `dependencies`."""

    def assert_(expander: Expander, node: Node, _: Branches) -> Branches:
        result = EVERYTHING
        for name, value in node.fields[keyword].items():
            if isinstance(value, list):
                if not value:
                    continue
                needed: Branches = only("object", requiring(name, *value))
            else:
                here = only("object", requiring(name))
                needed = expander.schema(expander.document.child(node, keyword, name))
                needed = intersect(here, needed, expander.budget)
            either = unite(with_type("object", without(name)), needed)
            result = expander.intersect(result, either)
        return result

    return assert_


def deny_dependencies(keyword: str) -> Callable[[Expander, Literal], Branches]:
    """Not `dependentRequired`, `dependentSchemas` or `dependencies`."""

    def deny(expander: Expander, literal: Literal) -> Branches:
        node = literal.node
        if keyword == "dependencies" and node.dialect > Dialect.DRAFT7:
            raise UnsupportedError("the draft leaves open whether it asserts anything")
        parts: list[Branches] = [EMPTY]
        for name, value in node.fields[keyword].items():
            here = only("object", requiring(name))
            if isinstance(value, list):
                denied = only("object", *(without(other) for other in dict.fromkeys(value)))
            else:
                denied = expander.denial(
                    expander.document.child(node, keyword, name), Origin(node, keyword, literal)
                )
            parts.append(intersect(here, denied, expander.budget))
        return unite(*parts)

    return deny


def _children(expander: Expander, node: Node, keyword: str) -> list[Node]:
    schemas: list[Any] = node.fields[keyword]
    return [expander.document.child(node, keyword, index) for index in range(len(schemas))]
