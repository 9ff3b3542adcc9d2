"""Every format, with a template that prints its calls: detected, generated, read and continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import CHAT_TEMPLATE, tiny_tokenizer_folder
from grammar_walks import feed

from specrt.errors import ConfigError, RequestError
from specrt.grammars.base import DEAD, GrammarRecipe, ToolSpec
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.format_detection import find_format
from specrt.grammars.formats import format_names, load_format, variants_of
from specrt.grammars.prompt_builder import make_prompt_builder
from specrt.grammars.tool_format import ToolFormat
from specrt.grammars.tool_parser import parse_message
from specrt.grammars.vocabulary import Vocabulary
from specrt.tokenizer import Tokenizer

VOCAB_SIZE = 352
# Special tokens of the families, as their tokenizers have them.
MARKERS = (
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
TURNS = """
{%- if tools %}{{- '<|im_start|>system\\n' ~ (tools | tojson) ~ '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' }}
    {%- if message.tool_calls %}CALLS
    {%- else %}{{- message.content }}{%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
NINE = "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
LISTED = (
    "{{- message.content ~ 'BEGIN' }}{%- for c in message.tool_calls %}" + NINE + "{{- (c.function"
    " | tojson)[:-1] ~ ', \"id\": \"' ~ c.id ~ '\"}' }}{{- ', ' if not loop.last else ']' }}"
    "{%- endfor %}"
)
DEEPSEEK = (
    "{{- message.content + '<｜tool▁calls▁begin｜>' }}{%- for c in message.tool_calls %}"
    "{{- '\\n' if not loop.first and NEWLINE }}{{- '<｜tool▁call▁begin｜>' + HEAD + TAIL }}"
    "{%- endfor %}{{- '<｜tool▁calls▁end｜>' }}"
)
V3_HEAD = "'function<｜tool▁sep｜>' + c.function.name + '\\n```json\\n'"
V31 = (
    DEEPSEEK.replace("HEAD", "c.function.name + '<｜tool▁sep｜>'")
    .replace("TAIL", "c.function.arguments + '<｜tool▁call▁end｜>'")  # takes only text
    .replace("NEWLINE", "false")
)
V3 = DEEPSEEK.replace("HEAD", V3_HEAD).replace("NEWLINE", "true")
# How the templates of each variant print calls.
CALLS = {
    "hermes": "{{- message.content }}{%- for c in message.tool_calls %}{{- '\\n' if message.content"
    ' or not loop.first }}{{- \'<tool_call>\\n{"name": "\' ~ c.function.name ~ \'", "arguments":'
    " ' ~ (c.function.arguments | tojson) ~ '}\\n</tool_call>' }}{%- endfor %}",
    "llama3_json": "{%- if message.tool_calls | length > 1 %}{{ raise_exception('one call only') }}"
    '{%- endif %}{{- \'{"name": "\' ~ message.tool_calls[0].function.name ~ \'", "parameters": \''
    " ~ (message.tool_calls[0].function.arguments | tojson) ~ '}' }}",
    "mistral": LISTED.replace("BEGIN", "[TOOL_CALLS] ["),
    "mistral_tekken": LISTED.replace("BEGIN", "[TOOL_CALLS]["),
    "mistral_args": "{{- message.content }}{%- for c in message.tool_calls %}{{- '[TOOL_CALLS]' ~"
    " c.function.name ~ '[ARGS]' ~ (c.function.arguments | tojson) }}{%- endfor %}",
    "mistral_call_id": "{{- message.content }}{%- for c in message.tool_calls %}" + NINE + "{{-"
    " '[TOOL_CALLS]' ~ c.function.name ~ '[CALL_ID]' ~ c.id ~ '[ARGS]' ~ (c.function.arguments |"
    " tojson) }}{%- endfor %}",
    "deepseek_v3": V3.replace(
        "TAIL", "c.function.arguments | tojson + '\\n```<｜tool▁call▁end｜>'"
    ),
    "deepseek_v31": V31,
    "kimi_k2": "{{- message.content ~ '<|tool_calls_section_begin|>' }}{%- for c in message."
    "tool_calls %}{{- '<|tool_call_begin|>' ~ c.id ~ '<|tool_call_argument_begin|>' ~ (c.function."
    "arguments if c.function.arguments is string else c.function.arguments | tojson) ~"
    " '<|tool_call_end|>' }}{%- endfor %}{{- '<|tool_calls_section_end|>' }}",
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("get_weather", "get")
]
ARGUMENTS = '{"city": "Zürich [ARGS]", "days": 3}'
USER = {"role": "user", "content": "weather in Zürich?"}

every_variant = pytest.mark.parametrize("variant", CALLS)


def folder_with(path: Path, template: str, markers: tuple[str, ...] = MARKERS) -> Path:
    """A tokenizer whose template is `template`, with `markers` as special tokens."""
    from tokenizers import Tokenizer as Backend

    file = tiny_tokenizer_folder(path) / "tokenizer.json"
    backend = Backend.from_file(str(file))
    backend.add_special_tokens(list(markers))
    backend.save(str(file))
    config = path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
    return path


@pytest.fixture
def folder(tmp_path: Path, variant: str) -> Path:
    return folder_with(tmp_path, TURNS.replace("CALLS", CALLS[variant]))


@pytest.fixture
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder, VOCAB_SIZE, (2,))


