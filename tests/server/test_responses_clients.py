"""Requests as agents send them, in the shapes of their public sources: Codex CLI, openai-agents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response
from server.fake_engine import EOS, MODEL, Client, FakeEngine, Script, chop, serving
from server.test_responses import call, read_events

from specrt.request import EngineRequest

pytestmark = pytest.mark.anyio

PATCH = '{"cmd": "ls -la \\"a b\\"", "yield_time_ms": 1000}'


def text_of(token_ids: list[int]) -> str:
    return bytes(i for i in token_ids if i < 256).decode()


def scripted(request: EngineRequest) -> Script:
    """Two calls first; a text when the prompt holds an output."""
    if "total 0" in text_of(request.prompt_token_ids):
        return Script(["All ", "done."])
    plan = call("update_plan", '{"plan": []}')
    both = "I look first.\n" + call("exec_command", PATCH) + "\n" + plan
    return Script(chop(both, 3), cached=11)


def message(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text} for text in texts]
    return {"type": "message", "role": role, "content": content}


def function(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:1],
        "additionalProperties": False,
    }
    described = f"The {name} tool."
    return {
        "type": "function",
        "name": name,
        "description": described,
        "strict": False,
        "parameters": parameters,
    }


def codex(items: list[dict[str, Any]]) -> dict[str, Any]:
    """What Codex CLI sends to a provider of responses for a model that it does not know."""
    lookup = function("lookup", query={"type": "string"})
    return {
        "model": MODEL,
        "instructions": "You are a coding agent running in a terminal.",
        "input": items,
        "tools": [
            function(
                "exec_command",
                cmd={"type": "string", "description": "Shell command."},
                yield_time_ms={"type": "number"},
            ),
            function("write_stdin", session_id={"type": "number"}, chars={"type": "string"}),
            function("update_plan", plan={"type": "array", "items": {"type": "object"}}),
            {
                "type": "namespace",
                "name": "mcp__docs__",
                "description": "Tools of the docs server.",
                "tools": [lookup],
            },
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "019a0000-0000-7000-8000-000000000000",
        "client_metadata": {"x-codex-installation-id": "0000"},
    }


CODEX_INPUT = [
    message(
        "developer", "<permissions instructions>Sandbox: read-only.</permissions instructions>"
    ),
    message("user", "# AGENTS.md\nBe careful.", "<environment_context>/tmp</environment_context>"),
    message("user", "What is here?"),
]


async def codex_turn(client: Client, items: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The items and the usage that Codex takes from the stream."""
    headers = {"Accept": "text/event-stream", "originator": "codex_cli_rs"}
    answer = await client.http.post("/v1/responses", json=codex(items), headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = read_events(answer.text)
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert events[-1]["type"] == "response.completed" and events[-1]["response"]["id"]
    return done, events[-1]["response"]["usage"]


async def test_a_codex_session_keeps_its_prefix() -> None:
    engine = FakeEngine(scripted)
    async with serving(engine) as client:
        done, usage = await codex_turn(client, CODEX_INPUT)
        # Codex keeps these fields only; ids go, and some versions add metadata of their own.
        kept: list[dict[str, Any]] = [
            {**message("assistant", done[0]["content"][0]["text"]), "phase": None},
            *[{k: item[k] for k in ("type", "name", "arguments", "call_id")} for item in done[1:]],
            *[
                {"type": "function_call_output", "call_id": item["call_id"], "output": "total 0\n"}
                for item in done[1:]
            ],
        ]
        final, _ = await codex_turn(client, [*CODEX_INPUT, *kept])
    assert [item["type"] for item in done] == ["message", "function_call", "function_call"]
    assert done[1]["arguments"] == PATCH and done[1]["name"] == "exec_command"
    assert usage["input_tokens_details"] == {"cached_tokens": 11, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert final[0]["content"][0]["text"] == "All done."
    first, second = engine.requests
    generated = [token for token in Script(scripted(first).pieces).pieces if isinstance(token, str)]
    expected = [*first.prompt_token_ids, *"".join(generated).encode()]
    assert second.prompt_token_ids[: len(expected)] == expected
    assert first.grammar is not None and not first.grammar.parallel
    names = [tool.name for tool in first.grammar.tools]
    assert names == ["exec_command", "write_stdin", "update_plan", "mcp__docs__lookup"]
    assert "web_search" not in text_of(first.prompt_token_ids)
    assert EOS not in expected[len(first.prompt_token_ids) :]


async def test_codex_with_an_output_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    engine = FakeEngine(lambda request: Script(['{"ok": true}']))
    fields: dict[str, Any] = {
        **codex([message("user", "Is it fine?")]),
        "tools": [],
        "text": {
            "verbosity": "medium",
            "format": {
                "type": "json_schema",
                "strict": True,
                "schema": schema,
                "name": "codex_output_schema",
            },
        },
    }
    async with serving(engine) as client:
        answer = await client.http.post("/v1/responses", json=fields)
    events = read_events(answer.text)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == '{"ok": true}'
    grammar = engine.requests[0].grammar
    assert grammar is not None and json.loads(grammar.schema) == schema and grammar.strict


AGENT: Any = {
    "model": MODEL,
    "instructions": "You are helpful.",
    "include": [],
    "tools": [
        {**function(name, cmd={"type": "string"}), "strict": True}
        for name in ("exec_command", "update_plan")
    ],
    "parallel_tool_calls": True,
}


async def test_an_openai_agents_loop_with_parallel_calls() -> None:
    """The runner resends everything: its input, each output item as it came, each result."""
    engine = FakeEngine(scripted)
    items: list[Any] = [{"role": "user", "content": "What is here?"}]
    async with serving(engine) as client:
        response = await client.openai.responses.create(input=items, **AGENT)
        items += [item.model_dump(exclude_unset=True) for item in response.output]
        items += [
            {"call_id": item.call_id, "output": "total 0", "type": "function_call_output"}
            for item in response.output
            if item.type == "function_call"
        ]
        final: Response | None = None
        raw = client.openai.responses.with_streaming_response
        async with raw.create(input=items, stream=True, **AGENT) as streamed:
            async for event in await streamed.parse():
                if event.type == "response.completed":
                    final = event.response
    assert len(items) == 6 and final is not None and final.output_text == "All done."
    first, second = (request.prompt_token_ids for request in engine.requests)
    written = "".join(str(piece) for piece in scripted(engine.requests[0]).pieces)
    assert second[: len(first) + len(written)] == [*first, *written.encode()]


async def test_an_openai_agents_loop_with_previous_response_id() -> None:
    engine = FakeEngine(scripted)
    user = {"role": "user", "content": "What is here?"}
    async with serving(engine) as client:
        response = await client.openai.responses.create(input=[user], **AGENT)
        results: Any = [
            {"call_id": item.call_id, "output": "total 0", "type": "function_call_output"}
            for item in response.output
            if item.type == "function_call"
        ]
        final = await client.openai.responses.create(
            input=results, previous_response_id=response.id, **AGENT
        )
        everything = [user, *[i.model_dump(exclude_unset=True) for i in response.output], *results]
        await client.openai.responses.create(input=everything, **AGENT)
    assert final.output_text == "All done." and final.previous_response_id == response.id
    assert engine.requests[1].prompt_token_ids == engine.requests[2].prompt_token_ids
