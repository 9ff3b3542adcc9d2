"""Regions of an output, byte by byte and in any pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specrt.grammars.formats import format_names, load_format, variants_of
from specrt.grammars.json_region import JsonPlace

LETTERS = {"key": "k", "punctuation": "p", "value": "v", "free text": "t"}


def marked(text: str, trigger: str = "") -> str:
    """The letter of the region of each byte as a token of its own."""
    place, letters = JsonPlace.start(trigger), []
    for byte in text.encode():
        letters.append(LETTERS[place.region_of(bytes((byte,)))])
        place = place.advance(bytes((byte,)))
    return "".join(letters)


@pytest.mark.parametrize(
    ("text", "regions"),
    [
        ('{"a": 1, "b": [true, "x"]}', "tkkkpvvpkkkkpvvvvvvpvvvvpp"),
        (r'{"a\"}": "\\\"{,", "b": -1.5e3}', "tkkkkkkpvvvvvvvvvpkkkkpvvvvvvvp"),
        ('{"a": {"b": {}}}', "tkkkpvvkkkpvvppp"),
    ],
)
def test_json(text: str, regions: str) -> None:
    assert marked(text) == regions


def test_calls_in_text() -> None:
    text = 'see {x} <tool<tool_call>\n{"name": "f"}\n</tool_call>\n{'
    letters = marked(text, "<tool_call>")
    begin, end = text.index('{"'), text.index('"}') + 2
    assert letters[: begin + 1] == "t" * (begin + 1)
    assert letters[begin + 1 : end] == "kkkkkkpvvvvp"
    assert letters[end:] == "t" * (len(text) - end), "a bracket in text opens nothing"


@pytest.mark.parametrize("name", [v.name for n in format_names() for v in variants_of(n)])
def test_arguments_of_calls_in_every_format(name: str) -> None:
    tool_format = load_format(name)
    arguments = '{"a": 1, "b": [true, "x"]}'
    turn = tool_format.turn_text("" if tool_format.text_separator is None else "Hm {x}.", [
        ("get.it", arguments), ("f", arguments)
    ])  # fmt: skip
    letters = marked(turn, tool_format.json_trigger)
    begin = turn.encode().index(arguments.encode()) + 1
    assert letters[begin : begin + 25] == "kkkpvvpkkkkpvvvvvvpvvvvpp"
    if tool_format.is_parallel:
        begin = turn.encode().rindex(arguments.encode()) + 1
        assert letters[begin : begin + 25] == "kkkpvvpkkkkpvvvvvvpvvvvpp"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(), VALUES), st.booleans(), st.data())
def test_all_brackets_close_however_the_text_is_cut(
    value: dict[str, object], ascii_only: bool, data: st.DataObject
) -> None:
    text = ("<call>" + json.dumps(value, ensure_ascii=ascii_only) + ".").encode()
    whole = JsonPlace.start("<call>").advance(text)
    cut = data.draw(st.integers(0, len(text)))
    assert JsonPlace.start("<call>").advance(text[:cut]).advance(text[cut:]) == whole
    assert whole.open == b"" and whole.region == "free text"
    assert JsonPlace.start("<call>").advance(text[:-2]).open == b"{"
