"""The streaming parser: any chunking, the same message."""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Iterator
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrt.grammars.formats import format_names, load_format, variants_of
from specrt.grammars.tool_format import ToolFormat
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
VARIANTS = [variant for name in format_names() for variant in variants_of(name)]
ARGUMENTS = [
    "{}",
    '{"a": 1.50, "b": [1, {"c": null}], "d": {}}',
    '{"text": "</tool_call> \\n</tool_call>\\n<tool_call>\\n{\\"name\\": \\"x\\"}"}',
    '{"text": "}}]]{{ \\\\", "q": "\\"", "é": "日本 😀"}',
    '{"raw": "a\\\\\\"b", "close": "<｜tool▁call▁end｜>, [TOOL_CALLS]"}',
]
TEXTS = ["", "Let me look.", "a < b", "x\n", "\n\nx\n\n", "<tool_cal", "<<tool", "[TOOL_"]

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


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


def stream(
    pieces: list[str],
    cut: bool = False,
    enabled: bool = True,
    *,
    tool_format: ToolFormat = HERMES,
) -> ParsedMessage:
    parser = ToolCallParser(tool_format, enabled)
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.finish(cut)
    parsed = parser.message()
    calls = tuple(call._replace(id="") for call in parsed.calls)
    assert replay(deltas) == parsed._replace(calls=calls)
    return parsed


def in_pieces(data: bytes, cuts: list[int]) -> list[str]:
    """Text as it comes out of a detokenizer when tokens end at these bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    return [decoder.decode(data[a:b]) for a, b in pairwise([0, *cuts, len(data)])]


@every_variant
@pytest.mark.parametrize("num_calls", [0, 1, 2])
def test_reads_back_what_the_format_writes(variant: ToolFormat, num_calls: int) -> None:
    for text, arguments in product(TEXTS, ARGUMENTS):
        if text and num_calls and variant.text_separator is None:
            continue  # calls stand alone
        turn = variant.turn_text(text, [("get_weather", arguments)] * num_calls)
        calls = tuple(
            ParsedCall(
                "get_weather",
                arguments,
                True,
                variant.fit_id("get_weather", "", number) if variant.id_pattern else "",
            )
            for number in range(num_calls)
        )
        expected = ParsedMessage(text if text or not calls else None, calls)
        assert parse_message(variant, turn) == expected
        for size in (1, 3):
            pieces = [turn[i : i + size] for i in range(0, len(turn), size)]
            assert stream(pieces, tool_format=variant) == expected


def markup(variant: ToolFormat) -> list[str]:
    """What random texts are made of: whole calls, and everything that is nearly one."""
    call, head = variant.call_text("f", "{}"), "".join(variant.head("f")).replace("$id", "1")
    marks = [
        variant.trigger,
        variant.calls_begin,
        variant.prefix,
        variant.prefix + head,
        variant.tail,
        variant.call_separator,
        variant.calls_end,
        variant.text_separator or "",
    ]
    halves = [mark[: len(mark) // 2] for mark in marks] + [mark[1:] for mark in marks]
    turns = [variant.turn_text(text, [("f", a)]) for text in ("", "Hm.") for a in ARGUMENTS]
    turns.append(variant.turn_text("Hm.", [("f", "{}"), ("g", ARGUMENTS[2])]))
    return [*marks, *filter(None, halves), *turns, call, *ARGUMENTS, *'{}"\\ \n<[', "é", "text"]


def chunkings(variant: ToolFormat, count: int) -> Iterator[tuple[str, list[str]]]:
    """Random texts, cut anywhere, with random pieces of them."""
    chance, parts = random.Random(variant.name), markup(variant)
    for number in range(count):
        if number % 10 == 0:
            text = "".join(chance.choices(parts, k=chance.randint(1, 4)))
            text = text[: chance.randint(0, len(text))] if chance.random() < 0.5 else text
            data = text.encode()
        # About a byte a piece (parts of characters), or several tokens at once.
        num_cuts = len(data) if number % 20 == 0 else chance.choice((1, 2, 3, 4, 6, 8))
        yield text, in_pieces(data, sorted(chance.choices(range(len(data) + 1), k=num_cuts)))


@pytest.mark.parametrize("name", format_names())
def test_ten_thousand_chunkings_give_the_same_message(name: str) -> None:
    """Also where the output was cut, inside a marker, a name or arguments."""
    variants = variants_of(name)
    for variant in variants:
        expected: dict[tuple[str, bool], ParsedMessage] = {}
        for number, (text, pieces) in enumerate(chunkings(variant, 10_000 // len(variants))):
            cut = number % 2 == 0
            if (text, cut) not in expected:
                expected[text, cut] = parse_message(variant, text, cut=cut)
            assert stream(pieces, cut, tool_format=variant) == expected[text, cut], pieces


@given(st.text(alphabet="<tool_cal>\n x", max_size=30))
def test_text_without_calls_is_kept(text: str) -> None:
    if HERMES.trigger not in text:
        assert stream(list(text)) == ParsedMessage(text, ())


@every_variant
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_a_cut_anywhere_delivers_what_is_certain(variant: ToolFormat, arguments: str) -> None:
    text = "" if variant.text_separator is None else "Hm."
    turn = variant.turn_text(text, [("f", "{}"), ("get_weather", arguments)])
    begun = turn.index("{}")  # the first call's arguments
    for length in range(len(turn) + 1):
        message = stream(list(turn[:length]), cut=True, tool_format=variant)
        assert message == parse_message(variant, turn[:length], cut=True)
        # Nothing of a marker is text, but for white space that could have been text.
        assert (message.content or "").rstrip("\n") == text[:length]
        assert bool(message.calls) == (length > begun)
        for index, call in enumerate(message.calls):
            name, whole = (("f", "{}"), ("get_weather", arguments))[index]
            assert call.name == name and whole.startswith(call.arguments)
            assert call.complete == (call.arguments == whole)
            assert not call.complete or json.loads(call.arguments) is not None


def test_cut_inside_arguments() -> None:
    head = HERMES.call_text("f", "").removesuffix(HERMES.tail)
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


@every_variant
def test_an_id_comes_with_the_name(variant: ToolFormat) -> None:
    turn = variant.turn_text("", [("f", "{}"), ("g", "{}")])
    starts = [d for d in ToolCallParser(variant).push(turn) if isinstance(d, CallStart)]
    shown = [variant.fit_id(name, "", i) for i, name in enumerate("fg")]
    ids = shown if variant.id_pattern else ["", ""]
    assert starts == [CallStart(0, "f", ids[0]), CallStart(1, "g", ids[1])]


@every_variant
def test_what_is_nearly_a_call_is_text(variant: ToolFormat) -> None:
    """Possible only in output that no grammar constrains."""
    opening = variant.calls_begin + variant.prefix
    for broken in (opening + " f", opening + "f", opening, variant.trigger + "{", opening + "f!"):
        assert parse_message(variant, broken + "!\n").content == broken + "!\n"
    turn = variant.turn_text("", [("f", "{}")])
    message = parse_message(variant, turn + " and more")
    assert message.content == " and more" and message.calls[0].arguments == "{}"


def test_disabled_parser_passes_everything_through() -> None:
    turn = HERMES.turn_text("Hm.", [("f", "{}")])
    assert stream(list(turn), enabled=False) == ParsedMessage(turn, ())
    parser = ToolCallParser(HERMES, enabled=False)
    assert parser.push("x\n<tool_call>") == [TextDelta("x\n<tool_call>")]
