"""From tools, tool_choice and response_format to a recipe, or an error that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specrt.errors import RequestError, SchemaError, ToolChoiceError
from specrt.grammars.base import GrammarRecipe, ToolSpec
from specrt.grammars.recipes import build_recipe
from specrt.grammars.tools import read_tools

SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


TOOLS = [tool("get_weather", parameters=SCHEMA), tool("now", strict=True)]
NO_PARAMETERS = '{"type": "object", "properties": {}, "additionalProperties": false}'
SPECS = (ToolSpec(name="get_weather", parameters=json.dumps(SCHEMA)),) + (
    ToolSpec(name="now", parameters=NO_PARAMETERS, strict=True),
)
NAMED = {"type": "function", "function": {"name": "now"}}


def test_auto_is_the_default_with_tools() -> None:
    expected = GrammarRecipe(kind="tools", tools=SPECS)
    assert build_recipe(TOOLS) == build_recipe(TOOLS, tool_choice="auto") == expected


def test_required_and_named() -> None:
    required = build_recipe(TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert required == GrammarRecipe(kind="tools", tools=SPECS, require_call=True, parallel=False)
    named = build_recipe(TOOLS, tool_choice=NAMED)
    assert named == GrammarRecipe(
        kind="tools", tools=(SPECS[1],), require_call=True, parallel=False
    )


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_allowed_tools() -> None:
    only = build_recipe(TOOLS, tool_choice=allowed("auto", "now"))
    assert only == GrammarRecipe(kind="tools", tools=(SPECS[1],))
    both = build_recipe(TOOLS, tool_choice=allowed("required", "now", "get_weather", "now"))
    assert both == GrammarRecipe(kind="tools", tools=SPECS, require_call=True)


@pytest.mark.parametrize("choice", ["required", NAMED, allowed("required", "now")])
def test_a_response_format_changes_nothing_where_calls_are_required(choice: object) -> None:
    body = {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA}}
    with_format = build_recipe(TOOLS, tool_choice=choice, response_format=body)
    assert with_format == build_recipe(TOOLS, tool_choice=choice) is not None


def test_guided_outputs() -> None:
    assert build_recipe(guided={"guided_regex": "a+"}) == GrammarRecipe(kind="regex", schema="a+")
    lark = build_recipe(TOOLS, tool_choice="none", guided={"guided_grammar": 'start: "a"'})
    assert lark == GrammarRecipe(kind="lark", schema='start: "a"')
    json_recipe = build_recipe(guided={"guided_json": SCHEMA}, strict_level="exact")
    assert json_recipe == GrammarRecipe(kind="json", schema=json.dumps(SCHEMA), strict=True)
    both = build_recipe(guided={"regex": "a"}, response_format={"type": "text"})
    assert both == GrammarRecipe(kind="regex", schema="a")


@pytest.mark.parametrize("choice", [None, "none"])
@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_and_none_are_free_text(tools: object, choice: object) -> None:
    assert build_recipe(tools, tool_choice=choice) is None
    assert build_recipe(TOOLS, tool_choice="none") is None
    assert build_recipe(TOOLS, tool_choice="none", response_format={"type": "text"}) is None


def test_options_reach_the_recipe() -> None:
    recipe = build_recipe(TOOLS, tool_format="x", canonical=False)
    assert recipe is not None
    assert (recipe.tool_format, recipe.canonical) == ("x", False)


@pytest.mark.parametrize(
    ("level", "expected"),
    [("auto", [False, True]), ("exact", [True, True]), ("lenient", [False, False])],
)
def test_strict_level(level: Any, expected: list[bool]) -> None:
    recipe = build_recipe(TOOLS, strict_level=level)
    assert recipe is not None and [spec.strict for spec in recipe.tools] == expected
    body = {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA, "strict": True}}
    response = build_recipe(response_format=body, strict_level=level)
    assert response is not None and response.strict == (level != "lenient")


def test_response_formats() -> None:
    body = {"type": "json_schema", "json_schema": {"name": "r", "schema": SCHEMA}}
    assert build_recipe(response_format=body) == GrammarRecipe(
        kind="json", schema=json.dumps(SCHEMA)
    )
    anything = build_recipe(response_format={"type": "json_object"})
    assert anything == GrammarRecipe(kind="json", schema='{"type": "object"}', strict=True)
    assert build_recipe(TOOLS, tool_choice="none", response_format=body) is not None


def test_arguments_are_always_an_object() -> None:
    tools = [
        tool("a", parameters={"properties": {}}),
        tool("b", parameters={"type": ["object", "null"]}),
        tool("c", parameters={}),
        tool("d", parameters=None),
    ]
    recipe = build_recipe(tools)
    assert recipe is not None
    assert [spec.parameters for spec in recipe.tools] == [
        '{"type": "object", "properties": {}}',
        '{"type": "object"}',
        NO_PARAMETERS,
        NO_PARAMETERS,
    ]


@pytest.mark.parametrize(
    ("fields", "kind", "param", "message"),
    [
        ({"tools": {}}, RequestError, "tools", r"expected a list of tools, got \{\}"),
        ({"tools": [3]}, RequestError, "tools[0]", "expected an object, got 3"),
        ({"tools": [{"type": "custom"}]}, RequestError, "tools[0].type", "got 'custom'"),
        ({"tools": [{"type": "function"}]}, RequestError, "tools[0].function", "got null"),
        (
            {"tools": [TOOLS[0], tool("a b")]},
            RequestError,
            "tools[1].function.name",
            r"1 to 128 of a-z A-Z 0-9 _ \. -, got 'a b'",
        ),
        (
            {"tools": [*TOOLS, tool("now")]},
            RequestError,
            "tools[2].function.name",
            "'now' again; rename or drop",
        ),
        (
            {"tools": [tool("a", strict=1)]},
            RequestError,
            "tools[0].function.strict",
            "expected true or false, got 1",
        ),
        (
            {"tools": [tool("a", parameters="x")]},
            RequestError,
            "tools[0].function.parameters",
            "expected a JSON Schema object, got 'x'",
        ),
        (
            {"tools": [tool("a"), tool("b", parameters={"type": "array"})]},
            SchemaError,
            "tools[1].function.parameters",
            "type 'object' .* got type 'array'",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            ToolChoiceError,
            "tool_choice",
            "expected one of 'get_weather', 'now', got 'x'",
        ),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}},
            ToolChoiceError,
            "tool_choice",
            r"the tools \(the request has none\), got 'x'",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "name": "now"}},
            ToolChoiceError,
            "tool_choice",
            "expected the name of a tool, got null",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "now"}}},
            ToolChoiceError,
            "tool_choice",
            r"custom tools are not supported\), got 'custom'",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}},
            ToolChoiceError,
            "tool_choice",
            "allowed_tools: expected an object with mode and tools, got null",
        ),
        (
            {"tools": TOOLS, "tool_choice": allowed("none", "now")},
            ToolChoiceError,
            "tool_choice",
            "allowed_tools.mode: expected 'auto' or 'required', got 'none'",
        ),
        (
            {"tools": TOOLS, "tool_choice": allowed("auto")},
            ToolChoiceError,
            "tool_choice",
            r"allowed_tools.tools: expected a list of at least one tool, got \[\]",
        ),
        (
            {"tools": TOOLS, "tool_choice": allowed("auto", "now", "later")},
            ToolChoiceError,
            "tool_choice",
            r"tools\[1\].function.name: expected one of 'get_weather', 'now', got 'later'",
        ),
        ({"tools": TOOLS, "tool_choice": "any"}, ToolChoiceError, "tool_choice", "got 'any'"),
        ({"tool_choice": "required"}, ToolChoiceError, "tool_choice", "got 'required'; add tools"),
        ({"tool_choice": "auto"}, ToolChoiceError, "tool_choice", "got 'auto'; add tools"),
        (
            {"tools": TOOLS, "parallel_tool_calls": "no"},
            RequestError,
            "parallel_tool_calls",
            "expected true or false, got 'no'",
        ),
        (
            {"response_format": {"type": "xml"}},
            RequestError,
            "response_format.type",
            "'json_schema', got 'xml'",
        ),
        ({"response_format": "json"}, RequestError, "response_format.type", "got 'json'"),
        (
            {"response_format": {"type": "json_schema", "schema": SCHEMA}},
            SchemaError,
            "response_format.json_schema.schema",
            "expected a JSON Schema object, got null",
        ),
        (
            {"tools": TOOLS, "response_format": {"type": "json_object"}},
            RequestError,
            "response_format",
            "tool_choice 'auto'.*send tool_choice 'none' to get JSON",
        ),
        (
            {"tools": TOOLS, "tool_choice": NAMED, "guided": {"guided_choice": ["a"]}},
            RequestError,
            "guided_choice",
            "leave guided_choice out to get calls",
        ),
        (
            {"response_format": {"type": "json_object"}, "guided": {"regex": "a"}},
            RequestError,
            "regex",
            "got response_format too",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "name": 3}}},
            RequestError,
            "response_format.json_schema.name",
            "expected text, got 3",
        ),
    ],
)
def test_errors_name_the_field(
    fields: dict[str, Any], kind: type[RequestError], param: str, message: str
) -> None:
    tools = fields.pop("tools", None)
    with pytest.raises(RequestError, match=message) as caught:
        build_recipe(tools, **fields)
    assert type(caught.value) is kind
    assert caught.value.param == param


def test_a_schema_too_deep_to_walk_is_refused() -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(2000):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(RequestError, match="parameters: expected JSON nested at most 100"):
        build_recipe([tool("a", parameters=deep)])
    with pytest.raises(RequestError, match="schema: expected JSON nested at most 100"):
        body = {"type": "json_schema", "json_schema": {"schema": deep}}
        build_recipe(response_format=body)


def test_declarations_keep_the_key_order_and_nothing_that_the_model_does_not_read() -> None:
    noisy = tool("a", strict=True, parameters=SCHEMA, cache_control={"type": "x"}, description="d")
    noisy["cache_control"] = {"type": "ephemeral"}
    (read,) = read_tools([noisy])
    assert json.dumps(read.declaration) == json.dumps(
        {
            "type": "function",
            "function": {"name": "a", "parameters": SCHEMA, "description": "d"},
        }
    )
