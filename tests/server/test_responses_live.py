"""/v1/responses of `specrt serve` with the embedded model, through the official client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from specrt.model.embedded import EMBEDDED_NAME

pytestmark = pytest.mark.slow

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Zürich", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NAME, DESCRIPTION = "get_weather", "The weather at a place."
TOOL: Any = {
    "type": "function",
    "name": NAME,
    "description": DESCRIPTION,
    "parameters": PARAMETERS,
    "strict": True,
}
QUESTION: Any = {"role": "user", "content": "Weather in Zürich, next 3 days?"}
RULES = "You know the weather."


@pytest.fixture
def client(live_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def cached(response: Any) -> int:
    count: int = response.usage.input_tokens_details.cached_tokens
    return count


def test_a_call_and_its_output_keep_the_whole_prefix(client: openai.OpenAI) -> None:
    fields: Any = {"model": EMBEDDED_NAME, "instructions": RULES, "tools": [TOOL], "temperature": 0}
    must: Any = {"tool_choice": "required", "parallel_tool_calls": False}
    with client.responses.stream(input=[QUESTION], **fields, **must) as events:
        deltas = [
            event.delta
            for event in events
            if event.type == "response.function_call_arguments.delta"
        ]
        streamed = events.get_final_response()
    first = client.responses.create(input=[QUESTION], **fields, **must)
    (call,) = first.output
    assert call.type == "function_call" and call.name == NAME and first.status == "completed"
    arguments = json.loads(call.arguments)
    assert arguments["city"] in ("Zürich", "Oslo") and 1 <= arguments["days"] <= 9
    assert "".join(deltas) == call.arguments == streamed.output[0].arguments  # type: ignore[union-attr]
    assert first.usage is not None and cached(first) == first.usage.input_tokens - 1

    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    follow_up = {**fields, "max_output_tokens": 24}
    second = client.responses.create(input=[output], previous_response_id=first.id, **follow_up)
    assert cached(second) >= first.usage.total_tokens - 1, "prompt and generated turn"
    assert second.usage is not None and second.usage.output_tokens <= 24
    # All items again, then the same conversation as a chat: the same prompt.
    items: Any = [QUESTION, call.model_dump(exclude_unset=True), output]
    again = client.responses.create(input=items, **follow_up)
    function = {"name": call.name, "arguments": call.arguments}
    calls = [{"id": call.call_id, "type": "function", "function": function}]
    declared = {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}
    messages: Any = [
        {"role": "system", "content": RULES},
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": call.call_id, "content": "sunny"},
    ]
    tools: Any = [{"type": "function", "function": declared}]
    chat = client.chat.completions.create(
        model=EMBEDDED_NAME, messages=messages, tools=tools, max_tokens=1
    )
    assert chat.usage is not None and chat.usage.prompt_tokens_details is not None
    assert cached(again) == second.usage.input_tokens - 1
    assert chat.usage.prompt_tokens_details.cached_tokens == second.usage.input_tokens - 1


def test_a_cancelled_response_frees_the_engine(client: openai.OpenAI) -> None:
    fields: Any = {"model": EMBEDDED_NAME, "input": "Count to 100000.", "stream": True}
    with client.responses.create(**fields, extra_body={"ignore_eos": True}) as events:
        begun = next(events)
        assert begun.type == "response.created"
        assert any(event.type == "response.output_text.delta" for event in events)
        ended = client.responses.cancel(begun.response.id)
        assert ended.status == "cancelled" and ended.output_text
        assert [event.type for event in events][-1] == "response.incomplete"
    info = str(client.base_url).removesuffix("/v1/") + "/get_server_info"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        state = client.get(info, cast_to=object)["internal_states"][0]  # type: ignore[index]
        if not state["num_running"]:
            break
        time.sleep(0.05)
    assert (state["num_running"], state["num_held_slots"]) == (0, 0)
