from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specrt.errors import ConfigError
from specrt.grammars.base import DEAD
from specrt.grammars.formats import load_format
from specrt.grammars.tool_format import ToolFormat
from specrt.grammars.turn_automaton import NUM_BYTES, calls_turn, value_turn

HERMES = load_format("hermes")
# Short markers, so that generated text runs into them: `<c` begins a call, `;` stands before it.
SHORT = ToolFormat(
    name="short",
    call="<c$name:$arguments>",
    trigger="<c",
    text_separator=";",
    call_separator=";",
    instruction="",
)
LISTED = replace(
    SHORT,
    call="($name:$arguments)",
    calls_begin="<c[",
    call_separator=",",
    calls_end="]",
    text_separator="",
)
NUMBERED = replace(
    SHORT,
    call="<c$name;$id:$arguments>",
    id_pattern="[0-9]{1,2}",
    call_id="$id",
    call_separator="",
)
ALONE = replace(SHORT, text_separator=None)
ONE = replace(SHORT, is_parallel=False)
BARE = replace(SHORT, call="<c$name:$arguments")
FORMATS = [SHORT, LISTED, NUMBERED, ALONE, ONE, BARE]
NAMES = ("a", "ab", "b")


def walk(turn, symbols, state=None):
    """The states reached; a hole is crossed by `{}`."""
    state = turn.start if state is None else state
    holes = {hole.entry: hole.exit for hole in turn.holes}
    index = 0
    while index < len(symbols):
        if state in holes:
            if tuple(symbols[index : index + 2]) != tuple(b"{}"):
                return DEAD
            state, index = holes[state], index + 2
            continue
        state = int(turn.table[state, symbols[index]])
        index += 1
    return state


def accepts(turn, text):
    return bool(turn.final[walk(turn, text)])


