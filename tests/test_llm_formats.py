"""Calls in every format through the engine: valid, and wholly reused by the next turn."""

from __future__ import annotations

import json

import pytest
from fakes import tiny_model_folder
from tokenizers import Tokenizer

import specrt
from specrt.errors import ConfigError
from specrt.grammars.formats import format_names, load_format, variants_of
from specrt.grammars.prompt_builder import make_prompt_builder

# Some families' markers are special tokens of this tokenizer, others are written as text.
MARKERS = ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|tool_call_begin|>", "<|tool_call_end|>"]
VARIANTS = [variant.name for name in format_names() for variant in variants_of(name)]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"to": {"enum": ["north", "süd [ARGS]"]}, "note": schema},
                "required": ["to", "note"],
                "additionalProperties": False,
            },
        },
    }
    # The second is more than an automaton takes: both engines share one list of tools.
    for name, schema in [
        ("move", {"type": "string", "maxLength": 4}),
        ("jump.high", {"type": "array", "maxItems": 2, "items": {"type": ["object", "integer"]}}),
    ]
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> specrt.LLM:
    folder = tiny_model_folder(
        tmp_path_factory.mktemp("tiny"), max_position_embeddings=4096, vocab_size=352
    )
    path = str(folder / "tokenizer.json")
    backend = Tokenizer.from_file(path)
    backend.add_special_tokens(MARKERS)
    backend.save(path)
    return specrt.LLM(
        str(folder),
        tool_call_parser="kimi_k2",
        max_total_tokens=8192,
        num_threads=1,
        check_cache=True,
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_calls_are_valid_and_the_next_turn_continues_them(
    llm: specrt.LLM, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool_format, tokenizer = load_format(name), llm.engine.tokenizer
    # A model for each format would take a minute.
    monkeypatch.setattr(llm, "_format", tool_format)
    monkeypatch.setattr(llm, "_prompts", make_prompt_builder(tokenizer, tool_format))
    messages = [{"role": "user", "content": f"go somewhere, {name}"}]
    computed, num_calls = 0, 0
    for seed in range(3):
        reply = llm.chat(
            messages, tools=TOOLS, tool_choice="required", max_tokens=300, seed=seed,
            parallel_tool_calls=False,
        )  # fmt: skip
        stats = reply.completion.stats
        assert stats.num_cached_tokens >= computed
        computed = stats.num_prompt_tokens + stats.num_output_tokens - 1
        if reply.completion.finish_reason == "length":
            break
        (call,) = reply.tool_calls
        assert reply.content is None and call.complete
        assert call.name in ("move", "jump.high")
        assert json.loads(call.arguments)["to"] in ("north", "süd [ARGS]")
        assert tool_format.call_text(call.name, call.arguments, call.id) in reply.completion.text
        num_calls += 1
        messages.append(reply.message)
        call_id = reply.message["tool_calls"][0]["id"]
        messages.append({"role": "tool", "tool_call_id": call_id, "content": "ok é"})
    assert num_calls


def test_the_chosen_format_is_used_and_a_wrong_one_named(llm: specrt.LLM) -> None:
    reply = llm.chat([{"role": "user", "content": "x"}], tools=TOOLS, tool_choice="required")
    assert reply.completion.text.startswith("<|tool_calls_section_begin|><|tool_call_begin|>")
    path = llm.engine.config.model.model_path
    with pytest.raises(ConfigError, match="--tool-call-parser: .*'glm45', which is not supported"):
        specrt.LLM(path, tool_call_parser="glm45", max_total_tokens=64, num_threads=1)
