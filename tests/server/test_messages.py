"""/v1/messages through a real socket and the official client, over a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import anyio
import pytest
from anthropic.types import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from jiter import from_json
from server.fake_engine import (
    MODEL,
    Client,
    FakeEngine,
    Script,
    chop,
    make_backend,
    make_model,
    says,
    serving,
)

from specrt.errors import EngineError, EngineUnavailableError
from specrt.request import EngineRequest, RequestOutput, RequestStats
from specrt.server.access import RequestRecord
from specrt.server.body import parse_body
from specrt.server.chat import ChatService
from specrt.server.messages.blocks import matched_stop
from specrt.server.messages.protocol import MessagesRequest
from specrt.server.messages.service import MessagesService

pytestmark = pytest.mark.anyio

USER: Any = [{"role": "user", "content": "weather?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"name": name, "input_schema": SCHEMA} for name in ("weather", "time")]
BASE: Any = {"model": MODEL, "max_tokens": 100, "messages": USER}


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


TWO_CALLS = call("weather", '{"city": "Zürich \\"x\\" </tool_call>"}') + "\n" + call("time", "{}")


@asynccontextmanager
async def official(client: Client, **fields: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    # No TLS here: loading the certificates would take longer than the test.
    http = anthropic.DefaultAsyncHttpxClient(verify=False)
    fields = {"api_key": "none", **fields}
    async with anthropic.AsyncAnthropic(
        base_url=client.url, max_retries=0, http_client=http, **fields
    ) as claude:
        yield claude


async def events_of(client: Client, **body: Any) -> list[dict[str, Any]]:
    """All events of a stream; checks that names and types agree."""
    body = {**BASE, "stream": True, **body}
    response = await client.http.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in response.text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def assemble(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of the events; checks their order strictly."""
    first, ping, *middle, delta, last = events
    assert ping == {"type": "ping"}
    assert first["type"] == "message_start" and last == {"type": "message_stop"}
    message: dict[str, Any] = first["message"]
    assert message["content"] == [] and message["stop_reason"] is message["stop_sequence"] is None
    buffers: list[str] = []
    is_open = False
    for event in middle:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(message["content"])
            message["content"].append(dict(event["content_block"]))
            buffers.append("")
            is_open = True
            block = message["content"][-1]
            assert block["text" if block["type"] == "text" else "input"] in ("", {})
        elif event["type"] == "content_block_stop":
            assert is_open and event["index"] == len(message["content"]) - 1
            is_open = False
            if message["content"][-1]["type"] == "text":
                message["content"][-1]["text"] = buffers[-1]
            else:
                message["content"][-1]["raw"] = buffers[-1]
        else:
            assert event["type"] == "content_block_delta" and is_open
            assert event["index"] == len(message["content"]) - 1
            kind = message["content"][-1]["type"]
            name = "text" if kind == "text" else "partial_json"
            assert set(event["delta"]) == {"type", name} and event["delta"][name]
            assert event["delta"]["type"] == {"text": "text_delta"}.get(kind, "input_json_delta")
            buffers[-1] += event["delta"][name]
    assert not is_open and delta["type"] == "message_delta"
    assert set(delta) == {"type", "delta", "usage", "specrt"}
    return {
        **message,
        **delta["delta"],
        "usage": {**message["usage"], **delta["usage"]},
        "specrt": delta["specrt"],
    }


async def test_text_answer() -> None:
    engine = says("Hel", "lo", "")
    async with serving(engine) as client, official(client) as claude:
        raw = await claude.messages.with_raw_response.create(**BASE, system="S")
        answer = await raw.parse()  # type: ignore[misc]
    assert isinstance(answer, Message) and answer.id.startswith("msg_")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "Hello"}]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    num_prompt = len(engine.requests[0].prompt_token_ids)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (num_prompt - 3, 6)
    assert answer.usage.cache_read_input_tokens == 3
    assert answer.usage.cache_creation_input_tokens == 0
    assert answer.to_dict()["specrt"]["passes"] == 3  # type: ignore[index]
    assert raw.headers["request-id"] == raw.headers["x-request-id"] == answer._request_id


