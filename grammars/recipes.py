"""From what a request says of its output to one grammar recipe."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from specrt.errors import RequestError, SchemaError, ToolChoiceError
from specrt.grammars.base import DEFAULT_TOOL_FORMAT, GrammarRecipe, ToolSpec
from specrt.grammars.guided import GuidedOutput, read_guided
from specrt.grammars.tools import Tool, check_depth, read_tools, shown

StrictLevel = Literal["auto", "exact", "lenient"]


def build_recipe(
    tools: object = None,
    *,
    tool_choice: object = None,
    parallel_tool_calls: object = None,
    response_format: object = None,
    guided: Mapping[str, object] | None = None,
    tool_format: str = DEFAULT_TOOL_FORMAT,
    strict_level: StrictLevel = "auto",
    canonical: bool = True,
) -> GrammarRecipe | None:
    """What the output of a chat request must look like.

    Args:
        tools: the JSON value of the request's field, as all that follow.
        tool_choice: "auto" (with tools the default), "none", "required", a named function or
            allowed_tools. A named function is called exactly once.
        parallel_tool_calls: true (the default) allows several calls in one turn.
        response_format: text, json_object or json_schema, for the text of the output: it changes
            nothing where calls are required, and cannot be combined with tools that may be called.
        guided: the fields of `guided.GUIDED_FIELDS`; they cannot be combined with tools that may be
            called, nor with a response_format.
        tool_format: name of a file in grammars/formats.
        strict_level: auto = as each schema says, exact = all strictly, lenient = none.
        canonical: narrow forced text to its canonical tokens.

    Returns:
        The recipe; None = free text, no calls.

    Raises:
        RequestError: a field is malformed or two fields exclude each other; `param` names it.
        ToolChoiceError: tool_choice does not fit the tools.
        SchemaError: a schema that cannot be one of arguments or of a response.
    """
    read = read_tools(tools)
    chosen, mode = _read_choice(tool_choice, read)
    parallel = _read_bool(parallel_tool_calls, "parallel_tool_calls")
    response = _read_response_format(response_format) or _text_only
    output = read_guided(guided or {})
    if output is not None and response_format is not None and response is not None:
        raise _together(output.path, "a response_format")
    if output is not None and mode != "none":
        raise _together(output.path, "tools that may be called")
    return GrammarRecipe(
        kind="tools",
        tool_format=tool_format,
        tools=tuple(_spec(tool, read.index(tool), strict_level) for tool in chosen),
        require_call=mode != "auto",
        parallel=parallel and mode != "named",
        canonical=canonical,
    )


def _read_choice(
    choice: object, tools: list[Tool]
) -> tuple[list[Tool], Literal["auto", "none", "required", "named"]]:
    """The tools that may be called, and how."""
    if choice is None:
        choice = "auto" if tools else "none"
    if choice == "none":
        return [], "none"
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise ToolChoiceError(
                "tool_choice.type: expected 'function' (others, as 'allowed_tools', are not"
                f" supported), got {shown(choice.get('type'))}; send only the tools that may be"
                " called instead"
            )
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str):
            raise ToolChoiceError(
                f"tool_choice.function.name: expected the name of a tool, got {shown(name)}"
            )
        named = [tool for tool in tools if tool.name == name]
        if not named:
            raise ToolChoiceError(
                f"tool_choice.function.name: expected one of {_names(tools)}, got {name!r}"
            )
        return named, "named"
    if choice != "auto" and choice != "required":
        raise ToolChoiceError(
            "tool_choice: expected 'auto', 'none', 'required' or"
            f' {{"type": "function", "function": {{"name": ...}}}}, got {shown(choice)}'
        )
    if not tools:
        raise ToolChoiceError(
            f"tool_choice: expected 'none' or no tool_choice in a request without tools, got"
            f" {choice!r}; add tools"
        )
    return tools, "auto" if choice == "auto" else "required"


def _names(tools: Sequence[Tool]) -> str:
    return ", ".join(repr(tool.name) for tool in tools) or "the tools (the request has none)"


def _spec(tool: Tool, index: int, strict_level: StrictLevel) -> ToolSpec:
    path = f"tools[{index}].function.parameters"
    return ToolSpec(
        name=tool.name,
        parameters=json.dumps(_arguments_schema(tool, path), ensure_ascii=False),
        strict=_strict(tool.strict, strict_level),
    )


def _arguments_schema(tool: Tool, path: str) -> dict[str, object]:
    """The schema, made to describe an object: arguments are never anything else."""
    if not tool.parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    kind = tool.parameters.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise SchemaError(
            f"{path}: expected a schema of type 'object' (arguments are an object), got type"
            f" {shown(kind)}",
            param=path,
            pointer="/type",
            keyword="type",
        )
    if "type" in tool.parameters:
        return {**tool.parameters, "type": "object"}
    return {"type": "object", **tool.parameters}


def _strict(said: bool, level: StrictLevel) -> bool:
    return said if level == "auto" else level == "exact"


def _read_bool(value: object, path: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{path}: expected true or false, got {shown(value)}", param=path)
    return value is not False


def _read_response_format(value: object) -> tuple[str, bool] | None:
    """(JSON text of the schema, strict), or None for text."""
    path = "response_format"
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else value
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema"):
        raise RequestError(
            f"{path}.type: expected 'text', 'json_object' or 'json_schema', got {shown(kind)}",
            param=f"{path}.type",
        )
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type": "object"}', True
    path += ".json_schema"
    body = value.get("json_schema")
    schema = body.get("schema") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(schema, dict):
        raise SchemaError(
            f"{path}.schema: expected a JSON Schema object, got {shown(schema)}",
            param=f"{path}.schema",
        )
    check_depth(schema, f"{path}.schema")
    strict = body.get("strict") is not None and _read_bool(body["strict"], f"{path}.strict")
    return json.dumps(schema, ensure_ascii=False), strict
