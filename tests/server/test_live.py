"""`specrt serve` as a process with its engine: the official client, agent turns, disconnects."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes import tiny_model_folder
from openai import OpenAI

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "note",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {
                    "where": {"type": "string", "enum": ["Zürich", 'a "quoted"\tplace']},
                    "count": {"type": "integer", "minimum": 1, "maximum": 9},
                },
                "required": ["where", "count"],
                "additionalProperties": False,
            },
        },
    }
]


def start(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A server over a tiny model, and its address."""
    command = [sys.executable, "-m", "specrt", "serve", "--model-path", str(folder)]
    command += ["--port", "0", "--num-threads", "1", "--max-total-tokens", "8192", "--check-cache"]
    command += ["--served-model-name", "tiny", "--api-key", "secret"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    found = re.search(r"http://\S+(?=/v1)", server.stdout.readline())
    assert found, "the server did not come up"
    return server, found[0]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tiny_model_folder(tmp_path_factory.mktemp("tiny"), max_position_embeddings=2048)
    server, address = start(folder)
    yield address
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0
    server.stdout.close()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url + "/v1", api_key="secret", max_retries=0) as client:
        yield client


def info(url: str) -> dict[str, Any]:
    answer = httpx.get(url + "/get_server_info", headers={"Authorization": "Bearer secret"})
    state: dict[str, Any] = answer.json()["internal_states"][0]
    return state


def ask(client: OpenAI, messages: list[Any], **fields: Any) -> Any:
    settings = {"tools": TOOLS, "tool_choice": "required", "seed": 5, "max_tokens": 200, **fields}
    return client.chat.completions.create(model="tiny", messages=messages, **settings)


def test_an_agent_loop_keeps_every_computed_token(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "note two places, 12 times"}]
    computed = 0
    for turn in range(5):
        reply = ask(client, messages, seed=turn, parallel_tool_calls=False)
        usage, message = reply.usage, reply.choices[0].message
        assert usage.prompt_tokens_details.cached_tokens >= computed
        computed = usage.prompt_tokens + usage.completion_tokens - 1
        (call,) = message.tool_calls
        assert json.loads(call.function.arguments)["where"] in ("Zürich", 'a "quoted"\tplace')
        assert usage.completion_tokens_details.accepted_prediction_tokens > 0
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": f"ok é {turn}"}]


def test_stream_is_the_whole_answer_and_n_shares_the_prompt(client: OpenAI, url: str) -> None:
    messages = [{"role": "user", "content": "a prompt that nobody has sent before, note it"}]
    whole = ask(client, messages, n=4)
    assert whole.specrt["cached_tokens"].count(whole.usage.prompt_tokens - 1) >= 3
    streamed: dict[int, dict[int, list[str]]] = {}
    for chunk in ask(client, messages, n=4, stream=True):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or []:
                parts = streamed.setdefault(choice.index, {}).setdefault(call.index, ["", ""])
                parts[0] += call.function.name or ""
                parts[1] += call.function.arguments or ""
    for choice in whole.choices:
        calls = [[c.function.name, c.function.arguments] for c in choice.message.tool_calls or []]
        assert list(streamed[choice.index].values()) == calls
    assert 0 < info(url)["tree_cache_hit_rate"] < 1


def test_a_client_that_goes_away_leaves_nothing_behind(client: OpenAI, url: str) -> None:
    stream = ask(client, [{"role": "user", "content": "go on"}], stream=True, max_tokens=1500)
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 20
    while info(url)["num_running"] and time.monotonic() < deadline:
        time.sleep(0.05)
    state = info(url)
    assert (state["num_running"], state["num_held_slots"]) == (0, 0)
    assert state["num_free_slots"] + state["num_cached_slots"] == state["num_total_slots"]


def test_bad_input_is_answered_and_the_server_goes_on(client: OpenAI, url: str) -> None:
    headers = {"Authorization": "Bearer secret"}
    target = url + "/v1/chat/completions"
    assert httpx.post(target, json={}).status_code == 401
    for body, status, word in (
        ({"model": "other", "messages": []}, 404, "tiny"),
        ({"model": "tiny", "messages": [{"role": "user", "content": "x" * 9000}]}, 400, "2048"),
        ({"model": "tiny", "messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0]"),
        ({"model": "tiny", "messages": [], "max_tokens": 0}, 400, "max_tokens"),
    ):
        answer = httpx.post(target, json=body, headers=headers)
        assert answer.status_code == status, answer.text
        assert word in answer.json()["error"]["message"]
    reply = client.completions.create(model="tiny", prompt="the weather", max_tokens=4, seed=1)
    assert reply.usage is not None and reply.usage.completion_tokens <= 4
    assert "radix_cache_hit_rate" in httpx.get(url + "/metrics").text


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_server_that_is_killed_leaves_no_engine_behind(tmp_path: Path) -> None:
    server, _ = start(tiny_model_folder(tmp_path, max_position_embeddings=2048))
    tasks = Path(f"/proc/{server.pid}/task").glob("*/children")
    children = [int(pid) for path in tasks for pid in path.read_text().split()]
    assert children, "no engine process"
    server.kill()
    server.wait()
    assert server.stdout is not None
    server.stdout.close()
    for _ in range(200):
        if not any(Path(f"/proc/{pid}").exists() for pid in children):
            break
        time.sleep(0.1)
    else:
        pytest.fail("the engine outlived its server by 20 s")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--speculative-draft-model-path", "/nowhere"], "/nowhere holds no config.json"),
        (["--model-path", "/nowhere"], "--model-path"),
        (["--speculativ", "none"], "--speculative"),
    ],
)
def test_a_wrong_flag_ends_with_a_line_that_names_it(flags: list[str], message: str) -> None:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, str(root / "serve.py"), "--port", "0", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
