"""Tools and tool_choice: from the flat shape of responses to the nested one of chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from specrt.errors import RequestError, ToolChoiceError
from specrt.grammars.tools import shown

_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
# Fields of a function that change nothing as long as they have one of these values.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "allowed_callers": (["direct"], []),
    "defer_loading": (False,),
    "async": (False,),
}
_HINTS = {
    "web_search": (
        "; `external_web_access`: false is accepted, for there is no search then (Codex CLI: set"
        ' web_search = "disabled" or "cached")'
    ),
    "custom": "; offer a function with one string parameter instead",
    "mcp": "; let the client call the MCP server, and offer its tools as functions",
    "local_shell": "; offer a function that takes a command",
}


@dataclass(slots=True)
class ToolSet:
    """The tools of a request.

    Attributes:
        chat_tools: for the chat path; None = the request has no tools.
        names: of these, as the model knows them.
        tool_choice: for the chat path.
        served: the tools as the response shows them.
        origins: name in the prompt -> (namespace, name) of the tools in a namespace.
        paths: path of a chat field -> path of the field that it was made of.
    """

    chat_tools: list[object] | None = None
    names: list[str] = field(default_factory=list)
    tool_choice: object = None
    served: list[Mapping[str, object]] = field(default_factory=list)
    origins: dict[str, tuple[str, str]] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)


def flat_name(namespace: str | None, name: str) -> str:
    """The name by which the model knows a function: one in a namespace carries it in front."""
    if namespace is None:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def read_tools(tools: list[object] | None, choice: object) -> ToolSet:
    """Translate tools and tool_choice.

    A namespace becomes its functions, with its name in front of theirs; its own description is not
    shown to the model. A web search that may not reach the web is left out: there is none here.

    Raises:
        RequestError: a tool cannot be served; `param` is the path of the field.
        ToolChoiceError: tool_choice cannot be served.
    """
    found = ToolSet()
    for index, tool in enumerate(tools or []):
        path = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise _error(path, "an object", tool)
        kind = tool.get("type")
        if kind == "function":
            _add_function(found, tool, path, None)
        elif kind == "namespace":
            _add_namespace(found, tool, path)
        elif kind == "web_search" and tool.get("external_web_access") is False:
            continue
        else:
            hint = _HINTS.get(str(kind), "")
            raise RequestError(
                f"`{path}.type`: expected 'function' or 'namespace': other tools are not served"
                f" here, got {shown(kind)}; remove the tool{hint}",
                param=f"{path}.type",
                code="unsupported_value",
            )
        found.served.append(tool)
    _read_choice(found, choice)
    return found


def _add_namespace(found: ToolSet, tool: dict[str, object], path: str) -> None:
    name, tools = tool.get("name"), tool.get("tools")
    if not isinstance(name, str) or not name:
        raise _error(f"{path}.name", "the name of the namespace", name)
    if not isinstance(tools, list):
        raise _error(f"{path}.tools", "a list of functions", tools)
    for index, inner in enumerate(tools):
        inner_path = f"{path}.tools[{index}]"
        if not isinstance(inner, dict) or inner.get("type") != "function":
            kind = inner.get("type") if isinstance(inner, dict) else inner
            raise _error(f"{inner_path}.type", "'function' (no other tool is served)", kind)
        _add_function(found, inner, inner_path, name)


def _add_function(
    found: ToolSet, tool: dict[str, object], path: str, namespace: str | None
) -> None:
    for key, neutral in _NEUTRAL.items():
        value = tool.get(key)
        if value is not None and value not in neutral:
            raise RequestError(
                f"`{path}.{key}`: expected {shown(neutral[0])} or no such field, got"
                f" {shown(value)}: it is not supported",
                param=f"{path}.{key}",
                code="unsupported_value",
            )
    name = tool.get("name")
    if not isinstance(name, str):
        hint = " (not inside `function`, as in chat completions)" if "function" in tool else ""
        raise _error(f"{path}.name", f"the name of the function{hint}", name)
    # In the client's order: the prompt shows it, and must not differ from a chat completion's.
    function = {key: value for key, value in tool.items() if key in _FUNCTION_FIELDS}
    if namespace is not None:
        function["name"] = flat_name(namespace, name)
        found.origins[flat_name(namespace, name)] = (namespace, name)
    found.chat_tools = found.chat_tools or []
    found.paths[f"tools[{len(found.chat_tools)}].function"] = path
    found.chat_tools.append({"type": "function", "function": function})
    found.names.append(flat_name(namespace, name))


def _read_choice(found: ToolSet, choice: object) -> None:
    if choice is None or isinstance(choice, str):
        # Without tools "auto" asks for nothing, and agents send it always.
        found.tool_choice = None if choice == "auto" and not found.chat_tools else choice
        return
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if isinstance(choice, dict) and kind == "function":
        name = _known_name(found, choice.get("name"), "tool_choice.name")
        found.tool_choice = {"type": "function", "function": {"name": name}}
        return
    if not isinstance(choice, dict) or kind != "allowed_tools":
        raise ToolChoiceError(
            "tool_choice: expected 'auto', 'none', 'required', a function or allowed_tools"
            f" (built-in and custom tools are not served here), got {shown(choice)}"
        )
    mode, tools = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise ToolChoiceError(f"tool_choice.mode: expected 'auto' or 'required', got {shown(mode)}")
    if not isinstance(tools, list) or not tools:
        raise ToolChoiceError(
            f"tool_choice.tools: expected a list of at least one tool, got {shown(tools)}"
        )
    allowed = [{"type": "function", "function": {"name": n}} for n in _names(found, tools)]
    found.tool_choice = {"type": kind, "allowed_tools": {"mode": mode, "tools": allowed}}


def _names(found: ToolSet, tools: list[object]) -> Iterator[str]:
    for index, tool in enumerate(tools):
        path = f"tool_choice.tools[{index}]"
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise ToolChoiceError(
                f'{path}: expected {{"type": "function", ...}}, got {shown(tool)}'
            )
        yield _known_name(found, tool.get("name"), f"{path}.name")


def _known_name(found: ToolSet, name: object, path: str) -> str:
    """The name in the prompt of a tool that tool_choice names."""
    if isinstance(name, str) and name in found.names:
        return name
    for flat, (_, inner) in found.origins.items():
        if name == inner:
            return flat
    names = ", ".join(map(repr, found.names)) or "the tools (the request has none)"
    raise ToolChoiceError(f"{path}: expected one of {names}, got {shown(name)}")


def _error(path: str, expected: str, got: object) -> RequestError:
    return RequestError(
        f"`{path}`: expected {expected}, got {shown(got)}", param=path, code="invalid_value"
    )
