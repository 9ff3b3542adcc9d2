from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from specrt.grammars.regular import automaton
from specrt.grammars.schema.number_set import NumberSet, exact
from specrt.grammars.schema.unsupported import UnsupportedError

UNBOUNDED = NumberSet()
INTEGER = NumberSet(is_integer=True)


def decimals(largest: int, digits: int) -> st.SearchStrategy[Fraction]:
    """Decimal numbers with up to `digits` fraction digits."""
    return st.builds(
        lambda units, places: Fraction(units, 10**places),
        st.integers(-largest, largest),
        st.integers(0, digits),
    )


steps = st.sampled_from([1, 2, 3, 5, 7, 10, 20, "0.5", "0.01", "0.05", "2.5"]).map(Fraction)


@st.composite
def number_sets(draw: st.DrawFn) -> NumberSet:
    if draw(st.integers(0, 6)) == 0:
        values = draw(st.lists(st.one_of(st.integers(-30, 30), st.floats(-9, 9)), max_size=5))
        return NumberSet(values=tuple(dict.fromkeys(json.dumps(value) for value in values)))
    minimum = draw(st.none() | decimals(3000, 3))
    maximum = draw(st.none() | decimals(3000, 3))
    return NumberSet(
        is_integer=draw(st.sampled_from([None, True, False])),
        minimum=minimum,
        exclusive_minimum=minimum is not None and draw(st.booleans()),
        maximum=maximum,
        exclusive_maximum=maximum is not None and draw(st.booleans()),
        multiple_of=draw(st.none() | steps),
        not_multiple_of=draw(st.sampled_from([(), (), (Fraction(3),), (Fraction(5),)])),
    )


def around(numbers: NumberSet) -> list[Fraction]:
    """Numbers at and next to the bounds."""
    bounds = [bound for bound in (numbers.minimum, numbers.maximum) if bound is not None]
    units = [Fraction(1, 10**places) for places in range(5)] + [Fraction(5), Fraction(0)]
    return [bound + sign * unit for bound in bounds for unit in units for sign in (1, -1)]


def spelled(value: Fraction) -> str:
    """The shortest decimal spelling."""
    if value.denominator == 1:
        return str(value.numerator)
    return format(Decimal(value.numerator) / Decimal(value.denominator), "f")


class Language:
    """A regex as Python and as outlines-core understand it."""

    def __init__(self, regex: str) -> None:
        self.regex = re.compile(regex, re.ASCII)
        self.automaton = automaton.build(regex)

    def accepts(self, text: str) -> bool:
        found = self.regex.fullmatch(text) is not None
        assert self.automaton.accepts(text.encode()) == found
        return found


def language(numbers: NumberSet) -> Language:
    try:
        return Language(numbers.regex())
    except UnsupportedError:
        reject()


@settings(max_examples=80, deadline=None)
@given(number_sets(), st.lists(decimals(40_000, 4), min_size=5, max_size=30))
def test_a_regex_spells_what_is_in_the_set(numbers, values):
    accepts = language(numbers).accepts
    for value in [*values, *around(numbers)]:
        text = spelled(value)
        if numbers.values is not None:
            assert accepts(text) == (text in numbers.values)
        else:
            assert accepts(text) == numbers.contains(value), text


@settings(max_examples=60, deadline=None)
@given(
    number_sets(),
    st.from_regex(r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?([eE]-?[0-9])?", fullmatch=True),
)
def test_a_regex_accepts_no_spelling_of_a_number_outside_of_the_set(numbers, text):
    accepts = language(numbers).accepts
    if accepts(text):
        assert numbers.contains(Decimal(text))
        assert numbers.contains(json.loads(text))


@settings(max_examples=30, deadline=None)
@given(number_sets(), st.data())
def test_what_a_regex_generates_is_in_the_set_for_readers_with_doubles_too(numbers, data):
    pattern = language(numbers).regex
    for _ in range(4):
        text = data.draw(st.from_regex(pattern, fullmatch=True))
        if text.endswith("\n"):
            continue
        assert numbers.contains(Decimal(text)), text
        value = json.loads(text)
        assert math.isfinite(value)
        if numbers.multiple_of is None and Fraction(3) not in numbers.not_multiple_of:
            assert numbers.contains(value), text


@settings(max_examples=300, deadline=None)
@given(number_sets(), number_sets(), st.lists(decimals(4000, 4), max_size=20))
def test_intersection_is_and(left, right, values):
    both = left.intersect(right)
    listed = [exact(value) for value in (left.values or ()) + (right.values or ())]
    for value in [*values, *around(left), *around(right), *listed]:
        expected = left.contains(value) and right.contains(value)
        assert any(part.contains(value) for part in both) == expected
        if expected:
            assert not left.is_empty() and not right.is_empty()


@settings(max_examples=300, deadline=None)
@given(number_sets(), st.lists(decimals(4000, 4), max_size=20))
def test_negation_is_not(numbers, values):
    others = numbers.negate()
    listed = [exact(value) for value in numbers.values or ()]
    for value in [*values, *around(numbers), *listed]:
        assert any(part.contains(value) for part in others) != numbers.contains(value)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(-10, 10), st.integers(0, 12), steps, st.sampled_from([None, True, False]),
    st.booleans(), st.sampled_from([(), (Fraction(2),), (Fraction(2), Fraction(3))]),
)  # fmt: skip
def test_emptiness_is_exact(minimum, width, step, is_integer, is_exclusive, excluded):
    numbers = NumberSet(
        is_integer=is_integer,
        minimum=Fraction(minimum),
        exclusive_minimum=is_exclusive,
        maximum=Fraction(minimum + width),
        exclusive_maximum=is_exclusive,
        multiple_of=step,
        not_multiple_of=excluded,
    )
    grid = (Fraction(minimum) + Fraction(index, 100) for index in range(100 * width + 1))
    assert numbers.is_empty() == (not any(numbers.contains(value) for value in grid))


