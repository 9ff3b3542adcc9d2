"""/v1/responses through a real socket and the official client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
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

from specrt.errors import EngineError, OverloadedError
from specrt.server.access import RequestRecord
from specrt.server.body import parse_body
from specrt.server.chat import ChatService
from specrt.server.responses.request import ResponsesRequest
from specrt.server.responses.service import ResponseService
from specrt.server.responses.store import ResponseStore

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [
    {"type": "function", "name": name, "parameters": SCHEMA, "strict": None}
    for name in ("weather", "time")
]
ARGUMENTS = '{"city": "Zürich \\"x\\" </tool_call>"}'


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


SERVED = make_model()
TWO_CALLS = "I look.\n" + call("weather", ARGUMENTS) + "\n" + call("time", '{"city": ""}')


async def create(client: Client, **body: Any) -> Any:
    """POST /v1/responses; returns the httpx response."""
    body = {"model": MODEL, "input": "hi", **body}
    return await client.http.post("/v1/responses", content=json.dumps(body))


def read_events(text: str) -> list[dict[str, Any]]:
    """Events of a stream; checks what holds for every stream."""
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    return events


async def stream(client: Client, **body: Any) -> list[dict[str, Any]]:
    response = await create(client, stream=True, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return read_events(response.text)


def assemble(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that a client makes of the deltas, which must be what the `done` events say."""
    output: list[dict[str, Any]] = []
    for event in events[2:-1]:
        kind, index = event["type"], event["output_index"]
        if kind == "response.output_item.added":
            assert index == len(output) and event["item"]["status"] == "in_progress"
            output.append(event["item"])
            continue
        assert index == len(output) - 1, "items do not overlap"
        item = output[index]
        assert event.get("item_id", item["id"]) == item["id"]
        if kind == "response.content_part.added":
            assert event["content_index"] == len(item["content"]) == 0
            item["content"].append(event["part"])
        elif kind == "response.output_text.delta":
            assert event["delta"]
            item["content"][0]["text"] += event["delta"]
        elif kind == "response.output_text.done":
            assert event["text"] == item["content"][0]["text"]
        elif kind == "response.content_part.done":
            assert event["part"]["text"] == item["content"][0]["text"]
        elif kind == "response.function_call_arguments.delta":
            assert event["delta"]
            item["arguments"] += event["delta"]
        elif kind == "response.function_call_arguments.done":
            assert event["arguments"] == item["arguments"]
        else:
            assert kind == "response.output_item.done"
            item["status"] = event["item"]["status"]
            assert event["item"]["status"] != "in_progress"
    return output


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]


async def test_text() -> None:
    async with serving(says("Hel", "lo")) as client:
        response = await client.openai.responses.create(model=MODEL, input="hi")
    assert response.output_text == "Hello" and response.status == "completed"
    assert response.id.startswith("resp_") and response.output[0].id.startswith("msg_")
    assert response.error is None and response.incomplete_details is None
    assert response.completed_at is not None and response.completed_at >= response.created_at
    usage = response.usage
    assert usage is not None and usage.input_tokens_details.cached_tokens == 3
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens == len("Hello") + 1
    assert response.model_extra is not None
    assert response.model_extra["specrt"]["cached_tokens"] == [3]


async def test_calls() -> None:
    async with serving(says(*chop(TWO_CALLS, 1))) as client:
        response = await client.openai.responses.create(model=MODEL, input="hi", tools=TOOLS)
    message, first, second = response.output
    assert message.type == "message" and response.output_text == "I look."
    assert first.type == second.type == "function_call"
    assert (first.name, first.arguments) == ("weather", ARGUMENTS)
    assert (second.name, second.arguments) == ("time", '{"city": ""}')
    assert first.call_id.startswith("call_") and first.call_id != second.call_id
    assert response.status == first.status == second.status == "completed"


