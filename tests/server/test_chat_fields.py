"""Every key of the official package's request types is honoured or refused by its path.

A new release with a new key fails here until somebody decides what it means.
"""

from __future__ import annotations

import types
import typing
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import chat_completion_message_param as message_params
from openai.types.chat import completion_create_params as chat_params
from server.fake_engine import Client, says, serving

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "arguments": "{}"}
CALL = {"id": "c", "type": "function", "function": FUNCTION}
CALLED = {"role": "assistant", "tool_calls": [CALL]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "r", "description": "d", "schema": {}, "strict": False},
}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL]}}
NAMED = {"type": "function", "function": {"name": "f"}}
BREAKPOINT = {"mode": "explicit", "ttl": "30m"}

# Field -> (a value that asks for something, what else the request needs).
HONOURED: dict[str, tuple[Any, dict[str, Any]]] = {
    "model": ("fake-model", {}),
    "messages": ([USER], {}),
    "frequency_penalty": (0.5, {}),
    "presence_penalty": (0.5, {}),
    "functions": ([TOOL["function"]], {}),
    "function_call": ("auto", {"functions": [TOOL["function"]]}),
    "logit_bias": ({"65": 1}, {}),
    "logprobs": (True, {}),
    "top_logprobs": (2, {"logprobs": True}),
    "max_completion_tokens": (5, {}),
    "max_tokens": (5, {}),
    "metadata": ({"a": "b"}, {}),
    "modalities": (["text"], {}),
    "n": (2, {}),
    "parallel_tool_calls": (False, {"tools": [TOOL]}),
    "prompt_cache_key": ("k", {}),
    "prompt_cache_options": (BREAKPOINT, {}),
    "prompt_cache_retention": ("24h", {}),
    "reasoning_effort": ("none", {}),
    "response_format": (SCHEMA_FORMAT, {}),
    "safety_identifier": ("s", {}),
    "seed": (5, {}),
    "service_tier": ("auto", {}),
    "stop": (["x"], {}),
    "store": (False, {}),
    "stream": (True, {}),
    "stream_options": ({"include_usage": True, "include_obfuscation": True}, {"stream": True}),
    "temperature": (0.5, {}),
    "tool_choice": (ALLOWED, {"tools": [TOOL]}),
    "tools": ([TOOL], {}),
    "top_p": (0.5, {}),
    "user": ("u", {}),
    "verbosity": ("medium", {}),
}
REFUSED: dict[str, Any] = {
    "audio": {"format": "mp3", "voice": "alloy"},
    "moderation": {"model": "m"},
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {},
}
TEXT_HONOURED: dict[str, Any] = {
    **dict.fromkeys(["frequency_penalty", "presence_penalty", "temperature", "top_p"], 0.5),
    **{"model": "fake-model", "prompt": "a", "best_of": 1, "echo": True, "logit_bias": {"65": 1}},
    **{"logprobs": 2, "max_tokens": 5, "n": 2, "seed": 5, "stop": "x", "user": "u", "stream": True},
    "stream_options": {"include_usage": True, "include_obfuscation": True},
}
TEXT_REFUSED: dict[str, Any] = {"suffix": "x"}

