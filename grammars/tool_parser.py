"""From the text of an assistant turn to content and calls, in a stream or at once.

The parser is a state machine over characters, built from a format's data: however the text is cut
into pieces, the deltas concatenate to the same content and calls. The JSON decides where arguments
end, never a marker inside a string. It knows no tokens and no schema.

    text --trigger--> head --name, arguments begin--> arguments --last brace--> tail --end--> text
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from specrt.grammars.formats import ToolFormat

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_OPEN_STRING = re.compile(r'"(?:[^"\\]|\\.)*\\?\Z', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More content; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call `index` begins; the name is whole."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of the argument text of call `index`; never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """Call `index` ends; `complete` is False when the output ended inside its arguments."""

    index: int
    complete: bool


Delta = TextDelta | CallStart | ArgumentsDelta | CallEnd


class ParsedCall(NamedTuple):
    """One call; `arguments` is its exact text, cut short when not `complete`."""

    name: str
    arguments: str
    complete: bool


class ParsedMessage(NamedTuple):
    """An assistant turn; `content` is None when there are calls and no text."""

    content: str | None
    calls: tuple[ParsedCall, ...]


class ToolCallParser:
    """Reads one assistant turn, piece by piece.

    Text that may still become a marker is held back. A call that was cut before its name was whole
    is not delivered, and markers never reach the content. What begins like a call and turns out not
    to be one (possible only in output that no grammar constrains) is content.

    Args:
        tool_format: what calls look like.
        enabled: False = everything is content (the request allows no calls).
    """

    def __init__(self, tool_format: ToolFormat, enabled: bool = True) -> None:
        self._format = tool_format
        self._enabled = enabled
        self._state: Literal["text", "head", "arguments", "tail"] = "text"
        self._buffer = ""  # not decided yet
        self._dropped = ""  # the separator and trigger in front of the head
        self._after_call = False
        self._depth = 0  # of braces and brackets inside the arguments
        self._in_string = False
        self._is_escaped = False
        self._content: list[str] = []
        self._calls: list[tuple[str, list[str]]] = []
        self._num_complete = 0
        marks = (tool_format.call_end.strip(), tool_format.trigger)
        self._tail_end = re.compile("|".join(re.escape(mark) for mark in marks))
        self._max_mark = max(len(mark) for mark in marks)

    def push(self, text: str) -> list[Delta]:
        """Read more text; returns what is certain now, in order."""
        self._buffer += text
        return self._collect(self._run())

    def finish(self, cut: bool = False) -> list[Delta]:
        """The output ended; returns what was held back.

        Args:
            cut: it was cut (max_tokens, stop string): a half-written trigger is dropped instead of
                becoming content.
        """
        deltas: list[Delta] = []
        if self._state == "arguments":
            deltas.append(CallEnd(len(self._calls) - 1, False))
        elif self._state == "text":
            held = self._without_partial_trigger(self._buffer) if cut else self._buffer
            if held and not (self._after_call and held.isspace()):
                deltas.append(TextDelta(held))
        self._buffer = ""
        return self._collect(deltas)

    def message(self) -> ParsedMessage:
        """Everything delivered so far."""
        content = "".join(self._content)
        calls = tuple(
            ParsedCall(name, "".join(parts), index < self._num_complete)
            for index, (name, parts) in enumerate(self._calls)
        )
        return ParsedMessage(content if content or not calls else None, calls)

    def _collect(self, deltas: Iterable[Delta]) -> list[Delta]:
        collected = list(deltas)
        for delta in collected:
            if isinstance(delta, TextDelta):
                self._content.append(delta.text)
            elif isinstance(delta, ArgumentsDelta):
                self._calls[delta.index][1].append(delta.text)
            elif isinstance(delta, CallEnd):
                self._num_complete += delta.complete
        return collected

    def _run(self) -> Iterable[Delta]:
        if not self._enabled:
            if self._buffer:
                yield TextDelta(self._take(len(self._buffer)))
            return
        steps = {
            "text": self._step_text,
            "head": self._step_head,
            "arguments": self._step_arguments,
            "tail": self._step_tail,
        }
        state = None
        # A step that neither changes the state nor ends the buffer waits for more text.
        while state != self._state:
            state = self._state
            yield from steps[state]()

    def _take(self, length: int) -> str:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        return text

    def _step_text(self) -> Iterable[Delta]:
        trigger = self._format.trigger
        start = self._buffer.find(trigger)
        end = start if start >= 0 else self._num_certain()
        text = self._take(end)
        self._dropped = ""
        if start >= 0:
            self._take(len(trigger))
            self._state = "head"
            kept = text.removesuffix(self._format.text_separator)
            if self._after_call and text.isspace():
                kept = ""
            self._dropped = text[len(kept) :] + trigger
            text = kept
        if text:
            self._after_call = False
            yield TextDelta(text)

    def _num_certain(self) -> int:
        """Characters of the buffer that cannot be part of a marker or of what stands around it."""
        if self._after_call and self._format.trigger.startswith(self._buffer.lstrip()):
            return 0  # white space between two calls is no content
        marker = self._format.text_separator + self._format.trigger
        for length in range(min(len(marker) - 1, len(self._buffer)), 0, -1):
            held = self._buffer[-length:]
            if marker.startswith(held) or self._format.trigger.startswith(held):
                return len(self._buffer) - length
        return len(self._buffer)

    def _without_partial_trigger(self, held: str) -> str:
        for length in range(min(len(self._format.trigger) - 1, len(held)), 0, -1):
            if self._format.trigger.startswith(held[-length:]):
                return held[:-length].removesuffix(self._format.text_separator)
        return held

    def _step_head(self) -> Iterable[Delta]:
        head = self._read_head()
        if head == "malformed":
            self._state = "text"
            self._after_call = False
            yield TextDelta(self._dropped)
        elif head is not None:
            name, length = head
            self._take(length)
            self._state = "arguments"
            self._calls.append((name, []))
            yield CallStart(len(self._calls) - 1, name)

    def _read_head(self) -> tuple[str, int] | Literal["malformed"] | None:
        """(name, where the arguments begin), or None while more text is needed."""
        name_key, arguments_key = (
            json.dumps(key) for key in (self._format.name_key, self._format.arguments_key)
        )
        buffer, position, name = self._buffer, 0, ""
        for piece in ("{", name_key, ":", None, ",", arguments_key, ":", "{"):
            position = _end(_SPACE, buffer, position)
            if piece is not None:
                found = buffer[position : position + len(piece)]
                if not piece.startswith(found):
                    return "malformed"
                if len(found) < len(piece):
                    return None
                position += len(piece)
                continue
            string = _STRING.match(buffer, position)
            if string is None:
                is_open = position == len(buffer) or _OPEN_STRING.match(buffer, position)
                return None if is_open else "malformed"
            try:
                name = json.loads(string[0])
            except ValueError:
                return "malformed"
            position = string.end()
        return name, position - 1

    def _step_arguments(self) -> Iterable[Delta]:
        index, end = len(self._calls) - 1, 0
        for char in self._buffer:
            end += 1
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif char == "\\":
                    self._is_escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self._state = "tail"
                    break
        if end:
            yield ArgumentsDelta(index, self._take(end))
        if self._state == "tail":
            yield CallEnd(index, True)

    def _step_tail(self) -> Iterable[Delta]:
        mark = self._tail_end.search(self._buffer)
        if mark is None:
            self._buffer = self._buffer[-(self._max_mark - 1) :]
            return ()
        self._take(mark.start() if mark[0] == self._format.trigger else mark.end())
        self._state = "text"
        self._after_call = True
        return ()


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def parse_message(
    tool_format: ToolFormat, text: str, *, enabled: bool = True, cut: bool = False
) -> ParsedMessage:
    """Read a whole turn; the result is that of a stream over the same text.

    Args:
        tool_format: what calls look like.
        text: the output text.
        enabled: as for ToolCallParser.
        cut: as for `ToolCallParser.finish`.
    """
    parser = ToolCallParser(tool_format, enabled)
    parser.push(text)
    parser.finish(cut)
    return parser.message()