async def test_the_order_of_events() -> None:
    async with serving(says("I lo", "ok.\n", call("weather", "{}"), "\n", call("time", "{}"))) as c:
        events = await stream(c, tools=TOOLS)
    text, arguments = "response.output_text", "response.function_call_arguments"
    part, item = "response.content_part", "response.output_item"
    one_call = [f"{item}.added", f"{arguments}.delta", f"{arguments}.done", f"{item}.done"]
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        f"{item}.added",
        f"{part}.added",
        f"{text}.delta",
        f"{text}.delta",
        f"{text}.done",
        f"{part}.done",
        f"{item}.done",
        *one_call,
        *one_call,
        "response.completed",
    ]
    begun, ended = events[0]["response"], events[-1]["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert ended["usage"]["input_tokens_details"]["cached_tokens"] == 3
    changed = {"status", "output", "usage", "completed_at", "specrt"}
    assert {k: v for k, v in begun.items() if k not in changed} == {
        k: v for k, v in ended.items() if k not in changed
    }


TEXTS = ["", "plain é 😀", TWO_CALLS, call("time", "{}") + "\nand more", "<tool_cal", "a\n<tool_"]


@settings(max_examples=150, deadline=None)
@given(
    text=st.sampled_from(TEXTS),
    seeds=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    cut=st.none() | st.integers(1, 100),
    with_tools=st.booleans(),
)
def test_stream_and_whole_agree_however_the_text_is_cut(
    text: str, seeds: tuple[int, int], cut: int | None, with_tools: bool
) -> None:
    finish: Any = "stop" if cut is None else "length"
    fields = {"model": MODEL, "input": "hi", **({"tools": TOOLS} if with_tools else {})}
    body = parse_body(ResponsesRequest, json.dumps(fields).encode())

    def service(seed: int) -> ResponseService:
        engine = says(*(chop(text[:cut], seed) or [""]), finish=finish)
        chat = ChatService(SERVED, make_backend(engine))
        return ResponseService(chat, MODEL, ResponseStore())

    async def check() -> None:
        response = await service(seeds[0]).complete(body, RequestRecord("r"))
        whole = json.loads(response.model_dump_json(exclude_unset=True))
        sent = [event async for event in service(seeds[1]).stream(body, RequestRecord("r"))]
        events = read_events(b"".join(sent).decode())
        output = assemble(events)
        assert output == events[-1]["response"]["output"]
        assert without_ids(output) == without_ids(whole["output"])
        expected = "completed" if cut is None else "incomplete"
        assert whole["status"] == expected and events[-1]["type"] == f"response.{expected}"
        assert all(item["status"] == "completed" for item in output[:-1])
        reason = {"reason": "max_output_tokens"} if cut is not None else None
        assert whole["incomplete_details"] == reason

    asyncio.run(check())


async def test_the_helper_accumulates_and_parses() -> None:
    class Weather(BaseModel):
        """Tell the weather."""

        city: str

    engine = says(*chop(call("Weather", '{"city": "Rom"}'), 4))
    tool = openai.pydantic_function_tool(Weather)
    async with (
        serving(engine) as client,
        client.openai.responses.stream(model=MODEL, input="hi", tools=[tool]) as events,
    ):
        kinds = [event.type async for event in events]
        final = await events.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    (made,) = final.output
    assert made.type == "function_call" and made.parsed_arguments == Weather(city="Rom")
    assert engine.requests[0].grammar is not None and engine.requests[0].grammar.tools[0].strict


async def test_parse_with_pydantic_in_both_clients() -> None:
    class Place(BaseModel):
        city: str
        size: int

    engine = says('{"city": "Rom", ', '"size": 3}')
    async with serving(engine) as client:
        parsed = await client.openai.responses.parse(model=MODEL, input="hi", text_format=Place)

        def ask() -> Any:
            url = f"{client.url}/v1"
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as sync:
                with sync.responses.stream(model=MODEL, input="hi", text_format=Place) as events:
                    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
                    final = events.get_final_response()
                return (
                    deltas,
                    final,
                    sync.responses.parse(model=MODEL, input="hi", text_format=Place),
                )

        deltas, final, again = await asyncio.to_thread(ask)
    expected = Place(city="Rom", size=3)
    assert parsed.output_parsed == final.output_parsed == again.output_parsed == expected
    assert "".join(deltas) == final.output_text
    grammar = engine.requests[0].grammar
    assert grammar is not None and grammar.kind == "json" and grammar.strict
    assert json.loads(grammar.schema)["required"] == ["city", "size"]


async def test_logprobs_are_those_of_the_text() -> None:
    engine = says(*chop("é" + TWO_CALLS, 2))
    include = ["message.output_text.logprobs"]
    async with serving(engine) as client:
        events = await stream(client, tools=TOOLS, include=include, top_logprobs=2)
        without = await stream(client, tools=TOOLS)
    whole = events[-1]["response"]["output"][0]["content"][0]
    assert b"".join(bytes(token["bytes"]) for token in whole["logprobs"]).decode() == whole["text"]
    assert [len(token["top_logprobs"]) for token in whole["logprobs"]] == [2] * len(
        whole["text"].encode()
    )
    deltas = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
    (done,) = [e["logprobs"] for e in events if e["type"] == "response.output_text.done"]
    assert [token for delta in deltas for token in delta] == done
    assert [(t["token"], t["logprob"]) for t in done] == [
        (t["token"], t["logprob"]) for t in whole["logprobs"]
    ]
    assert "logprobs" not in without[-1]["response"]["output"][0]["content"][0]
    assert (
        engine.requests[0].sampling.logprobs == 2 and engine.requests[1].sampling.logprobs is None
    )


async def test_sampling_fields_reach_the_engine() -> None:
    engine = says("x")
    async with serving(engine) as client:
        response = await create(
            client,
            max_output_tokens=7,
            temperature=0.5,
            top_p=0.9,
            seed=3,
            top_k=5,
            stop=["END"],
            cache_salt="me",
        )
    assert response.status_code == 200, response.text
    sampling = engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0.5, 0.9)
    assert (sampling.seed, sampling.top_k, sampling.stop) == (3, 5, ("END",))
    assert engine.requests[0].namespace == "me"
    assert response.json()["max_output_tokens"] == 7


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"), [(EngineError("it broke"), 500), (OverloadedError("full"), 429)]
)
async def test_an_error_before_the_first_output_has_its_status(
    is_stream: bool, error: Exception, status: int
) -> None:
    async with serving(says(error)) as client:
        response = await create(client, stream=is_stream)
    assert response.status_code == status
    assert response.json()["error"]["message"] == str(error)


