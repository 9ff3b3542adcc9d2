"""Models, health, metrics, server information, cache flush, request ids and the log line."""

from __future__ import annotations

import logging
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.fake_engine import CONTEXT_LENGTH, MODEL, make_model, says, serving

from specrt import __version__
from specrt.config import ServerConfig
from specrt.errors import EngineError

pytestmark = pytest.mark.anyio


def samples(text: str) -> dict[tuple[str, str], float]:
    """(name, labels) -> value."""
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_models() -> None:
    async with serving(says("x")) as client:
        listed = [model async for model in client.openai.models.list()]
        one = await client.openai.models.retrieve(MODEL)
    assert listed == [one] and one.object == "model" and one.created > 1_500_000_000


async def test_other_names_are_served_too() -> None:
    async with serving(says("x"), make_model(aliases=("gpt-x", "claude-x"))) as client:
        assert [m.id async for m in client.openai.models.list()] == [MODEL, "gpt-x", "claude-x"]
        assert (await client.openai.models.retrieve("gpt-x")).id == "gpt-x"
        answer = await client.chat(model="claude-x")
        assert answer.json()["model"] == MODEL
        counted = await client.http.post("/tokenize", json={"model": "gpt-x", "prompt": "a"})
        assert counted.json()["count"] == 1
        wrong = (await client.chat(model="gpt")).json()["error"]
    assert wrong["param"] == "model" and "'gpt-x', 'claude-x'" in wrong["message"]


async def test_health_follows_the_engine() -> None:
    engine = says("x")
    async with serving(engine) as client:
        assert (await client.http.get("/health")).status_code == 200
        engine.is_healthy = False
        assert (await client.http.get("/health")).status_code == 503


async def test_metrics() -> None:
    engine = says("ab", "cd")
    async with serving(engine) as client:
        await client.chat()
        await client.chat(temperature=9)
        await client.http.get("/v1/models/a/b/c")
        response = await client.http.get("/metrics")
        engine.is_healthy = False
        dead = samples((await client.http.get("/metrics")).text)
    assert response.headers["content-type"].startswith("text/plain")
    found = samples(response.text)
    assert found["radix_cache_hit_rate", ""] == 0.75
    assert found["specrt_acceptance_length", ""] == 3.0
    assert found["specrt_prompt_tokens_total", ""] == 200
    assert found["specrt_cached_tokens_total", ""] == 150
    assert found["specrt_generation_tokens_total", ""] == 90
    assert found["specrt_drafted_tokens_total", "key,forced"] == 50
    assert found["specrt_accepted_tokens_total", "value,history"] == 5
    edges = ("1.0", "4.0", "5.0", "32.0", "+Inf")
    buckets = [found["specrt_tokens_of_pass_bucket", edge] for edge in edges]
    assert buckets == [7, 7, 9, 9, 10]
    assert found["specrt_tokens_of_pass_count", ""] == 10
    assert found["specrt_tokens_of_pass_sum", ""] == 7 + 2 * 5 + 60
    assert found["specrt_requests_running", ""] == 1
    assert found["specrt_requests_waiting", ""] == 2
    assert [found[f"specrt_slots{name}", ""] for name in ("", "_free", "_cached", "_held")] == [
        1000,
        600,
        300,
        100,
    ]
    route = "/v1/chat/completions"
    assert found["specrt_requests_total", f"{route},200"] == 1
    assert found["specrt_requests_total", f"{route},400"] == 1
    assert found["specrt_requests_total", "/v1/models/{name:path},404"] == 1
    assert found["specrt_time_to_first_token_seconds_count", ""] == 1
    # "ab" and "cd" and the end of the turn: the first step is the first token's.
    assert found["specrt_inter_token_latency_seconds_count", ""] == 3
    assert found["specrt_e2e_request_latency_seconds_count", ""] == 1
    assert found["specrt_engine_up", ""] == 1
    # A dead engine leaves its last numbers, and says that it is dead.
    assert dead["specrt_engine_up", ""] == 0 and dead["radix_cache_hit_rate", ""] == 0.75


