"""/v1/chat/completions through a real socket and the official client."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from server.fake_engine import (
    EOS,
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

from specrt.errors import ContextLengthError, EngineError
from specrt.request import EngineRequest
from specrt.server.access import RequestRecord
from specrt.server.body import parse_body
from specrt.server.chat import ChatService
from specrt.server.protocol import ChatRequest
from specrt.server.streaming import DONE

pytestmark = pytest.mark.anyio

USER = [{"role": "user", "content": "weather?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("weather", "time")
]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


TWO_CALLS = call("weather", '{"city": "Zürich \\"x\\" </tool_call>"}') + "\n" + call("time", "{}")


async def stream(client: Client, **body: Any) -> list[dict[str, Any]]:
    """All events of a stream; checks that it ends with [DONE]."""
    response = await client.chat(stream=True, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [line[6:] for line in response.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def assemble(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What a client makes of the deltas: message, finish reason and logprobs of each choice."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for part in event["choices"]:
            delta = part["delta"]
            if part["index"] not in choices:
                assert delta["role"] == "assistant"
                choices[part["index"]] = {"content": None, "calls": [], "logprobs": None}
            else:
                assert "role" not in delta
            choice = choices[part["index"]]
            assert "finish" not in choice, "nothing follows the finish reason"
            if delta.get("content") is not None:
                choice["content"] = (choice["content"] or "") + delta["content"]
            for piece in delta.get("tool_calls", []):
                if piece["index"] == len(choice["calls"]):
                    assert re.fullmatch("call_[a-zA-Z0-9]{24}", piece["id"])
                    assert piece["type"] == "function" and piece["function"]["arguments"] == ""
                    choice["calls"].append([piece["function"]["name"], ""])
                else:
                    assert set(piece) == {"index", "function"}
                    assert piece["index"] == len(choice["calls"]) - 1
                    assert set(piece["function"]) == {"arguments"}
                    choice["calls"][-1][1] += piece["function"]["arguments"]
            if part["logprobs"] is not None:
                choice["logprobs"] = (choice["logprobs"] or []) + part["logprobs"]["content"]
            if part["finish_reason"] is not None:
                choice["finish"] = part["finish_reason"]
    return choices


def flatten(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice of a whole response in the shape of `assemble`."""
    message = choice["message"]
    calls = [
        [c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])
    ]
    logprobs = choice["logprobs"]["content"] if choice["logprobs"] else None
    return {
        "content": message["content"],
        "calls": calls,
        "logprobs": logprobs,
        "finish": choice["finish_reason"],
    }


async def test_text_answer() -> None:
    engine = says("Hel", "lo", "")
    async with serving(engine) as client:
        answer = await client.openai.chat.completions.create(model=MODEL, messages=USER)
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion"
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    num_prompt = len(engine.requests[0].prompt_token_ids)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (num_prompt, 6)
    assert answer.usage.total_tokens == num_prompt + 6
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert details.accepted_prediction_tokens == 3 + 1
    assert details.rejected_prediction_tokens == 6 + 4 - (3 + 1)
    report = answer.model_dump()["specrt"]
    assert report["drafted"] == {"forced": {"key": 6}, "history": {"value": 3, "key": 1}}
    assert report["accepted"] == {"forced": {"key": 3}, "history": {"value": 1, "key": 0}}
    assert report["invalid_drafts"] == 0 and report["tokens_of_passes"] == {"2": 3}
    assert (report["draft_ms"], report["verify_ms"]) == (0.0, 250.0)
    assert report["passes"] == 3 and report["acceptance_length"] == 2.0
    assert report["unenforced"] == report["violations"] == []


async def test_prompt_and_parameters_reach_the_engine() -> None:
    engine = says("x")
    async with serving(engine) as client:
        response = await client.chat(
            messages=[{"role": "system", "content": "S"}, *USER],
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.1,
            repetition_penalty=1.1,
            presence_penalty=0.2,
            frequency_penalty=-0.3,
            logit_bias={"65": -100, "7": 1.5},
            stop=["\n\n", "END"],
            ignore_eos=True,
            seed=-1,
            max_tokens=5,
            max_completion_tokens=5,
            cache_salt="tenant",
            n=2,
            logprobs=True,
            top_logprobs=3,
        )
    assert response.status_code == 200, response.text
    first, second = engine.requests
    assert (first.request_id, second.request_id) == tuple(
        f"{response.json()['id']}-{i}" for i in (0, 1)
    )
    assert bytes(i for i in first.prompt_token_ids if i < 256).decode() == (
        "system\nS\nuser\nweather?\nassistant\n"
    )
    assert first.namespace == second.namespace == "tenant" and first.grammar is None
    params = first.sampling
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 7, 0.1)
    assert (params.repetition_penalty, params.presence_penalty) == (1.1, 0.2)
    assert (params.frequency_penalty, params.logit_bias) == (-0.3, {65: -100.0, 7: 1.5})
    assert (params.stop, params.ignore_eos, params.max_tokens) == (("\n\n", "END"), True, 5)
    assert params.seed == second.sampling.seed == 2**64 - 1
    assert (params.choice_index, second.sampling.choice_index) == (0, 1)
    assert params.logprobs == 3


