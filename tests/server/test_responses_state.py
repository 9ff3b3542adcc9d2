"""/v1/responses over several turns: prompts equal to chat's, storage, references, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from server.fake_engine import MODEL, FakeEngine, Script, chop, says, serving
from server.test_responses import ARGUMENTS, SCHEMA, TOOLS, TWO_CALLS, call, create, read_events

from specrt.request import EngineRequest
from specrt.server.protocol import Report
from specrt.server.responses.items import output_message
from specrt.server.responses.store import ResponseStore, StoredResponse

pytestmark = pytest.mark.anyio

CHAT_TOOLS = [
    {"type": "function", "function": {"name": tool["name"], "parameters": SCHEMA}} for tool in TOOLS
]
CHAT: list[Any] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "weather?"},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {
                "id": "a",
                "type": "function",
                "function": {"name": "weather", "arguments": ARGUMENTS},
            },
            {"id": "b", "type": "function", "function": {"name": "time", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "rain\n☂"},
    {"role": "tool", "tool_call_id": "b", "content": "noon"},
    {"role": "assistant", "content": "It rains."},
    {"role": "user", "content": "and now?"},
]
ITEMS: list[Any] = [
    {"role": "user", "content": "weather?"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    },
    {"type": "function_call", "call_id": "a", "name": "weather", "arguments": ARGUMENTS},
    {"type": "function_call", "id": "fc_2", "call_id": "b", "name": "time", "arguments": "{}"},
    {
        "type": "function_call_output",
        "call_id": "a",
        "output": [{"type": "input_text", "text": "rain\n"}, {"type": "input_text", "text": "☂"}],
    },
    {"type": "function_call_output", "call_id": "b", "output": "noon"},
    {"role": "assistant", "content": "It rains."},
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "and "}, {"type": "input_text", "text": "now?"}],
    },
]


async def test_the_prompt_is_that_of_the_same_chat() -> None:
    engine = says("x")
    async with serving(engine) as client:
        answers = [
            await client.chat(messages=CHAT, tools=CHAT_TOOLS),
            await create(client, input=ITEMS, instructions="be brief", tools=TOOLS),
            await create(
                client, input=[{"role": "system", "content": "be brief"}, *ITEMS], tools=TOOLS
            ),
            await client.chat(messages=CHAT[1:]),
            await create(client, input=ITEMS),
            await client.chat(messages=[{"role": "user", "content": "hi"}]),
            await create(client, input="hi"),
        ]
    assert [answer.status_code for answer in answers] == [200] * 7
    prompts = [request.prompt_token_ids for request in engine.requests]
    assert prompts[0] == prompts[1] == prompts[2]
    assert prompts[3] == prompts[4] and prompts[5] == prompts[6]


async def test_calls_and_outputs_that_alternate_are_turns_of_their_own() -> None:
    engine = says("x")
    made = [call_item for call_item in ITEMS if call_item.get("type") == "function_call"]
    outputs = [item for item in ITEMS if item.get("type") == "function_call_output"]
    user = {"role": "user", "content": "go"}
    late = [user, *made, {"role": "user", "content": "stop"}, *outputs]
    chat_calls = CHAT[2]["tool_calls"]
    async with serving(engine) as client:
        await create(client, input=[user, made[0], outputs[0], made[1], outputs[1]])
        await client.chat(
            messages=[
                user,
                {"role": "assistant", "content": None, "tool_calls": chat_calls[:1]},
                CHAT[3],
                {"role": "assistant", "content": None, "tool_calls": chat_calls[1:]},
                CHAT[4],
            ]
        )
        # An output that comes late belongs behind its call all the same.
        answer = await create(client, input=late)
        await client.chat(
            messages=[
                user,
                {"role": "assistant", "content": None, "tool_calls": chat_calls},
                *CHAT[3:5],
                {"role": "user", "content": "stop"},
            ]
        )
    assert answer.status_code == 200, answer.text
    first, second, third, fourth = (request.prompt_token_ids for request in engine.requests)
    assert first == second and third == fourth


def scripted(request: EngineRequest) -> Script:
    prompt = bytes(i for i in request.prompt_token_ids if i < 256).decode()
    return Script(chop(TWO_CALLS, 5) if "rain" not in prompt else ["It ", "rains."])


async def test_previous_response_id_continues_from_the_generated_tokens() -> None:
    engine = FakeEngine(scripted)
    async with serving(engine) as client:
        responses = client.openai.responses
        first = await responses.create(
            model=MODEL, input="weather?", tools=TOOLS, instructions="be brief"
        )
        calls = [item for item in first.output if item.type == "function_call"]
        outputs: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
            for item in calls
        ]
        second = await responses.create(
            model=MODEL,
            input=outputs,
            tools=TOOLS,
            instructions="be brief",
            previous_response_id=first.id,
        )
        third = await responses.create(
            model=MODEL,
            input="and now?",
            tools=TOOLS,
            instructions="be brief",
            previous_response_id=second.id,
        )
        resent: Any = [
            {"role": "user", "content": "weather?"},
            *[item.model_dump(exclude_unset=True) for item in first.output],
            *outputs,
            *[item.model_dump(exclude_unset=True) for item in second.output],
            {"role": "user", "content": "and now?"},
        ]
        await responses.create(model=MODEL, input=resent, tools=TOOLS, instructions="be brief")
        other = await responses.create(model=MODEL, input="x", previous_response_id=third.id)
    prompts = [request.prompt_token_ids for request in engine.requests]
    for before, after in ((0, 1), (1, 2)):
        text = (TWO_CALLS, "It rains.")[before]
        generated = [*prompts[before], *text.encode()]
        assert prompts[after][: len(generated)] == generated, "the prefix hits"
    assert prompts[2] == prompts[3]
    assert b"be brief" not in bytes(i for i in prompts[4] if i < 256), (
        "instructions do not carry on"
    )
    assert second.previous_response_id == first.id and other.instructions is None


async def test_stored_responses_are_found_and_deleted() -> None:
    async with serving(says("Hello")) as client:
        responses = client.openai.responses
        made = await responses.create(model=MODEL, input="hi", metadata={"a": "b"})
        streamed = read_events((await create(client, stream=True)).text)[-1]["response"]
        hidden = await responses.create(model=MODEL, input="hi", store=False)
        found = await responses.retrieve(made.id, include=["message.output_text.logprobs"])
        assert found == made and found.metadata == {"a": "b"}
        again = await client.http.get(f"/v1/responses/{streamed['id']}")
        assert again.json() == streamed
        await responses.delete(made.id)
        for response_id in (made.id, hidden.id, "resp_none"):
            for attempt in (responses.retrieve, responses.delete, responses.cancel):
                with pytest.raises(openai.NotFoundError) as caught:
                    await attempt(response_id)
                assert caught.value.code == "response_not_found"
            with pytest.raises(openai.NotFoundError):
                await responses.input_items.list(response_id)
            with pytest.raises(openai.BadRequestError) as refused:
                await responses.create(model=MODEL, input="x", previous_response_id=response_id)
            assert refused.value.param == "previous_response_id"
            assert refused.value.code == "previous_response_not_found"


async def test_input_items_are_listed_in_pages() -> None:
    async with serving(FakeEngine(scripted)) as client:
        responses = client.openai.responses
        first = await responses.create(model=MODEL, input="weather?", tools=TOOLS)
        second = await responses.create(
            model=MODEL,
            input=[
                {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "1"},
                {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "2"},
                {"role": "user", "content": "so?"},
            ],
            previous_response_id=first.id,
        )
        everything = [item async for item in responses.input_items.list(second.id, order="asc")]
        paged = [item async for item in responses.input_items.list(second.id, limit=2)]
        page = await responses.input_items.list(second.id, limit=3, order="asc")
    kinds = ["message", "message", *["function_call"] * 2, *["function_call_output"] * 2, "message"]
    assert [item.type for item in everything] == kinds
    assert [item.id for item in everything][1:4] == [item.id for item in first.output]
    assert everything[::-1] == paged and page.data == everything[:3] and page.has_more
    assert len({item.id for item in everything}) == 7


async def test_items_can_be_referred_to() -> None:
    engine = FakeEngine(scripted)
    async with serving(engine) as client:
        first = (await create(client, tools=TOOLS)).json()
        outputs = [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
            for item in first["output"][1:]
        ]
        user = {"role": "user", "content": "hi"}
        by_id = [user, *({"type": "item_reference", "id": i["id"]} for i in first["output"])]
        bare = [user, *({"id": item["id"]} for item in first["output"])]
        for items in (by_id, bare, [user, *first["output"]]):
            answer = await create(client, input=[*items, *outputs], tools=TOOLS)
            assert answer.status_code == 200, answer.text
        unknown = await create(client, input=[{"type": "item_reference", "id": "msg_none"}])
    prompts = [request.prompt_token_ids for request in engine.requests[1:]]
    assert prompts[0] == prompts[1] == prompts[2]
    assert unknown.status_code == 400 and unknown.json()["error"]["param"] == "input[0].id"


async def test_cancelling_a_running_response_ends_it() -> None:
    engine = says("Hel", asyncio.Event(), "lo")
    async with serving(engine) as client:
        request = asyncio.create_task(create(client, stream=True))
        await engine.waiting.wait()
        response_id = engine.requests[0].request_id.removesuffix("-0")
        running = await client.openai.responses.retrieve(response_id)
        early = await create(client, previous_response_id=response_id)
        cancelled = await client.openai.responses.cancel(response_id)
        assert engine.aborted == [engine.requests[0].request_id]
        events = read_events((await request).text)
        later = await client.openai.responses.retrieve(response_id)
        again = await client.openai.responses.cancel(response_id)
    assert running.status == "in_progress" and early.status_code == 400
    assert "still running" in early.json()["error"]["message"]
    assert cancelled.status == later.status == again.status == "cancelled"
    assert cancelled.output_text == "Hel" and cancelled.output[0].status == "incomplete"
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"] == cancelled.model_dump(mode="json", exclude_unset=True)


async def test_a_cancelled_request_without_a_stream_gets_what_there_is() -> None:
    engine = says("Hel", asyncio.Event(), "lo")
    async with serving(engine) as client:
        request = asyncio.create_task(create(client, store=False))
        await engine.waiting.wait()
        response_id = engine.requests[0].request_id.removesuffix("-0")
        hidden = await client.http.get(f"/v1/responses/{response_id}")
        await client.openai.responses.cancel(response_id)
        response = (await request).json()
    assert hidden.status_code == 404 and response["status"] == "cancelled"
    assert response["output"][0]["content"][0]["text"] == "Hel"


async def test_deleting_a_running_response_ends_it_and_an_ended_one_cannot_be_cancelled() -> None:
    engine = says("Hel", asyncio.Event(), "lo")
    async with serving(engine) as client:
        request = asyncio.create_task(create(client, stream=True))
        await engine.waiting.wait()
        response_id = engine.requests[0].request_id.removesuffix("-0")
        deleted = await client.http.delete(f"/v1/responses/{response_id}")
        assert deleted.json() == {"id": response_id, "object": "response", "deleted": True}
        assert engine.aborted and (await request).status_code == 200
        assert (await client.http.get(f"/v1/responses/{response_id}")).status_code == 404
    async with serving(says("x")) as client:
        made = (await create(client)).json()
        with pytest.raises(openai.BadRequestError) as caught:
            await client.openai.responses.cancel(made["id"])
    assert "completed" in caught.value.message


async def test_a_cut_call_cannot_be_continued_and_the_error_says_where() -> None:
    async with serving(says(call("time", '{"city": "R')[:60], finish="length")) as client:
        made = (await create(client, tools=TOOLS)).json()
        (cut,) = made["output"]
        output = {"type": "function_call_output", "call_id": cut["call_id"], "output": "?"}
        after = await create(client, previous_response_id=made["id"], input=[output])
        resent = await create(client, input=["x", cut, output][1:])
    assert made["status"] == cut["status"] == "incomplete"
    assert [answer.status_code for answer in (after, resent)] == [400, 400]
    assert after.json()["error"]["param"] == "previous_response_id.arguments"
    assert resent.json()["error"]["param"] == "input[0].arguments"
    assert "cut by max_output_tokens" in resent.json()["error"]["message"]


def stored(name: str, previous: str | None = None, size: int = 0) -> StoredResponse:
    report = Report(
        acceptance_length=0.0,
        passes=0,
        drafted={},
        accepted={},
        invalid_drafts=0,
        tokens_of_passes={},
        draft_ms=0.0,
        verify_ms=0.0,
        accept_ms=0.0,
        cached_tokens=[],
        unenforced=[],
        violations=[],
    )
    response = Response.construct(
        None, id=name, previous_response_id=previous, output=[], specrt=report
    )
    return StoredResponse(response, (output_message(f"msg_{name}", "x" * size),), ())


def test_the_store_keeps_what_was_used_last() -> None:
    store = ResponseStore(max_responses=3, max_bytes=10**6)
    for name in ("a", "b", "c"):
        store.add(stored(name))
    assert store.get("a") is not None
    store.add(stored("d"))
    assert [store.get(name) is not None for name in "abcd"] == [True, False, True, True]
    assert store.find_item("msg_b") is None and store.find_item("msg_c") is not None


def test_the_store_never_loses_the_beginning_of_a_conversation_alone() -> None:
    store = ResponseStore(max_responses=3, max_bytes=10**6)
    store.add(stored("root"))
    store.add(stored("x"))
    store.add(stored("next", "root"))
    store.add(stored("y"))
    assert store.get("x") is None and [*store.chain("next")] == [
        store.get("next"),
        store.get("root"),
    ]
    store.add(stored("z"))
    assert store.get("y") is None or store.get("next") is None
    assert store.get("root") is not None


def test_the_store_is_bounded_in_bytes() -> None:
    store = ResponseStore(max_responses=1000, max_bytes=100_000)
    for index in range(100):
        store.add(stored(str(index), size=5_000))
        assert store.num_bytes <= 100_000
    assert 10 <= len(store) <= 20 and store.get("99") is not None and store.get("50") is None
    store.add(stored("huge", size=200_000))
    assert store.get("huge") is None
    for index in range(100):
        store.remove(str(index))
    assert (len(store), store.num_bytes) == (0, 0)
