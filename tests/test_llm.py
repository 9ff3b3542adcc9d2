"""The library: chat with tools, turns that reuse the cache, clear errors."""

from __future__ import annotations

import json

import pytest
from fakes import tiny_model_folder

import specrt
from specrt.errors import ConfigError, RequestError, ToolChoiceError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "move",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {
                    "to": {"type": "string", "enum": ["north", "südwest", 'a "b"\n']},
                    "steps": {"type": "integer", "minimum": 1, "maximum": 9},
                    "note": {"type": "string", "maxLength": 6},
                },
                "required": ["to", "steps", "note"],
                "additionalProperties": False,
            },
        },
    }
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> specrt.LLM:
    folder = tiny_model_folder(tmp_path_factory.mktemp("tiny"), max_position_embeddings=2048)
    return specrt.LLM(str(folder), max_total_tokens=8192, num_threads=1, check_cache=True)


def test_calls_are_valid_and_every_turn_hits_all_that_was_computed(llm: specrt.LLM) -> None:
    messages = [{"role": "user", "content": "go somewhere, 12 times"}]
    computed = 0
    for seed in range(6):
        reply = llm.chat(
            messages, tools=TOOLS, tool_choice="required", max_tokens=400, seed=seed,
            parallel_tool_calls=seed % 2 == 0,
        )  # fmt: skip
        stats = reply.completion.stats
        assert stats.num_cached_tokens >= computed
        computed = stats.num_prompt_tokens + stats.num_output_tokens - 1
        for call in reply.tool_calls:
            if call.complete:
                arguments = json.loads(call.arguments)
                assert arguments["to"] in ("north", "südwest", 'a "b"\n')
                assert 1 <= arguments["steps"] <= 9 and len(arguments["note"]) <= 6
        if reply.completion.finish_reason == "length":
            break
        assert reply.tool_calls
        messages.append(reply.message)
        messages += [
            {"role": "tool", "tool_call_id": f"call_{i}", "content": f"ok {i} é"}
            for i in range(len(reply.tool_calls))
        ]
    assert len(messages) > 3


def test_a_turn_cut_by_a_stop_string_is_reused_up_to_its_last_whole_token(llm: specrt.LLM) -> None:
    messages = [{"role": "user", "content": "say something"}]
    whole = llm.chat(messages, max_tokens=40, seed=3).completion
    stop = whole.text[18:20]
    reply = llm.chat(messages, max_tokens=40, seed=3, stop=(stop,))
    content = reply.content or ""
    assert content == whole.text.split(stop)[0] and len(content) > 4
    decode = llm.engine.tokenizer.decode
    ids = reply.completion.token_ids
    num_whole = max(n for n in range(len(ids) + 1) if content.startswith(decode(ids[:n])))
    assert num_whole > 2
    messages += [reply.message, {"role": "user", "content": "and then?"}]
    second = llm.chat(messages, max_tokens=4, seed=4).completion
    prompt = reply.completion.stats.num_prompt_tokens
    assert second.stats.num_cached_tokens >= prompt + num_whole


def test_json_answers_and_plain_text(llm: specrt.LLM) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    reply = llm.chat(
        [{"role": "user", "content": "yes?"}],
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        seed=1,
    )
    assert json.loads(reply.content or "")["ok"] in (True, False)
    assert not reply.tool_calls
    texts = llm.generate(["the weather", "call the"], max_tokens=8, temperature=0.0)
    again = llm.generate(["the weather"], max_tokens=8, temperature=0.0)
    assert texts[0].token_ids == again[0].token_ids


def test_what_is_wrong_is_named(llm: specrt.LLM) -> None:
    with pytest.raises(ConfigError, match="contextlength"):
        specrt.LLM(contextlength=5)
    with pytest.raises(ToolChoiceError, match="move"):
        llm.chat(
            [{"role": "user", "content": "x"}],
            tools=TOOLS,
            tool_choice={"type": "function", "function": {"name": "stop"}},
        )
    with pytest.raises(RequestError, match=r"messages\[0\]\.role"):
        llm.chat([{"role": "robot", "content": "x"}])
    assert not llm.engine.has_work
