"""Format files: what they say, and what is refused."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from specrt.errors import ConfigError
from specrt.grammars.formats import format_names, load_format, read_formats, variants_of

HERMES = json.loads(files("specrt.grammars.formats").joinpath("hermes.json").read_text())


def test_hermes_writes_calls_as_transformers_tojson_prints_them() -> None:
    hermes = load_format("hermes")
    arguments = {"city": "Zürich", "days": 3}
    printed = json.dumps({"name": "get_weather", "arguments": arguments}, ensure_ascii=False)
    text = hermes.call_text("get_weather", json.dumps(arguments, ensure_ascii=False))
    assert text == f"<tool_call>\n{printed}\n</tool_call>"
    assert text == hermes.prefix + "".join(hermes.head("get_weather")) + (
        printed[printed.index('{"city') : -1] + hermes.tail
    )


def test_turn_text_joins_text_and_calls() -> None:
    hermes = load_format("hermes")
    call = "<tool_call>\n" + '{"name": "f", "arguments": {}}' + "\n</tool_call>"
    assert hermes.turn_text("", []) == ""
    assert hermes.turn_text("hi", []) == "hi"
    assert hermes.turn_text("", [("f", "{}"), ("f", "{}")]) == f"{call}\n{call}"
    assert hermes.turn_text("hi", [("f", "{}")]) == f"hi\n{call}"


def test_every_shipped_format_loads_and_has_a_template() -> None:
    assert "hermes" in format_names()
    for name in format_names():
        assert load_format(name).name == name
        assert load_format(name) is load_format(name)
        assert variants_of(name)[0].name == name


def test_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"expected one of .*hermes.*, got 'hermse'"):
        load_format("hermse")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trigger": "<call>"}, "calls to begin with a 'trigger'"),
        ({"trigger": ""}, "calls to begin with a 'trigger'"),
        ({"call": "<tool_call>$arguments$name"}, r"text, then \$name, \$arguments"),
        ({"call": "<tool_call>$name$id: $arguments"}, r"text, then \$name, \$arguments"),
        ({"call": "$name: $arguments"}, r"text, then \$name, \$arguments"),
        ({"call": "<tool_call>$name.x $arguments"}, "text in 'call' that ends the name"),
        ({"call": "<tool_call>$name: $id, $arguments", "id_pattern": "[0-9]{1,"}, "'id_pattern'"),
        ({"call": "<tool_call>$name: $id0$arguments", "id_pattern": "[0-9]{1,2}"}, "'id_pattern'"),
        ({"call_id": "$id"}, "'call_id' with \\$id where calls have ids"),
        ({"text_separator": 1}, "text or null in 'text_separator', got 1"),
        ({"is_parallel": "yes"}, "true or false in 'is_parallel', got 'yes'"),
        ({"aliases": "qwen"}, "a list of names in 'aliases'"),
        ({"variants": {"x": 1}}, "objects by name in 'variants'"),
        ({"variants": {"x": {"trigger": "-"}}}, "calls to begin with a 'trigger'"),
        ({"item_separator": ";"}, "'item_separator' to be ','"),
        ({"key_separator": ":\n"}, "'key_separator' to be ':'"),
        ({"call": 3}, "text in 'call', got 3"),
        ({"surprise": "x"}, "expected an object with name"),
    ],
)
def test_a_bad_file_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_formats(json.dumps({**HERMES, **change}), where="x.json")


def test_a_missing_key_and_broken_json_are_refused() -> None:
    short = {key: value for key, value in HERMES.items() if key != "trigger"}
    with pytest.raises(ConfigError, match=r"x\.json: expected an object with .*trigger"):
        read_formats(json.dumps(short), where="x.json")
    with pytest.raises(ConfigError, match=r"x\.json: expected JSON"):
        read_formats("{", where="x.json")