def vocabulary_of(folder: Path) -> Vocabulary:
    return Vocabulary((folder / "tokenizer.json").read_text(), VOCAB_SIZE, (2,))


def recipe_for(tool_format: ToolFormat, **fields: Any) -> GrammarRecipe:
    tools = tuple(
        ToolSpec(name=tool["function"]["name"], parameters=json.dumps(PARAMETERS), strict=True)
        for tool in TOOLS
    )
    return GrammarRecipe(kind="tools", tool_format=tool_format.name, tools=tools, **fields)


@every_variant
def test_the_format_is_found_by_what_the_template_prints(
    variant: str, tokenizer: Tokenizer
) -> None:
    assert find_format(tokenizer).name == variant
    family = next(n for n in format_names() if variant in [v.name for v in variants_of(n)])
    assert find_format(tokenizer, family).name == variant
    others = [name for name in format_names() if name != family]
    # A format that the template does not print is taken as it is, for specrt's own template.
    assert [find_format(tokenizer, name).name for name in others] == others


def test_all_variants_have_a_template_here() -> None:
    variants = {variant.name for name in format_names() for variant in variants_of(name)}
    assert variants == {*CALLS, "hermes_compact"}  # which test_own_template.py has


@every_variant
@pytest.mark.parametrize("has_specials", [True, False])
def test_the_grammar_writes_turns_and_nothing_else(
    tmp_path: Path, variant: str, has_specials: bool
) -> None:
    """With markers that are special tokens, and with markers that the tokenizer lacks."""
    folder = folder_with(tmp_path, CHAT_TEMPLATE, MARKERS if has_specials else ())
    tokenizer, tool_format = Tokenizer(folder, VOCAB_SIZE, (2,)), load_format(variant)
    compiler = GrammarCompiler(vocabulary_of(folder))

    def takes(turn: str, **fields: Any) -> bool:
        state = compiler.compile(recipe_for(tool_format, canonical=False, **fields)).open()
        # Strings in arguments may hold the text of a marker, which is never the special token.
        first, *others = turn.split(" [ARGS]")
        ids = tokenizer.encode(first)
        for other in others:
            ids += tokenizer.encode_plain(" [ARGS]") + tokenizer.encode(other)
        node = feed(state, tuple(ids))
        return node != DEAD and state.is_final(node)

    call = ("get_weather", ARGUMENTS)
    one, two = tool_format.turn_text("", [call]), tool_format.turn_text("", [call, call])
    bad = tool_format.turn_text("", [("get_weather", '{"city": 3, "days": 3}')])
    other = tool_format.turn_text("", [("get_time", ARGUMENTS)])
    for require_call in (False, True):
        assert takes(one, require_call=require_call)
        assert takes(two, require_call=require_call) == tool_format.is_parallel
        assert not takes(two, require_call=require_call, parallel=False)
        assert not takes(bad, require_call=require_call)
        assert not takes(other, require_call=require_call)
        assert not takes(one[:-1], require_call=require_call)
        assert takes("Hm.", require_call=require_call) != require_call
    mixed = tool_format.turn_text("Hm.", [call])
    assert not takes(mixed, require_call=True)
    assert takes(mixed) or tool_format.text_separator is None
    assert parse_message(tool_format, mixed).calls or tool_format.text_separator is None