@pytest.mark.parametrize(
    ("numbers", "accepted", "refused"),
    [
        (INTEGER, "0 -1 7 " + "9" * 64, "-0 00 01 1.0 1e3 +1 1" + "0" * 64),
        (
            UNBOUNDED,
            "0 -0 -0.0 1.5 1e+16 1E5 1e-05 1.6e308 9.9e307 5e-324 1e22 0.30000000000000004",
            "1. .5 01 1.8e308 2e308 1e309 1e400 10e308 NaN -",
        ),
        (NumberSet(minimum=Fraction(0)), "0 -0 0.5 -0.0 1000000.25", "-1 -0.1 1e5 -00"),
        (
            NumberSet(minimum=Fraction(0), exclusive_minimum=True),
            "0.1 1 0.30000000000000004 0.00000000000000000001",
            "0 0.0 -0 -1",
        ),
        (
            NumberSet(maximum=Fraction(1), exclusive_maximum=True),
            "0.99 0.9999999999 0 -5",
            "1 1.0 0.99999999999999999999",
        ),
        (NumberSet(minimum=Fraction(-5), maximum=Fraction(-5)), "-5 -5.0", "5 0 -5.1"),
        (
            NumberSet(multiple_of=Fraction("0.01"), minimum=Fraction(0)),
            "0.07 1 1.1 1.10 12345.67",
            "0.001 0.075 -0.01",
        ),
        (NumberSet(multiple_of=Fraction(5)), "5 5.0 -10 0 -0 125", "4 5.5 51"),
        (NumberSet(is_integer=True, multiple_of=Fraction(4)), "4 8 104 -12 0", "2 4.0 102 -0"),
        (NumberSet(multiple_of=Fraction("2.5")), "2.5 5 7.5 12.5 -2.5 10.0", "2 1.5 2.55"),
        (
            NumberSet(True, Fraction(0), maximum=Fraction(100), multiple_of=Fraction(7)),
            "0 7 98",
            "6 99 105 -7",
        ),
        (NumberSet(is_integer=False), "0.5 -1.25 3.000001", "1 1.0 0 1e5 0.00000000000000000001"),
        (NumberSet(not_multiple_of=(Fraction(5),)), "1 5.5 -3", "5 5.0 0 10"),
        (NumberSet(values=("1", "2.50", "1e3")), "1 2.50 1e3", "2.5 1.0 1000"),
        (
            NumberSet(is_integer=True, minimum=Fraction(2**53), maximum=Fraction(2**53 + 2)),
            "9007199254740993",
            "9007199254740991 9007199254740995",
        ),
    ],
)  # fmt: skip
def test_examples(numbers, accepted, refused):
    accepts = Language(numbers.regex()).accepts
    assert [text for text in accepted.split() if not accepts(text)] == []
    assert [text for text in refused.split() if accepts(text)] == []


def test_contains_is_exact_in_decimals():
    cents = NumberSet(multiple_of=Fraction("0.01"))
    assert cents.contains(0.07) and cents.contains(Decimal("19.99")) and cents.contains(3)
    assert not cents.contains(0.075)
    assert INTEGER.contains(3.0) and INTEGER.contains(1e300) and not INTEGER.contains(3.5)
    with pytest.raises(UnsupportedError):
        UNBOUNDED.contains(Decimal("1e1000000000"))
    with pytest.raises(UnsupportedError):
        UNBOUNDED.contains(float("inf"))


def test_intersections():
    assert UNBOUNDED.intersect(INTEGER) == (INTEGER,)
    assert INTEGER.intersect(NumberSet(is_integer=False)) == ()
    fours, sixes = NumberSet(multiple_of=Fraction(4)), NumberSet(multiple_of=Fraction(6))
    assert fours.intersect(sixes) == (NumberSet(multiple_of=Fraction(12)),)
    listed = NumberSet(values=("3", "1.0", "2.5", "1"))
    assert listed.intersect(INTEGER) == (NumberSet(values=("3", "1")),)
    assert listed.intersect(NumberSet(minimum=Fraction(9))) == ()
    assert (
        INTEGER.intersect(
            NumberSet(
                minimum=Fraction(1),
                exclusive_minimum=True,
                maximum=Fraction(2),
                exclusive_maximum=True,
            )
        )
        == ()
    )


@pytest.mark.parametrize(
    "numbers",
    [
        NumberSet(multiple_of=Fraction(7)),
        NumberSet(multiple_of=Fraction("0.123456789")),
        NumberSet(not_multiple_of=(Fraction("0.3"),)),
        NumberSet(is_integer=True, minimum=Fraction(10**70)),
        NumberSet(values=()),
    ],
)
def test_what_cannot_be_written_is_refused(numbers):
    with pytest.raises(UnsupportedError):
        numbers.regex()


def test_huge_numbers_take_no_time():
    assert NumberSet(values=("1e400",)).contains(Decimal("1e400"))
    with pytest.raises(UnsupportedError):
        NumberSet(values=("1e100000000",)).negate()
    with pytest.raises(UnsupportedError):
        NumberSet(multiple_of=Fraction(1, 10**300)).regex()
