"""Tools and tool_choice of a Messages request, as a chat request has them."""

from __future__ import annotations

from collections.abc import Sequence

from specrt.errors import RequestError
from specrt.server.messages.fields import Fields, check_fields, check_object, refuse, wrong
from specrt.server.messages.protocol import ToolChoice

_FIELDS: Fields = {
    "type": str,
    "name": str,
    "description": str,
    "input_schema": dict,
    "strict": bool,
    "input_examples": list,
    "allowed_callers": list,
    "defer_loading": bool,
    # Change nothing here: every prefix is cached, and arguments stream as they are generated.
    "cache_control": dict,
    "eager_input_streaming": bool,
}


def chat_tools(tools: Sequence[object]) -> list[dict[str, object]]:
    """The tools as functions of a chat request.

    Raises:
        RequestError: a tool is malformed, or one that the server would have to know or run.
    """
    return [_chat_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def _chat_tool(tool: object, path: str) -> dict[str, object]:
    tool = check_object(tool, path, "an object with name and input_schema")
    kind = tool.get("type")
    if kind is not None and kind != "custom":
        raise refuse(
            f"{path}.type",
            f"tools of type {kind!r} are not supported: the server runs no tools and knows none by"
            " name; offer a tool of type 'custom' with an input_schema instead",
        )
    check_fields(tool, path, _FIELDS, ("name", "input_schema"))
    if tool.get("defer_loading"):
        raise refuse(f"{path}.defer_loading", "there is no tool search here; send false")
    callers = tool.get("allowed_callers")
    if callers not in (None, ["direct"]):
        raise wrong(f"{path}.allowed_callers", "['direct'] (no code is executed here)", callers)
    function = {"name": tool["name"]}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    function["parameters"] = _parameters(tool, path)
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def _parameters(tool: dict[str, object], path: str) -> object:
    """The schema; examples of inputs become the keyword that JSON Schema has for them."""
    schema, examples = tool["input_schema"], tool.get("input_examples")
    if not examples:
        return schema
    assert isinstance(schema, dict) and isinstance(examples, list)
    for index, example in enumerate(examples):
        check_object(example, f"{path}.input_examples[{index}]", "an object")
    return {**schema, "examples": examples}


def chat_tool_choice(choice: ToolChoice | None, tools: Sequence[object]) -> object:
    """tool_choice of a chat request.

    Raises:
        RequestError: the choice does not fit the tools.
    """
    if choice is None:
        return None
    if choice.type != "none" and not tools:
        raise wrong("tool_choice.type", "'none' or no tool_choice without tools", choice.type)
    if choice.name is not None and choice.type != "tool":
        raise wrong("tool_choice.name", f"no name beside type {choice.type!r}", choice.name)
    if choice.type == "none" and choice.disable_parallel_tool_use is not None:
        raise refuse("tool_choice.disable_parallel_tool_use", "not beside type 'none'; remove it")
    if choice.type != "tool":
        return "required" if choice.type == "any" else choice.type
    names = [tool["name"] for tool in tools if isinstance(tool, dict)]
    if choice.name is None:
        raise RequestError(
            "`tool_choice.name`: this field is required beside type 'tool'",
            param="tool_choice.name",
        )
    if choice.name not in names:
        known = ", ".join(repr(name) for name in names)
        raise wrong("tool_choice.name", f"one of {known}", choice.name)
    return {"type": "function", "function": {"name": choice.name}}