@every_variant
def test_the_next_prompt_continues_what_was_generated(variant: str, tokenizer: Tokenizer) -> None:
    tool_format = find_format(tokenizer)
    prompts = make_prompt_builder(tokenizer, tool_format)
    first = prompts.build([USER], TOOLS)
    calls = [("get_weather", '{"city": "Bern", "days": 3}'), ("get", '{"city": "", "days": 1}')]
    written = calls[: 2 if tool_format.is_parallel else 1]
    turn = tool_format.turn_text("", written)
    token_ids = tokenizer.encode(turn)
    parsed = parse_message(tool_format, turn)
    assert [(call.name, call.arguments) for call in parsed.calls] == written
    prompts.remember(first, parsed.content, parsed.calls, [*token_ids, 2])
    answer = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": call.id or "x",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in parsed.calls
        ],
    }
    results = [{"role": "tool", "content": "sun"}] * len(parsed.calls)
    following = prompts.build([USER, answer, *results], TOOLS)
    assert following.num_spliced_turns == 1
    computed = [*first.token_ids, *token_ids]
    if tool_format.printed_call:  # the template adds an id behind the first call's arguments
        end = first.text + turn[: turn.index(written[0][1]) + len(written[0][1])]
        assert following.text.startswith(end)
    else:
        assert following.token_ids[: len(computed)] == computed


def test_ids_that_the_model_wrote_come_back_to_it(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, TURNS.replace("CALLS", CALLS["kimi_k2"]))
    tokenizer = Tokenizer(folder, VOCAB_SIZE, (2,))
    prompts = make_prompt_builder(tokenizer, find_format(tokenizer))
    calls = [
        {"id": call_id, "function": {"name": "get", "arguments": "{}"}}
        for call_id in ("functions.get:12", "call_abc")
    ]
    text = prompts.build([USER, {"role": "assistant", "tool_calls": calls}]).text
    assert "functions.get:12<|tool_call_argument_begin|>" in text
    assert "functions.get:1<|tool_call_argument_begin|>" in text and "call_abc" not in text


UNSUPPORTED = {
    "qwen3_coder": "<tool_call>\n<function=' ~ c.function.name ~ '>",
    "glm45": "<tool_call>' ~ c.function.name ~ '\n<arg_key>",
    "gpt_oss": " to=functions.' ~ c.function.name ~ '<|channel|>commentary json<|message|>",
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_template_of_another_format_is_refused_by_its_name(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls = f"{{%- for c in message.tool_calls %}}{{{{- '{UNSUPPORTED[name]}' }}}}{{%- endfor %}}"
    folder = folder_with(tmp_path, TURNS.replace("CALLS", calls))
    tokenizer = Tokenizer(folder, VOCAB_SIZE, (2,))
    prompts = make_prompt_builder(tokenizer, find_format(tokenizer))
    assert name in caplog.text
    assert prompts.build([USER]).text.startswith("<|im_start|>user")
    with pytest.raises(RequestError, match=f"'{name}' format.*--tool-call-parser hermes"):
        prompts.build([USER], TOOLS)
    with pytest.raises(ConfigError, match=f"--tool-call-parser: .*'{name}', which is not supp"):
        find_format(tokenizer, name)
    chosen = make_prompt_builder(tokenizer, find_format(tokenizer, "qwen25"), is_chosen=True)
    assert "# Tools" in chosen.build([USER], TOOLS).text