async def test_parameters_reach_the_engine() -> None:
    engine = says("x")
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 7}
    async with serving(engine) as client, official(client) as claude:
        await claude.messages.create(
            **{**BASE, "max_tokens": 5}, stop_sequences=["\n\n", "END"], extra_body=sampling
        )
        await claude.messages.create(**BASE)
    params, plain = (request.sampling for request in engine.requests)
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 7)
    assert (params.stop, params.max_tokens) == (("\n\n", "END"), 5)
    assert (plain.temperature, plain.top_p, plain.top_k, plain.stop) == (1.0, 1.0, 0, ())


@pytest.mark.parametrize("pieces", [[TWO_CALLS], list(TWO_CALLS), chop(TWO_CALLS, 1)])
async def test_calls(pieces: list[str]) -> None:
    async with serving(says("Let me ", "see.\n", *pieces)) as client, official(client) as claude:
        answer = await claude.messages.create(**BASE, tools=TOOLS)
    text, first, second = answer.content
    assert text.type == "text" and text.text == "Let me see."
    assert first.type == second.type == "tool_use" and answer.stop_reason == "tool_use"
    assert first.name == "weather" and first.input == {"city": 'Zürich "x" </tool_call>'}
    assert second.name == "time" and second.input == {}
    assert first.id.startswith("toolu_") and first.id != second.id


async def test_the_stream_helper_reads_events_and_the_final_message() -> None:
    async with (
        serving(says(*chop(f"Hm.\n{TWO_CALLS}", 5))) as client,
        official(client) as claude,
        claude.messages.stream(**BASE, tools=TOOLS) as stream,
    ):
        kinds = [event.type async for event in stream]
        answer = await stream.get_final_message()
    assert {"text", "input_json", "content_block_stop", "message_stop"} <= set(kinds)
    assert [block.type for block in answer.content] == ["text", "tool_use", "tool_use"]
    assert answer.content[1].input == {"city": 'Zürich "x" </tool_call>'}  # type: ignore[union-attr]
    assert answer.content[2].input == {}  # type: ignore[union-attr]
    assert answer.stop_reason == "tool_use"
    assert answer.usage.cache_read_input_tokens == 3 and answer.usage.output_tokens > 50


async def test_the_synchronous_client() -> None:
    engine = says("Hel", "lo")

    def use(url: str) -> None:
        http = anthropic.DefaultHttpxClient(verify=False)
        with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0, http_client=http) as c:
            assert c.messages.create(**BASE).content[0].text == "Hello"  # type: ignore[union-attr]
            with c.messages.stream(**BASE) as stream:
                assert "".join(stream.text_stream) == "Hello"
            raw = list(c.messages.create(**BASE, stream=True))
            assert [event.type for event in raw] == [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]
            count = c.messages.count_tokens(model=MODEL, messages=USER).input_tokens
            assert count == len(engine.requests[-1].prompt_token_ids)

    async with serving(engine) as client:
        await anyio.to_thread.run_sync(use, client.url)


async def test_the_beta_client() -> None:
    async with serving(says("x")) as client, official(client) as claude:
        answer = await claude.beta.messages.create(
            **BASE,
            betas=["context-management-2025-06-27"],
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        )
        counted = await claude.beta.messages.count_tokens(model=MODEL, messages=USER)
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


async def test_structured_output_is_parsed() -> None:
    engine = says('{"city": "Bern"}')
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    async with serving(engine) as client, official(client) as claude:
        answer = await claude.messages.create(**BASE, output_config=config)  # type: ignore[arg-type]
    assert answer.content[0].text == '{"city": "Bern"}'  # type: ignore[union-attr]
    grammar = engine.requests[0].grammar
    assert grammar is not None and (grammar.kind, grammar.strict) == ("json", True)
    assert json.loads(grammar.schema) == SCHEMA


