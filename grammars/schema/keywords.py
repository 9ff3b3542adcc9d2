"""All keywords that assert something: what each says, and what its negation says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from specrt.grammars.schema import (
    array_keywords,
    evaluation,
    leaf_keywords,
    object_keywords,
    unions,
)
from specrt.grammars.schema.branches import Branches
from specrt.grammars.schema.document import Node
from specrt.grammars.schema.terms import Literal

if TYPE_CHECKING:
    from specrt.grammars.schema.expand import Expander

Assertion = Callable[["Expander", Node, Branches], Branches]
Denial = Callable[["Expander", Literal], Branches]


_SPECIAL = {  # keywords that say nothing without the first one of their unit
    "then": "if",
    "else": "if",
    "minContains": "contains",
    "maxContains": "contains",
}


class Unit(NamedTuple):
    """Keywords that only make sense together.

    Attributes:
        keywords: any of them makes it apply; the first one is named in messages.
        assert_: (expander, schema, what its earlier units leave) -> what satisfies the unit.
        deny: (expander, negated literal) -> what does not.
        relaxed: an assertion that says less, for when the first cannot be enforced.
        still_enforced: keywords that `relaxed` enforces all the same.
        is_last_word: does `assert_` give all that is left, instead of something to intersect with?
    """

    keywords: tuple[str, ...]
    assert_: Assertion
    deny: Denial
    relaxed: Assertion | None = None
    still_enforced: tuple[str, ...] = ()
    is_last_word: bool = False

    def given_up(self, fields: Iterable[str]) -> list[str]:
        """Those of a schema's keywords that are not enforced when the unit cannot be."""
        own = [name for name in fields if _SPECIAL.get(name, name) in self.keywords]
        return [name for name in own if name not in self.still_enforced] or own


def _numeric(keyword: str) -> Unit:
    return Unit(
        (keyword,), leaf_keywords.assert_number(keyword), leaf_keywords.deny_number(keyword)
    )


def _textual(keyword: str) -> Unit:
    return Unit(
        (keyword,), leaf_keywords.assert_string(keyword), leaf_keywords.deny_string(keyword)
    )


def _reference(keyword: str) -> Unit:
    return Unit((keyword,), unions.assert_reference(keyword), unions.deny_reference(keyword))


def _dependencies(keyword: str) -> Unit:
    return Unit((keyword,), unions.assert_dependencies(keyword), unions.deny_dependencies(keyword))


# In the order in which they are looked at: cheap ones that leave little first.
UNITS: tuple[Unit, ...] = (
    Unit(("type",), leaf_keywords.assert_type, leaf_keywords.deny_type),
    Unit(("const",), leaf_keywords.assert_const, leaf_keywords.deny_const),
    Unit(("enum",), leaf_keywords.assert_enum, leaf_keywords.deny_enum),
    *map(_numeric, ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    *map(_textual, ("minLength", "maxLength", "pattern", "format")),
    Unit(
        ("properties", "patternProperties", "additionalProperties"),
        object_keywords.assert_properties,
        object_keywords.deny_properties,
        object_keywords.relaxed_properties,
        ("properties",),
    ),
    Unit(("required",), object_keywords.assert_required, object_keywords.deny_required),
    Unit(
        ("minProperties",),
        object_keywords.assert_min_properties,
        object_keywords.deny_min_properties,
    ),
    Unit(
        ("maxProperties",),
        object_keywords.assert_max_properties,
        object_keywords.deny_max_properties,
    ),
    Unit(
        ("propertyNames",),
        object_keywords.assert_property_names,
        object_keywords.deny_property_names,
    ),
    Unit(
        ("items", "prefixItems", "additionalItems"),
        array_keywords.assert_items,
        array_keywords.deny_items,
    ),
    Unit(("minItems",), array_keywords.assert_min_items, array_keywords.deny_min_items),
    Unit(("maxItems",), array_keywords.assert_max_items, array_keywords.deny_max_items),
    Unit(("uniqueItems",), array_keywords.assert_unique_items, array_keywords.deny_unique_items),
    Unit(("contains",), array_keywords.assert_contains, array_keywords.deny_contains),
    *map(_reference, ("$ref", "$dynamicRef", "$recursiveRef")),
    Unit(("allOf",), unions.assert_all_of, unions.deny_all_of),
    *map(_dependencies, ("dependentRequired", "dependentSchemas", "dependencies")),
    Unit(("anyOf",), unions.assert_any_of, unions.deny_any_of),
    Unit(("not",), unions.assert_not, unions.deny_not),
    Unit(("if",), unions.assert_if, unions.deny_if, unions.relaxed_if),
    Unit(("oneOf",), unions.assert_one_of, unions.deny_one_of, unions.relaxed_one_of),
    Unit(
        ("unevaluatedItems",),
        evaluation.close_items,
        evaluation.deny_unevaluated,
        is_last_word=True,
    ),
    Unit(
        ("unevaluatedProperties",),
        evaluation.close_properties,
        evaluation.deny_unevaluated,
        is_last_word=True,
    ),
)

_INDEX = {keyword: index for index, unit in enumerate(UNITS) for keyword in unit.keywords}


def units_of(fields: Iterable[str]) -> list[Unit]:
    """The units that some keywords belong to, in their order."""
    indices = {_INDEX[keyword] for keyword in fields if keyword not in _SPECIAL}
    return [UNITS[index] for index in sorted(indices)]
