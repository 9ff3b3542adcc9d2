"""From what a request says of its output to one grammar recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from specrt.errors import RequestError, SchemaError, ToolChoiceError
from specrt.grammars.base import DEFAULT_TOOL_FORMAT, GrammarRecipe, ToolSpec
from specrt.grammars.guided import read_guided
from specrt.grammars.tools import Tool, check_depth, read_tools, shown

StrictLevel = Literal["auto", "exact", "lenient"]
_RESPONSE_FORMAT = "response_format"


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
    output = _read_output(response_format, guided or {})
    if mode == "none":
        if output is None:
            return None
        return GrammarRecipe(
            kind=output.kind,
            tool_format=tool_format,
            schema=output.text,
            strict=_strict(output.strict, strict_level),
            canonical=canonical,
        )
    # Where calls are required there is no text that a response format could speak of.
    if output is not None and (mode == "auto" or output.path != _RESPONSE_FORMAT):
        is_json = output.path == _RESPONSE_FORMAT
        raise RequestError(
            f"{output.path}: expected no format of the text beside tools that may be called"
            f" (tool_choice {shown(tool_choice or 'auto')}), got"
            f" {shown(response_format) if is_json else 'one'}; send tool_choice 'none' to get"
            f" {'JSON' if is_json else 'it'}, or leave {output.path} out to get calls",
            param=output.path,
        )
    return GrammarRecipe(
        kind="tools",
        tool_format=tool_format,
        tools=tuple(_spec(tool, read.index(tool), strict_level) for tool in chosen),
        require_call=mode != "auto",
        parallel=parallel and mode != "named",
        canonical=canonical,
    )


class _Output(NamedTuple):
    """What the text must be."""

    kind: Literal["json", "regex", "lark"]
    text: str
    strict: bool
    path: str


def _read_output(response_format: object, guided: Mapping[str, object]) -> _Output | None:
    response, other = _read_response_format(response_format), read_guided(guided)
    if other is None:
        return None if response is None else _Output("json", *response, _RESPONSE_FORMAT)
    if response is not None:
        raise RequestError(
            f"{other.path}: expected one description of the output, got response_format too;"
            " remove one of the two",
            param=other.path,
        )
    return _Output(other.kind, other.text, False, other.path)


def _read_choice(
    choice: object, tools: list[Tool]
) -> tuple[list[Tool], Literal["auto", "none", "required", "named"]]:
    """The tools that may be called, and how."""
    if choice is None:
        choice = "auto" if tools else "none"
    if choice == "none":
        return [], "none"
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            return _read_allowed(choice.get("allowed_tools"), tools)
        if choice.get("type") != "function":
            raise ToolChoiceError(
                "tool_choice.type: expected 'function' or 'allowed_tools' (custom tools are not"
                f" supported), got {shown(choice.get('type'))}"
            )
        return [_find(choice, "tool_choice", tools)], "named"
    if choice != "auto" and choice != "required":
        raise ToolChoiceError(
            "tool_choice: expected 'auto', 'none', 'required',"
            ' {"type": "function", "function": {"name": ...}} or'
            f' {{"type": "allowed_tools", ...}}, got {shown(choice)}'
        )
    if not tools:
        raise ToolChoiceError(
            f"tool_choice: expected 'none' or no tool_choice in a request without tools, got"
            f" {choice!r}; add tools"
        )
    return tools, "auto" if choice == "auto" else "required"


def _read_allowed(
    value: object, tools: list[Tool]
) -> tuple[list[Tool], Literal["auto", "required"]]:
    """Some of the tools; the prompt shows all of them, so that its prefix stays the same."""
    path = "tool_choice.allowed_tools"
    if not isinstance(value, dict):
        raise ToolChoiceError(f"{path}: expected an object with mode and tools, got {shown(value)}")
    mode, listed = value.get("mode"), value.get("tools")
    if mode != "auto" and mode != "required":
        raise ToolChoiceError(f"{path}.mode: expected 'auto' or 'required', got {shown(mode)}")
    if not isinstance(listed, list) or not listed:
        raise ToolChoiceError(
            f"{path}.tools: expected a list of at least one tool, got {shown(listed)}"
        )
    allowed = []
    for index, item in enumerate(listed):
        where = f"{path}.tools[{index}]"
        if not isinstance(item, dict) or item.get("type") != "function":
            kind = item.get("type") if isinstance(item, dict) else item
            raise ToolChoiceError(f"{where}.type: expected 'function', got {shown(kind)}")
        allowed.append(_find(item, where, tools))
    return [tool for tool in tools if tool in allowed], "auto" if mode == "auto" else "required"


def _find(named: Mapping[str, object], path: str, tools: list[Tool]) -> Tool:
    function = named.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise ToolChoiceError(
            f"{path}.function.name: expected the name of a tool, got {shown(name)}"
        )
    for tool in tools:
        if tool.name == name:
            return tool
    raise ToolChoiceError(f"{path}.function.name: expected one of {_names(tools)}, got {name!r}")


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
    path = _RESPONSE_FORMAT
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
    for name in ("name", "description"):
        if not isinstance(body.get(name), str | None):
            raise RequestError(
                f"{path}.{name}: expected text, got {shown(body[name])}", param=f"{path}.{name}"
            )
    check_depth(schema, f"{path}.schema")
    strict = body.get("strict") is not None and _read_bool(body["strict"], f"{path}.strict")
    return json.dumps(schema, ensure_ascii=False), strict