async def test_defaults() -> None:
    engine = says("x")
    async with serving(engine) as client:
        await client.chat(tools=None, stop=None, stream=None, unheard_of=None)
        await client.chat(logprobs=True)
    first, second = engine.requests
    assert first.sampling.max_tokens == 4096 - len(first.prompt_token_ids)
    assert (first.sampling.temperature, first.sampling.logprobs) == (1.0, None)
    assert first.sampling.seed != second.sampling.seed
    assert second.sampling.logprobs == 0


async def test_default_length_fits_the_cache() -> None:
    """The engine refuses what its cache cannot hold; a request that named no length must run."""
    engine = says("x")
    async with serving(engine) as client:
        for num_slots in (1000, 5):
            engine.info["num_total_slots"] = num_slots
            await client.chat()
        await client.chat(max_tokens=2000)
    num_prompt = len(engine.requests[0].prompt_token_ids)
    lengths = [request.sampling.max_tokens for request in engine.requests]
    assert lengths == [1001 - num_prompt, 1, 2000]


@pytest.mark.parametrize("pieces", [[TWO_CALLS], list(TWO_CALLS), chop(TWO_CALLS, 1)])
async def test_calls(pieces: list[str]) -> None:
    async with serving(says(*pieces)) as client:
        answer = await client.openai.chat.completions.create(
            model=MODEL,
            messages=USER,
            tools=TOOLS,
        )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    calls = choice.message.tool_calls
    assert calls is not None and [c.function.name for c in calls] == ["weather", "time"]
    assert json.loads(calls[0].function.arguments) == {"city": 'Zürich "x" </tool_call>'}
    assert all(re.fullmatch("call_[a-zA-Z0-9]{24}", c.id) for c in calls)
    assert calls[0].id != calls[1].id


OUTPUTS = st.one_of(
    st.lists(st.sampled_from(["a", "Ü", "\n", "<", "<tool_", "}", '"', " 😀"])).map("".join),
    st.sampled_from([TWO_CALLS, f"Let me see.\n{TWO_CALLS}", call("time", '{"a": [1, {}]}')]),
)


