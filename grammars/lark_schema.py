"""A schema in normal form as Lark rules: what llguidance runs.

One rule per rule of the normal form that is more than a leaf, and helpers. Rules are left-recursive
where they repeat: llguidance then looks at the fewest items.
"""

from __future__ import annotations

from typing import NamedTuple

from specrt.grammars.lark_arrays import write_array
from specrt.grammars.lark_objects import check_optional, write_object
from specrt.grammars.lark_rules import Rules
from specrt.grammars.schema.normal import ArrayShape, NormalSchema, ObjectShape, Shape
from specrt.grammars.schema.unsupported import UnsupportedError

# Of every Lark text. Masks stay as the grammar has them; canonical.py narrows.
HEADER = '%llguidance {"no_forcing": true}\n'


class LarkRules(NamedTuple):
    """Rules and terminals of one schema.

    Attributes:
        root: the name of the rule of the whole value.
        text: lines of Lark; every name begins with the prefix (terminals: in capitals).
    """

    root: str
    text: str


def write_rules(
    schema: NormalSchema, *, item_separator: str, key_separator: str, prefix: str = ""
) -> LarkRules:
    """The rules of a schema.

    Args:
        schema: any, recursive or not.
        item_separator: literal text between items.
        key_separator: literal text between a key and its value.
        prefix: small letters, digits and underscores, a letter first; for the rules of several
            schemas to stand in one grammar.

    Raises:
        UnsupportedError: something cannot be written exactly.
    """
    rules = Rules(schema, item_separator, key_separator, prefix)
    while (rule_id := rules.next_asked()) is not None:
        rule = schema.rules[rule_id]
        try:
            if not rule.shapes:
                raise UnsupportedError("nothing satisfies the schema")
            check_optional(rule.shapes)
            options = dict.fromkeys(_shape(rules, shape) for shape in rule.shapes)
        except UnsupportedError as error:
            error.pointer = error.pointer or rule.pointer
            raise
        rules.lines.append(f"{rules.name(rule_id)}: {' | '.join(options)}")
    return LarkRules(
        rules.name(schema.root), "\n".join([*rules.lines, *rules.terminals.lines]) + "\n"
    )


def schema_lark(
    schema: NormalSchema, *, item_separator: str, key_separator: str, then_anything: bool
) -> str:
    """A whole grammar for one value.

    Args:
        schema: any, recursive or not.
        item_separator: literal text between items.
        key_separator: literal text between a key and its value.
        then_anything: any text may follow the value. Where the value is a number, it must not go on
            like one.

    Raises:
        UnsupportedError: something cannot be written exactly.
    """
    rules = write_rules(schema, item_separator=item_separator, key_separator=key_separator)
    anything = (" ANYTHING?", "ANYTHING: /(?s:.+)/\n") if then_anything else ("", "")
    return f"{HEADER}start: {rules.root}{anything[0]}\n{rules.text}{anything[1]}"


def _shape(rules: Rules, shape: Shape) -> str:
    match shape:
        case ArrayShape():
            return write_array(rules, shape)
        case ObjectShape():
            return write_object(rules, shape)
        case _:
            return rules.leaf(shape)
