"""Agent libraries against the embedded model: openai-agents, pydantic-ai, litellm.

What the model says is of no interest here, so its choices are made certain: by tool_choice, by
strict schemas of a few values, and by `min_tokens`, which does not let a turn end after one call.
The libraries are imported by the tests, not by this file: each takes seconds, and one that is not
installed is skipped.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pydantic
import pytest

from specrt.model.embedded import EMBEDDED_NAME

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

City = Literal["Oslo", "Zürich"]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Zürich"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_openai_agents_run_parallel_tools(live_url: str, api: str) -> None:
    agents = pytest.importorskip("agents")

    asked: list[str] = []

    @agents.function_tool
    def get_weather(city: City) -> str:
        """The weather in a city."""
        asked.append(city)
        return f"sunny in {city}"

    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=f"{live_url}/v1", api_key="none") as client:
        kind: Any = {
            "chat": agents.OpenAIChatCompletionsModel,
            "responses": agents.OpenAIResponsesModel,
        }[api]
        agent = agents.Agent(
            name="Forecaster",
            instructions="You know the weather.",
            model=kind(EMBEDDED_NAME, client),
            tools=[get_weather],
            model_settings=agents.ModelSettings(
                # Required for the first turn only, as the runner resets it after a call.
                tool_choice="required",
                parallel_tool_calls=True,
                temperature=0,
                max_tokens=400,
                extra_body={"min_tokens": 24},
            ),
        )
        question = "How is the weather in Oslo, and how in Zürich?"
        result = await agents.Runner.run(agent, question, max_turns=3)
    calls = [item for item in result.new_items if item.type == "tool_call_item"]
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert len(calls) >= 2 and asked
    assert outputs == [f"sunny in {city}" for city in asked]
    assert isinstance(result.final_output, str)


async def test_pydantic_ai_calls_a_tool_and_returns_a_model(live_url: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Forecast(pydantic.BaseModel):
        city: City
        days: Literal[1, 2, 3]

    async with openai.AsyncOpenAI(base_url=f"{live_url}/v1", api_key="none") as client:
        provider = OpenAIProvider(openai_client=client)
        agent = pydantic_ai.Agent(
            OpenAIChatModel(EMBEDDED_NAME, provider=provider), output_type=Forecast
        )
        result = await agent.run(
            "The weather in Oslo for 2 days.", model_settings={"temperature": 0, "max_tokens": 80}
        )
    assert isinstance(result.output, Forecast)
    assert result.usage.output_tokens > 0


@pytest.mark.filterwarnings("ignore::UserWarning:pydantic")
@pytest.mark.parametrize("stream", [False, True])
def test_litellm_calls_a_tool(live_url: str, stream: bool) -> None:
    litellm = pytest.importorskip("litellm")

    answer: Any = litellm.completion(
        model=f"openai/{EMBEDDED_NAME}",
        api_base=f"{live_url}/v1",
        api_key="none",
        messages=[{"role": "user", "content": "How is the weather in Oslo?"}],
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        temperature=0,
        max_tokens=60,
        stream=stream,
    )
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather" and answer.choices[0].finish_reason == "tool_calls"
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Zürich")