async def test_tool_choice_and_strict_reach_the_grammar() -> None:
    engine = says("x")

    async def recipe(choice: Any, **tool: Any) -> Any:
        tools = [{**TOOLS[0], **tool}, TOOLS[1]]
        await claude.messages.create(**BASE, tools=tools, tool_choice=choice)
        return engine.requests[-1].grammar

    async with serving(engine) as client, official(client) as claude:
        auto = await recipe({"type": "auto"}, strict=True, type="custom")
        single = await recipe({"type": "auto", "disable_parallel_tool_use": True})
        any_one = await recipe({"type": "any", "disable_parallel_tool_use": True})
        several = await recipe({"type": "any"})
        named = await recipe({"type": "tool", "name": "time"})
        none = await recipe({"type": "none"})
    assert (auto.require_call, auto.parallel) == (False, True)
    assert [(tool.name, tool.strict) for tool in auto.tools] == [("weather", True), ("time", False)]
    assert (single.require_call, single.parallel) == (False, False)
    assert (any_one.require_call, any_one.parallel) == (True, False)
    assert (several.require_call, several.parallel) == (True, True)
    assert [tool.name for tool in named.tools] == ["time"] and named.require_call
    assert none is None


OUTPUTS = st.one_of(
    st.lists(st.sampled_from(["a", "Ü", "\n", "<", "<tool_", "}", '"', " 😀"])).map("".join),
    st.sampled_from(
        [
            TWO_CALLS,
            f"Let me see.\n{TWO_CALLS}",
            call("time", '{"a": [1, {}], "b": 1.50, "c": "\\u00e9 x"}') + "\nafter",
        ]
    ),
)


