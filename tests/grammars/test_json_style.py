"""JSON text in the style of the format."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrt.grammars.json_style import repair_surrogates, restyle

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def style(text: str) -> str:
    return restyle(text, item_separator=", ", key_separator=": ")


@given(JSON, st.booleans(), st.sampled_from([None, 2]), st.sampled_from([None, (",", ":")]))
def test_any_serialisation_becomes_the_one_of_the_style(
    value: object, ensure_ascii: bool, indent: int | None, separators: tuple[str, str] | None
) -> None:
    expected = json.dumps(value, ensure_ascii=False)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators)
    assert style(text) == expected
    assert style(expected) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":1.50,"b":-0,"c":1E+05}', '{"a": 1.50, "b": -0, "c": 1E+05}'),  # numbers stay
        ('{"a":1,"a":2}', '{"a": 1, "a": 2}'),  # so do duplicate keys
        ('{"a":"x,y:z {\\"}"}', '{"a": "x,y:z {\\"}"}'),  # strings are not touched
        ('{ "\\u00e9\\/\\u000A" : [ ] }', '{"é/\\n": []}'),
        ('["\\ud83d\\ude00", "\\ud83d", "\\u001F"]', '["😀", "\\ud83d", "\\u001f"]'),
    ],
)
def test_spellings(text: str, expected: str) -> None:
    assert style(text) == expected


def test_surrogates_are_joined_or_replaced() -> None:
    assert repair_surrogates("plain é") == "plain é"
    assert repair_surrogates("a\ud83d\ude00b") == "a😀b"
    assert repair_surrogates("cut \ud83d") == "cut \ufffd"
