"""The regex of a number set: which of the ways to write one down fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from specrt.grammars.schema import number_regex
from specrt.grammars.schema.number_regex import FRACTION_DIGITS, GREATEST_INTEGER
from specrt.grammars.schema.unsupported import UnsupportedError

if TYPE_CHECKING:
    from specrt.grammars.schema.number_set import NumberSet

# This many significant digits are told apart by doubles, whatever the number.
_DOUBLE_DIGITS = 15
_MAX_LISTED = 1_000
_MAX_TAIL_DIGITS = 9
_MAX_TAILS = 2_000
# For numbers that are no integers: enough digits of either kind for a double to tell.
_WHOLE_DIGITS = 7
_PART_DIGITS = 8


def regex(numbers: NumberSet) -> str:
    """The regex of the spellings of a set.

    Raises:
        UnsupportedError: there is none of reasonable size.
    """
    if numbers.values is not None:
        return _some([_escape(spelling) for spelling in numbers.values])
    if numbers.step is not None:
        try:
            return _multiples(numbers, numbers.step)
        except UnsupportedError:
            listed = numbers.multiples(_MAX_LISTED)
            if listed is None:
                raise
            return _some([_listed(value, numbers.is_integer) for value in listed])
    divisors = numbers.not_multiple_of
    if any(divisor.denominator != 1 for divisor in divisors):
        raise UnsupportedError("numbers that are no multiples of a fraction")
    if divisors and numbers.is_integer is None:
        others = replace(numbers, is_integer=False, not_multiple_of=())
        return _some([regex(others), regex(replace(numbers, is_integer=True))])
    if numbers.is_integer is False:
        low, high = _closed(numbers)
        return _signed(low, high, _no_integers, has_negative_zero=True)
    if numbers.minimum is None and numbers.maximum is None:
        return number_regex.ANY_NUMBER
    low, high = _closed(numbers)
    return _signed(
        low,
        high,
        lambda least, most: number_regex.decimals_between(least, most, FRACTION_DIGITS),
        has_negative_zero=True,
    )


def _multiples(numbers: NumberSet, step: Fraction) -> str:
    """Multiples that their last digits tell."""
    divisors = [*numbers.not_multiple_of, *([Fraction(1)] if numbers.is_integer is False else [])]
    unit_digits = max(_fraction_digits(value) for value in (step, *divisors))
    scale = 10**unit_digits
    tail_digits = unit_digits
    moduli = [int(value * scale) for value in (step, *divisors)]
    while any(10**tail_digits % modulus for modulus in moduli):
        tail_digits += 1
        if tail_digits > _MAX_TAIL_DIGITS:
            raise UnsupportedError(
                f"multiples of {float(step):g} that their last digits do not tell"
            )
    first, last = numbers.interval_of_multiples(step)
    # A number with a fraction is a double to most readers: it must still be a multiple then.
    digits = _DOUBLE_DIGITS - unit_digits if unit_digits else number_regex.INTEGER_DIGITS
    greatest = 10 ** max(1, digits) * scale - 1
    low = -greatest if first is None else max(-greatest, first * moduli[0])
    high = greatest if last is None else min(greatest, last * moduli[0])
    is_number = numbers.is_integer is not True
    if moduli[0] == 1 and not divisors and unit_digits:
        return _signed(
            Fraction(low, scale),
            Fraction(high, scale),
            lambda least, most: number_regex.decimals_between(least, most, unit_digits),
            has_negative_zero=True,
        )
    if 10**tail_digits // moduli[0] > _MAX_TAILS:
        raise UnsupportedError(f"multiples of {float(step):g} have too many endings")
    tails = [
        tail
        for tail in range(0, 10**tail_digits, moduli[0])
        if all(tail % modulus for modulus in moduli[1:])
    ]

    def written(least: Fraction, most: Fraction, integral: str = "") -> str:
        return number_regex.endings(
            int(least), int(most), unit_digits, tail_digits, tails, integral
        )

    whole = _signed(Fraction(low), Fraction(high), written, has_negative_zero=is_number)
    if not is_number or unit_digits:
        return whole
    # The same with `.0`, as far as doubles are exact.
    exact = 10**_DOUBLE_DIGITS - 1
    low, high = max(low, -exact), min(high, exact)
    if low > high:
        return whole
    as_float = _signed(
        Fraction(low),
        Fraction(high),
        lambda least, most: written(least, most, r"\.0"),
        has_negative_zero=True,
    )
    return _some([whole, as_float])


def _signed(
    low: Fraction,
    high: Fraction,
    written: Callable[[Fraction, Fraction], str],
    *,
    has_negative_zero: bool,
) -> str:
    """Numbers from `low` to `high`.

    Args:
        low: any.
        high: at least `low`.
        written: the regex of the numbers between two that are not negative, "" for none.
        has_negative_zero: is 0 written as -0 too? If not, -1 is the first below it.
    """
    options = []
    least = max(-high, Fraction(0 if has_negative_zero else 1))
    if least <= -low and (magnitudes := written(least, -low)):
        options.append(f"-{magnitudes}")
    if high >= 0 and (magnitudes := written(max(low, Fraction(0)), high)):
        options.append(magnitudes)
    return _some(options)


def _no_integers(low: Fraction, high: Fraction) -> str:
    """Numbers from `low` (at least 0) to `high` that are no integers."""
    edge = Fraction(1, 10**_PART_DIGITS)
    high = min(high, Fraction(10**_WHOLE_DIGITS) - edge)
    first, last = int(low), int(high)
    options = []
    for whole in sorted({first, last}):
        least, most = max(low, whole + edge), min(high, whole + 1 - edge)
        if least <= most:
            options.append(number_regex.decimals_between(least, most, FRACTION_DIGITS))
    if first + 1 <= last - 1:
        options.append(
            number_regex.with_fractions(
                first + 1, last - 1, "0" * (_PART_DIGITS - 1) + "1", "9" * _PART_DIGITS
            )
        )
    return f"(?:{'|'.join(options)})" if options else ""


def _closed(numbers: NumberSet) -> tuple[Fraction, Fraction]:
    """Least and greatest number of an interval that can be written, both in it."""
    low, high = numbers.minimum, numbers.maximum
    grid = 10**FRACTION_DIGITS
    if low is None:
        low = Fraction(-GREATEST_INTEGER)
    elif numbers.exclusive_minimum:
        low = -_next_below(-low)
    if high is None:
        high = Fraction(GREATEST_INTEGER)
    elif numbers.exclusive_maximum:
        high = _next_below(high)
    low = max(Fraction(math.ceil(low * grid), grid), Fraction(-GREATEST_INTEGER))
    high = min(Fraction(math.floor(high * grid), grid), Fraction(GREATEST_INTEGER))
    if low > high:
        raise UnsupportedError("no number that can be written")
    return low, high


def _next_below(bound: Fraction) -> Fraction:
    """A number so little below `bound` that a double just tells them apart.

    What is between the two would be `bound` itself to a reader that makes doubles of numbers.
    """
    if bound == 0:
        return Fraction(-1, 10**FRACTION_DIGITS)
    magnitude = (Decimal(bound.numerator) / Decimal(bound.denominator)).adjusted()
    digits = min(FRACTION_DIGITS, max(0, _DOUBLE_DIGITS - 1 - magnitude))
    unit = Fraction(1, 10**digits)
    below = math.ceil(bound / unit) * unit - unit
    while float(below) >= float(bound):
        unit *= 2
        below -= unit
    return below


def _fraction_digits(value: Fraction) -> int:
    """Digits behind the point of a decimal number.

    Raises:
        UnsupportedError: too many.
    """
    for digits in range(_DOUBLE_DIGITS):
        if 10**digits % value.denominator == 0:
            return digits
    raise UnsupportedError(f"multiples of a number with {_DOUBLE_DIGITS} fraction digits or more")


def _listed(value: Fraction, is_integer: bool | None) -> str:
    """The spellings of one number."""
    sign = "-" if value < 0 else "" if is_integer or value else "-?"
    whole, part = divmod(abs(value), 1)
    if not part:
        return f"{sign}{whole}" + ("" if is_integer else r"(?:\.0)?")
    digits = 0
    while 10**digits % part.denominator:
        digits += 1
        if digits > FRACTION_DIGITS:
            raise UnsupportedError(f"a number with more than {FRACTION_DIGITS} fraction digits")
    return rf"{sign}{whole}\.{str(int(part * 10**digits)).zfill(digits)}"


def _escape(spelling: str) -> str:
    return spelling.replace(".", r"\.").replace("+", r"\+")


def _some(options: list[str]) -> str:
    if not options:
        raise UnsupportedError("no number that can be written")
    return "|".join(options)
