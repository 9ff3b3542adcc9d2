"""Every field of a request for a response is honoured, changes nothing, or is refused by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai.types.responses.response_create_params import (
    ResponseCreateParamsBase,
    ResponseCreateParamsStreaming,
)
from server.fake_engine import (
    MODEL,
    SPECIAL,
    ByteTokenizer,
    Client,
    FakeEngine,
    make_model,
    says,
    serving,
)
from server.test_responses import SCHEMA, TOOLS, create

from specrt.config import ServerConfig
from specrt.grammars.chat import ChatRenderer
from specrt.grammars.formats import load_format
from specrt.grammars.prompt_builder import PromptBuilder
from specrt.grammars.turn_memo import TurnMemo
from specrt.server.responses.request import REFUSED, ResponsesRequest

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
MADE = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
FUNCTION = TOOLS[0]


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[tuple[FakeEngine, Client]]:
    engine = says("x")
    async with serving(engine) as client:
        yield engine, client


def test_every_field_of_the_package_is_known() -> None:
    names = {*ResponseCreateParamsBase.__annotations__}
    names |= {*ResponseCreateParamsStreaming.__annotations__}
    assert len(names) > 30
    assert names <= {*ResponsesRequest.model_fields} | {*REFUSED}
    assert not {*ResponsesRequest.model_fields} & {*REFUSED} - {"max_tokens"}


def part(kind: str) -> list[Any]:
    return [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": kind}]}]


def schema_format(**fields: Any) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, **fields}}


@pytest.mark.parametrize(
    ("body", "param", "says_that"),
    [
        ({"input": 5}, "input", "the number 5"),
        ({"input": []}, "input", "at least one item"),
        ({"input": [5]}, "input[0]", "an object, got 5"),
        ({"input": [USER, {"role": "robot", "content": "x"}]}, "input[1].role", "'robot'"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "got 5"),
        ({"input": part("input_image")}, "input[0].content[1].type", "'input_image'"),
        ({"input": part("input_file")}, "input[0].content[1].type", "reads only text"),
        ({"input": part("input_text")}, "input[0].content[1].text", "null"),
        ({"input": [{**USER, "id": 5}]}, "input[0].id", "got 5"),
        ({"input": [{}]}, "input[0].type", "got null"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type", "'computer_call'"),
        ({"input": [{"type": "local_shell_call"}]}, "input[0].type", "'local_shell_call'"),
        ({"input": [{"type": "custom_tool_call"}]}, "input[0].type", "'custom_tool_call'"),
        ({"input": [{"type": "compaction"}]}, "input[0].type", "'compaction'"),
        ({"input": [USER, {**MADE, "arguments": {}}]}, "input[1].arguments", "got {}"),
        ({"input": [USER, {**MADE, "arguments": "[1]"}]}, "input[1].arguments", "object"),
        ({"input": [USER, {**MADE, "call_id": None}]}, "input[1].call_id", "null"),
        ({"input": [{**MADE, "namespace": 1}]}, "input[0].namespace", "got 1"),
        (
            {"input": [USER, {"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input[1].call_id",
            "function_call before it, got 'c'",
        ),
        (
            {"input": [MADE, {"type": "function_call_output", "call_id": "c", "output": 7}]},
            "input[1].output",
            "got 7",
        ),
        ({"input": [{"type": "function_call_output"}]}, "input[0].call_id", "null"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary", "a list"),
        ({"input": [{"type": "reasoning", "content": [1]}]}, "input[0].content[0]", "text"),
        (
            {"input": [{"type": "reasoning", "encrypted_content": 3}]},
            "input[0].encrypted_content",
            "got 3",
        ),
        ({"instructions": 5}, "instructions", "the number 5"),
        ({"max_output_tokens": 0}, "max_output_tokens", "the number 0"),
        ({"max_output_tokens": 5000}, "input", "max_output_tokens is 5000"),
        ({"max_tokens": 5}, "max_tokens", "`max_output_tokens`"),
        ({"messages": [USER]}, "messages", "`input`"),
        ({"response_format": {"type": "text"}}, "response_format", "`text.format`"),
        ({"input": "x" * 5000}, "input", "4096"),
        ({"temperature": 3}, "temperature", "the number 3"),
        ({"top_logprobs": 21}, "top_logprobs", "20"),
        ({"n": 2}, "n", "one choice"),
        ({"background": True}, "background", "foreground"),
        ({"background_options": {"completion_window": "2h"}}, "background_options", "foreground"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"conversation": {"id": "conv_1"}}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "templates"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "compacted"),
        ({"moderation": {"model": "m"}}, "moderation", "not supported"),
        ({"access_programs": {"cyber": "standard"}}, "access_programs", "do not exist"),
        ({"image": {"context_compression": "auto"}}, "image", "only text"),
        ({"include": ["everything"]}, "include[0]", "'everything'"),
        ({"truncation": "some"}, "truncation", "'auto' or 'disabled'"),
        ({"service_tier": "flex"}, "service_tier", "auto and default"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "'huge'"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "standard"),
        ({"reasoning": {"budget": 5}}, "reasoning.budget", "unknown field"),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm", "answered"),
        (
            {"prompt_cache_options": {"comparison_response_id": "resp_1"}},
            "prompt_cache_options.comparison_response_id",
            "diagnostics",
        ),
        ({"prompt_cache_retention": "7d"}, "prompt_cache_retention", "'7d'"),
        (
            {"stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "not padded",
        ),
        ({"metadata": {"a": 1}}, "metadata.a", "the number 1"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "16 pairs"),
        ({"metadata": {"a": "x" * 513}}, "metadata", "512"),
        ({"max_tool_calls": 0}, "max_tool_calls", "the number 0"),
        ({"surprise": 1}, "surprise", "unknown field"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type", "'yaml'"),
        ({"text": {"format": {"type": "text", "x": 1}}}, "text.format.x", "unknown field"),
        ({"text": {"size": 1}}, "text.size", "unknown field"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity", "'loud'"),
        ({"text": schema_format(name=None)}, "text.format.name", "null"),
        ({"text": schema_format(description=1)}, "text.format.description", "got 1"),
        ({"text": schema_format(schema=None)}, "text.format.schema", "null"),
        ({"text": schema_format(strict="yes")}, "text.format.strict", "'yes'"),
        ({"text": schema_format(schema={"not": {}})}, None, "'not'"),
        ({"text": schema_format(), "tools": TOOLS}, "text.format", "tool_choice 'none'"),
        ({"tools": [5]}, "tools[0]", "an object"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "null"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].name", "not inside"),
        ({"tools": [{**FUNCTION, "name": "a b"}]}, "tools[0].name", "'a b'"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name", "no other tool"),
        ({"tools": [{**FUNCTION, "parameters": []}]}, "tools[0].parameters", "JSON Schema"),
        ({"tools": [{**FUNCTION, "strict": 1}]}, "tools[0].strict", "true or false"),
        ({"tools": [{**FUNCTION, "defer_loading": True}]}, "tools[0].defer_loading", "True"),
        (
            {"tools": [{**FUNCTION, "allowed_callers": ["programmatic"]}]},
            "tools[0].allowed_callers",
            "not supported",
        ),
        *[
            ({"tools": [FUNCTION, {"type": kind}]}, "tools[1].type", f"'{kind}'")
            for kind in (
                "web_search",
                "web_search_preview",
                "file_search",
                "computer_use_preview",
                "code_interpreter",
                "image_generation",
                "mcp",
                "local_shell",
                "shell",
                "custom",
                "apply_patch",
                "tool_search",
                "programmatic_tool_calling",
            )
        ],
        ({"tools": [{"type": "namespace"}]}, "tools[0].name", "null"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools", "null"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]},
            "tools[0].tools[0].type",
            "'custom'",
        ),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{**FUNCTION, "strict": 1}]}]},
            "tools[0].tools[0].strict",
            "true or false",
        ),
        ({"tool_choice": "required"}, "tool_choice", "add tools"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice", "'maybe'"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "name": "x"}}, "tool_choice", "custom"),
        ({"tools": TOOLS, "tool_choice": {"type": "file_search"}}, "tool_choice", "file_search"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}},
            "tool_choice",
            "tool_choice.name: expected one of 'weather', 'time', got 'x'",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto"}},
            "tool_choice",
            "tool_choice.tools",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "tools": TOOLS}},
            "tool_choice",
            "tool_choice.mode",
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "x"}],
                },
            },
            "tool_choice",
            "tool_choice.tools[0].name",
        ),
    ],
)
async def test_bad_requests(
    served: tuple[FakeEngine, Client], body: dict[str, Any], param: str | None, says_that: str
) -> None:
    engine, client = served
    asked = len(engine.requests)
    response = await create(client, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param and says_that in error["message"], error
    assert len(engine.requests) == asked


async def test_fields_that_change_nothing(served: tuple[FakeEngine, Client]) -> None:
    engine, client = served
    plain = await create(client)
    response = await create(
        client,
        background=False,
        client_metadata={"thread": "t"},
        context_management=[],
        include=["reasoning.encrypted_content", "file_search_call.results"],
        max_tool_calls=3,
        metadata={"k": "v"},
        prompt_cache_key="key",
        prompt_cache_options={"mode": "implicit", "ttl": "30m", "prewarm": False},
        prompt_cache_retention="24h",
        reasoning={"effort": "high", "summary": "auto", "context": "auto", "mode": "standard"},
        safety_identifier="s",
        service_tier="auto",
        stream_options={"include_obfuscation": False},
        text={"format": {"type": "text"}, "verbosity": "low"},
        tool_choice="auto",
        tools=[],
        truncation="disabled",
        user="u",
        conversation=None,
        prompt=None,
    )
    assert response.status_code == 200, response.text
    first, second = engine.requests[-2:]
    assert first.prompt_token_ids == second.prompt_token_ids and second.grammar is None
    shown = response.json()
    assert plain.json()["metadata"] == {} and shown["metadata"] == {"k": "v"}
    assert shown["reasoning"]["effort"] == "high" and shown["text"]["verbosity"] == "low"
    assert (shown["user"], shown["prompt_cache_key"], shown["max_tool_calls"]) == ("u", "key", 3)
    assert [item["type"] for item in shown["output"]] == ["message"]


@pytest.mark.parametrize(
    ("text", "schema", "strict"),
    [
        ({"format": {"type": "json_object"}}, {"type": "object"}, True),
        (schema_format(), SCHEMA, False),
        (schema_format(strict=True, description="d"), SCHEMA, True),
    ],
)
async def test_text_formats(
    served: tuple[FakeEngine, Client], text: Any, schema: Any, strict: bool
) -> None:
    engine, client = served
    response = await create(client, text=text)
    assert response.json()["text"]["format"] == text["format"]
    grammar = engine.requests[-1].grammar
    assert grammar is not None and grammar.kind == "json" and grammar.strict is strict
    assert json.loads(grammar.schema) == schema


@pytest.mark.parametrize(
    ("method", "path", "param"),
    [
        ("GET", "?stream=true", "stream"),
        ("GET", "?starting_after=3", "starting_after"),
        ("GET", "?include_obfuscation=true", "include_obfuscation"),
        ("DELETE", "?x=1", "x"),
        ("POST", "/cancel?x=1", "x"),
        ("GET", "/input_items?limit=0", "limit"),
        ("GET", "/input_items?limit=101", "limit"),
        ("GET", "/input_items?limit=many", "limit"),
        ("GET", "/input_items?order=up", "order"),
        ("GET", "/input_items?after=msg_none", "after"),
    ],
)
async def test_bad_queries(
    served: tuple[FakeEngine, Client], method: str, path: str, param: str
) -> None:
    _, client = served
    made = (await create(client)).json()
    answer = await client.http.request(method, f"/v1/responses/{made['id']}{path}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


async def test_model_key_and_body(served: tuple[FakeEngine, Client]) -> None:
    _, client = served
    other = await create(client, model="gpt-none")
    assert other.status_code == 404 and other.json()["error"]["code"] == "model_not_found"
    broken = await client.http.post("/v1/responses", content=b"{")
    assert broken.status_code == 400 and broken.json()["error"]["code"] == "invalid_json"
    missing = await client.http.post("/v1/responses", json={"model": MODEL})
    assert missing.json()["error"]["param"] == "input"
    wrong = await client.http.put("/v1/responses/resp_1")
    assert wrong.status_code == 405 and wrong.json()["error"]["code"] == "method_not_allowed"
    async with serving(says("x"), config=ServerConfig(api_key="secret")) as locked:
        for method, path in (("GET", "/resp_1"), ("DELETE", "/resp_1"), ("POST", "/resp_1/cancel")):
            answer = await locked.http.request(method, f"/v1/responses{path}")
            assert answer.status_code == 401
        assert (await create(locked)).json()["error"]["code"] == "invalid_api_key"


TEMPLATE = """{% if reasoning_effort is defined %}effort {{ reasoning_effort }}
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


async def test_effort_and_verbosity_are_for_templates_that_read_them() -> None:
    renderer = ChatRenderer(TEMPLATE, load_format("hermes"), special_tokens=SPECIAL)
    model = make_model(prompts=PromptBuilder(renderer, ByteTokenizer(), TurnMemo()))
    fields: Any = {"reasoning": {"effort": "low"}, "text": {"verbosity": "high"}}
    reads, ignores = says("x"), says("x")
    async with serving(reads, model) as client:
        answers = [await create(client, **fields) for _ in range(2)]
    async with serving(ignores) as client:
        answers += [await create(client, **fields), await create(client)]
    assert [answer.status_code for answer in answers] == [200] * 4
    for request in reads.requests:
        assert bytes(i for i in request.prompt_token_ids if i < 256).startswith(b"effort low\n")
    assert ignores.requests[0].prompt_token_ids == ignores.requests[1].prompt_token_ids
