"""The extensions that say what the whole output must be."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrt.errors import RequestError
from specrt.grammars.guided import GUIDED_FIELDS, GuidedOutput, choice_regex, read_guided
from specrt.grammars.regular.automaton import build

SCHEMA = {"type": "object", "properties": {"é": {"type": "integer"}}}
TEXT_CHARACTERS = st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.just("\n")
TEXT = '{"type": "object", "properties": {"é": {"type": "integer"}}}'


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        (dict.fromkeys(GUIDED_FIELDS), None),
        ({"guided_json": SCHEMA}, ("json", TEXT, "guided_json")),
        ({"guided_json": TEXT}, ("json", TEXT, "guided_json")),
        ({"guided_regex": "a|b"}, ("regex", "a|b", "guided_regex")),
        ({"regex": "a|b"}, ("regex", "a|b", "regex")),
        ({"guided_choice": ["a", "b"]}, ("regex", "(?:a|b)", "guided_choice")),
        ({"guided_grammar": "start: X"}, ("lark", "start: X", "guided_grammar")),
        (
            {"structured_outputs": {"json": SCHEMA, "regex": None, "disable_fallback": False}},
            ("json", TEXT, "structured_outputs.json"),
        ),
        (
            {"structured_outputs": {"choice": ["a"]}},
            ("regex", "(?:a)", "structured_outputs.choice"),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            ("json", '{"type": "object"}', "structured_outputs.json_object"),
        ),
    ],
)
def test_every_form(fields: dict[str, Any], expected: tuple[Any, str, str] | None) -> None:
    assert read_guided(fields) == (None if expected is None else GuidedOutput(*expected))


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"guided_json": "{"}, "guided_json", "expected a JSON Schema, got '{'"),
        ({"guided_json": "[" * 100_000}, "guided_json", "expected a JSON Schema"),
        ({"guided_json": [1]}, "guided_json", "a JSON Schema object"),
        ({"guided_regex": ""}, "guided_regex", "a regular expression, got ''"),
        ({"guided_grammar": 1}, "guided_grammar", "a Lark grammar, got 1"),
        ({"guided_choice": "a"}, "guided_choice", "a list of 1 to 1024 texts, got 'a'"),
        ({"guided_choice": ["a", 1]}, r"guided_choice[1]", "expected text without"),
        ({"guided_choice": ["a\x02"]}, r"guided_choice[0]", "control characters, got"),
        ({"structured_outputs": 3}, "structured_outputs", "an object, got 3"),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            "structured_outputs.structural_tag",
            "no such field",
        ),
        (
            {"structured_outputs": {"disable_fallback": True}},
            "structured_outputs.disable_fallback",
            "no such field",
        ),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs.choice",
            "got structured_outputs.regex too",
        ),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        read_guided(fields)
    assert caught.value.param == param and caught.value.message.startswith(param)


@given(
    choices=st.lists(st.text(TEXT_CHARACTERS, max_size=8), min_size=1, max_size=4),
    other=st.text("ab.*\\n\n-[]{}^$|/ ", max_size=4),
)
def test_a_choice_matches_itself_and_nothing_else(choices: list[str], other: str) -> None:
    automaton = build(choice_regex(choices))

    def is_matched(text: str) -> bool:
        state = automaton.start
        for byte in text.encode():
            state = int(automaton.table[state, byte])
        return bool(automaton.final[state])

    assert all(map(is_matched, choices))
    assert is_matched(other) == (other in choices)


def test_escapes_are_those_of_other_dialects_too() -> None:
    text = "a.b*c+d?e(f)g|h[i]j{k}l^m$n\\o"
    assert re.fullmatch(choice_regex([text]), text)
    assert choice_regex(["\n"]) == r"(?:\x{a})"
