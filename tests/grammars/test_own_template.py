"""A model folder whose template knows tools, in two JSON styles: prompts are transformers' own."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from fakes import tiny_tokenizer_folder
from grammar_walks import takes

from specrt.grammars.base import GrammarRecipe, ToolSpec
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.format_detection import find_format
from specrt.grammars.formats import load_format
from specrt.grammars.prompt_builder import make_prompt_builder
from specrt.grammars.tool_format import ToolFormat
from specrt.grammars.vocabulary import Vocabulary
from specrt.tokenizer import Tokenizer

# Calls and results in Hermes tags; results of one turn stand in one user message.
TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content ~ '\\n' }}{%- endif %}
    {%- for tool in tools %}{{- '<tool>' ~ (tool | tojson) ~ '</tool>\\n' }}{%- endfor %}
    {{- 'Call one inside <tool_call> tags.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' ~ messages[0].content ~ '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<result>' ~ message.content ~ '</result>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message.role != 'system' or not loop.first %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' }}
        {%- if message.content %}{{- message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n' if message.content or not loop.first }}
            {{- '<tool_call>\\n{"name"KEY"' ~ call.function.name ~ '"ITEM"arguments"KEY' }}
            {{- call.function.arguments | TOJSON }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
STYLES = {
    "hermes": (", ", ": ", "tojson"),
    "hermes_compact": (",", ":", "tojson(separators=(',', ':'))"),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Wetter <b>&</b> é",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "array"}},
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    }
]
ARGUMENTS = {"city": 'Zürich "Süd", é: <x>', "days": [1, 2.5, {"a": None}]}


def _call(number: int) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": ARGUMENTS}
    return {"id": f"call_{number}", "type": "function", "function": function}


FIRST: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "weather in Zürich?"},
]
ONE_CALL = {"role": "assistant", "content": "", "tool_calls": [_call(0)]}
LATER = [
    {"role": "tool", "tool_call_id": "call_0", "content": "sunny\n"},
    {"role": "assistant", "content": "And once more.", "tool_calls": [_call(1), _call(2)]},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"sun": true}'},
    {"role": "tool", "tool_call_id": "call_2", "content": "rain"},
    {"role": "assistant", "content": "It rains."},
    {"role": "user", "content": "thanks"},
]
ALL = [*FIRST, ONE_CALL, *LATER]


def _as_sent(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As clients send them: arguments are JSON text, in a style of its own."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], indent=1)
    return messages


@pytest.fixture(params=STYLES)
def style(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, style: str) -> Path:
    item, key, to_json = STYLES[style]
    template = TEMPLATE.replace("ITEM", item).replace("KEY", key).replace("TOJSON", to_json)
    path = tiny_tokenizer_folder(tmp_path) / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    return tmp_path


@pytest.fixture
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder, 320, (2,))


def _arguments(tool_format: ToolFormat) -> str:
    separators = (tool_format.item_separator, tool_format.key_separator)
    return json.dumps(ARGUMENTS, ensure_ascii=False, separators=separators)


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "no tools"])
@pytest.mark.parametrize("count", [1, 2, 4, 7, len(ALL)])
def test_prompts_are_byte_equal_to_transformers(
    folder: Path, tokenizer: Tokenizer, tools: Any, count: int
) -> None:
    from transformers import AutoTokenizer

    messages = ALL[:count] if count > 1 else FIRST[1:]
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, tokenize=False
    )
    prompts = make_prompt_builder(tokenizer, find_format(tokenizer))
    prompt = prompts.build(_as_sent(messages), tools)
    assert prompt.text == expected
    assert tokenizer.decode(prompt.token_ids) == expected


def test_the_next_turn_prints_the_call_as_it_was_generated(
    folder: Path, tokenizer: Tokenizer, style: str
) -> None:
    tool_format = find_format(tokenizer)
    assert tool_format.name == style
    prompts = make_prompt_builder(tokenizer, tool_format)
    first = prompts.build(FIRST, TOOLS)
    generated = tool_format.turn_text("", [("get_weather", _arguments(tool_format))])
    # One token a byte, where it can be: ids that tokenising the text would not give.
    token_ids = [i for char in generated for i in tokenizer.encode_plain(char)]
    arguments = json.dumps(ARGUMENTS, ensure_ascii=False)
    call = type("Call", (), {"name": "get_weather", "arguments": arguments})()
    prompts.remember(first, None, [call], [*token_ids, 2])
    answer = copy.deepcopy(ONE_CALL)
    answer["tool_calls"][0]["function"]["arguments"] = arguments
    following = prompts.build([*FIRST, answer, LATER[0]], TOOLS)
    assert following.num_spliced_turns == 1
    computed = [*first.token_ids, *token_ids]
    assert following.token_ids[: len(computed)] == computed


def test_the_grammar_writes_the_templates_style_only(folder: Path, tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary((folder / "tokenizer.json").read_text(), 320, (2,))
    tool_format = find_format(tokenizer)
    spec = ToolSpec(
        name="get_weather",
        parameters=json.dumps(TOOLS[0]["function"]["parameters"]),  # type: ignore[index]
        strict=True,
    )
    recipe = GrammarRecipe(
        kind="tools",
        tools=(spec,),
        tool_format=tool_format.name,
        require_call=True,
        canonical=False,
    )
    state = GrammarCompiler(vocabulary).compile(recipe).open()
    assert takes(state, vocabulary, tool_format.call_text("get_weather", _arguments(tool_format)))
    (other,) = (load_format(name) for name in STYLES if name != tool_format.name)
    assert not takes(state, vocabulary, other.call_text("get_weather", _arguments(other)))
