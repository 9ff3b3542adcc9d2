"""Objects as Lark rules: listed properties in their order, then all others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from specrt.grammars.lark_lists import counted_properties
from specrt.grammars.lark_rules import Rules, bracketed
from specrt.grammars.lark_terminals import literal, times
from specrt.grammars.schema.normal import ObjectShape, Shape
from specrt.grammars.schema.unsupported import UnsupportedError

# llguidance looks at 2,000 items of rules in one place at most; three for each property that may
# stand there.
_MAX_OPTIONAL = 600


def check_optional(shapes: Iterable[Shape]) -> None:
    """Refuse a union in which too many properties may stand in one place.

    Raises:
        UnsupportedError: llguidance would give up when it gets there.
    """
    at_start = 0
    for shape in shapes:
        if isinstance(shape, ObjectShape):
            required = [index for index, p in enumerate(shape.properties) if p.required]
            start = required[0] if required else len(shape.properties)
            at_start += start
            later = len(shape.properties) - start - len(required)
            if max(at_start, later) > _MAX_OPTIONAL:
                raise UnsupportedError(
                    f"more than {_MAX_OPTIONAL} optional properties in one place"
                )


def write_object(rules: Rules, shape: ObjectShape) -> str:
    """An expression for an object.

    Raises:
        UnsupportedError: it cannot be written.
    """
    is_required = [listed.required for listed in shape.properties]
    has_extras = bool(shape.extras)
    fewest, most = sum(is_required), None if has_extras else len(is_required)
    minimum = shape.min_properties if shape.min_properties > fewest else 0
    maximum = shape.max_properties
    if maximum is not None and most is not None and maximum >= most:
        maximum = None
    if (maximum is not None and maximum < fewest) or (most is not None and minimum > most):
        raise UnsupportedError("no object has so many properties")
    pairs = []
    for listed in shape.properties:
        key = literal(json.dumps(listed.name, ensure_ascii=False))
        pairs.append(f"{key} {rules.key_separator} {rules.reference(listed.rule)}")
    members = _Members(rules, pairs, is_required, _extra(rules, shape))
    if not minimum and maximum is None:
        options = members.any_number()
    else:
        options = members.counted(minimum, maximum)
    return bracketed("{", options, "}", may_be_empty=not fewest and not minimum)


def _extra(rules: Rules, shape: ObjectShape) -> str:
    """A rule for one property that is not listed; "" when there can be none."""
    options = [
        f"{rules.terminals.string(extra.keys)} {rules.key_separator} {rules.reference(extra.rule)}"
        for extra in shape.extras
    ]
    return rules.helper(" | ".join(options)) if options else ""


@dataclass(frozen=True, slots=True)
class _Members:
    """At least one member of an object.

    Attributes:
        rules: where helpers go.
        pairs: the listed properties.
        is_required: of each of them, must it be there?
        extra: one other property; "" if there can be none.
    """

    rules: Rules
    pairs: list[str]
    is_required: list[bool]
    extra: str

    def any_number(self) -> list[str]:
        """Expressions of which one matches."""
        separator = self.rules.item_separator
        extras = f"({separator} {self.extra})*" if self.extra else ""
        if any(self.is_required):
            # Whatever stands before the first required property is followed by a separator,
            # whatever comes later follows one.
            first = self.is_required.index(True)
            parts = [f"({pair} {separator})?" for pair in self.pairs[:first]]
            parts.append(self.pairs[first])
            later = zip(self.pairs[first + 1 :], self.is_required[first + 1 :], strict=True)
            for pair, must in later:
                parts.append(f"{separator} {pair}" if must else f"({separator} {pair})?")
            return [" ".join([*parts, extras])]
        options = [f"{self.extra} {extras}"] if self.extra else []
        return [*options, f"{self._some(self.pairs)} {extras}"] if self.pairs else options

    def counted(self, minimum: int, maximum: int | None) -> list[str]:
        """Expressions of which one matches, for so many members.

        Raises:
            UnsupportedError: there are too many to count.
        """
        following = f"{self.rules.item_separator} {self.extra}"
        options = []
        if self.extra and not any(self.is_required) and maximum != 0:
            more = None if maximum is None else maximum - 1
            options.append(f"{self.extra} {times(following, max(minimum - 1, 0), more)}")
        pairs = [self.rules.helper(pair) for pair in self.pairs]
        names = self.rules.lists(counted_properties(pairs, self.is_required, minimum, maximum))
        for (seen, count), name in names.items():
            missing = max(minimum - count, 0)
            if seen == len(pairs) and (self.extra or not missing):
                more = None if maximum is None else maximum - count
                options.append(f"{name} {times(following, missing, more) if self.extra else ''}")
        return options

    def _some(self, pairs: list[str]) -> str:
        """At least one of some pairs, in order; by halves, so that llguidance looks at few."""
        if len(pairs) == 1:
            return pairs[0]
        first = self._some(pairs[: len(pairs) // 2])
        second = self._some(pairs[len(pairs) // 2 :])
        return self.rules.helper(f"{first} ({self.rules.item_separator} {second})? | {second}")
