"""OpenAI messages in, roles, texts and calls out; errors name the field."""

from __future__ import annotations

from typing import Any

import pytest

from specrt.errors import RequestError
from specrt.grammars.formats import load_format
from specrt.grammars.messages import Call, Message, read_messages

HERMES = load_format("hermes")
USER = {"role": "user", "content": "hi"}


def call(arguments: object, name: object = "f") -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def asked(*calls: object, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(calls), **fields}


def read(*messages: object) -> list[Message]:
    return read_messages(list(messages), HERMES)


def test_contents() -> None:
    parts = [
        {"type": "text", "text": "a", "cache_control": {}},
        {"type": "text", "text": "b\ud83d"},
    ]
    assert read({"role": "developer", "content": parts}, {"role": "user", "content": ""}) == [
        Message(role="system", content="ab\ufffd"),
        Message(role="user", content=""),
    ]


@pytest.mark.parametrize(
    "absent", [{}, {"content": None}, {"content": None, "function_call": None, "refusal": None}]
)
def test_an_assistant_may_only_call(absent: dict[str, Any]) -> None:
    messages = read(USER, asked(call('{"b":1,"a":"\\u00e9"}'), **absent))
    arguments = Call("f", '{"b":1,"a":"\\u00e9"}', '{"b": 1, "a": "é"}', "000000000")
    assert messages[1] == Message(role="assistant", content="", calls=(arguments,))


def test_arguments_in_the_style_stay_as_they_are() -> None:
    text = '{"n": 1.50, "e": 1E5, "s": "a, b: c"}'
    (first,) = read(USER, asked(call(text)))[1].calls
    assert first[:3] == ("f", text, text)


@pytest.mark.parametrize(("arguments", "styled"), [("", "{}"), ({"a": "é"}, '{"a": "é"}')])
def test_other_ways_of_writing_arguments(arguments: object, styled: str) -> None:
    (first,) = read(USER, asked(call(arguments)))[1].calls
    assert first.styled == styled


def test_tool_results_follow_calls() -> None:
    result = {"role": "tool", "content": "1", "tool_call_id": "x"}
    messages = read(USER, asked(call("{}"), call("{}")), result, {**result, "name": "f"})
    assert messages[3] == Message(role="tool", content="1", name="f", call_id="000000001")


@pytest.mark.parametrize(
    ("name", "sent", "ids"),
    [
        ("hermes", ["call_a", "call_b"], ["000000000", "000000001"]),
        ("kimi_k2", ["functions.f:7", "call_b"], ["functions.f:7", "functions.f:1"]),
        ("kimi_k2", ["functions.g:7", "functions.f:"], ["functions.f:0", "functions.f:1"]),
        ("mistral_call_id", ["abcDEF012", "call_b"], ["abcDEF012", "000000001"]),
    ],
)
def test_ids_are_kept_where_the_model_could_have_written_them(
    name: str, sent: list[str], ids: list[str]
) -> None:
    calls = asked(*({**call("{}"), "id": call_id} for call_id in sent))
    # Results name their call, in any order; one that names none answers the first open one.
    results: list[dict[str, Any]] = [
        {"role": "tool", "content": "1", "tool_call_id": sent[1]},
        {"role": "tool", "content": "2"},
    ]
    messages = read_messages([USER, calls, *results], load_format(name))
    assert [made.id for made in messages[1].calls] == ids
    assert [message.call_id for message in messages[2:]] == [ids[1], ids[0]]


def test_an_assistant_may_have_said_nothing() -> None:
    silent = Message(role="assistant", content="")
    for said in ({"content": None}, {"content": ""}, {"content": None, "tool_calls": []}):
        assert read(USER, {"role": "assistant", **said})[1] == silent


@pytest.mark.parametrize(
    "said",
    [
        {"content": None, "refusal": "I must not."},
        {"refusal": "I must not."},
        {"content": [{"type": "refusal", "refusal": "I must"}, {"type": "text", "text": " not."}]},
    ],
)
def test_a_refusal_is_what_the_assistant_said(said: dict[str, Any]) -> None:
    refused = Message(role="assistant", content="I must not.", name="a")
    assert read(USER, {"role": "assistant", "name": "a", **said})[1] == refused


