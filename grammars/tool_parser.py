"""From the text of an assistant turn to content and calls, in a stream or at once.

The parser is a state machine over characters, built from a format's data: however the text is cut
into pieces, the deltas concatenate to the same content and calls. The JSON decides where arguments
end, never a marker inside a string. It knows no tokens and no schema.

    text --trigger--> head --arguments begin--> arguments --last brace--> tail --end--> behind
                       ^----------------------- separator ---------------------------------'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from specrt.grammars.tool_format import ID_SLOT, ToolFormat

_NAME = re.compile(r"[a-zA-Z0-9_.-]+")  # what a tool may be called


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More content; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call `index` begins; the name is whole, and so is the id, "" if the model writes none."""

    index: int
    name: str
    id: str = ""


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
    """One call; `arguments` is its exact text, cut short when not `complete`; `id` as CallStart."""

    name: str
    arguments: str
    complete: bool
    id: str = ""


class ParsedMessage(NamedTuple):
    """An assistant turn; `content` is None when there are calls and no text."""

    content: str | None
    calls: tuple[ParsedCall, ...]


class ToolCallParser:
    """Reads one assistant turn, piece by piece.

    Text that may still become a marker is held back. A call that was cut before its arguments began
    is not delivered, and markers never reach the content. What begins like a call and turns out not
    to be one (possible only in output that no grammar constrains) is content.

    Args:
        tool_format: what calls look like.
        enabled: False = everything is content (the request allows no calls).
    """

    def __init__(self, tool_format: ToolFormat, enabled: bool = True) -> None:
        self._format = tool_format
        self._state: Literal["start", "text", "head", "arguments", "tail", "behind", "plain"]
        self._state = "start" if enabled else "plain"
        self._buffer = ""  # not decided yet
        self._lead = ""  # what the buffer begins with in front of a name
        self._depth = 0  # of braces and brackets inside the arguments
        self._in_string = False
        self._is_escaped = False
        self._content: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []
        self._num_complete = 0
        self._opening = tool_format.calls_begin + tool_format.prefix
        self._again = tool_format.call_separator + tool_format.prefix
        self._steps = {
            "start": self._step_start,
            "text": self._step_text,
            "head": self._step_head,
            "arguments": self._step_arguments,
            "tail": self._step_tail,
            "behind": self._step_behind,
            "plain": self._step_plain,
        }
        separator = tool_format.text_separator
        # What is held back of a text: the trigger, and what stands in front of it.
        self._marks = () if separator is None else (separator + tool_format.trigger,)

    def push(self, text: str) -> list[Delta]:
        """Read more text; returns what is certain now, in order."""
        self._buffer += text
        return self._collect(self._run())

    def finish(self, cut: bool = False) -> list[Delta]:
        """The output ended; returns what was held back.

        Args:
            cut: it was cut (max_tokens, stop string): a half-written marker is dropped instead of
                becoming content.
        """
        deltas: list[Delta] = []
        if self._state == "arguments":
            deltas.append(CallEnd(len(self._calls) - 1, False))
        elif self._state in ("start", "text") and self._buffer:
            held = self._without_marker(self._buffer) if cut else self._buffer
            deltas += [TextDelta(held)] if held else []
        elif self._state == "behind" and not cut and not self._buffer.isspace():
            deltas += [TextDelta(self._buffer)] if self._buffer else []
        self._buffer = ""
        return self._collect(deltas)

    def message(self) -> ParsedMessage:
        """Everything delivered so far."""
        content = "".join(self._content)
        calls = tuple(
            ParsedCall(name, "".join(parts), index < self._num_complete, call_id)
            for index, (name, call_id, parts) in enumerate(self._calls)
        )
        return ParsedMessage(content if content or not calls else None, calls)

    def _collect(self, deltas: Iterable[Delta]) -> list[Delta]:
        collected = list(deltas)
        for delta in collected:
            if isinstance(delta, TextDelta):
                self._content.append(delta.text)
            elif isinstance(delta, ArgumentsDelta):
                self._calls[delta.index][2].append(delta.text)
            elif isinstance(delta, CallEnd):
                self._num_complete += delta.complete
        return collected

    def _run(self) -> Iterable[Delta]:
        state = None
        # A step that neither changes the state nor ends the buffer waits for more text.
        while state != self._state:
            state = self._state
            yield from self._steps[state]()

    def _take(self, length: int) -> str:
        text, self._buffer = self._buffer[:length], self._buffer[length:]
        return text

    def _begins(self, literal: str) -> bool | None:
        """Does the buffer begin with `literal`? None = too short to tell."""
        if self._buffer.startswith(literal):
            return True
        return None if literal.startswith(self._buffer) else False

    def _step_start(self) -> Iterable[Delta]:
        begins = self._begins(self._format.trigger)
        if begins:
            self._lead, self._state = self._opening, "head"
        elif begins is False:
            self._state = "text" if self._marks else "plain"
        return ()

    def _step_text(self) -> Iterable[Delta]:
        start = self._buffer.find(self._format.trigger)
        if start >= 0:
            text = self._buffer[:start].removesuffix(self._format.text_separator or "")
            self._lead = self._buffer[len(text) : start] + self._opening
            self._state = "head"
        else:
            text = self._buffer[: len(self._buffer) - self._num_held(self._buffer)]
        if text:
            yield TextDelta(self._take(len(text)))

    def _step_plain(self) -> Iterable[Delta]:
        if self._buffer:
            yield TextDelta(self._take(len(self._buffer)))

    def _num_held(self, text: str) -> int:
        """Characters at the end of a text that may be part of a mark."""
        trigger = self._format.trigger
        for mark in (*self._marks, trigger):
            for length in range(min(len(mark) - 1, len(text)), 0, -1):
                if mark.startswith(text[-length:]):
                    return length
        return 0

    def _without_marker(self, text: str) -> str:
        """A text that was cut, without the half marker and the separator in front of it."""
        trigger = self._format.trigger
        for length in range(min(len(trigger) - 1, len(text)), 0, -1):
            if trigger.startswith(text[-length:]):
                return text[:-length].removesuffix(self._format.text_separator or "")
        return text

    def _step_head(self) -> Iterable[Delta]:
        head = self._read_head()
        if head == "malformed":
            # Not a call: its first character is content, and the rest is looked at again.
            self._state = "text" if self._marks else "plain"
            yield TextDelta(self._take(1))
        elif head is not None:
            name, call_id, length = head
            self._take(length)
            self._state = "arguments"
            self._calls.append((name, call_id, []))
            yield CallStart(len(self._calls) - 1, name, call_id)

    def _read_head(self) -> tuple[str, str, int] | Literal["malformed"] | None:
        """(name, id, where the arguments begin), or None while more text is needed."""
        begins = self._begins(self._lead)
        if not begins:
            return "malformed" if begins is False else None
        buffer, position, written = self._buffer, len(self._lead), ""
        found = _NAME.match(buffer, position)
        if found is None or found.end() == len(buffer):
            return None if position == len(buffer) or found else "malformed"
        name = found[0]
        for part in (*self._format.head(name), "{"):
            if part == ID_SLOT:
                characters, at_least, at_most = self._format.id_range
                end = position
                while end < len(buffer) and buffer[end] in characters:
                    end += 1
                if not at_least <= end - position <= at_most and end < len(buffer):
                    return "malformed"
                written, position = buffer[position:end], end
                continue
            piece = buffer[position : position + len(part)]
            if not part.startswith(piece):
                return "malformed"
            if len(piece) < len(part):
                return None
            position += len(part)
        return name, self._format.shown_id(name, written), position - 1

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
        begins = self._begins(self._format.tail)
        if begins is not None:
            self._take(len(self._format.tail) if begins else 0)
            self._state = "behind"
        return ()

    def _step_behind(self) -> Iterable[Delta]:
        """Another call, the end of the calls, or (where no grammar constrains) text."""
        again, end = self._begins(self._again), self._begins(self._format.calls_end)
        if again:
            self._lead, self._state = self._again, "head"
        elif end and self._format.calls_end:
            self._take(len(self._format.calls_end))
            self._state = "text" if self._marks else "plain"
        elif again is False and end is not None:
            self._state = "text" if self._marks else "plain"
        return ()


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
