"""The tools of a request, read from the OpenAI shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from specrt.errors import RequestError

# Names go into JSON, file names of logs and grammars unescaped; servers of tools use dots too.
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
# Far below Python's recursion limit, far above what a schema needs.
MAX_DEPTH = 100
_DECLARED = ("name", "description", "parameters")


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that may be called.

    Attributes:
        name: its name, unique in the request.
        parameters: JSON Schema of its arguments as sent; None = it takes none.
        strict: what the request said; False when it said nothing.
        declaration: what the chat template prints: type, name, description and parameters in the
            client's key order, nothing else.
    """

    name: str
    parameters: Mapping[str, object] | None
    strict: bool
    declaration: Mapping[str, object]


def read_tools(tools: object) -> list[Tool]:
    """Read and check the `tools` of a chat request.

    Args:
        tools: the JSON value of the field; None and [] are no tools.

    Raises:
        RequestError: something else came; `param` is the path of the field (`tools[2].type`).
    """
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise _error("tools", "a list of tools", tools)
    read: dict[str, Tool] = {}
    for index, value in enumerate(tools):
        tool = _read_tool(value, f"tools[{index}]")
        if tool.name in read:
            path = f"tools[{index}].function.name"
            raise RequestError(
                f"{path}: expected a name that no other tool has, got {tool.name!r} again;"
                " rename or drop one of the two",
                param=path,
            )
        read[tool.name] = tool
    return list(read.values())


def _read_tool(tool: object, path: str) -> Tool:
    if not isinstance(tool, dict):
        raise _error(path, "an object", tool)
    if tool.get("type", "function") != "function":
        raise _error(f"{path}.type", "'function' (no other type is supported)", tool["type"])
    function = tool.get("function")
    path += ".function"
    if not isinstance(function, dict):
        raise _error(path, "an object with a name", function)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _error(f"{path}.name", "1 to 128 of a-z A-Z 0-9 _ . -", name)
    kinds: dict[str, type] = {"description": str, "parameters": dict, "strict": bool}
    for key, kind in kinds.items():
        if not isinstance(function.get(key), kind | None):
            what = {"description": "text", "parameters": "a JSON Schema object"}
            raise _error(f"{path}.{key}", what.get(key, "true or false"), function[key])
    check_depth(function.get("parameters"), f"{path}.parameters")
    declared = {k: v for k, v in function.items() if k in _DECLARED and v is not None}
    return Tool(
        name=name,
        parameters=function.get("parameters"),
        strict=bool(function.get("strict")),
        declaration={"type": "function", "function": declared},
    )


def check_depth(value: object, path: str) -> None:
    """Refuse a JSON value that recursive code could not walk.

    Raises:
        RequestError: nested deeper than MAX_DEPTH; `param` is `path`.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
    raise RequestError(
        f"{path}: expected JSON nested at most {MAX_DEPTH} levels deep, got more", param=path
    )


def _error(path: str, expected: str, got: object) -> RequestError:
    return RequestError(f"{path}: expected {expected}, got {shown(got)}", param=path)


def shown(value: object) -> str:
    """A JSON value as error messages show it: short, and null for None."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