def test_older_calls_and_results_are_read_as_the_newer_ones() -> None:
    function = {"name": "f", "arguments": '{"a":1}'}
    older = read(
        USER,
        {"role": "assistant", "content": None, "function_call": function},
        {"role": "function", "name": "f", "content": "1"},
    )
    newer = read(USER, asked(call('{"a":1}')), {"role": "tool", "name": "f", "content": "1"})
    assert older == newer


@pytest.mark.parametrize(
    ("messages", "param", "message"),
    [
        (None, "messages", "a list of at least one message, got null"),
        ([], "messages", r"a list of at least one message, got \[\]"),
        (["hi"], "messages[0]", "an object with role and content, got 'hi'"),
        ([USER, {"content": "x"}], "messages[1].role", "system, developer, user.*, got null"),
        (
            [USER, {"role": "function", "content": "x", "name": "f"}],
            "messages[1].role",
            "only behind the assistant",
        ),
        (
            [USER, {"role": "assistant", "content": [{"type": "refusal"}]}],
            "messages[1].content[0].refusal",
            "expected text, got null",
        ),
        (
            [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}],
            "messages[0].content[0].type",
            "got 'refusal'",
        ),
        (
            [USER, {"role": "assistant", "content": "yes", "refusal": "no"}],
            "messages[1].refusal",
            "null beside a content, got 'no'",
        ),
        (
            [USER, asked(call("{}"), function_call={"name": "f", "arguments": "{}"})],
            "messages[1].function_call",
            "null beside tool_calls",
        ),
        (
            [USER, asked({"type": "custom", "custom": {"name": "f", "input": "x"}})],
            "messages[1].tool_calls[0].type",
            "got 'custom'",
        ),
        ([{"role": ["user"], "content": "x"}], "messages[0].role", r"got \['user'\]"),
        ([{"role": "user"}], "messages[0].content", "text or a list of text parts, got null"),
        ([USER, {"role": "assistant"}], "messages[1].content", "text or tool_calls, got null"),
        ([{"role": "user", "content": None}], "messages[0].content", "got null"),
        ([USER, asked()], "messages[1].content", "text or tool_calls, got null"),
        ([{"role": "user", "content": 5}], "messages[0].content", "got 5"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}],
            "messages[0].content[1].type",
            r"'text' \(this model reads only text\), got 'image_url'",
        ),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0].type", "got 'x'"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            "messages[0].content[0].text",
            "expected text, got null",
        ),
        ([{"role": "tool", "content": "x"}], "messages[0].role", "only behind the assistant"),
        (
            [USER, {"role": "assistant", "content": "x"}, {"role": "tool", "content": "x"}],
            "messages[2].role",
            "only behind the assistant",
        ),
        ([USER, asked("x")], "messages[1].tool_calls[0].function", "got null"),
        ([USER, asked(call("{}", ""))], "messages[1].tool_calls[0].function.name", "got ''"),
        (
            [USER, asked(call("{}"), call('{"a": 1'))],
            "messages[1].tool_calls[1].function.arguments",
            "the JSON text of an object, got .*cut by max_tokens",
        ),
        (
            [USER, asked(call("[1]"))],
            "messages[1].tool_calls[0].function.arguments",
            r"an object, got '\[1\]'",
        ),
        (
            [USER, asked(call('{"a": NaN}'))],
            "messages[1].tool_calls[0].function.arguments",
            "NaN is not JSON",
        ),
        ([USER, asked(call(None))], "messages[1].tool_calls[0].function.arguments", "got null"),
        (
            [USER, {"role": "assistant", "content": "x", "function_call": {"name": "f"}}],
            "messages[1].function_call.arguments",
            "the JSON text of an object, got null",
        ),
        ([{**USER, "name": 3}], "messages[0].name", "expected text, got 3"),
    ],
)
def test_errors_name_the_field(messages: object, param: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        read_messages(messages, HERMES)
    assert caught.value.param == param
    assert caught.value.message.startswith(param)


def test_hostile_arguments_are_refused_not_fatal() -> None:
    deep = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    with pytest.raises(RequestError, match="function.arguments"):
        read(USER, asked(call(deep)))
    (long,) = read(USER, asked(call('{"a": ' + "9" * 5000 + "}")))[1].calls
    assert long.styled == '{"a": ' + "9" * 5000 + "}"
