from __future__ import annotations

import re

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from specrt.grammars.regular import automaton
from specrt.grammars.schema import code_points as cp
from specrt.grammars.schema.pattern import Pattern, split_look_aheads
from specrt.grammars.schema.pattern_regex import spell
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

atoms = st.sampled_from(
    ["a", "b", "1", ".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", "[ab]", "[^a]", r"[\w-]", "-"]
    + [r"\.", r"\n", r"\x41", r"\u00e9", "é", '"', r"\\", r"[^\s\d]", "[a-c1-3]", r"\/", "(?:)"]
)


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = inner.map("(?:{})".format)
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join).map("({})".format),
        st.builds(
            "{}{}".format,
            groups,
            st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?"]),
        ),
    )


bodies = st.recursive(atoms, combined, max_leaves=6)
options = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "^", "^", "^(?!a)", "^(?=.*b)", "^(?!.*1$)"]),
    bodies,
    bodies,
    st.sampled_from(["", "$"]),
)
loose = st.builds("{}{}".format, st.sampled_from(["(?=.*b)", "(?!a)", "(?!.*1$)"]), bodies)
patterns = st.lists(options, min_size=1, max_size=2).map("|".join)
ascii_texts = st.text("ab1-A. ", max_size=6)
texts = st.text('ab1-A. \n\r\t"\\é\u2028\u0661\ufeff\x1c😀', max_size=6)


def parsed(source: str) -> Pattern:
    try:
        return Pattern(source)
    except UnsupportedError:
        reject()


@settings(max_examples=200, deadline=None)
@given(patterns, st.lists(ascii_texts, min_size=1, max_size=8))
def test_what_is_found_in_ascii_is_what_python_finds(source, examples):
    pattern = parsed(source)
    for text in examples:
        assert pattern.finds(text) == (re.search(source, text) is not None), text


@settings(max_examples=200, deadline=None)
@given(patterns | loose, st.lists(texts, min_size=1, max_size=8))
def test_python_agrees_with_what_all_find_and_with_what_none_finds(source, examples):
    pattern = parsed(source)
    for text in examples:
        found = re.search(source, text) is not None
        assert found or not pattern.finds(text), text
        try:
            may_find = pattern.may_find(text)
        except UnsupportedError:
            continue
        assert not found or may_find, text
        assert may_find or not pattern.finds(text), text


@settings(max_examples=60, deadline=None)
@given(patterns | loose, st.lists(texts, min_size=1, max_size=12), st.booleans())
def test_spellings_are_what_is_found(source, examples, is_excluded):
    pattern = parsed(source)
    if is_excluded:
        strings = StringSet(excluded_patterns=(pattern,))
    else:
        strings = StringSet(patterns=(pattern,))
    try:
        spellings = strings.spellings()
        is_empty = strings.is_empty()
    except UnsupportedError:
        reject()
    required = [automaton.build(regex) for regex in spellings.required]
    excluded = [automaton.build(regex) for regex in spellings.excluded]
    for text in examples:
        spelled = spell(text).encode()
        accepted = all(a.accepts(spelled) for a in required) and not any(
            a.accepts(spelled) for a in excluded
        )
        assert accepted == strings.contains(text), text
        assert not (accepted and is_empty)


@pytest.mark.parametrize(
    ("source", "found", "not_found"),
    [
        ("a", ["a", "xax"], ["", "b"]),
        ("^a|b$", ["ax", "xb"], ["xa", "bx"]),
        ("(^a|b)c", ["ac!", "xbc"], ["xac"]),
        ("^(?:a|b)$", ["a"], ["ab", "a\n"]),
        ("^$", [""], ["\n", "x"]),
        (r"^\d+$", ["12"], ["١", "1x", ""]),
        (r"^\w$", ["a", "_"], ["é", "-"]),
        (r"^\W$", ["-", " "], ["é", "a"]),
        (r"^\s$", [" ", "\u00a0", "\u2028"], ["\ufeff", "\x1c", "\x85"]),
        (r"^\S$", ["x", "é"], [" ", "\ufeff", "\x1c"]),
        ("^.$", ["x", '"', "😀"], ["\n", "\r", "\u2028"]),
        (r"^\u{1F600}\ud83d\ude00$", ["😀😀"], ["😀"]),
        (r"^\cA\0\x7f[\b]$", ["\x01\0\x7f\x08"], ["A"]),
        (r"^[\w-.]+$", ["a-.b"], ["a b"]),
        (r"^[+--]$", ["+", ",", "-"], ["."]),
        (r"^(?=.*\d)(?=.*[a-z]).{4,}$", ["abc1"], ["abcd", "a1"]),
        ("^(?!foo).*", ["fo", "xfoo"], ["foo", "foobar"]),
        (r"^\p{Lu}\p{Letter}*$", ["Éa"], ["éa", "É1"]),
        (r"^\P{L}$", ["1"], ["a"]),
        (r"^a{2,3}?b{0}$", ["aa", "aaa"], ["a", "aaaa", "aab"]),
        ("^{a}]$", ["{a}]"], ["a"]),
        (r"^(?<year>[0-9]{4})$", ["2024"], ["24"]),
        (r"^\$\^\@\-\_\/$", ["$^@-_/"], [""]),
        (r"^(a*)*$", ["", "a" * 40], ["a" * 40 + "b"]),
        (r"[^\s\S]|x", ["x"], ["y"]),
    ],
)
def test_examples(source, found, not_found):
    pattern = Pattern(source)
    strings = StringSet(patterns=(pattern,))
    assert [text for text in found if not strings.contains(text)] == []
    assert [text for text in not_found if strings.contains(text)] == []


