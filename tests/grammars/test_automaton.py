from __future__ import annotations

import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regex_samples import regexes, short_texts, texts_of

from specrt.grammars.base import DEAD
from specrt.grammars.regular import automaton as automaton_module
from specrt.grammars.regular.automaton import (
    Automaton,
    build,
    complement_within,
    intersect,
)
from specrt.grammars.regular.regex_size import regex_size
from specrt.grammars.schema.unsupported import UnsupportedError

TEXTS = short_texts(4)
STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00[01][0-9a-f])*"'


def language(regex: str) -> set[str]:
    return {text for text in TEXTS if re.fullmatch(regex, text)}


def accepted(automaton: Automaton) -> set[str]:
    return {text for text in TEXTS if automaton.accepts(text.encode())}


def check_form(automaton: Automaton) -> None:
    """Dead row, every state on a path from the start to a final one, numbers breadth first."""
    table, final = automaton.table, automaton.final
    assert table.dtype == np.int32 and table.flags.c_contiguous and final.dtype == np.bool_
    assert table.shape == (automaton.num_states, 256) and final.shape == (automaton.num_states,)
    assert not table[DEAD].any() and not final[DEAD]
    assert automaton.start == (1 if automaton.num_states > 1 else DEAD)
    order = [automaton.start] if automaton.start else []
    for state in order:
        for after in table[state].tolist():
            if after and after not in order:
                order.append(after)
    assert order == list(range(1, automaton.num_states))
    useful = final.copy()
    for _ in range(automaton.num_states):
        useful |= useful[table].any(axis=1)
    assert useful[1:].all()


@settings(max_examples=150, deadline=None)
@given(regexes())
def test_accepts_what_python_matches(regex: str) -> None:
    automaton = build(regex)
    check_form(automaton)
    assert accepted(automaton) == language(regex)


@settings(max_examples=100, deadline=None)
@given(regexes(), regexes())
def test_intersection_and_difference(first: str, second: str) -> None:
    a, b = build(first), build(second)
    both, rest = intersect(a, b), complement_within(b, a)
    for automaton in (both, rest):
        check_form(automaton)
    assert accepted(both) == language(first) & language(second)
    assert accepted(rest) == language(first) - language(second)
    assert complement_within(a, a).is_empty()


@settings(max_examples=50, deadline=None)
@given(regexes(), regexes())
def test_the_parts_make_up_the_whole(first: str, second: str) -> None:
    whole, other = build(first), build(second)
    parts = [intersect(whole, other), complement_within(other, whole)]
    left = whole
    for part in parts:
        assert complement_within(whole, part).is_empty()
        left = complement_within(part, left)
    assert left.is_empty()


def test_what_follows_a_match_is_kept() -> None:
    number = build(r"1|1\.5|1e\+5")
    assert all(number.accepts(text) for text in (b"1", b"1.5", b"1e+5"))
    assert not any(number.accepts(text) for text in (b"", b"1.", b"1e", b"15"))


def test_texts_with_sentinels_are_not_accepted() -> None:
    automaton = build("(?s:.)*")
    assert automaton.accepts(b"\x01\x04 a")
    assert not automaton.accepts(b"a\x03") and not automaton.accepts(b"\x02")
    assert not automaton.table[:, [2, 3]].any()


def test_bytes_beyond_ascii() -> None:
    automaton = build("[^a]")
    assert automaton.accepts("é".encode()) and automaton.accepts("\U0010ffff".encode())
    invalid = (b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\x80")
    assert not any(automaton.accepts(text) for text in invalid)
    assert texts_of(build("é|日"), bytes(range(256)), 3) == {"é".encode(), "日".encode()}


def test_empty_text_and_nothing() -> None:
    assert texts_of(build(""), b"ab", 2) == {b""}
    nothing = intersect(build("a"), build("b"))
    assert nothing.is_empty() and nothing.num_states == 1 and not nothing.accepts(b"")
    assert intersect(nothing, build("a")).is_empty() and intersect(build("a"), nothing).is_empty()
    assert complement_within(build("a"), nothing).is_empty()
    assert complement_within(nothing, build("a|b")).accepts(b"b")


def test_the_same_regex_gives_the_same_arrays() -> None:
    first, second = build(STRING), build(STRING)
    assert (first.table == second.table).all() and (first.final == second.final).all()
    with pytest.raises(ValueError, match="read-only"):
        first.table[1, 1] = 1


@pytest.mark.parametrize(
    ("regex", "message"),
    [
        ("((a{0,99}){0,99}){0,99}", "too large: a regex of"),
        ("(?:" * 241 + "a" + ")" * 241, "groups inside each other"),
        ("a" * 1_000_001, "1000001 characters"),
        ("(?:a|b)*a(?:a|b){16}", "too large: an automaton of"),
        ("a(", "cannot build"),
        (r"\b", "cannot build"),
        ("[b&&c]", "cannot build"),
    ],
)
def test_refusals(regex: str, message: str) -> None:
    start = time.perf_counter()
    with pytest.raises(UnsupportedError, match=message):
        build(regex)
    assert time.perf_counter() - start < 10


def test_products_are_bounded() -> None:
    # A number of a's and a number of b's: the product counts both.
    a, b = build("(?:(?:b*a){31})*b*"), build("(?:(?:a*b){29})*a*")
    assert 31 * 29 < intersect(a, b).num_states < 1000
    with pytest.raises(UnsupportedError, match="more than 500 states"):
        intersect(a, b, max_states=500)
    with pytest.raises(UnsupportedError, match="too large"):
        build("a{1000}", max_states=500)
    assert build("a{400}", max_states=500).num_states == 402


@pytest.mark.parametrize(
    ("regex", "positions"),
    [
        ("", 0),
        ("abc", 3),
        ("é", 2),
        ("(?:ab){3}", 6),
        ("(?:ab){2,5}c", 11),
        ("(?:ab){2,}", 6),
        ("((a{2}){3}){4}", 24),
        (r"\\\{2,3\}", 6),
        ("[a{9}]", 4),
        (r"[\]a]{2}", 8),
        ("[[a-c]&&[b]]{2}", 8),
        ("[]a]b", 5),
        (r"\x{e9}{3}", 3),
        ("a|b|(?:cd)", 4),
        ("(?P<name>a){2}", 2),
        (r"\d{5}", 500),
    ],
)
def test_size(regex: str, positions: int) -> None:
    assert regex_size(regex).positions == positions


def test_depth() -> None:
    assert regex_size(r"a\(").depth == 0
    assert regex_size("((a)(b))(c)").depth == 2


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="a()[]{}|*+?\\{,0123", max_size=20))
def test_size_of_any_text(text: str) -> None:
    size = regex_size(text)
    assert size.positions >= 0 and 0 <= size.depth <= len(text)


def test_numbers_of_states() -> None:
    """Growth here means that a sentinel no longer does its work."""
    assert build(STRING).num_states <= 20
    assert build(STRING[:-2] + '{0,16}"').num_states <= 250
    assert len(automaton_module.build(r"-?(?:0|[1-9][0-9]{0,18})").table) <= 24