def is_turn(data, tool_format, names, *, require_call, parallel):
    """What a turn is, said with a regex; `{}` are the arguments."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    name = "|".join(map(re.escape, names)) or "(?!)"
    call = re.escape(tool_format.call).replace(r"\$name", f"(?:{name})")
    call = call.replace(r"\$id", tool_format.id_pattern).replace(r"\$arguments", r"\{\}")
    again = re.escape(tool_format.call_separator) + call
    calls = call + (f"(?:{again})*" if parallel and tool_format.is_parallel else "")
    calls = re.escape(tool_format.calls_begin) + calls + re.escape(tool_format.calls_end)
    separator, trigger = tool_format.text_separator, tool_format.trigger
    if re.fullmatch(calls, text):
        return True
    if require_call:
        return False
    if separator is None:
        return not text.startswith(trigger)
    before, found, after = text.partition(trigger)
    if not found:
        return True
    has_text = before.endswith(separator) and len(before) > len(separator)
    return has_text and re.fullmatch(calls, found + after) is not None


PIECES = [
    *("<c", "<", "c", ";", ">", "[", "]", ",", "é", "€", "😀", " "),
    *(f.call_text(name, "{}") for f in FORMATS for name in NAMES),
    *(LISTED.turn_text("", [(name, "{}")]) for name in NAMES),
    NUMBERED.call_text("a", "{}", "12"),
    SHORT.call_text("c", "{}"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map(lambda parts: "".join(parts).encode())


@pytest.mark.parametrize(
    "tool_format", FORMATS, ids=["short", "listed", "id", "alone", "one", "bare"]
)
@settings(max_examples=200, deadline=None)
@given(
    text=TEXTS,
    calls=st.lists(st.sampled_from(NAMES), max_size=3),
    require_call=st.booleans(),
    parallel=st.booleans(),
    names=st.integers(1, 3),
)
def test_it_accepts_turns_and_nothing_else(tool_format, text, calls, require_call, parallel, names):
    modes = {"require_call": require_call, "parallel": parallel}
    turn = calls_turn(tool_format, NAMES[:names], **modes)
    assert accepts(turn, text) == is_turn(text, tool_format, NAMES[:names], **modes)
    # Whole turns are rare among random texts.
    content = "" if require_call else text.decode()
    text = tool_format.turn_text(content, [(name, "{}") for name in calls]).encode()
    assert accepts(turn, text) == is_turn(text, tool_format, NAMES[:names], **modes)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, cut=st.binary(max_size=3))
def test_text_is_well_formed(text, cut):
    turn = calls_turn(SHORT, (), require_call=False, parallel=True)
    expected = is_turn(text + cut, SHORT, (), require_call=False, parallel=True)
    assert accepts(turn, text + cut) == expected


@pytest.mark.parametrize("names", [NAMES, ("get_weather", "get_time")])
def test_hermes(names):
    turn = calls_turn(HERMES, names, require_call=False, parallel=True)
    call = HERMES.call_text(names[0], "{}")
    for text in (
        "",
        "hello",
        call,
        f"hello\n{call}",
        f"{call}\n{call}",
        "<tool_cal",
        "\n\n" + call,
    ):
        assert accepts(turn, text.encode()), text
    for text in (
        f"hello{call}",
        f"\n{call}",
        call + "x",
        call + call,
        f"{call}\n\n{call}",
        "<tool_call>",
    ):
        assert not accepts(turn, text.encode()), text


@pytest.mark.parametrize("tool_format", [*FORMATS, HERMES], ids=lambda f: f.name)
def test_every_state_but_dead_can_end(tool_format):
    turn = calls_turn(tool_format, NAMES, require_call=False, parallel=True)
    alive = turn.final.copy()
    exits = {hole.entry: hole.exit for hole in turn.holes}
    for _ in range(len(turn.table)):
        reached = alive | (alive[turn.table] & (turn.table != DEAD)).any(axis=1)
        for entry, exit_state in exits.items():
            reached[entry] |= reached[exit_state]
        if (reached == alive).all():
            break
        alive = reached
    assert alive[1:].all()
    assert not turn.table[DEAD].any()
    assert not alive[DEAD]


def test_special_tokens_are_symbols_and_their_text_is_nowhere():
    special = "[CALLS]"
    tool_format = replace(SHORT, call=special + "$name:$arguments!", trigger=special)
    turn = calls_turn(
        tool_format, NAMES, require_call=False, parallel=True, specials=["<other>", special]
    )
    call = tool_format.call_text("a", "{}").encode()
    body = call[len(special) :]
    symbol = NUM_BYTES + 1
    assert turn.table.shape[1] == NUM_BYTES + 2
    assert turn.final[walk(turn, (symbol, *body))]
    assert turn.final[walk(turn, (*b"text;", symbol, *body, *b";", symbol, *body))]
    assert not turn.final[walk(turn, (*b"text", symbol, *body))]
    assert walk(turn, (NUM_BYTES,)) == DEAD
    # Who reads the text could not tell it from the token.
    assert walk(turn, b"[CALLS") != DEAD
    assert walk(turn, b"[CALLS]") == DEAD and walk(turn, b"text;[CALLS]") == DEAD


def test_the_text_of_a_special_token_may_stand_in_text_where_calls_stand_alone():
    turn = calls_turn(ALONE, NAMES, require_call=False, parallel=True)
    assert accepts(turn, b"text;<ca:{}>") and not accepts(turn, b"<c")


def test_reasoning_comes_first_and_does_not_end_the_turn():
    turn = calls_turn(
        HERMES, NAMES, require_call=True, parallel=False, reasoning_end="</think>\n\n"
    )
    call = HERMES.call_text("ab", "{}")
    assert accepts(turn, f"hm <tool_call> </think></think>\n\n{call}".encode())
    assert accepts(turn, f"é</think>\n\n{call}".encode())
    assert not accepts(turn, b"hm")
    assert not accepts(turn, call.encode())
    assert not accepts(turn, f"hm</think>\n{call}".encode())
    value = value_turn(reasoning_end="</think>")
    assert walk(value, b"x</think>") == value.holes[0].entry


def test_calls_that_begin_alike_are_refused():
    with pytest.raises(ConfigError, match="told apart"):
        calls_turn(HERMES, ("a", "a"), require_call=True, parallel=True)


def test_lists_of_tools_share_no_state_with_each_other():
    first = calls_turn(HERMES, ("a",), require_call=False, parallel=True)
    table = first.table.copy()
    calls_turn(HERMES, ("b", "c"), require_call=False, parallel=True)
    assert (first.table == table).all()
    assert first.table.dtype == np.int32
