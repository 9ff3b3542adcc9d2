"""/tokenize and /detokenize."""

from __future__ import annotations

import pytest
from server.fake_engine import CONTEXT_LENGTH, MODEL, VOCAB_SIZE, says, serving

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "user", "content": "hé"}]


@pytest.mark.parametrize("route", ["/tokenize", "/v1/tokenize"])
async def test_a_prompt(route: str) -> None:
    async with serving(says("x")) as client:
        answer = await client.http.post(route, json={"model": MODEL, "prompt": "hé<|im_end|>"})
    assert answer.status_code == 200
    tokens = [*"hé".encode(), 257]
    assert answer.json() == {
        "count": 4,
        "max_model_len": CONTEXT_LENGTH,
        "tokens": tokens,
        "token_strs": None,
    }


async def test_a_conversation_becomes_what_a_chat_request_sends_to_the_engine() -> None:
    engine = says("hello")
    body = {"messages": MESSAGES, "tools": [TOOL]}
    async with serving(engine) as client:
        found = (await client.http.post("/tokenize", json=body)).json()
        chat = {"model": MODEL, "tool_choice": "none", **body}
        assert (await client.http.post("/v1/chat/completions", json=chat)).status_code == 200
        back = await client.http.post("/detokenize", json={"tokens": found["tokens"]})
    assert found["tokens"] == engine.requests[0].prompt_token_ids
    assert found["count"] == len(found["tokens"])
    assert "look_up" in back.json()["prompt"] and "hé" in back.json()["prompt"]


async def test_texts_of_tokens() -> None:
    body = {"prompt": "aé", "return_token_strs": True}
    async with serving(says("x")) as client:
        found = (await client.http.post("/tokenize", json=body)).json()
    assert found["token_strs"] == ["a", "\ufffd", "\ufffd"]


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": [TOOL]}, "tools"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        (
            "/tokenize",
            {"messages": MESSAGES, "add_generation_prompt": False},
            "add_generation_prompt",
        ),
        ("/tokenize", {"prompt": "a", "colour": 1}, "colour"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [1, VOCAB_SIZE]}, "tokens[1]"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
async def test_bad_bodies_name_the_field(route: str, body: dict[str, object], param: str) -> None:
    async with serving(says("x")) as client:
        answer = await client.http.post(route, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_another_model_is_not_found() -> None:
    async with serving(says("x")) as client:
        answer = await client.http.post("/tokenize", json={"model": "other", "prompt": "a"})
    assert answer.status_code == 404
