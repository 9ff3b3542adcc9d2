"""Which keys the objects inside a chat request may have.

The readers of messages and tools take what they know; here everything else is refused by its path,
so that nothing is dropped in silence. A key that is null is the same as an absent one. Objects of
the wrong shape are left to the readers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from specrt.errors import RequestError

# Accepted anywhere because they change nothing here: hints to caches (every prefix is cached) and
# what clients and proxies leave of other servers' answers.
NEUTRAL = frozenset({"cache_control", "prompt_cache_breakpoint", "provider_specific_fields"})

_ANY_MESSAGE = frozenset({"role", "content", "name"})
MESSAGE = {
    "system": _ANY_MESSAGE,
    "developer": _ANY_MESSAGE,
    "user": _ANY_MESSAGE,
    "assistant": _ANY_MESSAGE | {"tool_calls", "function_call", "refusal"},
    "tool": _ANY_MESSAGE | {"tool_call_id"},
    "function": _ANY_MESSAGE,
}
# What an answer carries besides its message proper, and comes back with it. Earlier reasoning is
# no part of a prompt.
ECHOED = frozenset(
    {"annotations", "parsed", "reasoning", "reasoning_content", "reasoning_details"}
    | {"thinking_blocks"}
)
PART = {"text": frozenset({"type", "text"}), "refusal": frozenset({"type", "refusal"})}
CALL = frozenset({"id", "type", "index", "function"})
CALLED_FUNCTION = frozenset({"name", "arguments", "parsed_arguments"})
TOOL = frozenset({"type", "function"})
FUNCTION = frozenset({"name", "description", "parameters", "strict"})
RESPONSE_FORMAT = {
    "text": frozenset({"type"}),
    "json_object": frozenset({"type"}),
    "json_schema": frozenset({"type", "json_schema"}),
}
JSON_SCHEMA = frozenset({"name", "description", "schema", "strict"})
TOOL_CHOICE = {
    "function": frozenset({"type", "function"}),
    "allowed_tools": frozenset({"type", "allowed_tools"}),
}
NAMED_FUNCTION = frozenset({"name"})
ALLOWED_TOOLS = frozenset({"mode", "tools"})
# Keys of the API that are not served, with the reason.
REFUSED_KEYS = {
    "audio": "this model reads and writes only text; remove it",
    "custom": "custom tools are not supported; offer a function with one string parameter",
    "schema": "expected inside `json_schema`, beside type 'json_schema'",
}


def check_messages(messages: object) -> None:
    """Refuse unknown keys in messages, and tool messages that answer no call.

    Raises:
        RequestError: `param` is the path of the key.
    """
    asked: list[object] = []
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        path = f"messages[{index}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            continue
        role = message["role"]
        if role not in MESSAGE:
            continue
        echoed = ECHOED if role == "assistant" else ()
        _check(message, path, MESSAGE[role] | frozenset(echoed))
        for part, where in _objects(message.get("content"), f"{path}.content"):
            if isinstance(part.get("type"), str) and part["type"] in PART:
                _check(part, where, PART[part["type"]] | frozenset(echoed))
        if role == "tool":
            _check_answer(message.get("tool_call_id"), asked, f"{path}.tool_call_id")
            continue
        asked = []
        if role == "assistant":
            asked = _check_calls(message, path)


def _check_calls(message: Mapping[str, object], path: str) -> list[object]:
    """The ids of an assistant's calls; [] when it did not give them all."""
    older = message.get("function_call")
    if isinstance(older, dict):
        _check(older, f"{path}.function_call", CALLED_FUNCTION)
    ids: list[object] = []
    for call, where in _objects(message.get("tool_calls"), f"{path}.tool_calls"):
        if call.get("type", "function") == "function":
            _check(call, where, CALL)
        function = call.get("function")
        if isinstance(function, dict):
            _check(function, f"{where}.function", CALLED_FUNCTION)
        if not isinstance(call.get("id"), str | None):
            raise _wrong(f"{where}.id", "text", call["id"])
        ids.append(call.get("id"))
    return ids if all(ids) else []


def _check_answer(call_id: object, asked: Collection[object], path: str) -> None:
    if call_id is None:
        return
    if not isinstance(call_id, str):
        raise _wrong(path, "the id of a call", call_id)
    if asked and call_id not in asked:
        known = ", ".join(map(repr, asked))
        raise _wrong(
            path, f"the id of a call of the assistant message before it ({known})", call_id
        )


def check_tools(tools: object) -> None:
    """Refuse unknown keys in tools.

    Raises:
        RequestError: `param` is the path of the key.
    """
    for tool, path in _objects(tools, "tools"):
        if tool.get("type", "function") != "function":
            continue
        _check(tool, path, TOOL)
        function = tool.get("function")
        if isinstance(function, dict):
            _check(function, f"{path}.function", FUNCTION)


def check_choice(choice: object) -> None:
    """Refuse unknown keys in a tool_choice.

    Raises:
        RequestError: `param` is the path of the key.
    """
    if not isinstance(choice, dict) or not isinstance(choice.get("type"), str):
        return
    path = "tool_choice"
    if choice["type"] not in TOOL_CHOICE:
        return
    _check(choice, path, TOOL_CHOICE[choice["type"]])
    if isinstance(choice.get("function"), dict):
        _check(choice["function"], f"{path}.function", NAMED_FUNCTION)
    allowed = choice.get("allowed_tools")
    if isinstance(allowed, dict):
        path += ".allowed_tools"
        _check(allowed, path, ALLOWED_TOOLS)
        for tool, where in _objects(allowed.get("tools"), f"{path}.tools"):
            _check(tool, where, TOOL)
            function = tool.get("function")
            if isinstance(function, dict):
                _check(function, f"{where}.function", FUNCTION)


def check_response_format(value: object) -> None:
    """Refuse unknown keys in a response_format.

    Raises:
        RequestError: `param` is the path of the key.
    """
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return
    if value["type"] in RESPONSE_FORMAT:
        _check(value, "response_format", RESPONSE_FORMAT[value["type"]])
    if isinstance(value.get("json_schema"), dict):
        _check(value["json_schema"], "response_format.json_schema", JSON_SCHEMA)


def _objects(value: object, path: str) -> Iterator[tuple[dict[str, object], str]]:
    """The objects of a list, each with its path."""
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict):
            yield item, f"{path}[{index}]"


def _check(value: Mapping[str, object], path: str, known: Collection[str]) -> None:
    for key, inner in value.items():
        if inner is None or key in known or key in NEUTRAL:
            continue
        where = f"{path}.{key}"
        is_refused = key in REFUSED_KEYS
        reason = REFUSED_KEYS[key] if is_refused else "unknown field; remove it"
        raise RequestError(
            f"`{where}`: {reason}",
            param=where,
            code="unsupported_parameter" if is_refused else "unknown_parameter",
        )


def _wrong(path: str, expected: str, got: object) -> RequestError:
    return RequestError(
        f"`{path}`: expected {expected}, got {got!r:.80}", param=path, code="invalid_value"
    )