async def test_an_error_in_mid_stream_fails_the_response() -> None:
    engine = says("Hel", EngineError("it broke"))
    async with serving(engine) as client:
        events = await stream(client)
        whole = await create(client)
        gone = await client.http.get(f"/v1/responses/{events[0]['response']['id']}")
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    failed = events[-1]["response"]
    assert failed["status"] == "failed" and failed["error"]["code"] == "server_error"
    assert events[-2]["message"] == failed["error"]["message"] == "it broke"
    (item,) = failed["output"]
    assert item["status"] == "incomplete" and item["content"][0]["text"] == "Hel"
    assert events[-3]["type"] == "response.output_item.done"
    assert whole.status_code == 500 and gone.status_code == 404


async def test_a_late_error_without_output_is_an_event() -> None:
    go_on = asyncio.Event()
    async with serving(says(go_on, EngineError("it broke"))) as client:
        body = {"model": MODEL, "input": "hi", "stream": True}
        async with client.http.stream("POST", "/v1/responses", json=body) as response:
            blocks = response.aiter_text()
            text = await anext(blocks)
            assert response.status_code == 200 and "response.created" in text
            go_on.set()
            text += "".join([block async for block in blocks])
    assert read_events(text)[-1]["response"]["error"]["message"] == "it broke"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_leaves_ends_the_response(is_stream: bool) -> None:
    engine = says("Hel", asyncio.Event(), "lo")
    async with serving(engine) as client:
        request = asyncio.create_task(create(client, stream=is_stream))
        await engine.waiting.wait()
        request.cancel()
        while not engine.aborted:
            await asyncio.sleep(0.005)
        response_id = engine.requests[0].request_id.removesuffix("-0")
        while (await client.http.get(f"/v1/responses/{response_id}")).status_code != 404:
            await asyncio.sleep(0.005)


async def test_allowed_tools_bind_the_grammar_and_not_the_prompt() -> None:
    engine = says(call("time", "{}"))
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "time"}],
    }
    async with serving(engine) as client:
        assert (await create(client, tools=TOOLS)).status_code == 200
        response = await create(client, tools=TOOLS, tool_choice=choice)
    everything, allowed = engine.requests
    assert response.json()["tool_choice"] == choice
    assert everything.prompt_token_ids == allowed.prompt_token_ids
    assert everything.grammar is not None and allowed.grammar is not None
    assert [tool.name for tool in everything.grammar.tools] == ["weather", "time"]
    assert [tool.name for tool in allowed.grammar.tools] == ["time"]
    assert allowed.grammar.require_call and not everything.grammar.require_call


