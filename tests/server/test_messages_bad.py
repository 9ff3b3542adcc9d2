"""Bad requests of the Messages API are refused by name, in Anthropic's shape."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_params
from server.fake_engine import MODEL, Client, FakeEngine, says, serving

from specrt.config import EngineConfig, SchedulerConfig, ServerConfig
from specrt.errors import ContextLengthError
from specrt.server import body as body_module
from specrt.server.messages import protocol
from specrt.server.messages.protocol import REFUSED, CountTokensRequest, MessagesRequest

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[tuple[FakeEngine, Client]]:
    engine = says("x")
    async with serving(engine) as client:
        yield engine, client


async def ask(client: Client, path: str = "", **body: Any) -> Any:
    body = {"model": MODEL, "max_tokens": 10, "messages": [USER], **body}
    body = {name: value for name, value in body.items() if value is not ...}
    # Not json=: escapes let lone surrogates through, as other clients do.
    return await client.http.post("/v1/messages" + path, content=json.dumps(body))


def error_of(response: Any, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"} and body["type"] == "error"
    assert set(body["error"]) == {"type", "message"}
    assert body["request_id"] == response.headers["request-id"]
    error: dict[str, Any] = body["error"]
    return error


def user(*blocks: Any) -> list[Any]:
    return [{"role": "user", "content": list(blocks)}]


def answered(*blocks: Any) -> list[Any]:
    return [USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [*blocks]}]


@pytest.mark.parametrize(
    ("body", "says_that"),
    [
        ({"max_tokens": ...}, "`max_tokens`: this field is required"),
        ({"max_tokens": None}, "`max_tokens`: this field is required"),
        ({"max_tokens": -1}, "`max_tokens`"),
        ({"max_tokens": "5"}, "`max_tokens`"),
        ({"max_tokens": 0, "stream": True}, "`stream`: max_tokens 0"),
        ({"model": ...}, "`model`: this field is required"),
        ({"messages": ...}, "`messages`: this field is required"),
        ({"messages": []}, "`messages`"),
        ({"messages": ["x"]}, "`messages[0]`: expected an object with role and content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "`messages[0].role`: expected one of"),
        ({"messages": [{"role": "user"}]}, "`messages[0].content`: this field is required"),
        ({"messages": [{"role": "user", "content": 5}]}, "`messages[0].content`"),
        ({"messages": [{"role": "user", "content": []}]}, "at least one block"),
        ({"messages": [{**USER, "name": "Al"}]}, "`messages[0].name`: unknown field"),
        ({"messages": [USER, {"role": "assistant", "content": "The"}]}, "prefill"),
        ({"messages": user("x")}, "`messages[0].content[0]`: expected a content block"),
        ({"messages": user({"text": "x"})}, "`messages[0].content[0].type`"),
        ({"messages": user({"type": "text"})}, "`messages[0].content[0].text`: this field"),
        ({"messages": user({"type": "text", "text": 1})}, "`messages[0].content[0].text`: exp"),
        ({"messages": user({"type": "text", "text": "a", "b": 1})}, "content[0].b`: unknown"),
        ({"messages": user(IMAGE)}, "`messages[0].content[0].type`: image blocks are not"),
        ({"messages": user({"type": "document"})}, "document blocks are not supported"),
        ({"messages": user({"type": "search_result"})}, "search_result blocks are not"),
        ({"messages": user({"type": "container_upload"})}, "container_upload blocks are not"),
        ({"messages": user(CALL)}, "expected one of text, tool_result here, got 'tool_use'"),
        ({"messages": user(RESULT)}, "`messages[0].content[0].tool_use_id`"),
        ({"messages": answered({**RESULT, "tool_use_id": "toolu_2"})}, "got 'toolu_2'"),
        ({"messages": answered(RESULT, RESULT)}, "`messages[2].content[1].tool_use_id`"),
        ({"messages": answered({"type": "text", "text": "a"}, RESULT)}, "before all others"),
        ({"messages": answered({**RESULT, "content": [IMAGE]})}, "[2].content[0].content[0].type"),
        ({"messages": answered({**RESULT, "is_error": "no"})}, "is_error`: expected true or false"),
        (
            {"messages": [USER, {"role": "assistant", "content": [{**CALL, "input": "{}"}]}, USER]},
            "`messages[1].content[0].input`: expected an object, got '{}'",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": [{**CALL, "name": ""}]}, USER]},
            "`messages[1].content[0].name`",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": [RESULT]}, USER]},
            "got 'tool_result'",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": [{"type": "mcp_tool_use"}]}]},
            "mcp_tool_use blocks are not supported",
        ),
        ({"system": 5}, "`system`"),
        ({"system": [IMAGE]}, "`system[0].type`: image blocks"),
        ({"temperature": 1.1}, "`temperature`: expected less than or equal to 1"),
        ({"top_p": 0}, "`top_p`"),
        ({"top_k": -1}, "`top_k`"),
        ({"stop_sequences": [""]}, "`stop_sequences[0]`"),
        ({"stop_sequences": ["x"] * 17}, "`stop_sequences`"),
        ({"stop": ["x"]}, "`stop`: unknown field"),
        ({"metadata": {"user": "x"}}, "`metadata.user`: unknown field"),
        ({"service_tier": "priority"}, "`service_tier`: only auto and standard_only"),
        ({"speed": "fast"}, "`speed`: there is one speed"),
        ({"mcp_servers": [{"type": "url"}]}, "`mcp_servers`: the server connects to no MCP"),
        ({"container": "c"}, "`container`: there are no containers"),
        ({"inference_geo": "us"}, "`inference_geo`: the server cannot choose"),
        ({"betas": []}, "`betas`: betas are named in the anthropic-beta header"),
        ({"output_format": {}}, "`output_format`: replaced by `output_config.format`"),
        ({"output_config": {"task_budget": {}}}, "`output_config.task_budget`: token budgets"),
        ({"output_config": {"format": {"type": "xml"}}}, "`output_config.format"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}, "tools": [TOOL]},
            "`output_config.format`: a format cannot be combined with tools",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
            "cannot enforce 'not'",
        ),
        ({"thinking": {"type": "on"}}, "`thinking.type`"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "`thinking.budget_tokens`"),
        ({"diagnostics": {"previous_message_id": "msg_1"}}, "earlier prompts are not kept"),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "`context_management.edits[0].type`: expected 'clear_thinking_20251015'",
        ),
        ({"tools": [{"name": "f"}]}, "`tools[0].input_schema`: this field is required"),
        ({"tools": [{**TOOL, "parameters": {}}]}, "`tools[0].parameters`: unknown field"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name: expected 1 to 128"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name: expected a name that no other tool has"),
        ({"tools": [{**TOOL, "input_schema": {"type": "array"}}]}, "tools[0].input_schema:"),
        ({"tools": [{**TOOL, "input_schema": {"not": {}}}]}, "'not'"),
        ({"tools": [{**TOOL, "strict": 1}]}, "`tools[0].strict`: expected true or false"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "`tools[0].defer_loading`"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "['direct']"),
        ({"tools": [{**TOOL, "input_examples": ["x"]}]}, "`tools[0].input_examples[0]`"),
        ({"tools": [TOOL] * 129}, "128"),
        (
            {"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]},
            "`tools[1].type`: tools of type 'web_search_20250305' are not supported",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "'bash_20250124'"),
        ({"tool_choice": {"type": "any"}}, "`tool_choice.type`: expected 'none' or no tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "`tool_choice.name`: this field"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "one of 'f', got 'g'"),
        ({"tools": [TOOL], "tool_choice": {"type": "auto", "name": "f"}}, "`tool_choice.name`"),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "`tool_choice.type`"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "`tool_choice`"),
        (
            {"tool_choice": {"type": "none", "disable_parallel_tool_use": True}},
            "`tool_choice.disable_parallel_tool_use`",
        ),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "prompt is too long: the prompt"),
    ],
)
async def test_field_is_named(
    served: tuple[FakeEngine, Client], body: dict[str, Any], says_that: str
) -> None:
    engine, client = served
    engine.requests.clear()
    error = error_of(await ask(client, **body))
    assert (await ask(client)).status_code == 200, "others are unaffected"
    assert error["type"] == "invalid_request_error"
    assert says_that in error["message"], error["message"]
    assert len(engine.requests) == 1
    # Counting refuses the same, but for what only the grammar's compiler or a run can tell.
    if set(body) <= set(CountTokensRequest.model_fields) and "'not'" not in says_that:
        counted = await ask(client, "/count_tokens", max_tokens=..., **body)
        if "too long" in says_that:
            assert counted.json()["input_tokens"] > 5000
        else:
            assert says_that in error_of(counted)["message"]


@pytest.mark.parametrize("path", ["", "/count_tokens"])
@pytest.mark.parametrize(
    "field",
    [
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "between_tools"}},
        {"output_config": {"effort": "max"}},
        {"context_management": {"edits": []}},
        {"mcp_servers": []},
        {"speed": "standard"},
        {"tools": []},
        {"tools": [{**TOOL, "eager_input_streaming": True, "allowed_callers": ["direct"]}]},
        {"tools": [{**TOOL, "description": None, "strict": None, "defer_loading": False}]},
        {"system": ""},
        {"system": []},
        {"system": [{"type": "text", "text": "S", "citations": None}]},
        {"tool_choice": {"type": "none"}},
        {"container": None, "temperature": None},
        {"messages": [{"role": "assistant", "content": "I begin"}, USER]},
        {"messages": [USER, {"role": "system", "content": "be brief"}]},
        {"messages": answered({**RESULT, "content": None, "toolset_name": None})},
        {"messages": [{"role": "user", "content": "\ud800"}]},
    ],
)
async def test_harmless_fields_are_accepted(
    served: tuple[FakeEngine, Client], field: dict[str, Any], path: str
) -> None:
    response = await ask(served[1], path, **(field | ({"max_tokens": ...} if path else {})))
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "field",
    [
        {"metadata": {"user_id": "user_1_account__session_2"}},
        {"service_tier": "standard_only"},
        {"diagnostics": {"previous_message_id": None}},
        {"stop_sequences": []},
        {"stream": False},
    ],
)
async def test_harmless_fields_of_messages_are_accepted(
    served: tuple[FakeEngine, Client], field: dict[str, Any]
) -> None:
    assert (await ask(served[1], **field)).status_code == 200


def test_every_field_of_the_package_has_an_answer() -> None:
    known = set(MessagesRequest.model_fields) | set(REFUSED)
    for params in (
        message_create_params.MessageCreateParamsBase,
        message_create_params.MessageCreateParamsStreaming,
        beta_params.MessageCreateParamsBase,
    ):
        assert set(params.__annotations__) <= known
    counted = set(message_count_tokens_params.MessageCountTokensParams.__annotations__)
    assert counted <= set(CountTokensRequest.model_fields) | set(REFUSED)
    assert not set(MessagesRequest.model_fields) & set(REFUSED)
    for path in protocol.REFUSED_VALUES:
        assert path.split(".")[0] in MessagesRequest.model_fields


async def test_status_and_type_of_each_error(
    served: tuple[FakeEngine, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served[1]
    for path in ("", "/count_tokens"):
        error = error_of(await ask(client, path, model="claude-9"), 404 if not path else 400)
        if not path:
            assert error["type"] == "not_found_error" and "'claude-9'" in error["message"]
    error = error_of(await ask(client, "/count_tokens", model="claude-9", max_tokens=...), 404)
    assert error["type"] == "not_found_error"
    error = error_of(await client.http.post("/v1/messages/batches"), 404)
    assert error["type"] == "not_found_error" and "/v1/messages/batches" in error["message"]
    response = await client.http.get("/v1/messages")
    assert "POST" in error_of(response, 405)["message"] and response.headers["allow"] == "POST"
    error = error_of(await client.http.post("/v1/messages", content=b'{"a": [}'))
    assert "line 1 column 8" in error["message"]
    monkeypatch.setattr(body_module, "MAX_BODY_BYTES", 100)
    assert error_of(await ask(client, system="s" * 100), 413)["type"] == "request_too_large"


async def test_other_paths_keep_their_shape(served: tuple[FakeEngine, Client]) -> None:
    for path in ("/v1/messagesx", "/v1/nothing"):
        response = await served[1].http.post(path)
        assert set(response.json()) == {"error"} and "request-id" not in response.headers


async def test_api_key() -> None:
    async with serving(says("x"), config=ServerConfig(api_key="s3cret")) as client:
        wrong: tuple[dict[str, str], ...] = (
            {},
            {"x-api-key": "no"},
            {"Authorization": "Bearer no", "x-api-key": "no"},
            {"Authorization": "Basic s3cret"},
        )
        for headers in wrong:
            response = await client.http.post("/v1/messages", headers=headers)
            error = error_of(response, 401)
            assert error["type"] == "authentication_error" and "s3cret" not in str(error)
            assert "no API key" in error["message"] if not headers else "wrong" in error["message"]
        body = {"model": MODEL, "max_tokens": 1, "messages": [USER]}
        right: tuple[dict[str, str], ...] = (
            {"x-api-key": "s3cret"},
            {"Authorization": "Bearer s3cret"},
            {"Authorization": "Bearer other", "x-api-key": "s3cret"},
            {"Authorization": "Bearer s3cret", "x-api-key": "other"},
        )
        for headers in right:
            headers = {**headers, "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
            response = await client.http.post("/v1/messages", headers=headers, json=body)
            assert response.status_code == 200, response.text
        models = await client.http.get("/v1/models", headers={"x-api-key": "s3cret"})
        assert models.status_code == 200


async def test_request_ids_go_in_and_out(served: tuple[FakeEngine, Client]) -> None:
    for body in ({}, {"model": "no"}, {"stream": True}):
        response = await served[1].http.post(
            "/v1/messages",
            json={"model": MODEL, "max_tokens": 1, "messages": [USER], **body},
            headers={"x-request-id": "mine-1"},
        )
        assert response.headers["request-id"] == response.headers["x-request-id"] == "mine-1"


async def test_a_full_queue_and_a_server_that_shuts_down() -> None:
    go_on = asyncio.Event()
    engine = says("a", go_on, "b")
    limits: Any = {
        "config": ServerConfig(max_queued_requests=1),
        "engine_config": EngineConfig(scheduler=SchedulerConfig(max_running_requests=1)),
    }
    async with serving(engine, **limits) as client:
        running = [asyncio.create_task(ask(client)) for _ in range(2)]
        while len(engine.requests) < 2:
            await asyncio.sleep(0.005)
        response = await ask(client)
        assert error_of(response, 429)["type"] == "rate_limit_error"
        assert int(response.headers["retry-after"]) >= 1
        assert not await client.admission.drain(0.01)
        response = await ask(client, stream=True)
        assert error_of(response, 529)["type"] == "overloaded_error"
        assert int(response.headers["retry-after"]) >= 1
        go_on.set()
        assert [(await task).status_code for task in running] == [200, 200]


async def test_a_timeout() -> None:
    engine = says("a", asyncio.Event(), "b")
    async with serving(engine, config=ServerConfig(request_timeout=0.1)) as client:
        assert error_of(await ask(client), 504)["type"] == "timeout_error"
        events = (await ask(client, stream=True)).text.strip().split("\n\n")
    assert events[-1].startswith("event: error\n") and '"timeout_error"' in events[-1]


async def test_a_refusal_of_the_engine_says_that_the_prompt_is_too_long() -> None:
    async with serving(says(ContextLengthError("the cache holds 7 tokens"), "x")) as client:
        error = error_of(await ask(client))
    assert error["message"] == "prompt is too long: the cache holds 7 tokens"


async def test_a_bug_shows_no_details(caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: object) -> Any:
        raise RuntimeError("secret detail")

    with caplog.at_level(logging.ERROR):
        async with serving(FakeEngine(broken)) as client:
            error = error_of(await ask(client), 500)
    assert error["type"] == "api_error" and "secret" not in error["message"]
    assert any("secret detail" in record.getMessage() for record in caplog.records)
