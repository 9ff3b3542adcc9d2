"""The prompt of a Messages request: that of the same chat request, whatever changes per request."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from server.fake_engine import MODEL, Client, FakeEngine, Script, says, serving

from specrt.request import EngineRequest
from specrt.server.messages.call_memo import CallMemo

pytestmark = pytest.mark.anyio

CACHE = {"cache_control": {"type": "ephemeral"}}
READ = {
    "type": "object",
    "properties": {"file_path": {"type": "string"}, "limit": {"type": "number"}},
    "required": ["file_path"],
    "additionalProperties": False,
    "$schema": "http://json-schema.org/draft-07/schema#",
}
BASH = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}


def claude_code(nonce: str, marked: int = -1, **fields: Any) -> dict[str, Any]:
    """A request shaped like Claude Code's; the cache marker is on one of the messages."""
    messages: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>"},
                {"type": "text", "text": "What is in a.txt and b.txt?"},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should look.", "signature": "EqQB"},
                {"type": "redacted_thinking", "data": "AAA"},
                {"type": "text", "text": "I will look."},
                tool_use("toolu_01", "Read", {"file_path": "/é/a.txt", "limit": 5}),
                tool_use("toolu_02", "Bash", {"command": "cat b.txt"}),
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "tool_use_id": "toolu_01",
                    "type": "tool_result",
                    "content": [
                        {"type": "text", "text": "1\tone\n"},
                        {"type": "text", "text": "2\ttwo"},
                    ],
                },
                {
                    "tool_use_id": "toolu_02",
                    "type": "tool_result",
                    "content": "no such file",
                    "is_error": True,
                },
                {"type": "text", "text": "<system-reminder>be brief</system-reminder>"},
            ],
        },
    ]
    messages[marked]["content"][-1].update(CACHE)
    return {
        "model": MODEL,
        "max_tokens": 32000,
        "stream": False,
        "temperature": 1,
        "system": [
            {
                "type": "text",
                "text": f"x-anthropic-billing-header: cc_version=2.1.177.01c; cch={nonce};",
            },
            {"type": "text", "text": "You are Claude Code.", **CACHE},
            {"type": "text", "text": "\nYou help with software.", **CACHE},
        ],
        "messages": messages,
        "tools": [
            {"name": "Read", "description": "Reads a file.", "input_schema": READ},
            {"name": "Bash", "description": "Runs a command.", "input_schema": BASH, **CACHE},
        ],
        "metadata": {"user_id": f"user_1_account__session_{nonce}"},
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        **fields,
    }


def tool_use(call_id: str, name: str, value: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": value}


# The same conversation in OpenAI's shape.
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "You are Claude Code.\nYou help with software."},
        {
            "role": "user",
            "content": "<system-reminder>\nToday is a day.\n</system-reminder>"
            "What is in a.txt and b.txt?",
        },
        {
            "role": "assistant",
            "content": "I will look.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {
                        "name": "Read",
                        "arguments": '{"file_path": "/é/a.txt", "limit": 5}',
                    },
                },
                {
                    "id": "call_2",
                    "type": "function",
                    "function": {"name": "Bash", "arguments": '{"command": "cat b.txt"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "1\tone\n2\ttwo"},
        {"role": "tool", "tool_call_id": "call_2", "content": "Error: no such file"},
        {"role": "user", "content": "<system-reminder>be brief</system-reminder>"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "Read", "description": "Reads a file.", "parameters": READ},
        },
        {
            "type": "function",
            "function": {"name": "Bash", "description": "Runs a command.", "parameters": BASH},
        },
    ],
}


async def post(client: Client, body: dict[str, Any], path: str = "") -> dict[str, Any]:
    response = await client.http.post(f"/v1/messages{path}?beta=true", content=json.dumps(body))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def prompts(engine: FakeEngine, *bodies: dict[str, Any]) -> list[list[int]]:
    async with serving(engine) as client:
        for body in bodies:
            await post(client, body)
        assert (await client.chat(**CHAT)).status_code == 200
    return [request.prompt_token_ids for request in engine.requests]


async def test_nonces_and_cache_markers_do_not_reach_the_prompt() -> None:
    """The whole prompt is that of the chat request, so its prefix is in the cache."""
    engine = says("x")
    first, second, third, chat = await prompts(
        engine, claude_code("a1b2c"), claude_code("00fff", 0), claude_code("1", -2)
    )
    assert first == second == third == chat
    assert b"cch=" not in bytes(i for i in first if i < 256)
    grammars = {request.grammar for request in engine.requests}
    assert len(grammars) == 1, "the same schemas, compiled once"


@pytest.mark.parametrize(
    "system",
    [
        "x-anthropic-billing-header: cc_version=2.1; cch=1;\nYou are Claude Code.\nYou help with"
        " software.",
        [{"type": "text", "text": "You are Claude Code.\nYou help with software."}],
        "You are Claude Code.\nYou help with software.",
    ],
)
async def test_every_way_to_write_the_system_prompt(system: Any) -> None:
    first, chat = await prompts(says("x"), claude_code("1", system=system))
    assert first == chat