@given(
    text=OUTPUTS,
    cut=st.none() | st.integers(0, 120),
    seed=st.integers(0, 999),
    stop_cut=st.booleans(),
    logprobs=st.booleans(),
    has_tools=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_stream_equals_whole_answer(
    text: str, cut: int | None, seed: int, stop_cut: bool, logprobs: bool, has_tools: bool
) -> None:
    """Any chunking of any output, finished or cut anywhere: both modes say the same."""
    text = text[:cut]
    pieces = chop(text, seed) or [""]
    finish: Any = "stop" if cut is None or stop_cut else "length"
    engine = says(*pieces, finish=finish, stop_cut=stop_cut)
    body = {"tools": TOOLS if has_tools else None, "logprobs": logprobs}

    service = ChatService(make_model(), make_backend(engine))

    async def both() -> tuple[dict[str, Any], dict[str, Any]]:
        fields = {"model": MODEL, "messages": USER, **body}
        request = parse_body(ChatRequest, json.dumps(fields).encode())
        whole = await service.complete(request, RequestRecord("a"))
        events = [event async for event in service.stream(request, RequestRecord("b"))]
        assert events.pop() == DONE
        streamed = assemble([json.loads(event.removeprefix(b"data: ")) for event in events])[0]
        return json.loads(whole.model_dump_json(exclude_unset=True)), streamed

    whole, streamed = asyncio.run(both())
    assert streamed == flatten(whole["choices"][0])
    if logprobs:
        assert len(streamed["logprobs"]) == whole["usage"]["completion_tokens"]
    assert streamed["finish"] == (
        "length" if finish == "length" else "tool_calls" if streamed["calls"] else "stop"
    )
    if not has_tools:
        assert streamed["content"] == text


async def test_length_inside_a_call_stays_length() -> None:
    pieces = (TWO_CALLS[:60],)
    async with serving(says(*pieces, finish="length")) as client:
        whole = (await client.chat(tools=TOOLS)).json()["choices"][0]
    assert whole["finish_reason"] == "length"
    arguments = whole["message"]["tool_calls"][0]["function"]["arguments"]
    assert arguments and TWO_CALLS.find(arguments) > 0


async def test_stream_events() -> None:
    async with serving(says("a", "b")) as client:
        plain = await stream(client)
        with_usage = await stream(client, stream_options={"include_usage": True})
    assert {event["object"] for event in plain} == {"chat.completion.chunk"}
    assert len({event["id"] for event in plain}) == len({event["created"] for event in plain}) == 1
    assert all("usage" not in event for event in plain)
    assert [i for i, event in enumerate(plain) if "specrt" in event] == [len(plain) - 1]
    assert plain[-1]["choices"][0]["finish_reason"] == "stop"
    last = with_usage[-1]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    assert last["specrt"]["passes"] == 1
    assert all("specrt" not in event for event in with_usage[:-1])


async def test_official_client_reads_the_stream() -> None:
    engine = says(*chop(TWO_CALLS, 5))
    async with (
        serving(engine) as client,
        client.openai.chat.completions.stream(
            model=MODEL,
            messages=USER,
            tools=TOOLS,
            stream_options={"include_usage": True},
        ) as events,
    ):
        answer = await events.get_final_completion()
    assert isinstance(answer, ChatCompletion) and answer.usage is not None
    calls = answer.choices[0].message.tool_calls
    assert calls is not None and calls[1].function.name == "time"
    assert calls[1].function.arguments == "{}"


async def test_choices_interleave_and_prompt_counts_once() -> None:
    def script(request: EngineRequest) -> Script:
        choice = request.sampling.choice_index
        return Script(list("abc") if choice else list("xyz"), cached=10 * choice)

    engine = FakeEngine(script)
    async with serving(engine) as client:
        whole = (await client.chat(n=2)).json()
        events = await stream(client, n=2, stream_options={"include_usage": True})
    assert [c["message"]["content"] for c in whole["choices"]] == ["xyz", "abc"]
    assert whole["usage"]["prompt_tokens"] == len(engine.requests[0].prompt_token_ids)
    assert whole["usage"]["completion_tokens"] == 8
    # What was in the cache before the request: what its least lucky choice found.
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert whole["specrt"]["cached_tokens"] == [0, 10]
    assert {i: c["content"] for i, c in assemble(events).items()} == {0: "xyz", 1: "abc"}
    order = [event["choices"][0]["index"] for event in events[:-1]]
    assert order != sorted(order), "choices come as they are made"


async def test_logprobs_shape() -> None:
    async with serving(says("é")) as client:
        body = (await client.chat(logprobs=True, top_logprobs=1)).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in entries] == [[0xC3], [0xA9], list(b"<|im_end|>")]
    assert entries[0]["token"] == "\ufffd" and entries[2]["token"] == "<|im_end|>"
    assert entries[0]["logprob"] == -0.5
    assert entries[0]["top_logprobs"] == [{"token": "A", "bytes": [65], "logprob": -2.0}]


async def test_finished_turn_is_spliced_into_the_next_prompt() -> None:
    engine = says(*chop(TWO_CALLS, 3))
    model = make_model()
    async with serving(engine, model) as client:
        reply = (await client.chat(tools=TOOLS)).json()["choices"][0]["message"]
        first = engine.requests[0].prompt_token_ids
        results = [
            {"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in reply["tool_calls"]
        ]
        messages = [{"role": "user", "content": "hi"}, reply, *results]
        response = await client.chat(messages=messages, tools=TOOLS)
    assert response.status_code == 200, response.text
    second = engine.requests[1].prompt_token_ids
    generated = [*first, *TWO_CALLS.encode(), EOS]
    assert second[: len(generated)] == generated
    prompt = model.prompts.build(messages, TOOLS)
    assert prompt.num_spliced_turns == 1


async def test_tool_choice_makes_the_recipe() -> None:
    engine = says(call("time", '{"city": "x"}'))
    named = {"type": "function", "function": {"name": "time"}}
    async with serving(engine) as client:
        for choice in ("auto", "required", named, "none"):
            response = await client.chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
            assert response.status_code == 200, response.text
            message = response.json()["choices"][0]["message"]
            assert ("tool_calls" in message) == (choice != "none")
    auto, required, one, none = (request.grammar for request in engine.requests)
    assert auto is not None and not auto.require_call and not auto.parallel
    assert required is not None and required.require_call and len(required.tools) == 2
    assert one is not None and [tool.name for tool in one.tools] == ["time"]
    assert none is None


async def test_response_format() -> None:
    engine = says('{"city": "Rome"}')
    form = {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA, "strict": True}}
    async with serving(engine) as client:
        body = (await client.chat(response_format=form)).json()
    recipe = engine.requests[0].grammar
    assert recipe is not None and recipe.kind == "json" and json.loads(recipe.schema) == SCHEMA
    assert body["choices"][0]["message"]["content"] == '{"city": "Rome"}'
    assert body["choices"][0]["finish_reason"] == "stop"


