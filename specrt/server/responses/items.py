"""Input items: read, checked, and given ids, as OpenAI's own types.

Fields of an item that the model does not see (annotations, phase, status, ...) are dropped here, as
the chat path drops those of messages.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from openai.types.responses import (
    ResponseFunctionToolCallItem,
    ResponseFunctionToolCallOutputItem,
    ResponseInputMessageItem,
    ResponseInputText,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)

from specrt.errors import RequestError
from specrt.grammars.tools import shown

Item = (
    ResponseInputMessageItem
    | ResponseOutputMessage
    | ResponseFunctionToolCallItem
    | ResponseFunctionToolCallOutputItem
    | ResponseReasoningItem
)

_TEXT_PARTS = ("input_text", "output_text", "text", "refusal")
_REASONING_FIELDS = ("summary", "content", "encrypted_content")
_TYPES = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def new_id(prefix: str) -> str:
    """A fresh id of an item."""
    return f"{prefix}_{uuid.uuid4().hex}"


def read_items(given: str | list[object], find: Callable[[str], Item | None]) -> list[Item]:
    """The input of a request.

    Args:
        given: its `input`; a string is a user message.
        find: a stored item by its id, for references.

    Raises:
        RequestError: an item is malformed or not supported; `param` is the path of the field.
    """
    if isinstance(given, str):
        return [_input_message(new_id("msg"), "user", given)]
    if not given:
        raise _error("input", "text or a list of at least one item", given)
    return [_read_item(item, f"input[{index}]", find) for index, item in enumerate(given)]


def _read_item(item: object, path: str, find: Callable[[str], Item | None]) -> Item:
    if not isinstance(item, dict):
        raise _error(path, "an object", item)
    given_id = item.get("id")
    if not isinstance(given_id, str | None):
        raise _error(f"{path}.id", "text", given_id)
    match _item_type(item):
        case "message":
            return _read_message(item, path, given_id or new_id("msg"))
        case "function_call":
            return _read_call(item, path, given_id or new_id("fc"))
        case "function_call_output":
            return _read_output(item, path, given_id or new_id("fco"))
        case "reasoning":
            return _read_reasoning(item, path, given_id or new_id("rs"))
        case "item_reference":
            found = find(given_id) if given_id else None
            if found is None:
                raise RequestError(
                    f"`{path}.id`: expected the id of an item of a stored response, got"
                    f" {shown(given_id)}; send the item itself",
                    param=f"{path}.id",
                    code="item_not_found",
                )
            return found
    raise RequestError(
        f"`{path}.type`: expected one of {', '.join(_TYPES)} (items of built-in and custom tools"
        f" are not supported), got {shown(item.get('type'))}",
        param=f"{path}.type",
        code="unsupported_value",
    )


def _item_type(item: Mapping[str, object]) -> object:
    """The type, which easy messages and references may leave out."""
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else "item_reference" if "id" in item else None
    return kind


def _read_message(item: Mapping[str, object], path: str, item_id: str) -> Item:
    role, text = item.get("role"), _read_text(item.get("content"), f"{path}.content")
    if role == "assistant":
        return output_message(item_id, text)
    if role in ("user", "system", "developer"):
        return _input_message(item_id, str(role), text)
    raise _error(f"{path}.role", "one of user, assistant, system, developer", role)


def _input_message(item_id: str, role: str, text: str) -> ResponseInputMessageItem:
    return ResponseInputMessageItem.model_validate(
        {
            "id": item_id,
            "type": "message",
            "role": role,
            "status": "completed",
            "content": [ResponseInputText(type="input_text", text=text)],
        }
    )


def output_message(item_id: str, text: str) -> ResponseOutputMessage:
    """A finished message of the assistant."""
    return ResponseOutputMessage(
        id=item_id,
        type="message",
        role="assistant",
        status="completed",
        content=[ResponseOutputText(type="output_text", text=text, annotations=[])],
    )


def _read_text(content: object, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _error(path, "text or a list of text parts", content)
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else part
        if not isinstance(part, dict) or kind not in _TEXT_PARTS:
            raise RequestError(
                f"`{path}[{index}].type`: expected 'input_text' or 'output_text' (this model reads"
                f" only text), got {shown(kind)}",
                param=f"{path}[{index}].type",
                code="unsupported_value",
            )
        name = "refusal" if kind == "refusal" else "text"
        text = part.get(name)
        if not isinstance(text, str):
            raise _error(f"{path}[{index}].{name}", "text", text)
        texts.append(text)
    return "".join(texts)


def _read_call(item: Mapping[str, object], path: str, item_id: str) -> ResponseFunctionToolCallItem:
    for name in ("call_id", "name", "arguments"):
        if not isinstance(item.get(name), str):
            raise _error(f"{path}.{name}", "text", item.get(name))
    call = ResponseFunctionToolCallItem(
        id=item_id,
        type="function_call",
        call_id=str(item["call_id"]),
        name=str(item["name"]),
        arguments=str(item["arguments"]),
        status="completed",
    )
    namespace = item.get("namespace")
    if namespace is not None:
        if not isinstance(namespace, str):
            raise _error(f"{path}.namespace", "text", namespace)
        call.namespace = namespace
    return call


def _read_output(
    item: Mapping[str, object], path: str, item_id: str
) -> ResponseFunctionToolCallOutputItem:
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        raise _error(f"{path}.call_id", "the call_id of a function_call", call_id)
    return ResponseFunctionToolCallOutputItem(
        id=item_id,
        type="function_call_output",
        call_id=call_id,
        output=_read_text(item.get("output"), f"{path}.output"),
        status="completed",
    )


def _read_reasoning(item: Mapping[str, object], path: str, item_id: str) -> ResponseReasoningItem:
    fields = {name: item[name] for name in _REASONING_FIELDS if item.get(name) is not None}
    for name in ("summary", "content"):
        parts = fields.get(name, [])
        if not isinstance(parts, list):
            raise _error(f"{path}.{name}", "a list", parts)
        for index, part in enumerate(parts):
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                raise _error(f"{path}.{name}[{index}]", "an object with a text", part)
    if not isinstance(fields.get("encrypted_content", ""), str):
        raise _error(f"{path}.encrypted_content", "text", fields["encrypted_content"])
    return ResponseReasoningItem.construct(
        None, **{"summary": [], **fields, "id": item_id, "type": "reasoning"}
    )


def _error(path: str, expected: str, got: object) -> RequestError:
    return RequestError(
        f"`{path}`: expected {expected}, got {shown(got)}", param=path, code="invalid_value"
    )
