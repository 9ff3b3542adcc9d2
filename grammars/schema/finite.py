"""Leaves only what a finite value can satisfy, and one rule for each distinct union of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specrt.grammars.schema.normal import (
    ArrayShape,
    Extra,
    Finding,
    NormalSchema,
    ObjectShape,
    Property,
    Rule,
    RuleId,
    Shape,
)
from specrt.grammars.schema.terms import least


class ImpossibleError(Exception):
    """No finite value satisfies a schema.

    Attributes:
        pointer: JSON pointer of the place that has no value.
        reason: why, for a user to read.
    """

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(reason)
        self.pointer = pointer
        self.reason = reason


def pruned_schema(
    rules: Mapping[RuleId, Rule],
    root: RuleId,
    findings: tuple[Finding, ...],
    annotations: Mapping[str, str],
) -> NormalSchema:
    """A normal form from rules of which some may have no finite value.

    Raises:
        ImpossibleError: the root has none.
    """
    finite = _finite_rules(rules)
    if root not in finite:
        pointer = _cause(rules, root, finite)
        raise ImpossibleError(pointer, "no value satisfies the schema")
    is_whole = len(finite) == len(rules)
    kept: dict[RuleId, Rule] = {}
    pending = [root]
    while pending:
        rule_id = pending.pop()
        if rule_id in kept:
            continue
        rule = rules[rule_id]
        found = rule.shapes
        if not is_whole:
            shapes = [_pruned(shape, finite) for shape in rule.shapes]
            found = tuple(dict.fromkeys(shape for shape in shapes if shape is not None))
        kept[rule_id] = Rule(rule.pointer, found)
        pending += [used for shape in found for used in _used(shape)]
    merged, names = _merged(dict(sorted(kept.items())), root)
    return NormalSchema(merged, names[root], findings, annotations)


def _finite_rules(rules: Mapping[RuleId, Rule]) -> set[RuleId]:
    """The least set of rules that have a finite value if those of the set have one."""
    finite: set[RuleId] = set()
    waiting: dict[RuleId, list[tuple[RuleId, Shape]]] = {}
    pending = [(rule_id, shape) for rule_id, rule in rules.items() for shape in rule.shapes]
    while pending:
        rule_id, shape = pending.pop()
        if rule_id in finite:
            continue
        if _pruned(shape, finite) is not None:
            finite.add(rule_id)
            pending += waiting.pop(rule_id, ())
            continue
        for blocker in _blockers(shape, finite):
            waiting.setdefault(blocker, []).append((rule_id, shape))
    return finite


def _blockers(shape: Shape, finite: set[RuleId]) -> list[RuleId]:
    """Rules without one of which becoming finite a shape stays without a finite value."""
    if isinstance(shape, ObjectShape):
        for item in shape.properties:
            if item.required and item.rule not in finite:
                return [item.rule]
    return list({rule for rule in _used(shape) if rule not in finite})


def _used(shape: Shape) -> list[RuleId]:
    if isinstance(shape, ObjectShape):
        listed = [item.rule for item in shape.properties]
        return listed + [item.rule for item in shape.extras]
    if isinstance(shape, ArrayShape):
        used = [*shape.prefix]
        used += [] if shape.rest is None else [shape.rest]
        if shape.contains is not None:
            used.append(shape.contains.hit)
            used += [] if shape.contains.miss is None else [shape.contains.miss]
        return used
    return []


def _pruned(shape: Shape, finite: set[RuleId]) -> Shape | None:
    """The shape without what has no finite value, None if that must be there."""
    if isinstance(shape, ObjectShape):
        return _pruned_object(shape, finite)
    return _pruned_array(shape, finite) if isinstance(shape, ArrayShape) else shape


def _pruned_object(shape: ObjectShape, finite: set[RuleId]) -> ObjectShape | None:
    if any(item.required and item.rule not in finite for item in shape.properties):
        return None
    properties: tuple[Property, ...] = shape.properties
    extras: tuple[Extra, ...] = shape.extras
    if not finite.issuperset(_used(shape)):
        properties = tuple(item for item in properties if item.rule in finite)
        extras = tuple(item for item in extras if item.rule in finite)
    if not extras and len(properties) < shape.min_properties:
        return None
    return replace(shape, properties=properties, extras=extras)


def _pruned_array(shape: ArrayShape, finite: set[RuleId]) -> ArrayShape | None:
    prefix, rest, contains = shape.prefix, shape.rest, shape.contains
    minimum, maximum = shape.min_items, shape.max_items
    for index, rule in enumerate(prefix):
        if rule not in finite:
            prefix, rest = prefix[:index], None
            break
    if contains is not None:
        if contains.hit not in finite:
            if contains.minimum:
                return None
            rest, contains = (rest if contains.miss is None else contains.miss), None
        elif contains.miss is not None and contains.miss not in finite:
            rest = contains.hit
            minimum = max(minimum, contains.minimum)
            maximum = least(maximum, contains.maximum)
            contains = None
    if rest not in finite:
        rest, contains = None, None
    if rest is None:
        maximum = least(maximum, len(prefix))
    if maximum is not None and minimum > maximum:
        return None
    return replace(
        shape, prefix=prefix, rest=rest, contains=contains, min_items=minimum, max_items=maximum
    )


def _cause(rules: Mapping[RuleId, Rule], root: RuleId, finite: set[RuleId]) -> str:
    """The pointer of the innermost place without a value, as far as there is only one."""
    rule_id, seen = root, {root}
    while len(rules[rule_id].shapes) == 1:
        (shape,) = rules[rule_id].shapes
        if isinstance(shape, ObjectShape):
            needed = [item.rule for item in shape.properties if item.required]
        elif isinstance(shape, ArrayShape):
            needed = [*shape.prefix[: shape.min_items]]
            if shape.min_items > len(shape.prefix) and shape.rest is not None:
                needed.append(shape.rest)
        else:
            break
        missing = [used for used in needed if used not in finite and used not in seen]
        if not missing:
            break
        rule_id = missing[0]
        seen.add(rule_id)
    return rules[rule_id].pointer


def _merged(
    rules: dict[RuleId, Rule], root: RuleId
) -> tuple[dict[RuleId, Rule], dict[RuleId, RuleId]]:
    """The rules with one name for those of equal shapes, and the new name of each."""
    names: dict[RuleId, RuleId] = {}
    firsts: dict[tuple[Shape, ...], RuleId] = {}
    merged: dict[RuleId, Rule] = {}
    started = {root}
    stack: list[tuple[RuleId, list[RuleId]]] = [(root, _used_by(rules[root]))]
    while stack:
        rule_id, below = stack[-1]
        if below:
            used = below.pop()
            if used not in started:
                started.add(used)
                stack.append((used, _used_by(rules[used])))
            continue
        stack.pop()
        # A rule that is still being looked at is part of a circle and keeps its name.
        rule = rules[rule_id]
        found = tuple(dict.fromkeys(_renamed(shape, names) for shape in rule.shapes))
        names[rule_id] = firsts.setdefault(found, rule_id)
        if names[rule_id] == rule_id:
            merged[rule_id] = Rule(rule.pointer, found)
    # What was named inside a circle before its end was known may have another name now.
    return {
        rule_id: Rule(rule.pointer, tuple(_renamed(shape, names) for shape in rule.shapes))
        for rule_id, rule in sorted(merged.items())
    }, names


def _used_by(rule: Rule) -> list[RuleId]:
    return [used for shape in rule.shapes for used in _used(shape)]


def _renamed(shape: Shape, names: Mapping[RuleId, RuleId]) -> Shape:
    def new(rule: RuleId) -> RuleId:
        return names.get(rule, rule)

    if all(new(rule) == rule for rule in _used(shape)):
        return shape
    if isinstance(shape, ObjectShape):
        return replace(
            shape,
            properties=tuple(replace(item, rule=new(item.rule)) for item in shape.properties),
            extras=tuple(replace(item, rule=new(item.rule)) for item in shape.extras),
        )
    if isinstance(shape, ArrayShape):
        contains = shape.contains
        if contains is not None:
            miss = None if contains.miss is None else new(contains.miss)
            contains = replace(contains, hit=new(contains.hit), miss=miss)
        return replace(
            shape,
            prefix=tuple(map(new, shape.prefix)),
            rest=None if shape.rest is None else new(shape.rest),
            contains=contains,
        )
    return shape
