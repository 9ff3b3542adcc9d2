"""Tool choices, older functions, guided output and other extensions of chat completions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server.fake_engine import (
    EOS,
    MODEL,
    SPECIAL,
    ByteTokenizer,
    chop,
    make_backend,
    make_model,
    says,
    serving,
)

from specrt.errors import SchemaError
from specrt.grammars.base import GrammarRecipe
from specrt.grammars.chat import ChatRenderer
from specrt.grammars.formats import load_format
from specrt.grammars.prompt_builder import PromptBuilder
from specrt.grammars.turn_memo import TurnMemo
from specrt.server.access import RequestRecord
from specrt.server.body import parse_body
from specrt.server.chat import ChatService
from specrt.server.protocol import ChatRequest
from specrt.server.served_model import ServedModel

pytestmark = pytest.mark.anyio

USER = [{"role": "user", "content": "hi"}]
FUNCTIONS = [{"name": name, "parameters": {"type": "object"}} for name in ("weather", "time")]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
CALL = '<tool_call>\n{"name": "time", "arguments": {"zone": "CET é"}}\n</tool_call>'


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def events_of(response: Any) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = [line[6:] for line in response.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def test_allowed_tools_keep_the_prompt_and_narrow_the_calls() -> None:
    engine = says("x")
    async with serving(engine) as client:
        await client.chat(tools=TOOLS)
        await client.chat(tools=TOOLS, tool_choice=allowed("auto", "time"))
        await client.chat(tools=TOOLS, tool_choice=allowed("required", "time", "weather"))
    whole, one, both = engine.requests
    assert whole.prompt_token_ids == one.prompt_token_ids == both.prompt_token_ids
    assert one.grammar is not None and [tool.name for tool in one.grammar.tools] == ["time"]
    assert not one.grammar.require_call and one.grammar.parallel
    assert both.grammar is not None and both.grammar.require_call
    assert [tool.name for tool in both.grammar.tools] == ["weather", "time"]


async def test_older_functions_reach_the_engine_as_tools() -> None:
    engine = says(CALL)
    async with serving(engine) as client:
        await client.chat(tools=TOOLS, parallel_tool_calls=False)
        await client.chat(functions=FUNCTIONS)
        await client.chat(functions=FUNCTIONS, function_call={"name": "time"})
        await client.chat(functions=FUNCTIONS, function_call="none")
    newer, auto, named, none = engine.requests
    assert auto.prompt_token_ids == newer.prompt_token_ids and auto.grammar == newer.grammar
    assert named.grammar is not None and named.grammar.require_call
    assert [tool.name for tool in named.grammar.tools] == ["time"]
    assert none.grammar is None and none.prompt_token_ids == newer.prompt_token_ids


async def test_older_functions_are_answered_in_the_older_shape() -> None:
    engine = says(*chop(CALL, 3))
    async with serving(engine) as client:
        answer = await client.openai.chat.completions.create(
            model=MODEL, messages=USER, functions=FUNCTIONS
        )
        events = events_of(await client.chat(functions=FUNCTIONS, stream=True))
        choice = answer.choices[0]
        assert choice.finish_reason == "function_call" and choice.message.tool_calls is None
        call = choice.message.function_call
        assert call is not None and (call.name, call.arguments) == ("time", '{"zone": "CET é"}')
        # The next turn continues what was generated.
        result = {"role": "function", "name": "time", "content": "noon"}
        message = choice.message.model_dump(exclude_unset=True)
        await client.chat(functions=FUNCTIONS, messages=[*USER, message, result])
    generated = [*engine.requests[0].prompt_token_ids, *CALL.encode(), EOS]
    assert engine.requests[-1].prompt_token_ids[: len(generated)] == generated
    deltas = [event["choices"][0]["delta"] for event in events]
    pieces = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert pieces[0] == {"name": "time", "arguments": ""}
    assert all(set(piece) == {"arguments"} for piece in pieces[1:])
    assert "".join(piece["arguments"] for piece in pieces) == '{"zone": "CET é"}'
    assert events[-1]["choices"][0]["finish_reason"] == "function_call"
    assert not any("tool_calls" in delta for delta in deltas)


@given(cut=st.integers(0, len(CALL)), seed=st.integers(0, 999), is_cut=st.booleans())
@settings(max_examples=50, deadline=None)
def test_older_streams_equal_whole_answers(cut: int, seed: int, is_cut: bool) -> None:
    text = CALL[:cut] if is_cut else f"Let me see.\n{CALL}"
    engine = says(*(chop(text, seed) or [""]), finish="length" if is_cut else "stop")
    service = ChatService(make_model(), make_backend(engine))
    fields = {"model": MODEL, "messages": USER, "functions": FUNCTIONS}

    async def both() -> tuple[dict[str, Any], list[bytes]]:
        request = parse_body(ChatRequest, json.dumps(fields).encode())
        whole = await service.complete(request, RequestRecord("a"))
        events = [event async for event in service.stream(request, RequestRecord("b"))]
        return json.loads(whole.model_dump_json(exclude_unset=True)), events

    whole, events = asyncio.run(both())
    content, call, finish = None, None, None
    for event in events[:-1]:
        choice = json.loads(event.removeprefix(b"data: "))["choices"][0]
        delta, finish = choice["delta"], choice["finish_reason"]
        if delta.get("content") is not None:
            content = (content or "") + delta["content"]
        for name, piece in delta.get("function_call", {}).items():
            call = call or {}
            call[name] = call.get(name, "") + piece
    message = whole["choices"][0]["message"]
    assert (content, call) == (message["content"], message.get("function_call"))
    assert finish == whole["choices"][0]["finish_reason"]


async def test_a_text_answer_beside_functions() -> None:
    async with serving(says("No.")) as client:
        choice = (await client.chat(functions=FUNCTIONS)).json()["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["message"]["content"] == "No."
    assert "function_call" not in choice["message"]


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"guided_regex": "[ab]+"}, "regex", "[ab]+"),
        ({"regex": "[ab]+"}, "regex", "[ab]+"),
        ({"guided_choice": ["yes", "no?"]}, "regex", r"(?:yes|no\?)"),
        ({"guided_grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "lark", 'start: "a"'),
        ({"guided_json": '{"type": "null"}'}, "json", '{"type": "null"}'),
        ({"regex": "a", "tools": TOOLS, "tool_choice": "none"}, "regex", "a"),
    ],
)
async def test_guided_output(fields: dict[str, Any], kind: str, text: str) -> None:
    engine = says("<tool_call>")
    async with serving(engine) as client:
        answer = (await client.chat(**fields)).json()["choices"][0]
    recipe = engine.requests[0].grammar
    assert recipe is not None and (recipe.kind, recipe.schema) == (kind, text)
    assert answer["message"]["content"] == "<tool_call>", "no calls are looked for"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar"),
        ({"guided_choice": ["a"]}, "guided_choice"),
    ],
)
async def test_a_guide_that_cannot_be_used_is_named(fields: dict[str, Any], param: str) -> None:
    class Refusing:
        def compile(self, recipe: GrammarRecipe) -> Any:
            raise SchemaError(f"the {recipe.kind} cannot be used: why", param=recipe.kind)

    engine = says("x")
    async with serving(engine, make_model(compiler=Refusing())) as client:
        for send in (client.chat, client.complete):
            response = await send(**fields)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (400, param)
            assert error["message"].startswith(f"`{param}`: the ") and "why" in error["message"]
    assert engine.requests == []


async def test_ends_reach_the_engine() -> None:
    engine = says("x")
    async with serving(engine) as client:
        await client.chat(
            stop_token_ids=[65, 66], min_tokens=4, include_stop_str_in_output=True, stop="E"
        )
        await client.complete(stop_token_ids=[65], min_tokens=3)
        await client.chat()
    chat, text, plain = (request.sampling for request in engine.requests)
    assert (chat.stop_token_ids, chat.min_tokens, chat.include_stop) == ((65, 66), 4, True)
    assert (text.stop_token_ids, text.min_tokens, text.include_stop) == ((65,), 3, False)
    assert (plain.stop_token_ids, plain.min_tokens, plain.include_stop) == ((), 0, False)


TEMPLATE = """
{%- for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{{ 'think' if enable_thinking else 'act' }} {{ reasoning_effort or 'some' }}
{{- ' ' ~ labels | join(',') if labels is defined }}"""


def model_with(template: str) -> ServedModel:
    tool_format, tokenizer = load_format("hermes"), ByteTokenizer()
    renderer = ChatRenderer(template, tool_format, special_tokens=SPECIAL)
    return make_model(prompts=PromptBuilder(renderer, tokenizer, TurnMemo()))


async def test_variables_reach_the_template() -> None:
    engine = says("x")
    async with serving(engine, model_with(TEMPLATE)) as client:
        for fields in (
            {},
            {"chat_template_kwargs": {"enable_thinking": True, "labels": ["a", "<|im_end|>"]}},
            {"reasoning_effort": "high"},
            {"chat_template_kwargs": {"reasoning_effort": "high"}},
        ):
            response = await client.chat(**fields)
            assert response.status_code == 200, response.text
        refused = await client.chat(chat_template_kwargs={"enable_thinkin": True})
    prompts = [bytes(r.prompt_token_ids).decode() for r in engine.requests]
    begin = "user: hi\n"
    assert prompts == [
        f"{begin}act some",
        # A special token's text stays text.
        f"{begin}think some a,<|im_end|>",
        f"{begin}act high",
        f"{begin}act high",
    ]
    error = refused.json()["error"]
    assert error["param"] == "chat_template_kwargs.enable_thinkin"
    assert "it reads enable_thinking, labels, reasoning_effort" in error["message"]


async def test_a_setting_that_the_template_does_not_read_is_refused() -> None:
    async with serving(says("x"), model_with(TEMPLATE)) as client:
        for name, value in (("verbosity", "high"), ("verbosity", "low")):
            error = (await client.chat(**{name: value})).json()["error"]
            assert error["param"] == name and error["code"] == "unsupported_value"
        assert (await client.chat(verbosity="medium")).status_code == 200


async def test_service_tier_is_told_when_it_was_asked_for() -> None:
    async with serving(says("x")) as client:
        whole = (await client.chat(service_tier="auto")).json()
        events = events_of(await client.chat(service_tier="auto", stream=True))
        plain = (await client.chat()).json()
    assert {body["service_tier"] for body in (whole, *events)} == {"default"}
    assert "service_tier" not in plain


async def test_padded_events_have_even_sizes_and_say_the_same() -> None:
    pieces = ["a", "é" * 40, "b" * 63]
    async with serving(says(*pieces)) as client:
        options = {"include_obfuscation": True, "include_usage": True}
        response = await client.chat(stream=True, stream_options=options)
        plain = events_of(await client.chat(stream=True, stream_options={"include_usage": True}))
    events = events_of(response)
    lines = [line[6:] for line in response.text.splitlines() if line][:-1]
    assert all(len(line.encode()) % 64 == 0 for line in lines)
    paddings = [event.pop("obfuscation") for event in events]
    assert len(set(paddings)) > 1
    assert [e["choices"] for e in events] == [e["choices"] for e in plain]


async def test_a_slash_at_the_end_of_a_path_changes_nothing() -> None:
    async with serving(says("x")) as client:
        body = {"model": MODEL, "messages": USER}
        for path in ("/v1/chat/completions/", "/v1/chat/completions//"):
            response = await client.http.post(path, json=body)
            assert response.status_code == 200, response.text
            assert response.json()["choices"][0]["message"]["content"] == "x"
        response = await client.http.post("/v1/completions/", json={"model": MODEL, "prompt": "a"})
        assert response.json()["choices"][0]["text"] == "x"
        assert (await client.http.get("/v1/models/")).json()["object"] == "list"
        assert (await client.http.get(f"/v1/models/{MODEL}/")).json()["id"] == MODEL
        assert (await client.http.get("/v2/models/")).status_code == 404
