"""The bounded queue, the request timeout, and draining; with a scripted engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server.fake_engine import MODEL, Client, FakeEngine, Script, says, serving

from specrt.config import EngineConfig, SchedulerConfig, ServerConfig

pytestmark = pytest.mark.anyio

LIMITS: dict[str, Any] = {
    "config": ServerConfig(max_queued_requests=2),
    "engine_config": EngineConfig(scheduler=SchedulerConfig(max_running_requests=2)),
}


async def started(engine: FakeEngine, count: int) -> None:
    while len(engine.requests) < count:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_refuses_the_next_and_harms_no_other(stream: bool) -> None:
    go_on = asyncio.Event()
    engine = says("a", go_on, "b")
    async with serving(engine, **LIMITS) as client:
        three = asyncio.create_task(client.chat(n=3, stream=stream))
        await started(engine, 3)
        refused = await client.chat(n=2, stream=stream)
        fourth = asyncio.create_task(client.complete(stream=stream))
        await started(engine, 4)
        also = await client.complete(stream=stream)
        go_on.set()
        assert (await three).status_code == (await fourth).status_code == 200
        after = await client.chat(n=4)
    for answer in (refused, also):
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
    assert (
        "3 generations are running or waiting, and 2 more would exceed the limit of 4"
        in (refused.json()["error"]["message"])
    )
    assert after.status_code == 200 and len(after.json()["choices"]) == 4
    assert len(engine.requests) == 8 and not engine.aborted


async def test_a_request_larger_than_the_queue_runs_alone() -> None:
    async with serving(says("a"), **LIMITS) as client:
        assert (await client.chat(n=5)).status_code == 200


async def test_a_client_that_leaves_gives_its_place_back() -> None:
    engine = says("a", asyncio.Event(), "b")
    async with serving(engine, **LIMITS) as client:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.chat(n=4), 0.2)
        while len(engine.aborted) < 4:
            await asyncio.sleep(0.005)
        engine.script = lambda request: Script(["a"])
        assert (await client.chat(n=4)).status_code == 200


TIMEOUT = ServerConfig(request_timeout=0.1)


async def _call(client: Client, route: str, **body: Any) -> Any:
    return await (client.chat(**body) if route == "chat" else client.complete(**body))


@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_a_request_that_takes_too_long_is_aborted(route: str) -> None:
    engine = says("a", asyncio.Event(), "b")
    async with serving(engine, config=TIMEOUT) as client:
        answer = await _call(client, route, n=2)
    assert answer.status_code == 504
    error = answer.json()["error"]
    assert error["code"] == "request_timeout" and "0.1 s (--request-timeout)" in error["message"]
    assert len(engine.aborted) == 2


@pytest.mark.parametrize("route", ["chat", "complete"])
async def test_a_stream_that_takes_too_long_ends_with_an_error_event(route: str) -> None:
    engine = says("a", asyncio.Event(), "b")
    async with serving(engine, config=TIMEOUT) as client:
        answer = await _call(client, route, stream=True)
    assert answer.status_code == 200
    events = answer.text.strip().split("\n\n")
    assert '"request_timeout"' in events[-1] and "[DONE]" not in answer.text
    assert len(engine.aborted) == 1


async def test_a_timeout_before_the_first_token_has_a_status() -> None:
    async with serving(says(asyncio.Event(), "b"), config=TIMEOUT) as client:
        assert (await client.chat(stream=True)).status_code == 504


async def test_draining_refuses_what_is_new_and_waits_for_the_rest() -> None:
    go_on = asyncio.Event()
    engine = says("a", go_on, "b")
    async with serving(engine) as client:
        running = asyncio.create_task(client.chat(stream=True))
        await started(engine, 1)
        assert not await client.admission.drain(0.05)
        health, refused = await client.http.get("/health"), await client.chat()
        drained = asyncio.create_task(client.admission.drain(10))
        go_on.set()
        assert await drained
        assert (await running).text.endswith("data: [DONE]\n\n")
    assert health.status_code == 503 and "shutting down" in health.text
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
    assert len(engine.requests) == 1


@pytest.mark.parametrize("by", ["header", "response", "all"])
async def test_a_request_is_ended_by_its_id(by: str) -> None:
    engine = says("a", asyncio.Event(), "b")
    async with serving(engine) as client:
        names = ["one", "two"]
        tasks = [
            asyncio.create_task(
                client.http.post(
                    "/v1/chat/completions",
                    json={"model": MODEL, "messages": [{"role": "user", "content": "x"}], "n": 2},
                    headers={"X-Request-Id": name},
                )
            )
            for name in names
        ]
        await started(engine, 4)
        generation = engine.requests[0].request_id.removesuffix("-0")
        body = {"header": {"rid": "one"}, "response": {"rid": generation}, "all": {}}[by]
        body = body or {"abort_all": True}
        answer = await client.http.post("/abort_request", json=body)
        ended = answer.json()["num_aborted"]
        answers = [await task for task in tasks[:ended]]
        again = (await client.http.post("/abort_request", json=body)).json()["num_aborted"]
        state = [len(engine.aborted), again]
        await client.http.post("/abort_request", json={"abort_all": True})
        await asyncio.gather(*tasks)
    assert ended == (2 if by == "all" else 1) and state == [2 * ended, 0]
    for answered in answers:
        error = answered.json()["error"]
        assert (answered.status_code, error["code"]) == (410, "request_aborted")
    assert len(engine.aborted) == 4


async def test_a_stream_that_is_ended_says_so() -> None:
    engine = says("a", asyncio.Event(), "b")
    async with serving(engine) as client:
        task = asyncio.create_task(client.chat(stream=True))
        await engine.waiting.wait()
        await client.http.post("/abort_request", json={"abort_all": True})
        text = (await task).text
    assert "request_aborted" in text.splitlines()[-2] and "[DONE]" not in text
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("body", [{}, {"rid": "x", "abort_all": True}, {"rid": 3}])
async def test_which_request_must_be_said(body: dict[str, object]) -> None:
    async with serving(says("a")) as client:
        answer = await client.http.post("/abort_request", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "rid")
