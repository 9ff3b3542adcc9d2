"""/v1/completions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server.fake_engine import MODEL, FakeEngine, Script, says, serving

from specrt.errors import EngineError
from specrt.request import EngineRequest

pytestmark = pytest.mark.anyio


def events_of(response: Any) -> list[dict[str, Any]]:
    lines = [line[6:] for line in response.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_official_client() -> None:
    engine = says("Hel", "lo")
    async with serving(engine) as client:
        answer = await client.openai.completions.create(model=MODEL, prompt="Say: ", max_tokens=9)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    assert answer.choices[0].text == "Hello" and answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens == 5
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    assert engine.requests[0].prompt_token_ids == list(b"Say: ")
    assert engine.requests[0].sampling.max_tokens == 9


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [[97, 98]]),
        (["ab", "c"], [[97, 98], [99]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 257]], [[97], [98, 257]]),
        ("<|im_end|>", [[257]]),
        ("😀\ud800", [list("😀\ufffd".encode())]),
    ],
)
async def test_prompt_forms(prompt: object, expected: list[list[int]]) -> None:
    def script(request: EngineRequest) -> Script:
        return Script([f"{request.prompt_token_ids[0]}/{request.sampling.choice_index}"])

    engine = FakeEngine(script)
    async with serving(engine) as client:
        body = (await client.complete(prompt=prompt, n=2)).json()
    assert [r.prompt_token_ids for r in engine.requests[::2]] == expected
    texts = [choice["text"] for choice in body["choices"]]
    assert texts == [f"{ids[0]}/{choice}" for ids in expected for choice in (0, 1)]
    assert [choice["index"] for choice in body["choices"]] == list(range(len(texts)))
    assert body["usage"]["prompt_tokens"] == sum(len(ids) for ids in expected)


async def test_stream_equals_whole_answer() -> None:
    pieces = ["H", "é", "llo", ""]
    async with serving(says(*pieces)) as client:
        whole = (await client.complete(n=2, logprobs=1)).json()
        response = await client.complete(
            n=2, logprobs=1, stream=True, stream_options={"include_usage": True}
        )
    *events, last = events_of(response)
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert last["specrt"] == whole["specrt"]
    for choice in whole["choices"]:
        parts = [p for e in events for p in e["choices"] if p["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"] == "Héllo"
        assert [part["finish_reason"] for part in parts] == [None] * 3 + ["stop"]
        for name, values in choice["logprobs"].items():
            assert sum((part["logprobs"][name] for part in parts), []) == values


async def test_logprobs_have_the_older_shape() -> None:
    async with serving(says("aé")) as client:
        body = (await client.complete(logprobs=1)).json()
        assert (await client.complete()).json()["choices"][0]["logprobs"] is None
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "<|im_end|>"]
    assert logprobs["token_logprobs"] == [-0.5] * 4
    assert logprobs["top_logprobs"][0] == {"A": -2.0, "a": -0.5}
    assert logprobs["text_offset"][:2] == [0, 1]


async def test_default_length_gives_way_to_the_context() -> None:
    engine = says("x")
    async with serving(engine) as client:
        await client.complete()
        await client.complete(prompt="a" * 4090)
        refused = await client.complete(prompt="a" * 4090, max_tokens=7)
        full = await client.complete(prompt="a" * 4096)
    assert [r.sampling.max_tokens for r in engine.requests] == [16, 6]
    for response in (refused, full):
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == "prompt" and "4096" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [258]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"echo": True, "logprobs": 0}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"suffix": "b"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ],
)
async def test_bad_requests_are_named(body: dict[str, object], param: str) -> None:
    engine = says("x")
    async with serving(engine) as client:
        response = await client.complete(**body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert param.split("[")[0] in response.json()["error"]["message"]
    assert engine.requests == []


async def test_the_prompt_is_echoed() -> None:
    async with serving(says("x", "y")) as client:
        for prompt, echo in (("é ", "é "), ([195, 169, 257], "é<|im_end|>")):
            whole = (await client.complete(prompt=prompt, echo=True, n=2, best_of=2)).json()
            events = events_of(await client.complete(prompt=prompt, echo=True, stream=True))
            assert [choice["text"] for choice in whole["choices"]] == [f"{echo}xy"] * 2
            assert [e["choices"][0]["text"] for e in events] == [f"{echo}x", "y"]


async def test_token_ids_when_asked_for() -> None:
    async with serving(says("x", "y")) as client:
        whole = (await client.complete(prompt="ab", return_token_ids=True)).json()["choices"][0]
        events = events_of(await client.complete(prompt="ab", return_token_ids=True, stream=True))
        plain = (await client.complete()).json()["choices"][0]
    assert whole["token_ids"] == [120, 121, 257] and whole["prompt_token_ids"] == [97, 98]
    pieces = [event["choices"][0] for event in events]
    assert [piece["token_ids"] for piece in pieces] == [[120], [121, 257]]
    assert [piece.get("prompt_token_ids") for piece in pieces] == [[97, 98], None]
    assert "token_ids" not in plain and "prompt_token_ids" not in plain


async def test_an_output_can_be_guided() -> None:
    engine = says('{"a": [1, 1]}')
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    async with serving(engine) as client:
        await client.complete(guided_choice=["a.b", "c"])
        body = (await client.complete(guided_json=schema)).json()
        events = events_of(await client.complete(guided_json=schema, stream=True))
    choice, whole, _ = (request.grammar for request in engine.requests)
    assert choice is not None and (choice.kind, choice.schema) == ("regex", r"(?:a\.b|c)")
    assert whole is not None and (whole.kind, json.loads(whole.schema)) == ("json", schema)
    assert [entry["keyword"] for entry in body["specrt"]["unenforced"]] == ["uniqueItems"]
    assert [entry["keyword"] for entry in body["specrt"]["violations"]] == ["uniqueItems"]
    assert events[-1]["specrt"]["violations"] == body["specrt"]["violations"]


async def test_padded_events() -> None:
    async with serving(says("x", "yyyyyyy" * 9)) as client:
        response = await client.complete(stream=True, stream_options={"include_obfuscation": True})
    lines = [line[6:] for line in response.text.splitlines() if line][:-1]
    assert len(lines) == 2 and all(len(line.encode()) % 64 == 0 for line in lines)
    assert all("obfuscation" in json.loads(line) for line in lines)


async def test_engine_error_in_mid_stream() -> None:
    async with serving(says("a", EngineError("gone"))) as client:
        response = await client.complete(stream=True)
    assert '"server_error"' in response.text and "[DONE]" not in response.text
