"""The Lark text of a whole output: free text, tool calls, JSON values.

Regions are joined at the level of bytes, so a token may cross from one into the next.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from specrt.errors import ConfigError
from specrt.grammars.formats import ToolFormat

# Masks stay as the grammar has them; canonical.py narrows.
_HEADER = '%llguidance {"no_forcing": true}\n'

# The spellings of json.dumps(ensure_ascii=False), but for \u00xx: llguidance would then take
# every control character in two spellings.
_ESCAPES = '"\\bfnrt'


def json_block(schema: dict[str, object], item_separator: str, key_separator: str) -> str:
    """A `%json` block: its references look no further than `schema`.

    Args:
        schema: what schema_audit.py made.
        item_separator: literal text between items.
        key_separator: literal text between a key and its value.
    """
    options = {
        "item_separator": _regex(item_separator),
        "key_separator": _regex(key_separator),
        "whitespace_flexible": False,
        "json_allowed_escapes": _ESCAPES,
    }
    return "%json " + json.dumps({**schema, "x-guidance": options})


def json_lark(block: str) -> str:
    """One JSON value and nothing else."""
    return f"{_HEADER}start: {block}\n"


def tools_lark(
    tool_format: ToolFormat,
    tools: Sequence[tuple[str, str]],
    *,
    require_call: bool,
    parallel: bool,
) -> str:
    """Text, or text and calls, or calls.

    Args:
        tool_format: how calls are written.
        tools: (name, `%json` block of the arguments); none only if no call is required.
        require_call: calls alone, at least one.
        parallel: more than one call may follow.

    Raises:
        ConfigError: the format's trigger cannot be told from text.
    """
    lines = []
    if require_call:
        lines.append("start: calls")
    else:
        lines += ["start: text | head? calls" if tools else "start: text", *_text(tool_format)]
    if tools:
        more = f" ({_literal(tool_format.call_separator)} call)*" if parallel else ""
        names = " | ".join(f"call_{index}" for index in range(len(tools)))
        lines += [f"calls: call{more}", f"call: ({names}) {_literal(tool_format.call_tail)}"]
        for index, (name, block) in enumerate(tools):
            lines.append(f"call_{index}: {_literal(tool_format.call_head(name))} {block}")
    return _HEADER + "\n".join(lines) + "\n"


def _text(tool_format: ToolFormat) -> list[str]:
    """Rules for text without the trigger, and for text before a call.

    Text is cut at each first character of the trigger (`<`): a chunk before any, then pieces that
    begin with a part of the trigger and go on differently, or that stop there. A negated regex says
    the same, but llguidance cannot use its token slices on it: 1 ms a mask, against 40 us.
    """
    trigger, separator = tool_format.trigger, tool_format.text_separator
    first = trigger[0]
    if (
        first in trigger[1:]
        or first in separator
        or not tool_format.call_begin.startswith(trigger)
        or len(trigger) < 2
    ):
        raise ConfigError(
            f"tool-call format {tool_format.name!r}: expected a trigger that begins call_begin and "
            f"whose first character is in neither its rest nor text_separator, got {trigger!r}"
        )
    parts = [trigger[:length] for length in range(1, len(trigger))]
    other = f"[^{_regex(first)}]"
    diverging = "|".join(
        f"{_regex(part)}[^{_regex(first)}{_regex(trigger[len(part)])}]" for part in parts
    )
    before_separator = [p for p in parts if not separator.startswith(trigger[len(p)])]
    stopping = "|".join(_regex(part) for part in before_separator)
    lines = [
        "text: CHUNK? (PART | PIECE)*",
        f"CHUNK: /{other}+/",
        f"PART: {' | '.join(_literal(part) for part in parts)}",
        f"PIECE: /(?:{diverging}){other}*/",
    ]
    if not separator:
        return [*lines, "head: text"]
    tail = _regex(separator)
    return [
        *lines,
        "head: LAST_CHUNK | CHUNK? (PART | PIECE)* LAST_PIECE",
        f"LAST_CHUNK: /{other}+{tail}/",
        f"LAST_PIECE: /(?:(?:{diverging}){other}*|{stopping}){tail}/",
    ]


def _literal(text: str) -> str:
    return json.dumps(text)


def _regex(text: str) -> str:
    """A regex, also inside a character class, that matches exactly `text`."""
    return re.sub(r"[^A-Za-z0-9_ ]", lambda match: f"\\x{{{ord(match[0]):x}}}", text)