async def test_token_ids_when_asked_for() -> None:
    async with serving(says(TWO_CALLS)) as client:
        body = (await client.chat(tools=TOOLS, return_token_ids=True)).json()
        events = await stream(client, tools=TOOLS, return_token_ids=True)
        plain = (await client.chat(tools=TOOLS)).json()
    ids = [i for e in events for c in e["choices"] for i in c.get("token_ids", [])]
    assert ids == body["choices"][0]["token_ids"] and len(ids) == body["usage"]["completion_tokens"]
    assert events[0]["prompt_token_ids"] == body["prompt_token_ids"]
    assert len(body["prompt_token_ids"]) == body["usage"]["prompt_tokens"]
    assert "prompt_token_ids" not in plain and "token_ids" not in plain["choices"][0]


async def test_violations_are_named(caplog: pytest.LogCaptureFixture) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    bad = call("f", '{"a": [1, 1]}') + "\n" + call("f", '{"a": 5}')
    with caplog.at_level(logging.ERROR):
        async with serving(says(bad)) as client:
            body = (await client.chat(tools=tools)).json()
            events = await stream(client, tools=tools)
    report = body["specrt"]
    assert report["unenforced"] == [
        {"tool": "f", "pointer": "/properties/a/uniqueItems", "keyword": "uniqueItems"}
    ]
    found = [(v["tool"], v["index"], v["keyword"]) for v in report["violations"]]
    assert found == [("f", 0, "uniqueItems"), ("f", 1, "type")]
    assert events[-1]["specrt"]["violations"] == report["violations"]
    # Only the broken keyword that was said to be enforced is our bug.
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 2 and all("BUG" in e and " type at " in e for e in errors)


async def test_cut_calls_are_not_validated(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        async with serving(says(TWO_CALLS[:60], finish="length")) as client:
            body = (await client.chat(tools=TOOLS)).json()
    assert body["specrt"]["violations"] == [] and not caplog.records


async def test_schema_error_before_any_token() -> None:
    engine = says("x")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]
    async with serving(engine) as client:
        for is_stream in (False, True):
            response = await client.chat(tools=tools, stream=is_stream)
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "invalid_schema"
    assert engine.requests == []


async def test_engine_refuses_the_request() -> None:
    """Too long for the pool, say: a 400 in both modes, and the other choices are aborted."""
    blocker = asyncio.Event()

    def script(request: EngineRequest) -> Script:
        if request.sampling.choice_index:
            return Script([ContextLengthError("the cache holds 100 tokens, the prompt has 200")])
        return Script([blocker, "x"])

    engine = FakeEngine(script)
    async with serving(engine) as client:
        for is_stream in (False, True):
            response = await client.chat(n=2, stream=is_stream)
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "context_length_exceeded"
    assert engine.aborted == [r.request_id for r in engine.requests if r.request_id.endswith("-0")]


async def test_engine_dies_in_mid_stream() -> None:
    async with serving(says("a", EngineError("the engine died"))) as client:
        response = await client.chat(stream=True)
        assert response.status_code == 200
        events = [line for line in response.text.splitlines() if line]
        assert json.loads(events[0][6:])["choices"][0]["delta"]["content"] == "a"
        error = json.loads(events[-1][6:])["error"]
        assert error["type"] == "server_error" and "died" in error["message"]
        assert "[DONE]" not in response.text
        whole = await client.chat()
        assert whole.status_code == 500 and whole.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("num_pieces", [0, 1])
async def test_client_gone_aborts(
    n: int, is_stream: bool, num_pieces: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the first token and after it, in both modes."""
    engine = says(*["a"] * num_pieces, asyncio.Event(), "b")
    async with serving(engine) as client:
        request = asyncio.create_task(client.chat(n=n, stream=is_stream))
        await asyncio.wait_for(engine.waiting.wait(), 5)
        while len(engine.requests) < n:
            await asyncio.sleep(0.01)
        assert engine.aborted == []
        request.cancel()
        with anyio.fail_after(2):
            while len(engine.aborted) < n:
                await asyncio.sleep(0.005)
        metrics = (await client.http.get("/metrics")).text
        assert 'specrt_requests_total{route="/v1/chat/completions",status="499"} 1.0' in metrics
        engine.script = lambda request: Script(["fine"])
        assert (await client.chat()).json()["choices"][0]["message"]["content"] == "fine"
    assert sorted(engine.aborted) == sorted(r.request_id for r in engine.requests[:n])
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


async def test_a_request_carries_a_digest_of_its_key() -> None:
    engine = says("x")
    body = {"model": MODEL, "messages": USER}
    async with serving(engine) as client:
        for headers in ({}, {"x-api-key": "a"}, {"Authorization": "Bearer a"}, {"x-api-key": "b"}):
            await client.http.post("/v1/chat/completions", json=body, headers=headers)
    none, first, same, other = (request.tenant for request in engine.requests)
    assert none == "" and first == same != other
    assert len(first) == 64