# Path of a key inside a request -> a request that has it.
INSIDE_HONOURED: dict[str, dict[str, Any]] = {
    **{
        f"{role}.{key}": {"messages": [USER, {"role": role, "content": "x", "name": "n"}]}
        for role in ("system", "developer", "user", "assistant")
        for key in ("role", "content", "name")
    },
    "assistant.refusal": {"messages": [USER, {"role": "assistant", "refusal": "no"}]},
    "assistant.tool_calls": {"messages": [USER, CALLED]},
    "assistant.function_call": {
        "messages": [USER, {"role": "assistant", "function_call": FUNCTION}]
    },
    **{
        f"tool.{key}": {
            "messages": [USER, CALLED, {"role": "tool", "tool_call_id": "c", "content": []}]
        }
        for key in ("role", "content", "tool_call_id")
    },
    **{
        f"function.{key}": {
            "messages": [
                USER,
                {"role": "assistant", "function_call": FUNCTION},
                {"role": "function", "name": "f", "content": "x"},
            ]
        }
        for key in ("role", "content", "name")
    },
    **dict.fromkeys(["call.id", "call.type", "call.function"], {"messages": [USER, CALLED]}),
    **dict.fromkeys(["called.name", "called.arguments"], {"messages": [USER, CALLED]}),
    **{
        f"text.{key}": {
            "messages": [
                {
                    **USER,
                    "content": [
                        {"type": "text", "text": "x", "prompt_cache_breakpoint": BREAKPOINT}
                    ],
                }
            ]
        }
        for key in ("type", "text", "prompt_cache_breakpoint")
    },
    **{
        f"refusal.{key}": {
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            ]
        }
        for key in ("type", "refusal")
    },
    **dict.fromkeys(["tool.type", "tool.function"], {"tools": [TOOL]}),
    **{
        f"function_tool.{key}": {
            "tools": [
                {
                    "type": "function",
                    "function": {**TOOL["function"], "description": "d", "strict": True},  # type: ignore[dict-item]
                }
            ]
        }
        for key in ("name", "description", "parameters", "strict")
    },
    **{
        f"older.{key}": {"functions": [{**TOOL["function"], "description": "d"}]}  # type: ignore[dict-item]
        for key in ("name", "description", "parameters")
    },
    **{
        f"json_schema.{key}": {"response_format": SCHEMA_FORMAT}
        for key in ("type", "json_schema", "name", "description", "schema", "strict")
    },
    "json_object.type": {"response_format": {"type": "json_object"}},
    "text_format.type": {"response_format": {"type": "text"}},
    **{
        f"allowed.{key}": {"tools": [TOOL], "tool_choice": ALLOWED}
        for key in ("type", "allowed_tools", "mode", "tools")
    },
    **{
        f"named.{key}": {"tools": [TOOL], "tool_choice": NAMED}
        for key in ("type", "function", "name")
    },
    "older_choice.name": {"functions": [TOOL["function"]], "function_call": {"name": "f"}},
    **{
        f"stream_options.{key}": {"stream": True, "stream_options": {key: True}}
        for key in ("include_usage", "include_obfuscation")
    },
    **{
        f"prompt_cache_options.{key}": {"prompt_cache_options": {key: BREAKPOINT[key]}}
        for key in ("mode", "ttl")
    },
}


def with_part(part: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "x"}, part]}]}


CUSTOM_CALL = {"id": "c", "type": "custom", "custom": {"name": "f", "input": "x"}}
CUSTOM_TOOL = {"type": "custom", "custom": {"name": "f"}}
PART = "messages[1].content[1].type"
# Path of a key inside a request -> a request that has it, and the path that the error names.
INSIDE_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "assistant.audio": (
        {"messages": [USER, {"role": "assistant", "audio": {"id": "a"}, "content": "x"}]},
        "messages[1].audio",
    ),
    **dict.fromkeys(
        ["image_url.type", "image_url.image_url", "image_url.prompt_cache_breakpoint"],
        (with_part({"type": "image_url", "image_url": {"url": "data:"}}), PART),
    ),
    **dict.fromkeys(
        ["input_audio.type", "input_audio.input_audio", "input_audio.prompt_cache_breakpoint"],
        (with_part({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}), PART),
    ),
    **dict.fromkeys(
        ["file.type", "file.file", "file.prompt_cache_breakpoint"],
        (with_part({"type": "file", "file": {"file_id": "f"}}), PART),
    ),
    **dict.fromkeys(
        ["custom_call.id", "custom_call.type", "custom_call.custom"],
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [CUSTOM_CALL]}]},
            "messages[1].tool_calls[0].type",
        ),
    ),
    **dict.fromkeys(
        ["custom_tool.type", "custom_tool.custom"], ({"tools": [CUSTOM_TOOL]}, "tools[0].type")
    ),
    **dict.fromkeys(
        ["custom_choice.type", "custom_choice.custom"],
        ({"tools": [TOOL], "tool_choice": CUSTOM_TOOL}, "tool_choice"),
    ),
}


def keys_of(*kinds: Any) -> set[str]:
    return {key for kind in kinds for key in kind.__annotations__}


