"""The Messages API of `specrt serve` with the embedded model, through the official client."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest

from specrt.model.embedded import EMBEDDED_NAME

pytestmark = pytest.mark.slow

TOOL: Any = {
    "name": "get_weather",
    "description": "The weather at a place.",
    "input_schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "enum": ["Zürich", "Oslo"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "strict": True,
}


def system(nonce: str) -> list[Any]:
    header = f"x-anthropic-billing-header: cc_version=2.1.177; cc_entrypoint=cli; cch={nonce};"
    return [{"type": "text", "text": header}, {"type": "text", "text": "You know the weather."}]


def test_an_agent_turn_with_a_required_call(live_url: str) -> None:
    with anthropic.Anthropic(base_url=live_url, api_key="none", max_retries=0) as client:
        question = {"role": "user", "content": "Weather in Zürich, next 3 days?"}
        fields: Any = {
            "model": EMBEDDED_NAME,
            "max_tokens": 16_000,
            "tools": [TOOL],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "extra_body": {"temperature": 0},
        }
        with client.messages.stream(**fields, system=system("1"), messages=[question]) as stream:
            streamed = stream.get_final_message()
        whole = client.messages.create(**fields, system=system("2"), messages=[question])
        assert [block.type for block in whole.content] == ["tool_use"]
        (call,) = whole.content
        assert call.type == "tool_use" and call.name == "get_weather"
        assert call.input["city"] in ("Zürich", "Oslo") and 1 <= call.input["days"] <= 9  # type: ignore[operator]
        assert whole.stop_reason == streamed.stop_reason == "tool_use"
        assert streamed.content[0].input == call.input  # type: ignore[union-attr]
        # Another nonce, the same prompt: all of it but its last token was cached.
        assert whole.usage.input_tokens == 1 and streamed.usage.input_tokens > 1
        num_prompt = 1 + (whole.usage.cache_read_input_tokens or 0)

        result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny, 20 degrees"}
        conversation: Any = [
            {**question, "content": [{"type": "text", "text": question["content"]}]},
            whole.to_param(),
            {"role": "user", "content": [{**result, "cache_control": {"type": "ephemeral"}}]},
        ]
        counted = client.messages.count_tokens(
            model=EMBEDDED_NAME, system=system("3"), tools=[TOOL], messages=conversation
        )
        fields |= {"tool_choice": {"type": "auto"}, "max_tokens": 24}
        answer = client.messages.create(**fields, system=system("4"), messages=conversation)
    cached = answer.usage.cache_read_input_tokens or 0
    assert cached >= num_prompt + whole.usage.output_tokens - 1, "prompt and generated turn"
    assert counted.input_tokens == answer.usage.input_tokens + cached
    assert answer.usage.output_tokens <= 24

    arguments = '{"city": "%s", "days": %d}' % (call.input["city"], call.input["days"])  # noqa: UP031
    function = {"name": "get_weather", "arguments": arguments}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    declared = {"name": TOOL["name"], "description": TOOL["description"]}
    declared["parameters"] = TOOL["input_schema"]
    chat = {
        "model": EMBEDDED_NAME,
        "max_tokens": 1,
        "messages": [
            {"role": "system", "content": "You know the weather."},
            question,
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 20 degrees"},
        ],
        "tools": [{"type": "function", "function": declared}],
    }
    usage = httpx.post(f"{live_url}/v1/chat/completions", json=chat, timeout=60).json()["usage"]
    assert usage["prompt_tokens"] == counted.input_tokens
    assert usage["prompt_tokens_details"]["cached_tokens"] == counted.input_tokens - 1