@pytest.mark.parametrize(
    ("choice", "names", "is_required", "is_parallel"),
    [
        ("required", ["weather", "time"], True, True),
        ("auto", ["weather", "time"], False, True),
        ({"type": "function", "name": "time"}, ["time"], True, False),
    ],
)
async def test_tool_choice(
    choice: Any, names: list[str], is_required: bool, is_parallel: bool
) -> None:
    engine = says(call("time", "{}"))
    async with serving(engine) as client:
        response = await create(client, tools=TOOLS, tool_choice=choice)
        single = await create(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
        none = await create(client, tools=TOOLS, tool_choice="none")
    grammar, alone, free = (request.grammar for request in engine.requests)
    assert grammar is not None and alone is not None and free is None
    assert [tool.name for tool in grammar.tools] == names
    assert (grammar.require_call, grammar.parallel) == (is_required, is_parallel)
    assert not alone.parallel and single.json()["parallel_tool_calls"] is False
    assert response.json()["tool_choice"] == choice and none.json()["tool_choice"] == "none"


async def test_functions_of_a_namespace() -> None:
    inner = {"type": "function", "name": "find", "parameters": SCHEMA, "strict": False}
    space = {"type": "namespace", "name": "mcp__db__", "description": "d", "tools": [inner]}
    engine = says(call("mcp__db__find", "{}"))
    async with serving(engine) as client:
        response = (await create(client, tools=[space, TOOLS[0]])).json()
        choice = {"type": "function", "name": "find"}
        history = [{"role": "user", "content": "hi"}, *response["output"]]
        await create(client, tools=[space], tool_choice=choice, input=history)
    (made,) = response["output"]
    assert (made["namespace"], made["name"]) == ("mcp__db__", "find")
    assert response["tools"][0] == space
    grammar = engine.requests[1].grammar
    assert grammar is not None and [tool.name for tool in grammar.tools] == ["mcp__db__find"]
    prompt = bytes(i for i in engine.requests[1].prompt_token_ids if i < 256).decode()
    assert '{"name": "mcp__db__find", "arguments": {}}' in prompt


async def test_auto_truncation_drops_the_oldest_turns_that_do_not_fit() -> None:
    engine = says("x")
    items: list[Any] = [{"role": "developer", "content": "keep me"}]
    for turn in range(6):
        items.append({"role": "user", "content": f"turn {turn} " + "u" * 900})
        made = {"type": "function_call", "call_id": f"c{turn}", "name": "f", "arguments": "{}"}
        items += [made, {"type": "function_call_output", "call_id": f"c{turn}", "output": "ok"}]
    items.append({"role": "user", "content": "the end"})
    async with serving(engine) as client:
        refused = await create(client, input=items)
        response = await create(client, input=items, truncation="auto", max_output_tokens=100)
        hopeless = await create(client, input="x" * 5000, truncation="auto")
    assert refused.status_code == hopeless.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert refused.json()["error"]["param"] == "input"
    assert response.status_code == 200 and response.json()["truncation"] == "auto"
    (request,) = engine.requests
    assert request.request_id == response.json()["id"] + "-0"
    prompt = bytes(i for i in request.prompt_token_ids if i < 256).decode()
    assert "keep me" in prompt and "the end" in prompt and "turn 5" in prompt
    assert "turn 0" not in prompt and len(request.prompt_token_ids) + 100 <= 4096
    assert prompt.count("turn") >= 3, "no more than needed is dropped"


async def test_an_output_that_ends_with_nothing_is_an_empty_message() -> None:
    async with serving(FakeEngine(lambda request: Script([""]))) as client:
        response = (await create(client)).json()
    (item,) = response["output"]
    assert item["type"] == "message" and item["content"][0]["text"] == ""
    assert response["usage"]["output_tokens"] == 1 and EOS > 255


async def test_the_report_tells_what_was_not_enforced_and_what_is_broken() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tool = {"type": "function", "name": "f", "parameters": schema}
    async with serving(says(call("f", '{"a": [1, 1]}'))) as client:
        whole = (await create(client, tools=[tool])).json()["specrt"]
        streamed = (await stream(client, tools=[tool]))[-1]["response"]["specrt"]
    assert whole["unenforced"][0]["keyword"] == "uniqueItems"
    (violation,) = whole["violations"]
    assert (violation["tool"], violation["keyword"]) == ("f", "uniqueItems")
    assert streamed["violations"] == whole["violations"]