def named_kinds() -> Iterator[tuple[str, Any]]:
    """(name in the tables above, TypedDict) of every type inside a chat request."""
    import openai.types.chat as chat
    from openai.types import shared_params
    from openai.types.chat import (
        chat_completion_content_part_param,
        chat_completion_message_function_tool_call_param,
    )

    yield "system", chat.ChatCompletionSystemMessageParam
    yield "developer", chat.ChatCompletionDeveloperMessageParam
    yield "user", chat.ChatCompletionUserMessageParam
    yield "assistant", chat.ChatCompletionAssistantMessageParam
    yield "tool", chat.ChatCompletionToolMessageParam
    yield "function", chat.ChatCompletionFunctionMessageParam
    yield "text", chat.ChatCompletionContentPartTextParam
    yield "refusal", chat.ChatCompletionContentPartRefusalParam
    yield "image_url", chat.ChatCompletionContentPartImageParam
    yield "input_audio", chat.ChatCompletionContentPartInputAudioParam
    yield "file", chat_completion_content_part_param.File
    yield "call", chat.ChatCompletionMessageFunctionToolCallParam
    yield "called", chat_completion_message_function_tool_call_param.Function
    yield "custom_call", chat.ChatCompletionMessageCustomToolCallParam
    yield "tool", chat.ChatCompletionFunctionToolParam
    yield "custom_tool", chat.ChatCompletionCustomToolParam
    yield "function_tool", shared_params.FunctionDefinition
    yield "older", chat_params.Function
    yield "json_schema", shared_params.ResponseFormatJSONSchema
    yield "json_schema", shared_params.response_format_json_schema.JSONSchema
    yield "json_object", shared_params.ResponseFormatJSONObject
    yield "text_format", shared_params.ResponseFormatText
    yield "allowed", chat.ChatCompletionAllowedToolChoiceParam
    yield "allowed", chat.ChatCompletionAllowedToolsParam
    yield "named", chat.ChatCompletionNamedToolChoiceParam
    yield "named", chat.chat_completion_named_tool_choice_param.Function
    yield "custom_choice", chat.ChatCompletionNamedToolChoiceCustomParam
    yield "older_choice", chat.ChatCompletionFunctionCallOptionParam
    yield "stream_options", chat.ChatCompletionStreamOptionsParam
    yield "prompt_cache_options", chat_params.PromptCacheOptions


def members(union: Any) -> set[Any]:
    """The types of a union, nested ones too."""
    if typing.get_origin(union) in (typing.Union, types.UnionType):
        return set().union(*map(members, typing.get_args(union)))
    return {union}


def test_every_key_is_decided() -> None:
    chat = keys_of(
        chat_params.CompletionCreateParamsBase,
        chat_params.CompletionCreateParamsStreaming,
        chat_params.CompletionCreateParamsNonStreaming,
    )
    assert chat == HONOURED.keys() | REFUSED.keys() and not HONOURED.keys() & REFUSED.keys()
    text = keys_of(
        text_params.CompletionCreateParamsBase,
        text_params.CompletionCreateParamsStreaming,
        text_params.CompletionCreateParamsNonStreaming,
    )
    assert text == TEXT_HONOURED.keys() | TEXT_REFUSED.keys()
    inside = {f"{name}.{key}" for name, kind in named_kinds() for key in kind.__annotations__}
    assert inside == INSIDE_HONOURED.keys() | INSIDE_REFUSED.keys()
    assert not INSIDE_HONOURED.keys() & INSIDE_REFUSED.keys()


def test_no_type_was_forgotten() -> None:
    """New roles, kinds of tools, of choices, of parts and of formats."""
    from openai.types.chat import (
        ChatCompletionContentPartParam,
        ChatCompletionMessageToolCallUnionParam,
        ChatCompletionToolChoiceOptionParam,
        ChatCompletionToolUnionParam,
    )

    known = {kind for _, kind in named_kinds()}
    for union in (
        message_params.ChatCompletionMessageParam,
        ChatCompletionContentPartParam,
        ChatCompletionMessageToolCallUnionParam,
        ChatCompletionToolChoiceOptionParam,
        ChatCompletionToolUnionParam,
        chat_params.FunctionCall,
        chat_params.ResponseFormat,
    ):
        kinds = {kind for kind in members(union) if isinstance(kind, type)}
        assert kinds and kinds <= known


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[Client]:
    async with serving(says("{}")) as client:
        yield client


@pytest.mark.parametrize("name", sorted(HONOURED))
async def test_honoured_fields(client: Client, name: str) -> None:
    value, others = HONOURED[name]
    response = await client.chat(**{name: value, **others})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("name", sorted(REFUSED))
