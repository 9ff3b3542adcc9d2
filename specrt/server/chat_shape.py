"""What a chat request makes of prompt and output: recipe, tools, variables of the template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from specrt.errors import RequestError, SchemaError
from specrt.grammars.base import GrammarRecipe
from specrt.grammars.guided import read_guided
from specrt.grammars.recipes import build_recipe
from specrt.grammars.tools import check_depth
from specrt.server.known_keys import (
    check_choice,
    check_messages,
    check_response_format,
    check_tools,
)
from specrt.server.protocol import ChatRequest, SamplingFields
from specrt.server.served_model import ServedModel

# Paths of tools and tool_choice -> those of the older fields that they were made of.
_OLDER_PATHS = (
    (re.compile(r"(?<![\w.])tools(\[\d+\])\.function"), r"functions\1"),
    (re.compile(r"(?<![\w.])tool_choice\.function"), "function_call"),
    (re.compile(r"(?<![\w.])tool_choice(?![\w.])"), "function_call"),
    (re.compile(r"(?<![\w.])tools(?![\w.])"), "functions"),
)
# How the compiler names the description of a whole output.
_OUTPUT_PARAMS = (None, "regex", "lark", "response_format")
# Variables of the template that have fields of their own -> what it means that it has none.
_NO_VARIABLE = {
    "reasoning_effort": "the model has no reasoning mode; send none or leave it out",
    "verbosity": "the model has no such setting; ask for it in a message, or leave it out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape:
    """A chat request as the grammar and the template see it.

    Attributes:
        recipe: what the output must look like; None = free text.
        tools: that the prompt declares.
        variables: of the chat template.
        is_older: calls are answered as the `function_call` of a message.
    """

    recipe: GrammarRecipe | None
    tools: list[object] | None
    variables: Mapping[str, object]
    is_older: bool


def read_shape(body: ChatRequest, model: ServedModel) -> ChatShape:
    """Read and check everything but the messages' contents.

    Args:
        body: the request.
        model: states the tool-call format and how strictly schemas are enforced.

    Raises:
        RequestError: the request is at fault.
    """
    check_messages(body.messages)
    check_response_format(body.response_format)
    tools, choice, is_older = body.tools, body.tool_choice, False
    if body.functions is not None or body.function_call is not None:
        tools, choice, is_older = *_from_older(body), True
    with named_as_sent(body):
        check_tools(tools)
        check_choice(choice)
        recipe = build_recipe(
            tools,
            tool_choice=choice,
            parallel_tool_calls=body.parallel_tool_calls and not is_older,
            response_format=body.response_format,
            guided=body.guided_fields(),
            tool_format=model.tool_format.name,
            strict_level=model.grammar.tool_strict_level,
            canonical=not model.grammar.no_canonical,
        )
    check_ending(body, recipe)
    return ChatShape(recipe=recipe, tools=tools, variables=_variables(body), is_older=is_older)


def check_ending(body: SamplingFields, recipe: GrammarRecipe | None) -> None:
    """Refuse an output without end that must have one.

    Raises:
        RequestError: ignore_eos beside a grammar.
    """
    if recipe is not None and body.ignore_eos:
        raise RequestError(
            "`ignore_eos`: cannot be combined with tools or a format of the output: it ends where"
            " its grammar ends",
            param="ignore_eos",
        )


@contextmanager
def named_as_sent(body: SamplingFields) -> Iterator[None]:
    """Errors inside speak of the fields that the client sent, not of those made of them."""
    try:
        yield
    except RequestError as error:
        variable = (error.param or "").removeprefix("chat_template_kwargs.")
        if variable in _NO_VARIABLE and getattr(body, variable, None) is not None:
            raise RequestError(
                f"`{variable}`: {_NO_VARIABLE[variable]}", param=variable, code="unsupported_value"
            ) from None
        if isinstance(body, ChatRequest) and body.functions is not None:
            _rename(error)
        if isinstance(error, SchemaError) and error.param in _OUTPUT_PARAMS:
            output = read_guided(body.guided_fields())
            if output is not None:
                error.param = output.path
                error.message = f"`{output.path}`: {error.message}"
                error.args = (error.message,)
        raise


def _rename(error: RequestError) -> None:
    for pattern, older in _OLDER_PATHS:
        error.message = pattern.sub(older, error.message)
        error.param = None if error.param is None else pattern.sub(older, error.param)
    error.args = (error.message,)


def _from_older(body: ChatRequest) -> tuple[list[object] | None, object]:
    """The tools and the tool_choice that functions and function_call make."""
    for name in ("tools", "tool_choice"):
        if getattr(body, name) is not None:
            older = "functions" if body.functions is not None else "function_call"
            raise RequestError(
                f"`{older}`: expected it absent beside `{name}`, which replaces it; remove it",
                param=older,
                code="invalid_value",
            )
    tools: list[object] | None = None
    if body.functions is not None:
        tools = [{"type": "function", "function": function} for function in body.functions]
    choice = body.function_call
    if choice is None or choice == "none" or (choice == "auto" and tools):
        return tools, choice
    named = choice.get("name") if isinstance(choice, dict) and len(choice) == 1 else None
    if isinstance(named, str) and tools:
        return tools, {"type": "function", "function": {"name": named}}
    what = "'none', 'auto' or {\"name\": ...} of one of `functions`" if tools else "`functions`"
    raise RequestError(
        f"`function_call`: expected {what}, got {choice!r:.80}",
        param="function_call",
        code="invalid_value",
    )


def _variables(body: ChatRequest) -> dict[str, object]:
    """What the chat template shall read."""
    variables = dict(body.chat_template_kwargs or {})
    check_depth(variables, "chat_template_kwargs")
    for name in _NO_VARIABLE:
        value = getattr(body, name)
        if value is None:
            continue
        if name in variables:
            raise RequestError(
                f"`{name}`: expected it absent beside chat_template_kwargs.{name}; remove it",
                param=name,
                code="invalid_value",
            )
        variables[name] = value
    return variables
