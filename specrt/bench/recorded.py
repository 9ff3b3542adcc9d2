"""Recorded calls as a served model would have to write them: in its style, token by token."""

from __future__ import annotations

import json
from typing import Any, Protocol

from specrt.errors import SpecrtError
from specrt.grammars.base import DEAD, GrammarState
from specrt.grammars.schema.arrange import arrange
from specrt.grammars.schema.expand import normalise
from specrt.grammars.tool_format import ToolFormat


class _Tokens(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...
    def token_bytes(self, token_id: int) -> bytes: ...


def recorded_text(
    message: dict[str, Any], tools: list[dict[str, Any]], tool_format: ToolFormat
) -> str | None:
    """The calls of a recorded turn in the serving style; None where one is no call of the tools.

    The text beside the calls is left out: a turn that must call has none.
    """
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
    calls = []
    for call in message.get("tool_calls") or ():
        name = call["function"]["name"]
        try:
            arguments = json.loads(call["function"]["arguments"])
        except ValueError:
            return None
        if name not in schemas or not isinstance(arguments, dict):
            return None
        ordered = _ordered(schemas[name] or {"type": "object"}, arguments)
        separators = (tool_format.item_separator, tool_format.key_separator)
        calls.append((name, json.dumps(ordered, ensure_ascii=False, separators=separators)))
    return tool_format.turn_text("", calls) if calls else None


def _ordered(schema: dict[str, Any], arguments: dict[str, Any]) -> object:
    """The arguments in the order in which the grammar writes them, if it writes them at all."""
    try:
        ordered = arrange(normalise(schema, strict=False), arguments)
    except SpecrtError:
        return arguments
    return arguments if ordered is None else ordered


def tokens_under(
    grammar: GrammarState, text: str, tokens: _Tokens, end_token_id: int
) -> list[int] | None:
    """The tokens of a text where a grammar decides how forced text is cut into tokens.

    Args:
        grammar: at its start; it is led along the text.
        text: the whole output.
        tokens: of the model.
        end_token_id: what ends the output; the last of the result.

    Returns:
        The token ids, or None where the grammar does not allow the text.
    """
    rest = text.encode()
    found: list[int] = []
    planned: list[int] = []  # tokens of the rest, the next one last
    while rest:
        token_id = grammar.forced(grammar.root)
        if planned and token_id in (None, planned[-1]):
            token_id = planned.pop()
        elif token_id is None:
            try:
                planned = tokens.encode(rest.decode())[::-1]
            except UnicodeDecodeError:  # a forced token ended inside a character
                return None
            token_id = planned.pop()
        else:
            planned.clear()
        data = tokens.token_bytes(token_id)
        node = grammar.advance(grammar.root, token_id)
        if node == DEAD or not data or not rest.startswith(data):
            return None
        grammar.commit(node)
        found.append(token_id)
        rest = rest[len(data) :]
    return [*found, end_token_id] if grammar.is_final(grammar.root) else None
