from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specrt.grammars.regular import automaton
from specrt.grammars.schema.pattern import Pattern
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

# Without what Python and ECMA-262 read in different ways: sets and negations are exact then.
SOURCES = [
    "a",
    "^a",
    "b[a-c]*c$",
    "^[ab]{2,4}c?$",
    "^x-",
    "^(?:ab|ba)",
    "^(?!ab)[a-c]",
    '"|^$',
    "1|2$",
]
texts = st.text('abc12x-"\\\né', max_size=6)


@st.composite
def string_sets(draw: st.DrawFn) -> StringSet:
    if draw(st.integers(0, 5)) == 0:
        return StringSet(values=tuple(draw(st.lists(texts, max_size=4, unique=True))))
    some = st.lists(st.sampled_from(SOURCES).map(Pattern), max_size=2, unique=True).map(tuple)
    plain = st.lists(
        st.sampled_from([s for s in SOURCES if "?!" not in s and "$" not in s]).map(Pattern),
        max_size=2,
        unique=True,
    ).map(tuple)
    minimum = draw(st.sampled_from([0, 0, 1, 3]))
    maximum = draw(st.sampled_from([None, None, 2, 4]))
    return StringSet(
        patterns=draw(some),
        excluded_patterns=draw(plain),
        excluded_values=draw(st.frozensets(texts, max_size=3)),
        min_length=minimum,
        max_length=maximum,
    )


ANY = StringSet(min_length=1, max_length=1).spellings().required[0]


def spelled(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False)[1:-1].encode()


class Language:
    """What spellings accept."""

    def __init__(self, strings: StringSet) -> None:
        required, excluded = strings.spellings()
        assert required
        self.required = [automaton.build(regex) for regex in required]
        self.excluded = [automaton.build(regex) for regex in excluded]

    def accepts(self, data: bytes) -> bool:
        return all(a.accepts(data) for a in self.required) and not any(
            a.accepts(data) for a in self.excluded
        )


@settings(max_examples=150, deadline=None)
@given(string_sets(), st.lists(texts, min_size=3, max_size=15))
def test_spellings_are_those_of_the_set(strings, examples):
    try:
        language = Language(strings)
    except UnsupportedError:
        assert strings.is_empty()
        return
    examples += [*(strings.values or ()), *strings.excluded_values]
    for text in examples:
        assert language.accepts(spelled(text)) == strings.contains(text), text


@settings(max_examples=300, deadline=None)
@given(string_sets(), string_sets(), st.lists(texts, max_size=15))
def test_intersection_is_and(left, right, examples):
    both = left.intersect(right)
    for text in [*examples, *(left.values or ()), *(right.values or ())]:
        expected = left.contains(text) and right.contains(text)
        assert any(part.contains(text) for part in both) == expected


# `$` finds less for ECMA-262 than for Python, so a line feed at the end is in neither set.
@settings(max_examples=300, deadline=None)
@given(string_sets(), st.lists(texts, max_size=15))
def test_negation_is_not(strings, examples):
    others = strings.negate()
    for text in [*examples, *(strings.values or ()), *strings.excluded_values]:
        if not text.endswith("\n"):
            assert any(part.contains(text) for part in others) != strings.contains(text), text
        else:
            assert not (any(part.contains(text) for part in others) and strings.contains(text))


@settings(max_examples=100, deadline=None)
@given(string_sets())
def test_emptiness_is_that_of_the_spellings(strings):
    try:
        language = Language(strings)
    except UnsupportedError:
        assert strings.is_empty()
        return
    found = language.required[0]
    for other in language.required[1:]:
        found = automaton.intersect(found, other)
    for other in language.excluded:
        found = automaton.complement_within(other, found)
    assert found.is_empty() == strings.is_empty()


@pytest.mark.parametrize(
    ("strings", "is_empty"),
    [
        (StringSet(), False),
        (StringSet(values=()), True),
        (StringSet(min_length=3, max_length=2), True),
        (StringSet(patterns=(Pattern("^a"), Pattern("^b"))), True),
        (StringSet(patterns=(Pattern("^a"), Pattern("b$"))), False),
        (StringSet(patterns=(Pattern("^[^\\s\\S]$"),)), True),
        (StringSet(patterns=(Pattern("^[a-c]$"),), excluded_patterns=(Pattern("^[a-d]"),)), True),
        (StringSet(max_length=0, excluded_values=frozenset([""])), True),
        (StringSet(patterns=(Pattern("^abc"),), max_length=2), True),
        (StringSet(patterns=(Pattern("^(?!a)a"),)), True),
        (StringSet(formats=frozenset(["date"]), max_length=9), True),
        (StringSet(formats=frozenset(["date", "uuid"])), True),
        (StringSet(formats=frozenset(["date"]), patterns=(Pattern("-30$"),)), False),
        (StringSet(formats=frozenset(["date"]), patterns=(Pattern("02-30$"),)), True),
    ],
)
def test_emptiness(strings, is_empty):
    assert strings.is_empty() == is_empty


