"""The messages of a chat request, read from the OpenAI shape, older one included.

Cache hints, legacy fields that are null and anything else that the model does not see is dropped
here, so nothing behind this file can depend on it. Of call ids those are kept that the model wrote
itself; all others are replaced by ones that depend on nothing but a call's place.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, NamedTuple

from specrt.errors import RequestError
from specrt.grammars.json_style import repair_surrogates, restyle
from specrt.grammars.tool_format import ToolFormat
from specrt.grammars.tools import check_depth, shown

Role = Literal["system", "user", "assistant", "tool"]
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class Call(NamedTuple):
    """One tool call of an assistant message.

    Attributes:
        name: the function's name.
        arguments: its arguments as the client sent them.
        styled: the same JSON in the style of the tool-call format; equal to `arguments` when the
            client sent back what the format generates.
        id: as the model could have written it, or one that depends on its place only.
    """

    name: str
    arguments: str
    styled: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message as the model sees it.

    Attributes:
        role: who speaks.
        content: the text; "" when the client sent null or nothing.
        calls: the calls of an assistant message.
        name: name of the speaker, if given (some templates print it).
        call_id: of a tool message: the id of the call that it answers; "" when it names none.
    """

    role: Role
    content: str
    calls: tuple[Call, ...] = ()
    name: str | None = None
    call_id: str = ""


def read_messages(messages: object, tool_format: ToolFormat) -> list[Message]:
    """Read and check the `messages` of a chat request.

    Args:
        messages: the JSON value of the field.
        tool_format: states the style of call arguments and ids.

    Raises:
        RequestError: something else came; `param` is the path of the field (`messages[3].role`).
    """
    if not isinstance(messages, list) or not messages:
        raise _error("messages", "a list of at least one message", messages)
    read: list[Message] = []
    ids = _CallIds(tool_format)
    for index, value in enumerate(messages):
        message = _read_message(value, f"messages[{index}]", ids)
        if message.role == "tool":
            asked = next((m for m in reversed(read) if m.role != "tool"), None)
            if asked is None or not asked.calls:
                raise _error(
                    f"messages[{index}].role",
                    "a tool message only behind the assistant message whose tool_calls it answers",
                    "tool",
                )
        read.append(message)
    return read


class _CallIds:
    """Gives the calls of a conversation the ids that its format knows."""

    def __init__(self, tool_format: ToolFormat) -> None:
        self.tool_format = tool_format
        self._given: dict[str, str] = {}  # ids as sent -> ids as the format knows them
        self._unanswered: list[str] = []
        self._num_calls = 0

    def give(self, name: str, sent: object) -> str:
        """The id of the next call."""
        sent = sent if isinstance(sent, str) else ""
        call_id = self.tool_format.fit_id(name, sent, self._num_calls)
        self._num_calls += 1
        self._given[sent] = call_id
        self._unanswered.append(call_id)
        return call_id

    def answer(self, sent: object) -> str:
        """The id of the call that a tool message answers: the named one, else the first."""
        call_id = self._given.get(sent) if isinstance(sent, str) else None
        call_id = call_id or next(iter(self._unanswered), "")
        self._unanswered = [other for other in self._unanswered if other != call_id]
        return call_id


def _read_message(message: object, path: str, ids: _CallIds) -> Message:
    if not isinstance(message, dict):
        raise _error(path, "an object with role and content", message)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _error(f"{path}.role", f"one of {', '.join(_ROLES)}", role)
    calls: tuple[Call, ...] = ()
    content = message.get("content")
    if role == "assistant":
        calls = _read_calls(message.get("tool_calls"), f"{path}.tool_calls", ids)
        older = message.get("function_call")
        if older is not None and calls:
            raise _error(f"{path}.function_call", "null beside tool_calls", older)
        if older is not None:
            calls = (_read_function(older, f"{path}.function_call", None, ids),)
        content = _with_refusal(content, message.get("refusal"), path)
    if content is None and not (role == "assistant" and (calls or "content" in message)):
        what = "text or tool_calls" if role == "assistant" else "text or a list of text parts"
        raise _error(f"{path}.content", what, content)
    name = message.get("name")
    if name is not None and not isinstance(name, str):
        raise _error(f"{path}.name", "text", name)
    return Message(
        role=_ROLES[role],
        content=_read_content(content, f"{path}.content", may_refuse=role == "assistant"),
        calls=calls,
        name=None if name is None else repair_surrogates(name),
        call_id=ids.answer(message.get("tool_call_id")) if role in ("tool", "function") else "",
    )


def _with_refusal(content: object, refusal: object, path: str) -> object:
    """A refusal is text that the assistant said instead of a content."""
    if refusal is None or refusal == "":
        return content
    if not isinstance(refusal, str):
        raise _error(f"{path}.refusal", "text", refusal)
    if content:
        raise _error(f"{path}.refusal", "null beside a content", refusal)
    return refusal


def _read_content(content: object, path: str, *, may_refuse: bool) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return repair_surrogates(content)
    if not isinstance(content, list):
        raise _error(path, "text or a list of text parts", content)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else part
        if not isinstance(part, dict) or (
            kind != "text" and not (may_refuse and kind == "refusal")
        ):
            raise _error(f"{path}[{index}].type", "'text' (this model reads only text)", kind)
        if not isinstance(part.get(kind), str):
            raise _error(f"{path}[{index}].{kind}", "text", part.get(kind))
        texts.append(part[kind])
    return repair_surrogates("".join(texts))


def _read_calls(calls: object, path: str, ids: _CallIds) -> tuple[Call, ...]:
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise _error(path, "a list of calls", calls)
    return tuple(_read_call(call, f"{path}[{index}]", ids) for index, call in enumerate(calls))


def _read_call(call: object, path: str, ids: _CallIds) -> Call:
    if isinstance(call, dict) and call.get("type", "function") != "function":
        raise _error(f"{path}.type", "'function' (no other type is supported)", call["type"])
    function, sent = (
        (call.get("function"), call.get("id")) if isinstance(call, dict) else (None, None)
    )
    return _read_function(function, f"{path}.function", sent, ids)


def _read_function(function: object, path: str, sent_id: object, ids: _CallIds) -> Call:
    if not isinstance(function, dict):
        raise _error(path, "an object with name and arguments", function)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise _error(f"{path}.name", "the name of a function", name)
    path += ".arguments"
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        check_depth(arguments, path)
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise _error(path, "the JSON text of an object", arguments)
    text = repair_surrogates(arguments)
    _check_arguments(text, path)
    tool_format = ids.tool_format
    return Call(
        name=repair_surrogates(name),
        arguments=text,
        styled=restyle(
            text or "{}",
            item_separator=tool_format.item_separator,
            key_separator=tool_format.key_separator,
        ),
        id=ids.give(repair_surrogates(name), sent_id),
    )


def _check_arguments(text: str, path: str) -> None:
    if not text:  # how several servers and SDKs write a call without arguments
        return
    try:
        # Numbers stay text: only the spelling matters, and int() refuses very long ones.
        value = json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"{path}: expected the JSON text of an object, got {shown(text)} ({error}); a call that"
            " was cut by max_tokens cannot be sent back",
            param=path,
        ) from None
    if not isinstance(value, dict):
        raise _error(path, "the JSON text of an object", text)


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _error(path: str, expected: str, got: object) -> RequestError:
    return RequestError(f"{path}: expected {expected}, got {shown(got)}", param=path)
