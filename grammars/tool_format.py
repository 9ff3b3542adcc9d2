"""ToolFormat: how a model writes tool calls, and the bytes of calls and turns in it."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from specrt.errors import ConfigError

_SLOT = re.compile(r"(\$(?:name|id|arguments))")
_ID_PATTERN = re.compile(r"\[((?:\w-\w)+)\]\{(\d+),(\d+)\}")
ID_SLOT = "$id"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """How a model writes tool calls.

    A turn is text, or text, `text_separator` and calls, or calls alone. Calls are `calls_begin`,
    one or more `call` joined by `call_separator`, and `calls_end`. In `call`, `$name` is the name
    of the function (spelled as in JSON between quotes), `$arguments` the JSON text of an object,
    and `$id`, if there is one, what the model itself writes to tell its calls apart.

    Attributes:
        name: name of the format, or of the variant.
        call: one call: literal text, then `$name`, perhaps `$id`, `$arguments`, each once.
        trigger: what calls begin with; text may not contain it. Where calls stand alone, text may
            not begin with it.
        text_separator: stands between text that is not empty and the first call; None = calls
            stand alone, without text.
        calls_begin: stands before the first call.
        call_separator: stands between two calls.
        calls_end: stands behind the last call.
        is_parallel: may the model write several calls in one turn?
        id_pattern: what `$id` may be, as a regex: one class of characters and how many of them.
        call_id: what the API shows as the id of a call, made of `$name` and `$id`.
        printed_call: how chat templates print a call of an earlier turn, where that is not `call`.
        item_separator: what the JSON writes between items.
        key_separator: what the JSON writes between a key and its value.
        instruction: what specrt's own template tells a model that knows no tools.
    """

    name: str
    call: str
    trigger: str
    text_separator: str | None
    calls_begin: str = ""
    call_separator: str = ""
    calls_end: str = ""
    is_parallel: bool = True
    id_pattern: str = ""
    call_id: str = ""
    printed_call: str = ""
    item_separator: str = ", "
    key_separator: str = ": "
    instruction: str

    @property
    def markers(self) -> tuple[str, ...]:
        """All literal text of the format."""
        separator = self.text_separator or ""
        return (separator, self.calls_begin, self.call, self.call_separator, self.calls_end)

    @property
    def prefix(self) -> str:
        """The literal text that every call begins with, up to its name."""
        return self.call.partition("$name")[0]

    def head(self, name: str) -> tuple[str, ...]:
        """What a call of `name` has between `prefix` and arguments: literal text and ID_SLOT."""
        text = self._spelled(name, self.call) + self.call.partition("$name")[2]
        return tuple(filter(None, _SLOT.split(text.partition("$arguments")[0])))

    @property
    def tail(self) -> str:
        """The literal text of a call behind its arguments."""
        return self.call.partition("$arguments")[2]

    @property
    def json_trigger(self) -> str:
        """What announces JSON in an output; its first byte does not occur in it again."""
        if '"$name"' in self.call:
            return self.trigger  # all of the call is JSON
        literal = _SLOT.split(self.call.partition("$arguments")[0])[-1]
        suffixes = (literal[start:] for start in range(len(literal)))
        return next(text for text in suffixes if text.encode().count(text.encode()[:1]) == 1)

    def _spelled(self, name: str, call: str) -> str:
        return json.dumps(name, ensure_ascii=False)[1:-1] if '"$name"' in call else name

    def call_text(self, name: str, arguments: str, call_id: str = "") -> str:
        """The bytes of one call.

        Args:
            name: of the function.
            arguments: JSON text of an object in this style.
            call_id: as `fit_id` makes it; "" for one that is.
        """
        return self._filled(self.call, name, arguments, call_id)

    def printed_text(self, name: str, arguments: str, call_id: str = "") -> str:
        """The bytes of a call as chat templates print it, as `call_text`."""
        return self._filled(self.printed_call or self.call, name, arguments, call_id)

    def _filled(self, call: str, name: str, arguments: str, call_id: str) -> str:
        call_id = self.fit_id(name, call_id, 0)
        values = {
            "$name": self._spelled(name, call),
            "$id": self._id_of(name, call_id) or call_id,
            "$arguments": arguments,
        }
        return "".join(values.get(part, part) for part in _SLOT.split(call))

    def turn_text(self, content: str, calls: Iterable[tuple[str, ...]]) -> str:
        """The bytes of an assistant turn.

        Args:
            content: the text, "" for none.
            calls: (name, JSON text of the arguments in this style) of each call, perhaps with its
                id behind them.
        """
        text = self.call_separator.join(
            self.call_text(name, arguments, self.fit_id(name, "".join(call_id), number))
            for number, (name, arguments, *call_id) in enumerate(calls)
        )
        if not text:
            return content
        separator = "\n" if self.text_separator is None else self.text_separator
        return (content and content + separator) + self.calls_begin + text + self.calls_end

    @property
    def id_range(self) -> tuple[frozenset[str], int, int]:
        """The characters of `$id`, and how many at least and at most."""
        return _id_range(self.id_pattern)

    def fit_id(self, name: str, call_id: str, number: int) -> str:
        """The id of a call as the format knows it.

        Args:
            name: of the function.
            call_id: as the client sent it; kept when the model could have written it.
            number: of the call in the conversation: makes an id that depends on nothing else.
        """
        if not self.id_pattern:
            return f"{number:09d}"  # templates that want ids want nine letters or digits
        if self._id_of(name, call_id):
            return call_id
        _, at_least, at_most = self.id_range
        return self.shown_id(name, f"{number % 10**at_most:0{at_least}d}")

    def shown_id(self, name: str, written: str) -> str:
        """What the API shows as the id of a call whose `$id` is `written`; "" = nothing."""
        return self.call_id.replace("$name", name).replace(ID_SLOT, written)

    def _id_of(self, name: str, call_id: str) -> str | None:
        """The `$id` in an id that `shown_id` could have made."""
        if not self.id_pattern:
            return None
        pattern = re.escape(self.shown_id(name, "\0")).replace("\0", f"({self.id_pattern})")
        found = re.fullmatch(pattern, call_id)
        return found[1] if found else None


@cache
def _id_range(pattern: str) -> tuple[frozenset[str], int, int]:
    found = _ID_PATTERN.fullmatch(pattern)
    assert found is not None, "the format has no ids"
    ranges, at_least, at_most = found.groups()
    pairs = [(ranges[i], ranges[i + 2]) for i in range(0, len(ranges), 3)]
    codes = [code for low, high in pairs for code in range(ord(low), ord(high) + 1)]
    return frozenset(map(chr, codes)), int(at_least), int(at_most)


def check_format(tool_format: ToolFormat, where: str) -> None:
    """Refuse values that do not fit each other.

    Args:
        tool_format: as read.
        where: the file's name, for messages.

    Raises:
        ConfigError: they do not.
    """
    has_id = bool(tool_format.id_pattern)
    slots = ["$name", *([ID_SLOT] if has_id else []), "$arguments"]
    if _SLOT.findall(tool_format.call) != slots or not tool_format.prefix:
        raise ConfigError(
            f"{where}: expected 'call' to be text, then {', '.join(slots)}, each once; got"
            f" {tool_format.call!r}"
        )
    if tool_format.head("f")[0][1:2] in {*string.ascii_letters, *string.digits, *"_.-", ""}:
        raise ConfigError(f"{where}: expected text in 'call' that ends the name, got none")
    trigger, opening = tool_format.trigger, tool_format.calls_begin + tool_format.prefix
    if not trigger or not opening.startswith(trigger):
        raise ConfigError(
            f"{where}: expected calls to begin with a 'trigger' that is not empty, got"
            f" {opening!r} and {trigger!r}"
        )
    if has_id:
        head = tool_format.head("f")
        behind = head[head.index(ID_SLOT) + 1 :]
        is_class = _ID_PATTERN.fullmatch(tool_format.id_pattern)
        if not is_class or not behind or behind[0][0] in tool_format.id_range[0]:
            raise ConfigError(
                f"{where}: expected 'id_pattern' to be a class and a count that the text behind"
                f" $id ends, as [0-9]{{1,4}}; got {tool_format.id_pattern!r}"
            )
    if has_id != (ID_SLOT in tool_format.call_id):
        raise ConfigError(f"{where}: expected a 'call_id' with $id where calls have ids, only")
    for key, mark in (("item_separator", ","), ("key_separator", ":")):
        value = getattr(tool_format, key)
        if value.strip(" ") != mark:
            raise ConfigError(f"{where}: expected {key!r} to be {mark!r} and spaces, got {value!r}")
