"""Bad input is answered clearly, in OpenAI's shape, before anything reaches the engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import openai
import pytest
from server.fake_engine import MODEL, VOCAB_SIZE, Client, FakeEngine, says, serving

from specrt.config import ServerConfig
from specrt.server import body as body_module

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[tuple[FakeEngine, Client]]:
    engine = says("x")
    async with serving(engine) as client:
        yield engine, client


def error_of(response: Any, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("body", "param", "says_that"),
    [
        ({"temperature": 2.1}, "temperature", "2.1"),
        ({"temperature": "hot"}, "temperature", "the string 'hot'"),
        ({"temperature": True}, "temperature", "a boolean"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_k": -2}, "top_k", "-2"),
        ({"min_p": 1.5}, "min_p", "1.5"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
        ({"presence_penalty": -2.5}, "presence_penalty", "-2"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"n": 17}, "n", "16"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1, got the number 0"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "got the number 0"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "max_completion_tokens (6)"),
        ({"max_tokens": 5000}, "messages", "4096"),
        ({"stop": ["x"] * 17}, "stop", "16"),
        ({"stop": ["x", ""]}, "stop[1]", "at least 1 character"),
        ({"stop": 5}, "stop", "the number 5"),
        ({"top_logprobs": 3}, "top_logprobs", "`logprobs`: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "'a'"),
        ({"logit_bias": {str(VOCAB_SIZE): 1}}, "logit_bias", f"0 to {VOCAB_SIZE - 1}"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "100"),
        ({"seed": 2**64}, "seed", str(2**64)),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"stream_options": {"includeusage": True}}, "stream_options.includeusage", "unknown"),
        ({"stream_options": {"include_obfuscation": "yes"}}, None, "true or false"),
        ({"temprature": 1}, "temprature", "unknown field"),
        ({"audio": {}}, "audio", "not supported"),
        ({"modalities": ["text", "audio"]}, "modalities[1]", "'text'"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction", "not supported"),
        ({"web_search_options": {}}, "web_search_options", "not supported"),
        ({"functions": [{}]}, "functions[0].name", "got null"),
        ({"functions": [], "tools": []}, "functions", "`tools`, which replaces it"),
        ({"function_call": "auto"}, "function_call", "expected `functions`"),
        ({"function_call": {"name": "f"}, "tools": [TOOL]}, "function_call", "beside `tools`"),
        (
            {"functions": [{"name": "f"}], "function_call": {"name": "g"}},
            "function_call",
            "expected one of 'f', got 'g'",
        ),
        ({"functions": [{"name": "f", "x": 1}]}, "functions[0].x", "unknown field"),
        (
            {"chat_template_kwargs": {"depth": 1}},
            "chat_template_kwargs.depth",
            "does not read this variable",
        ),
        (
            {"chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs.messages",
            "the server sets",
        ),
        ({"verbosity": "low"}, "verbosity", "no such setting"),
        (
            {"verbosity": "low", "chat_template_kwargs": {"verbosity": "low"}},
            "verbosity",
            "beside chat_template_kwargs.verbosity",
        ),
        ({"min_tokens": -1}, "min_tokens", "-1"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "at most the 8 tokens"),
        ({"stop_token_ids": [1, VOCAB_SIZE]}, "stop_token_ids[1]", str(VOCAB_SIZE)),
        ({"ebnf": "root ::= x"}, "ebnf", "guided_grammar"),
        ({"session_id": "s"}, "session_id", "cache_salt"),
        ({"priority": 1}, "priority", "all requests are equal"),
        ({"skip_special_tokens": False}, "skip_special_tokens", "return_token_ids"),
        ({"add_generation_prompt": False}, "add_generation_prompt", "a new turn"),
        ({"continue_final_message": True}, "continue_final_message", "/v1/completions"),
        ({"echo": True}, "echo", "not echoed"),
        ({"metadata": {"k" * 65: "v"}}, "metadata", "64"),
        ({"guided_regex": "a", "regex": "b"}, "regex", "got guided_regex too"),
        ({"guided_choice": []}, "guided_choice", "1 to 1024"),
        ({"guided_json": {"not": {}}}, "guided_json", "cannot enforce 'not'"),
        (
            {"guided_json": {}, "response_format": {"type": "json_object"}},
            "guided_json",
            "response_format too",
        ),
        (
            {"tools": [TOOL], "guided_choice": ["a"]},
            "guided_choice",
            "leave guided_choice out to get calls",
        ),
        ({"structured_outputs": {"regexp": "a"}}, "structured_outputs.regexp", "choice"),
        ({"structured_outputs": {}}, "structured_outputs", "one of json"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "its grammar ends"),
        ({"store": True}, "store", "not stored"),
        ({"service_tier": "priority"}, "service_tier", "auto and default"),
        ({"reasoning_effort": "high"}, "reasoning_effort", "no reasoning mode"),
        ({"best_of": 2}, "best_of", "unknown field"),
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": None}, "messages", "required"),
        ({"messages": "hi"}, "messages", "the string 'hi'"),
        ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages[1].role", "'robot'"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "null"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "image_url",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "null"),
        ({"tools": [{**TOOL, "type": "custom"}]}, "tools[0].type", "'custom'"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name", "'f'"),
        ({"tools": [{}] * 129}, "tools", "128"),
        ({"tool_choice": "required"}, "tool_choice", "add tools"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
            "'g'",
        ),
        ({"tools": [TOOL], "ignore_eos": True}, "ignore_eos", "grammar"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "'yaml'"),
        ({"response_format": "json"}, "response_format", "the string 'json'"),
        (
            {"tools": [TOOL], "response_format": {"type": "json_object"}},
            "response_format",
            "tool_choice 'none'",
        ),
        ({"model": None}, "model", "required"),
        ({"model": 5}, "model", "the number 5"),
    ],
)
async def test_field_is_named(
    served: tuple[FakeEngine, Client], body: dict[str, Any], param: str | None, says_that: str
) -> None:
    engine, client = served
    engine.requests.clear()
    error = error_of(await client.chat(**body))
    assert (await client.chat()).status_code == 200, "others are unaffected"
    if param is not None:
        assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert says_that in error["message"], error["message"]
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    "field",
    [
        {"user": "u"},
        {"metadata": {"a": "b"}},
        {"store": False},
        {"service_tier": "auto"},
        {"safety_identifier": "s"},
        {"prompt_cache_key": "k"},
        {"verbosity": "medium"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"spaces_between_special_tokens": False},
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
        {"prompt_cache_retention": "24h"},
        {"functions": [], "function_call": "none"},
        {"echo": False, "priority": 0, "continue_final_message": False},
        {"modalities": ["text"]},
        {"audio": None},
        {"reasoning_effort": "none"},
        {"top_k": -1},
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"parallel_tool_calls": True},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]},
        {"tools": [{**TOOL, "function": {**TOOL["function"], "description": "\udc00"}}]},  # type: ignore[dict-item]
        {"tools": [{"type": "function", "function": {"name": "no_schema"}}]},
    ],
)
async def test_harmless_fields_are_accepted(
    served: tuple[FakeEngine, Client], field: dict[str, Any]
) -> None:
    response = await served[1].chat(**field)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("raw", "says_that"),
    [
        (b'{"model": "m",\n "messages": [}', "line 2 column 15"),
        (b"", "line 1 column 1"),
        (b"[1]", "expected a JSON object, got an array"),
        (b"\xff", "UTF-8 text, got something else at byte 0"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply"),
    ],
)
async def test_malformed_json(
    served: tuple[FakeEngine, Client], raw: bytes, says_that: str
) -> None:
    error = error_of(await served[1].http.post("/v1/chat/completions", content=raw))
    assert error["code"] == "invalid_json" or "array" in says_that
    assert says_that in error["message"], error["message"]


async def test_body_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_module, "MAX_BODY_BYTES", 100)
    async with serving(says("x")) as client:
        error = error_of(await client.chat(user="u" * 100), 413)
    assert "100 bytes" in error["message"]


async def test_unknown_model() -> None:
    async with serving(says("x")) as client:
        error = error_of(await client.chat(model="gpt-9"), 404)
        assert error["code"] == "model_not_found" and MODEL in error["message"]
        assert error_of(await client.complete(model="gpt-9"), 404)["param"] == "model"
        assert error_of(await client.http.get("/v1/models/gpt-9"), 404)["type"]
        with pytest.raises(openai.NotFoundError, match="gpt-9"):
            await client.openai.models.retrieve("gpt-9")


async def test_routes_and_methods() -> None:
    async with serving(says("x")) as client:
        error = error_of(await client.http.get("/v2/models"), 404)
        assert "/v2/models" in error["message"] and error["code"] == "not_found"
        response = await client.http.get("/v1/chat/completions")
        assert "POST" in error_of(response, 405)["message"]


async def test_api_key() -> None:
    engine = says("x")
    async with serving(engine, config=ServerConfig(api_key="s3cret")) as client:
        for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": "Basic s3cret"}):
            for path in ("/v1/models", "/get_server_info", "/v1/nothing"):
                response = await client.http.get(path, headers=headers)
                error = error_of(response, 401)
                assert error["type"] == "authentication_error"
                assert error["code"] == "invalid_api_key" and "s3cret" not in error["message"]
                assert response.headers["WWW-Authenticate"] == "Bearer"
        for path in ("/health", "/metrics"):
            assert (await client.http.get(path)).status_code == 200
        with pytest.raises(openai.AuthenticationError):
            await client.openai.models.list()
        right = client.openai.with_options(api_key="s3cret")
        assert [model.id async for model in right.models.list()] == [MODEL]
        info = await client.http.get("/get_server_info", headers={"Authorization": "bearer s3cret"})
        assert info.status_code == 200 and "s3cret" not in info.text
    assert engine.requests == []


async def test_bug_shows_no_details(caplog: pytest.LogCaptureFixture) -> None:
    def broken(request: object) -> Any:
        raise RuntimeError("secret detail")

    engine = FakeEngine(broken)
    with caplog.at_level(logging.ERROR):
        async with serving(engine) as client:
            error = error_of(await client.chat(), 500)
            error_of(await client.chat(stream=True), 500)
    assert error["type"] == "server_error" and "secret" not in error["message"]
    assert any("secret detail" in record.getMessage() for record in caplog.records)
    assert any(record.exc_info for record in caplog.records)


async def test_client_gone_inside_the_body(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(says("x")) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.split(":")[2]))
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
        writer.write(head.encode())
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        with anyio.fail_after(5):
            while 'status="499"' not in (await client.http.get("/metrics")).text:
                await asyncio.sleep(0.01)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