@pytest.mark.parametrize(
    ("strings", "regex"),
    [
        (StringSet(patterns=(Pattern("^[a-z]+$"),), min_length=2, max_length=9), "[a-z]{2,9}"),
        (StringSet(patterns=(Pattern("^[a-z][a-z0-9]*$"),), max_length=64), "[a-z][0-9a-z]{0,63}"),
        (StringSet(patterns=(Pattern("^(?:ab)*$"),), min_length=3, max_length=7), "(?:ab){2,3}"),
        (StringSet(patterns=(Pattern("^/b*"),), max_length=2), r"\/" + ANY + "?"),
        (StringSet(patterns=(Pattern("(?:a+)?"),), max_length=2), ANY + "{0,2}"),
        (StringSet(patterns=(Pattern("^ab{1,3}$"),), min_length=1, max_length=4), "ab{1,3}"),
        (StringSet(patterns=(Pattern("^(a|bb+)$"),), max_length=3), "a|bb{1,2}"),
        (StringSet(values=("a", 'b"', "\x01")), r"a|b\\\"|\\u0001"),
        (StringSet(patterns=(Pattern("^a$"),), excluded_values=frozenset(["b", "aa"])), "a"),
    ],
)
def test_what_fits_one_regex_is_one(strings, regex):
    assert strings.spellings() == ((regex,), ())


@pytest.mark.parametrize(
    "strings",
    [
        StringSet(min_length=1, max_length=100),
        StringSet(excluded_values=frozenset(["name", "names", "n", "", "é\n"])),
        StringSet(excluded_patterns=(Pattern("^x-"),), excluded_values=frozenset(["id"])),
        StringSet(excluded_patterns=(Pattern("^[a-d]{2}"), Pattern("^(?:true|false)$"))),
        StringSet(patterns=(Pattern("^x-"),), min_length=4),
        StringSet(formats=frozenset(["date-time"]), max_length=80, min_length=3),
        StringSet(formats=frozenset(["email"]), max_length=254),
    ],
)
def test_more_that_is_one_regex(strings):
    required, excluded = strings.spellings()
    assert len(required) == 1 and not excluded
    language = Language(strings)
    for text in [
        "",
        "n",
        "na",
        "name",
        "namesx",
        "x-",
        "x-a",
        "xx",
        "id",
        "ab",
        "abc",
        "true",
        "é\n",
    ]:
        assert language.accepts(spelled(text)) == strings.contains(text), text


def test_every_character_has_its_one_spelling():
    language = Language(StringSet(min_length=1, max_length=1))
    for code_point in [*range(0x100), 0x2028, 0xFEFF, 0xFFFF, 0x1F600, 0x10FFFF]:
        text = chr(code_point)
        assert language.accepts(spelled(text)), code_point
        if text not in '"\\\b\f\n\r\t':
            assert language.accepts(f"\\u{code_point:04x}".encode()) == (code_point < 0x20)
    for data in [
        b'"',
        b"\\",
        b"\n",
        b"\x01",
        b"\\/",
        b"\\u001F",
        b"\\u000a",
        b"\\ud83d",
        b"\xed\xa0\x80",
    ]:
        assert not language.accepts(data)


def test_values_with_lone_surrogates_cannot_be_written():
    assert StringSet(values=("\ud800", "a")).spellings().required == ("a",)
    with pytest.raises(UnsupportedError):
        StringSet(values=("\ud800",)).spellings()


def test_no_format_is_negated():
    with pytest.raises(UnsupportedError):
        StringSet(formats=frozenset(["date"])).negate()


def test_a_set_is_without_what_readers_disagree_on():
    digits = StringSet(patterns=(Pattern(r"^\d$"),))
    [others] = digits.negate()
    assert digits.contains("1") and not others.contains("1")
    assert not digits.contains("\u0661") and not others.contains("\u0661")
    assert not digits.contains("x") and others.contains("x")


def test_many_excluded_values_stay_linear():
    names = frozenset(f"property_number_{index}" for index in range(200))
    required, excluded = StringSet(excluded_values=names).spellings()
    assert not excluded and len(required[0]) < 80 * sum(map(len, names))
    assert automaton.build(required[0]).num_states < 1000
    long = frozenset(["x" * 5000, "y" * 5000])
    required, excluded = StringSet(excluded_values=long).spellings()
    assert len(required) == len(excluded) == 1
    assert re.fullmatch(excluded[0], "y" * 5000)
