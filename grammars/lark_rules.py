"""The rules of a Lark text while it is written: names, helpers, and what is still to be written."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from specrt.grammars.lark_lists import Edge
from specrt.grammars.lark_terminals import Terminals, choice, literal
from specrt.grammars.schema.normal import (
    BooleanShape,
    NormalSchema,
    NullShape,
    RuleId,
    Shape,
)
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

_State = TypeVar("_State", bound=Hashable)

Leaf = NullShape | BooleanShape | NumberSet | StringSet


class Rules:
    """The rules written so far and those asked for.

    Attributes:
        item_separator: as a Lark literal.
        key_separator: as a Lark literal.
        terminals: the leaves.
        lines: the rules that are written.
    """

    def __init__(
        self, schema: NormalSchema, item_separator: str, key_separator: str, prefix: str
    ) -> None:
        """Ask for the root.

        Args:
            schema: what is to be written.
            item_separator: literal text between items.
            key_separator: literal text between a key and its value.
            prefix: begins every name; small letters, digits and underscores.

        Raises:
            UnsupportedError: a separator cannot be written.
        """
        self.item_separator = literal(item_separator)
        self.key_separator = literal(key_separator)
        self.terminals = Terminals(prefix, item_separator, key_separator)
        self.lines: list[str] = []
        self._schema = schema
        self._prefix = prefix
        self._references: dict[RuleId, str] = {schema.root: self.name(schema.root)}
        self._asked = [schema.root]
        self._num_helpers = 0

    def name(self, rule_id: RuleId) -> str:
        """The name of the rule of a rule."""
        return f"{self._prefix}r{rule_id}"

    def next_asked(self) -> RuleId | None:
        """A rule that is referred to and not written yet."""
        return self._asked.pop() if self._asked else None

    def shapes(self, rule_id: RuleId) -> tuple[Shape, ...]:
        """The union that a rule is."""
        return self._schema.rules[rule_id].shapes

    def reference(self, rule_id: RuleId) -> str:
        """What stands for a rule: a leaf itself, or a name, which is asked for.

        Raises:
            UnsupportedError: the leaf cannot be written.
        """
        if rule_id not in self._references:
            shapes = self.shapes(rule_id)
            if len(shapes) == 1 and isinstance(shapes[0], Leaf):
                self._references[rule_id] = self._leaf_of(rule_id, shapes[0])
            else:
                self._references[rule_id] = self.name(rule_id)
                self._asked.append(rule_id)
        return self._references[rule_id]

    def leaf(self, shape: Leaf) -> str:
        """A value without parts.

        Raises:
            UnsupportedError: it cannot be written.
        """
        match shape:
            case NullShape():
                return '"null"'
            case BooleanShape(values):
                return choice(f'"{str(value).lower()}"' for value in sorted(values))
            case NumberSet():
                return self.terminals.number(shape)
            case StringSet():
                return self.terminals.string(shape)

    def helper(self, body: str) -> str:
        """The name of a new rule."""
        name = f"{self._prefix}h{self._num_helpers}"
        self._num_helpers += 1
        self.lines.append(f"{name}: {body}")
        return name

    def lists(self, states: Mapping[_State, Iterable[Edge]]) -> dict[_State, str]:
        """The names of new rules for the lists that lead to each state."""
        names = {
            state: f"{self._prefix}h{number}"
            for number, state in enumerate(states, start=self._num_helpers)
        }
        self._num_helpers += len(names)
        known: dict[Hashable | None, str] = {None: ""}
        for state, name in names.items():
            known[state] = name
        for state, edges in states.items():
            options = []
            for previous, item in edges:
                parts = [part for part in (known[previous], item) if part]
                options.append(f" {self.item_separator} ".join(parts))
            self.lines.append(f"{names[state]}: {' | '.join(options)}")
        return names

    def _leaf_of(self, rule_id: RuleId, shape: Leaf) -> str:
        try:
            return self.leaf(shape)
        except UnsupportedError as error:
            error.pointer = error.pointer or self._schema.rules[rule_id].pointer
            raise


def bracketed(opening: str, options: Iterable[str], closing: str, *, may_be_empty: bool) -> str:
    """Literal brackets around one of the options, or around nothing.

    Raises:
        UnsupportedError: there is no option, and nothing is not one.
    """
    distinct = list(options)
    if not distinct:
        if not may_be_empty:
            raise UnsupportedError("nothing satisfies the schema")
        return f'"{opening}" "{closing}"'
    inner = choice(distinct)
    return (
        f'"{opening}" ({inner})? "{closing}"'
        if may_be_empty
        else f'"{opening}" {inner} "{closing}"'
    )