@pytest.mark.parametrize(
    "source",
    [
        "(", ")", "a)", "[", "[]", "[^]", "a**", "*a", "a{2}{3}", "{2}", "a{3,2}", "a{,3}", "^*",
        r"\b", r"\B", r"(a)\1", r"\k<a>", "(?<=a)b", "(?<!a)b", "(?i)a", "(?>a)", "a(?=b)", "\\",
        r"\x4", r"\u12", r"\u{110000}", r"[z-a]", r"\A", r"\Z", r"\a", r"\p{Script=Greek}", r"\pL",
        r"(^a)*", r"(?:(?!x).)*", "a++", "a$b", r"\ud800", "(?#c)a", "(?P=a)", r"\c1", r"\07",
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused(source):
    with pytest.raises(UnsupportedError):
        Pattern(source)


@pytest.mark.parametrize(
    "source",
    ["a" * 1025, "(" * 400 + ")" * 400, "((a{0,100}){0,100}){0,100}", "a{200000}", "a{9999999999}"],
)
def test_what_is_too_large_is_refused(source):
    with pytest.raises(UnsupportedError):
        Pattern(source)


def test_size_multiplies_repeats_out():
    assert Pattern("^[a-z]{2,8}(?:-[0-9]{3}){4}$").size == 8 + 4 * 4
    assert Pattern("^(?!ab)c*$").size == 3


def test_a_search_is_never_slow():
    assert not Pattern("^(a+)+$").finds("a" * 3000 + "b")
    assert not Pattern("^(?:a|a?)+$").finds("a" * 3000 + "b")


def test_look_aheads_are_taken_apart():
    conditions, rest = split_look_aheads(Pattern("^(?=a)(?!b(c))x$"))
    assert [(pattern.source, is_negative) for pattern, is_negative in conditions] == [
        ("^(?:a)", False),
        ("^(?:b(c))", True),
    ]
    assert rest.source == "^x$"
    for source in ["^(?=a)b|c", "(?=a)b", "^(?:(?=a)b)"]:
        with pytest.raises(UnsupportedError):
            split_look_aheads(Pattern(source))


@pytest.mark.parametrize(
    ("members", "source"),
    [
        (cp.digit(), r"\d"),
        (cp.digit().negated(), r"\D"),
        (cp.word(), r"\w"),
        (cp.word().negated(), r"\W"),
        (cp.SPACE, r"\s"),
        (cp.SPACE.negated(), r"\S"),
        (cp.DOT, "."),
    ],
)
def test_classes_hold_what_python_has_in_them(members, source):
    matches = re.compile(source).fullmatch
    for code_point in [*range(0x3100), *range(0x3100, 0x20000, 37)]:
        if 0xD800 <= code_point < 0xE000:
            continue
        is_in = matches(chr(code_point)) is not None
        assert is_in or not cp.has(members.sure, code_point)
        assert not is_in or cp.has(members.possible, code_point)


ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair))),
    max_size=6,
)


@given(ranges, ranges)
def test_sets_of_code_points(left, right):
    first, second = cp.code_points(left), cp.code_points(right)
    union, both, rest = (
        cp.union(first, second),
        cp.intersection(first, second),
        cp.complement(first),
    )
    for code in range(80):
        in_first = any(low <= code <= high for low, high in left)
        in_second = any(low <= code <= high for low, high in right)
        assert cp.has(first, code) == in_first
        assert cp.has(union, code) == (in_first or in_second)
        assert cp.has(both, code) == (in_first and in_second)
        assert cp.has(rest, code) != in_first
    assert cp.count(first) + cp.count(rest) == cp.count(cp.ALL) == 0x110000 - 0x800