async def test_refused_fields(client: Client, name: str) -> None:
    check_refused(await client.chat(**{name: REFUSED[name]}), name)


@pytest.mark.parametrize("name", sorted(TEXT_HONOURED))
async def test_honoured_fields_of_completions(client: Client, name: str) -> None:
    response = await client.complete(**{name: TEXT_HONOURED[name]})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("name", sorted(TEXT_REFUSED))
async def test_refused_fields_of_completions(client: Client, name: str) -> None:
    check_refused(await client.complete(**{name: TEXT_REFUSED[name]}), name)


async def test_honoured_keys(client: Client) -> None:
    for name, body in INSIDE_HONOURED.items():
        response = await client.chat(**body)
        assert response.status_code == 200, f"{name}: {response.text}"


@pytest.mark.parametrize("name", sorted(INSIDE_REFUSED))
async def test_refused_keys(client: Client, name: str) -> None:
    body, path = INSIDE_REFUSED[name]
    check_refused(await client.chat(**body), path)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"messages": [{**USER, "mood": "sad"}]}, "messages[0].mood"),
        ({"messages": [{**USER, "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
        (with_part({"type": "text", "text": "x", "style": 1}), "messages[1].content[1].style"),
        (
            {"messages": [USER, {**CALLED, "tool_calls": [{**CALL, "when": "now"}]}]},
            "messages[1].tool_calls[0].when",
        ),
        (
            {
                "messages": [
                    USER,
                    {**CALLED, "tool_calls": [{**CALL, "function": {**FUNCTION, "v": 1}}]},
                ]
            },
            "messages[1].tool_calls[0].function.v",
        ),
        (
            {"messages": [USER, {"role": "assistant", "function_call": {**FUNCTION, "v": 1}}]},
            "messages[1].function_call.v",
        ),
        (
            {"messages": [USER, {**CALLED, "tool_calls": [{**CALL, "id": 5}]}]},
            "messages[1].tool_calls[0].id",
        ),
        (
            {"messages": [USER, CALLED, {"role": "tool", "content": "x", "tool_call_id": "d"}]},
            "messages[2].tool_call_id",
        ),
        (
            {"messages": [USER, CALLED, {"role": "tool", "content": "x", "tool_call_id": 4}]},
            "messages[2].tool_call_id",
        ),
        ({"tools": [{**TOOL, "cost": 5}]}, "tools[0].cost"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "x": 5}}]},
            "tools[0].function.x",
        ),
        ({"tools": [TOOL], "tool_choice": {**NAMED, "x": 1}}, "tool_choice.x"),
        (
            {"tools": [TOOL], "tool_choice": {**NAMED, "function": {"name": "f", "x": 1}}},
            "tool_choice.function.x",
        ),
        ({"tools": [TOOL], "tool_choice": {**ALLOWED, "mode": "auto"}}, "tool_choice.mode"),
        ({"response_format": {**SCHEMA_FORMAT, "x": 1}}, "response_format.x"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}},
            "response_format.json_schema.x",
        ),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"prompt_cache_options": {"x": 1}}, "prompt_cache_options.x"),
    ],
)
async def test_unknown_keys_are_named(client: Client, body: dict[str, Any], path: str) -> None:
    check_refused(await client.chat(**body), path)


async def test_what_clients_echo_of_answers_is_accepted(client: Client) -> None:
    """Null says nothing; reasoning, annotations and parsed values are no part of a prompt."""
    plain = await client.chat(
        messages=[USER, CALLED, {"role": "tool", "tool_call_id": "c", "content": "x"}]
    )
    function = {**FUNCTION, "parsed_arguments": {}}
    echoed = {
        **CALLED,
        "tool_calls": [{**CALL, "index": 0, "function": function}],
        **{"content": None, "refusal": None, "audio": None, "function_call": None, "mood": None},
        **{"annotations": [], "parsed": {"a": 1}, "reasoning_content": "hm"},
        "cache_control": {"type": "ephemeral"},
    }
    same = await client.chat(
        messages=[USER, echoed, {"role": "tool", "tool_call_id": "c", "content": "x"}]
    )
    assert same.status_code == 200, same.text
    assert same.json()["usage"] == plain.json()["usage"]


def check_refused(response: Any, path: str) -> None:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == path and path.split(".")[-1] in error["message"], error
    assert error["type"] == "invalid_request_error"