@given(
    text=OUTPUTS,
    cut=st.none() | st.integers(0, 120),
    seed=st.integers(0, 999),
    has_tools=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_stream_is_the_whole_message(
    text: str, cut: int | None, seed: int, has_tools: bool
) -> None:
    """Any chunking of any output, finished or cut anywhere: both modes say the same."""
    text = text[:cut]
    engine = says(*(chop(text, seed) or [""]), finish="stop" if cut is None else "length")
    model = make_model()
    service = MessagesService(model, ChatService(model, make_backend(engine)))
    body = {**BASE, "tools": TOOLS} if has_tools else BASE

    async def both() -> tuple[dict[str, Any], dict[str, Any]]:
        request = parse_body(MessagesRequest, json.dumps(body).encode())
        whole = await service.complete(request, RequestRecord("a"))
        events = [event async for event in service.stream(request, RequestRecord("b"))]
        data = [json.loads(event.split(b"data: ")[1]) for event in events]
        return json.loads(whole.model_dump_json(exclude_unset=True)), assemble(data)

    whole, streamed = asyncio.run(both())
    for block in streamed["content"]:
        if block["type"] == "tool_use":
            raw = block.pop("raw")
            if cut is None:
                assert raw in text
                block["input"] = json.loads(raw)
            else:
                block["input"] = from_json(raw.encode(), partial_mode=True) if raw else {}
    for message in (whole, streamed):
        message.pop("id")
        for block in message["content"]:
            block.pop("id", None)
    assert streamed == whole
    if cut is not None:
        assert whole["stop_reason"] == "max_tokens"
    if not has_tools:
        assert "".join(block["text"] for block in whole["content"]) == text


async def test_a_call_cut_by_max_tokens() -> None:
    cut = call("weather", '{"city": "Zür')[:-14]
    async with serving(says(cut, finish="length")) as client:
        whole = (await client.http.post("/v1/messages", json={**BASE, "tools": TOOLS})).json()
        events = await events_of(client, tools=TOOLS)
    assert whole["stop_reason"] == assemble(events)["stop_reason"] == "max_tokens"
    assert whole["content"][0]["input"] == {}
    fragments = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert "".join(fragments) == '{"city": "Zür'


async def test_max_tokens_is_cut_to_the_context() -> None:
    """Claude Code asks for 32,000 tokens whatever the model's context is."""
    engine = says("x", finish="length")
    async with serving(engine) as client, official(client) as claude:
        answer = await claude.messages.create(**{**BASE, "max_tokens": 8000})
        short = await claude.messages.create(**{**BASE, "max_tokens": 50})
    assert answer.stop_reason == "model_context_window_exceeded"
    assert short.stop_reason == "max_tokens"
    first, second = engine.requests
    assert first.sampling.max_tokens == 4096 - len(first.prompt_token_ids)
    assert second.sampling.max_tokens == 50


async def test_max_tokens_0_fills_the_cache_and_says_nothing() -> None:
    engine = says("x", finish="length")
    async with serving(engine) as client, official(client) as claude:
        answer = await claude.messages.create(**{**BASE, "max_tokens": 0})
    assert (answer.content, answer.stop_reason) == ([], "max_tokens")
    assert answer.usage.output_tokens == 0 and answer.usage.cache_read_input_tokens == 3
    assert engine.requests[0].sampling.max_tokens == 1


class StoppingEngine(FakeEngine):
    """Its last piece holds a stop string; the text ends before it, the tokens do not."""

    def _output(
        self,
        request: EngineRequest,
        script: Script,
        stats: RequestStats,
        piece: str,
        is_last: bool,
    ) -> RequestOutput:
        found = [piece.find(stop) for stop in request.sampling.stop if stop in piece]
        return RequestOutput(
            request_id=request.request_id,
            token_ids=list(piece.encode()),
            text=piece[: min(found)] if found else piece,
            finish_reason="stop" if is_last else None,
            stats=stats,
            stop_cut=bool(found),
        )


async def test_stop_sequences() -> None:
    engine = StoppingEngine(lambda request: Script(["one ", "two END"]))
    async with serving(engine) as client, official(client) as claude:
        answer = await claude.messages.create(**BASE, stop_sequences=["\n\nHuman:", "END"])
        events = await events_of(client, stop_sequences=["END", "never"])
        unmatched = await claude.messages.create(**BASE, stop_sequences=["three"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "END")
    assert answer.content[0].text == "one two "  # type: ignore[union-attr]
    streamed = assemble(events)
    assert (streamed["stop_reason"], streamed["stop_sequence"]) == ("stop_sequence", "END")
    assert (unmatched.stop_reason, unmatched.stop_sequence) == ("end_turn", None)


@pytest.mark.parametrize(
    ("stops", "tokens", "expected"),
    [
        (["x", "END"], ["a", "EN", "D"], "END"),
        (["D!", "END"], ["xEN", "D!"], "END"),
        (["ND", "END"], ["EN", "D"], "END"),
        (["END", "a"], ["a", "xEND"], "END"),
        (["é", "b"], ["b", "\xc3", "\xa9"], "é"),
        (["only"], [], "only"),
        (["late", "other"], ["a", "late", "x"], "late"),
    ],
)
async def test_which_stop_sequence(stops: list[str], tokens: list[str], expected: str) -> None:
    """The one that the last token completes, the earliest of several."""
    encoding = "latin-1" if "\xc3" in tokens else "utf-8"
    vocabulary = [token.encode(encoding) for token in tokens]
    assert matched_stop(stops, range(len(tokens)), vocabulary.__getitem__) == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_token_has_a_status(stream: bool) -> None:
    for error, status, kind in (
        (EngineError("it broke"), 500, anthropic.InternalServerError),
        (EngineUnavailableError("it starts"), 529, anthropic.OverloadedError),
    ):
        async with serving(says(error, "x")) as client, official(client) as claude:
            with pytest.raises(kind) as caught:
                await claude.messages.create(**BASE, stream=stream)
        assert caught.value.status_code == status
        body: Any = caught.value.body
        assert body["type"] == "error" and "it " in body["error"]["message"]
        assert body["request_id"] == caught.value.response.headers["request-id"]


async def test_an_error_in_mid_stream_is_an_error_event() -> None:
    engine = says("one", EngineError("it broke"), "x")
    async with serving(engine) as client, official(client) as claude:
        events = await events_of(client)
        with pytest.raises(anthropic.APIStatusError, match="it broke"):
            async for _ in await claude.messages.create(**BASE, stream=True):
                pass
    assert events[-1]["type"] == "error"
    assert events[-1]["error"] == {"type": "api_error", "message": "it broke"}
    assert "message_stop" not in [event["type"] for event in events]


async def test_a_client_that_leaves_ends_the_generation() -> None:
    engine = says("one", asyncio.Event(), "two")
    async with serving(engine) as client, official(client) as claude:
        stream = await claude.messages.create(**BASE, stream=True)
        await anext(stream)
        await stream.close()
        with anyio.fail_after(5):
            while not engine.aborted:
                await asyncio.sleep(0.005)
