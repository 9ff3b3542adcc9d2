"""The streaming parser: any chunking, the same message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrt.grammars.formats import load_format
from specrt.grammars.tool_parser import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Delta,
    ParsedCall,
    ParsedMessage,
    TextDelta,
    ToolCallParser,
    parse_message,
)

HERMES = load_format("hermes")
ARGUMENTS = [
    "{}",
    '{"a": 1.50, "b": [1, {"c": null}], "d": {}}',
    '{"text": "</tool_call> \\n</tool_call>\\n<tool_call>\\n{\\"name\\": \\"x\\"}"}',
    '{"text": "}}]]{{ \\\\", "q": "\\"", "é": "日本 😀"}',
    '{"raw": "a\\\\\\"b"}',
]
TEXTS = ["", "Let me look.", "a < b", "x\n", "\n\nx\n\n", "<tool_cal", "<<tool", "</tool_call>"]


def replay(deltas: list[Delta]) -> ParsedMessage:
    """The message that a client puts together from deltas; checks their order on the way."""
    content, calls, is_open = "", [], False
    for delta in deltas:
        match delta:
            case TextDelta(text):
                assert text and not is_open
                content += text
            case CallStart(index, name):
                assert index == len(calls) and not is_open
                calls.append(ParsedCall(name, "", False))
                is_open = True
            case ArgumentsDelta(index, text):
                assert text and is_open and index == len(calls) - 1
                calls[-1] = calls[-1]._replace(arguments=calls[-1].arguments + text)
            case CallEnd(index, complete):
                assert is_open and index == len(calls) - 1
                calls[-1] = calls[-1]._replace(complete=complete)
                is_open = False
    assert not is_open
    return ParsedMessage(content if content or not calls else None, tuple(calls))


def stream(pieces: list[str], cut: bool = False, enabled: bool = True) -> ParsedMessage:
    parser = ToolCallParser(HERMES, enabled)
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.finish(cut)
    assert replay(deltas) == parser.message()
    return parser.message()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("num_calls", [0, 1, 2])
def test_reads_back_what_the_format_writes(text: str, arguments: str, num_calls: int) -> None:
    turn = HERMES.turn_text(text, [("get_weather", arguments)] * num_calls)
    calls = (ParsedCall("get_weather", arguments, True),) * num_calls
    expected = ParsedMessage(text if text or not calls else None, calls)
    assert parse_message(HERMES, turn) == expected
    assert stream(list(turn)) == expected
    for size in (2, 3, 7):
        assert stream([turn[i : i + size] for i in range(0, len(turn), size)]) == expected


MARKUP = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "\n", "{", '{"name": ', '"f"', ', "arguments": ', "}", "<"]
        + ['"', "\\", " ", "text", "é", "<tool", HERMES.call_text("f", "{}"), HERMES.call_head("g")]
        + ARGUMENTS
    ),
    max_size=14,
).map("".join)


@given(MARKUP, st.data(), st.booleans())
def test_any_chunking_of_any_text_gives_the_same_message(
    text: str, data: st.DataObject, cut: bool
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = parse_message(HERMES, text, cut=cut)
    assert stream(pieces, cut) == expected
    assert stream(list(text), cut) == expected


@given(st.text(alphabet="<tool_cal>\n x", max_size=30))
def test_text_without_calls_is_kept(text: str) -> None:
    if HERMES.trigger not in text:
        assert stream(list(text)) == ParsedMessage(text, ())


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_a_cut_anywhere_delivers_what_is_certain(arguments: str) -> None:
    turn = HERMES.turn_text("Hm.", [("f", "{}"), ("get_weather", arguments)])
    second = turn.rindex(HERMES.call_begin)
    for length in range(len(turn) + 1):
        message = stream(list(turn[:length]), cut=True)
        assert message == parse_message(HERMES, turn[:length], cut=True)
        assert "<" not in (message.content or "")
        assert (message.content or "") == "Hm."[:length] or message.content == "Hm.\n"
        if length > second and len(message.calls) == 2:
            call = message.calls[1]
            assert arguments.startswith(call.arguments)
            assert call.complete == (call.arguments == arguments)
            assert not call.complete or json.loads(call.arguments) is not None
        for call in message.calls:
            assert call.name in ("f", "get_weather")


def test_cut_inside_arguments() -> None:
    head = HERMES.call_head("f")
    message = parse_message(HERMES, head + '{"city": "Par', cut=True)
    assert message == ParsedMessage(None, (ParsedCall("f", '{"city": "Par', False),))
    assert parse_message(HERMES, head[:-4], cut=True) == ParsedMessage("", ())


def test_name_comes_once_and_whole_and_fragments_as_they_are_certain() -> None:
    parser = ToolCallParser(HERMES)
    assert parser.push("Sure\n<tool_") == [TextDelta("Sure")]
    assert parser.push('call>\n{"name": "get_wea') == []
    assert parser.push('ther", "arguments": ') == []
    assert parser.push('{"a') == [CallStart(0, "get_weather"), ArgumentsDelta(0, '{"a')]
    assert parser.push('": 1}') == [ArgumentsDelta(0, '": 1}'), CallEnd(0, True)]
    rest = '}\n</tool_call>\n<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>'
    assert parser.push(rest) == [CallStart(1, "b"), ArgumentsDelta(1, "{}"), CallEnd(1, True)]
    assert parser.finish() == []


def test_unconstrained_output_is_never_lost_and_never_raises() -> None:
    for broken in ("<tool_call>\nhello", '<tool_call>{"nam": 1}', '<tool_call>{"name": 5'):
        assert parse_message(HERMES, "a\n" + broken) == ParsedMessage("a\n" + broken, ())
    # The end marker of the first call is missing, text stands between and behind calls.
    call = HERMES.call_text("f", "{}")
    unended = call.removesuffix(HERMES.call_end)
    message = parse_message(HERMES, f"a{unended}\n{call}\nand\n{call}\n done\n")
    assert [c.name for c in message.calls] == ["f", "f", "f"]
    assert message.content == "a\nand\n done\n"
    loose = ' \n<tool_call>  { "name" :"f" ,\n"arguments":{ } }</tool_call>\n'
    assert parse_message(HERMES, loose).calls == (ParsedCall("f", "{ }", True),)


def test_disabled_parser_passes_everything_through() -> None:
    turn = HERMES.turn_text("Hm.", [("f", "{}")])
    assert stream(list(turn), enabled=False) == ParsedMessage(turn, ())
    parser = ToolCallParser(HERMES, enabled=False)
    assert parser.push("x\n<tool_call>") == [TextDelta("x\n<tool_call>")]


def test_a_format_with_other_marks_needs_no_code() -> None:
    from dataclasses import replace

    other = replace(
        HERMES, call_begin="[CALL]", call_end="[END]", trigger="[CALL]", call_separator="",
        text_separator="", name_key="function", arguments_key="parameters",
    )  # fmt: skip
    turn = other.turn_text("text ", [("f", '{"a": "[END]"}'), ("g", "{}")])
    assert turn.startswith('text [CALL]{"function": "f", "parameters": {"a"')
    message = parse_message(other, turn)
    assert message.content == "text "
    assert [call.arguments for call in message.calls] == ['{"a": "[END]"}', "{}"]