@pytest.mark.parametrize("path", ["/get_server_info", "/server_info"])
async def test_server_info(path: str) -> None:
    async with serving(says("x"), config=ServerConfig(port=1234)) as client:
        info = (await client.http.get(path)).json()
    assert info["port"] == 1234 and info["schedule_policy"] == "lpm" and info["api_key"] is None
    assert info["served_model_name"] == MODEL and info["version"] == __version__
    assert info["context_length"] == CONTEXT_LENGTH and info["max_total_num_tokens"] == 1000
    assert info["tree_cache_hit_rate"] == 0.75 and info["average_acceptance_length"] == 3.0
    (state,) = info["internal_states"]
    assert state["last_gen_throughput"] == 12.5 and state["avg_spec_accept_length"] == 3.0
    assert state["memory_usage"]["token_capacity"] == 1000


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_flush_cache(method: str) -> None:
    engine = says("x")
    async with serving(engine) as client:
        assert (await client.http.request(method, "/flush_cache")).status_code == 200
        engine.is_busy = True
        response = await client.http.request(method, "/flush_cache")
    assert response.status_code == 400 and "running" in response.json()["error"]["message"]


async def test_request_id_and_log_line(caplog: pytest.LogCaptureFixture) -> None:
    engine = says("Hello")
    with caplog.at_level(logging.INFO, "specrt.server"):
        async with serving(engine) as client:
            url, body = "/v1/chat/completions", {"model": MODEL, "messages": []}
            given = await client.http.post(url, json=body, headers={"X-Request-Id": "my-id"})
            odd = await client.http.get("/v1/mod%0Aels", headers={"X-Request-Id": "a b"})
            answer = await client.chat()
            await client.http.get("/health")
    assert given.headers["x-request-id"] == "my-id"
    assert re.fullmatch("[0-9a-f]{32}", odd.headers["x-request-id"])
    lines = [r.getMessage() for r in caplog.records if r.name == "specrt.server"]
    assert len(lines) == 3, "one line a request, none for probes"
    assert re.fullmatch(
        r"id=my-id method=POST path=/v1/chat/completions status=400 duration_ms=\d+"
        r' error="messages: expected .*"',
        lines[0],
    ), lines[0]
    assert r'path="/v1/mod\nels" status=404' in lines[1]
    num_prompt = len(engine.requests[0].prompt_token_ids)
    expected = (
        r"id=[0-9a-f]{32} method=POST path=/v1/chat/completions status=200 duration_ms=\d+"
        rf" generation={answer.json()['id']} queue_ms=250 prompt={num_prompt} cached=3 output=6"
        r" passes=3 acceptance_length=2.0 finish=stop"
    )
    assert re.fullmatch(expected, lines[2]), lines[2]


async def test_health_generate_asks_for_a_token() -> None:
    engine = says("x")
    async with serving(engine) as client:
        assert (await client.http.get("/health_generate")).status_code == 200
        assert [r.sampling.max_tokens for r in engine.requests] == [1]
        assert engine.requests[0].namespace  # the probe shares no cache with requests
        engine.is_healthy = False
        assert (await client.http.get("/health_generate")).status_code == 503


async def test_health_generate_fails_with_the_engine() -> None:
    async with serving(says(EngineError("broken"))) as client:
        answer = await client.http.get("/health_generate")
    assert answer.status_code == 503 and "broken" in answer.text


async def test_model_info_and_load() -> None:
    async with serving(says("x")) as client:
        info = (await client.http.get("/get_model_info")).json()
        load = (await client.http.get("/get_load")).json()
    assert info["served_model_name"] == MODEL and info["max_context_length"] == CONTEXT_LENGTH
    assert info["tool_call_parser"] == "hermes"
    # One runs and two wait, says the fake engine.
    assert (load[0]["num_reqs"], load[0]["num_waiting_reqs"]) == (3, 2)


async def test_browsers_may_call_from_the_origins_that_were_named() -> None:
    config = ServerConfig(cors_origins="https://a.example, https://b.example", api_key="k")
    headers = {
        "Origin": "https://b.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    async with serving(says("x"), config=config) as client:
        preflight = await client.http.options("/v1/chat/completions", headers=headers)
        other = await client.http.options(
            "/v1/chat/completions", headers={**headers, "Origin": "https://c.example"}
        )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://b.example"
    assert "access-control-allow-origin" not in other.headers
