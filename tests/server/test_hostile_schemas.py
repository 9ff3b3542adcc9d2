"""A server under hostile schemas: honest requests succeed meanwhile, and no memory is lost."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from hostile_runs import schema_text
from hostile_schemas import HOSTILE, closed

from specrt.model.converted import cache_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not list(cache_folder().glob("models/SmolLM2*/tokenizer.json")),
        reason="needs the embedded model",
    ),
]
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
# Twenty of the corpus: what takes long, what is large, what nests, and what cannot be.
NAMES = (
    "anyOf, 12 deep",
    "anyOf, 16 deep",
    "anyOf of 1,000",
    "allOf of anyOf of two, 20 times",
    "unevaluatedProperties over 10 anyOf",
    "billion laughs, 40 levels",
    "binary tree, 45 levels",
    "arrays, 2,000 deep",
    "maxItems 100 cubed",
    "maxLength 100,000",
    "(a|b)*a(a|b){40}",
    "((a{0,100}){0,100}){0,100}",
    "\\w{1,500}",
    "enum of 10,000",
    "const of 100 kB",
    "multipleOf 99,991",
    "500 optional properties",
    "patternProperties with 10 patterns",
    "reference to itself",
    "nasty names that are optional",
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "specrt", "serve", "--port", "0", "--num-threads", "1"]
    command += ["--max-total-tokens", "8192", "--check-cache", "--served-model-name", "m"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    found = re.search(r"http://\S+(?=/v1)", server.stdout.readline())
    assert found, "the server did not come up"
    yield found[0]
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    server.stdout.close()


def ask(url: str, schema: str, **fields: Any) -> httpx.Response:
    """A chat completion that must call a tool with these parameters (JSON text)."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "The weather in Rome for 3 days, please."}],
        "tool_choice": "required",
        "max_tokens": 24,
        "seed": 1,
        **fields,
    }
    text = json.dumps(body)[:-1]
    text += ', "tools": [{"type": "function", "function": {"name": "t", "strict": true,'
    text += f' "parameters": {schema}}}}}]}}'
    return httpx.post(
        url + "/v1/chat/completions",
        content=text.encode(),
        headers={"content-type": "application/json"},
        timeout=120,
    )


def parameters(name: str) -> str:
    """One of the corpus as the parameters of a tool, which are an object."""
    schema = HOSTILE[name]()
    return schema_text(schema if "$ref" in schema else closed({"a": schema}))


def state(url: str) -> dict[str, Any]:
    states = httpx.get(url + "/get_server_info", timeout=30).json()["internal_states"]
    found: dict[str, Any] = states[0]
    return found


def test_honest_requests_succeed_while_hostile_ones_arrive(url: str) -> None:
    alone = ask(url, json.dumps(WEATHER), max_tokens=64)
    assert alone.status_code == 200, alone.text
    with ThreadPoolExecutor(len(NAMES)) as pool:
        hostile = [pool.submit(ask, url, parameters(name)) for name in NAMES]
        honest = ask(url, json.dumps(WEATHER), max_tokens=64)
        answers = {name: job.result() for name, job in zip(NAMES, hostile, strict=True)}
    for name, answer in answers.items():
        assert answer.status_code in (200, 400), f"{name}: {answer.status_code} {answer.text[:300]}"
    assert {200, 400} == {answer.status_code for answer in answers.values()}
    assert honest.status_code == 200, honest.text
    (call,) = honest.json()["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["city"] in WEATHER["properties"]["city"]["enum"]  # type: ignore[index]
    message = alone.json()["choices"][0]["message"]
    assert (
        honest.json()["choices"][0]["message"]["tool_calls"][0]["function"]
        == (message["tool_calls"][0]["function"])
    )
    deadline = time.monotonic() + 20
    while state(url)["num_running"] and time.monotonic() < deadline:
        time.sleep(0.1)
    left = state(url)
    assert (left["num_running"], left["num_held_slots"]) == (0, 0)
    assert left["num_free_slots"] + left["num_cached_slots"] == left["num_total_slots"]
    again = ask(url, json.dumps(WEATHER))
    assert again.status_code == 200, again.text
