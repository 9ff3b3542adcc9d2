"""Checking finished calls: only what is needed, and never for ever."""

from __future__ import annotations

import json
import logging
import time

import pytest

from specrt.grammars.base import GrammarRecipe, ToolSpec, Unenforced
from specrt.grammars.formats import load_format
from specrt.request import RequestOutput, RequestStats
from specrt.server import violations
from specrt.server.chat_choice import ChatChoice


def finished_call(arguments: object) -> ChatChoice:
    tool_format = load_format("hermes")
    choice = ChatChoice(0, tool_format, lambda _: b"", has_calls=True)
    text = tool_format.call_text("f", json.dumps(arguments))
    output = RequestOutput(
        request_id="r", token_ids=[1], text=text, finish_reason="stop", stats=RequestStats()
    )
    choice.push(output)
    return choice


def recipe(schema: object) -> GrammarRecipe:
    return GrammarRecipe(kind="tools", tools=(ToolSpec(name="f", parameters=json.dumps(schema)),))


def test_a_pattern_that_backtracks_for_ever_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(violations, "CHECK_S", 2.0)
    schema = {"properties": {"a": {"pattern": "^(a+)+$"}}}
    unenforced = [Unenforced("f", "/properties/a/pattern", "pattern")]
    start = time.monotonic()
    with caplog.at_level(logging.ERROR):
        found = violations.find_violations(
            "r", finished_call({"a": "a" * 60 + "b"}), recipe(schema), unenforced
        )
    assert [entry["message"].split(":")[0] for entry in found] == ["not checked"]
    assert time.monotonic() - start < 60, "the check went on without a limit"
    assert not caplog.records


def test_patterns_are_checked_in_time() -> None:
    schema = {"properties": {"a": {"pattern": "^b"}}}
    unenforced = [Unenforced("f", "/properties/a/pattern", "pattern")]
    found = violations.find_violations("r", finished_call({"a": "x"}), recipe(schema), unenforced)
    assert [(entry["keyword"], entry["pointer"]) for entry in found] == [
        ("pattern", "/properties/a/pattern")
    ]


def test_what_is_enforced_is_not_checked_again() -> None:
    schema = {"properties": {"a": {"pattern": "^(a+)+$"}}}
    call = finished_call({"a": "a" * 60 + "b"})
    assert violations.find_violations("r", call, recipe(schema), []) == []