async def test_count_tokens_is_what_a_message_reports() -> None:
    body = claude_code("1")
    counted = {k: body[k] for k in ("model", "system", "messages", "tools", "thinking")}
    engine = says("x")
    async with serving(engine) as client:
        usage = (await post(client, body))["usage"]
        count = await post(client, counted, "/count_tokens")
        longer = await post(client, {**counted, "system": "long" * 2000}, "/count_tokens")
        bare = await post(client, {**counted, "tools": []}, "/count_tokens")
    assert count == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert count["input_tokens"] == len(engine.requests[0].prompt_token_ids)
    assert bare["input_tokens"] < count["input_tokens"] < longer["input_tokens"]
    assert len(engine.requests) == 1, "counting runs nothing"


async def test_generated_turns_come_back_token_for_token() -> None:
    """Parsed and printed again the arguments would read 1.5."""
    arguments = '{"file_path": "é", "limit": 1.50}'
    text = (
        f'Look.\n<tool_call>\n{{"name": "Read", "arguments": {arguments}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "Bash", "arguments": {"command": "a"}}\n</tool_call>'
    )

    def script(request: EngineRequest) -> Script:
        return Script([text] if len(engine.requests) == 1 else ["done"])

    engine = FakeEngine(script)
    async with serving(engine) as client:
        body = claude_code("1")
        answer = await post(client, body)
        # As a client written in JavaScript sends it back.
        content = json.loads(json.dumps(answer["content"]))
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
            for block in content
            if block["type"] == "tool_use"
        ]
        body["messages"] += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": results},
        ]
        await post(client, body)
        content[1]["input"]["limit"] = 2
        await post(client, body)
    first, second, third = (request.prompt_token_ids for request in engine.requests)
    generated = [*first, *text.encode()]
    assert second[: len(generated)] == generated
    changed = bytes(i for i in third[len(first) :] if i < 256).decode()
    assert '{"file_path": "é", "limit": 2}' in changed, "what a client changes is as it says"


async def test_streamed_turns_come_back_token_for_token() -> None:
    text = '<tool_call>\n{"name": "Read", "arguments": {"limit": 2.0}}\n</tool_call>'
    engine = says(*text)
    async with serving(engine) as client:
        body = claude_code("1", stream=True)
        response = await client.http.post("/v1/messages", json=body)
        events = [json.loads(line[6:]) for line in response.text.splitlines() if "data: " in line]
        (block,) = [e["content_block"] for e in events if e["type"] == "content_block_start"]
        call = tool_use(block["id"], block["name"], {"limit": 2})
        result = {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
        body["messages"] += [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
        await post(client, {**body, "stream": False})
    first, second = (request.prompt_token_ids for request in engine.requests)
    assert second[: len(first) + len(text)] == [*first, *text.encode()]


async def test_several_system_messages_and_examples_of_inputs() -> None:
    body = claude_code("1")
    body["messages"].append({"role": "system", "content": "Stop soon."})
    body["tools"][0]["input_examples"] = [{"file_path": "/x"}]
    engine = says("x")
    async with serving(engine) as client:
        await post(client, body)
    text = bytes(i for i in engine.requests[0].prompt_token_ids if i < 256).decode()
    assert text.index("be brief") < text.index("Stop soon.")
    assert '"examples": [{"file_path": "/x"}]' in text
    assert "I should look" not in text


async def test_the_request_is_not_changed_by_reading_it() -> None:
    from specrt.server.messages.history import chat_messages

    body = claude_code("1")
    before = copy.deepcopy(body)
    chat_messages(body["system"], body["messages"], CallMemo())
    assert body == before


async def test_call_memo() -> None:
    memo = CallMemo(max_chars=60)
    memo.remember("a", '{"x": 1.0}')
    assert memo.arguments("a", {"x": 1}) == '{"x": 1.0}'
    assert memo.arguments("a", {"x": True}) == '{"x": true}'
    assert memo.arguments("b", {"x": "é"}) == '{"x": "é"}'
    memo.remember("order", '{"y": 1, "x": [2, {}]}')
    assert memo.arguments("order", {"x": [2, {}], "y": 1}) == '{"x": [2, {}], "y": 1}'
    assert memo.arguments("order", {"y": 1, "x": [2, {}]}) == '{"y": 1, "x": [2, {}]}'
    memo.remember("cut", '{"x": ')
    assert memo.arguments("cut", {}) == "{}"
    memo.remember("long", '{"x": "' + "y" * 40 + '"}')
    assert memo.arguments("a", {"x": 1}) == '{"x": 1}', "forgotten"
    assert memo._num_chars <= 60
