"""Sets of JSON numbers, as JSON Schema can describe them: what is in them, how they are spelled.

Arithmetic is that of decimals: 0.07 is a multiple of 0.01.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from specrt.grammars.schema import number_spelling
from specrt.grammars.schema.unsupported import UnsupportedError

MAX_VALUES = 1_000
_MAX_SCANNED = 10_000
# Beyond this a number's exact value is not looked at: 1e1000000000 has a billion digits.
_MAX_EXPONENT = 1_000


def exact(number: int | float | Decimal | Fraction | str) -> Fraction:
    """The exact value of a number as it is spelled: 0.1 is a tenth.

    Raises:
        UnsupportedError: it is not finite, or beyond 1e1000.
    """
    if isinstance(number, int | Fraction):
        return Fraction(number)
    decimal = Decimal(number if isinstance(number, Decimal | str) else repr(number))
    if not decimal.is_finite() or abs(decimal.adjusted()) > _MAX_EXPONENT:
        raise UnsupportedError(f"the number {decimal} is not supported")
    return Fraction(decimal)


@dataclass(frozen=True, slots=True)
class NumberSet:
    """An interval of JSON numbers, or a finite set; `NumberSet()` = all.

    Attributes:
        is_integer: True: integers only (3.0 is one), False: all but integers, None: both.
        minimum: None = no bound.
        exclusive_minimum: is the minimum itself not in the set?
        maximum: None = no bound.
        exclusive_maximum: is the maximum itself not in the set?
        multiple_of: positive; all are multiples of it.
        not_multiple_of: positive; none is a multiple of one of them.
        values: a finite set: JSON spellings in schema order (then nothing else is set).
    """

    is_integer: bool | None = None
    minimum: Fraction | None = None
    exclusive_minimum: bool = False
    maximum: Fraction | None = None
    exclusive_maximum: bool = False
    multiple_of: Fraction | None = None
    not_multiple_of: tuple[Fraction, ...] = ()
    values: tuple[str, ...] | None = None

    def intersect(self, other: NumberSet) -> tuple[NumberSet, ...]:
        """What is in both: one set, or none where nothing is (as far as that can be decided)."""
        if self.values is not None or other.values is not None:
            return _filtered(self, other) if self.values is not None else _filtered(other, self)
        if {self.is_integer, other.is_integer} == {True, False}:
            return ()
        minimum, exclusive_minimum = _stricter(
            (self.minimum, self.exclusive_minimum), (other.minimum, other.exclusive_minimum), max
        )
        maximum, exclusive_maximum = _stricter(
            (self.maximum, self.exclusive_maximum), (other.maximum, other.exclusive_maximum), min
        )
        both = NumberSet(
            is_integer=other.is_integer if self.is_integer is None else self.is_integer,
            minimum=minimum,
            exclusive_minimum=exclusive_minimum,
            maximum=maximum,
            exclusive_maximum=exclusive_maximum,
            multiple_of=_common_multiple(self.multiple_of, other.multiple_of),
            not_multiple_of=tuple(sorted({*self.not_multiple_of, *other.not_multiple_of})),
        )
        try:
            return () if both.is_empty() else (both,)
        except UnsupportedError:
            return (both,)

    def negate(self) -> tuple[NumberSet, ...]:
        """Sets whose union is every other number.

        Raises:
            UnsupportedError: they are too many.
        """
        if self.values is not None:
            return _between([exact(value) for value in self.values])
        sets = []
        if self.is_integer is not None:
            sets.append(NumberSet(is_integer=not self.is_integer))
        if self.minimum is not None:
            sets.append(
                NumberSet(maximum=self.minimum, exclusive_maximum=not self.exclusive_minimum)
            )
        if self.maximum is not None:
            sets.append(
                NumberSet(minimum=self.maximum, exclusive_minimum=not self.exclusive_maximum)
            )
        if self.multiple_of is not None:
            sets.append(NumberSet(not_multiple_of=(self.multiple_of,)))
        sets += [NumberSet(multiple_of=divisor) for divisor in self.not_multiple_of]
        return tuple(sets)

    def contains(self, number: int | float | Decimal | Fraction) -> bool:
        """Is a number in the set? By its exact decimal value.

        Raises:
            UnsupportedError: it is not finite, or beyond 1e1000.
        """
        value = exact(number)
        if self.values is not None:
            return any(exact(spelling) == value for spelling in self.values)
        return self._is_between(value) and self._divides(value)

    def is_empty(self) -> bool:
        """Is no number in the set? Exact.

        Raises:
            UnsupportedError: it is too large to decide.
        """
        if self.values is not None:
            return not self.values
        low, high = self.minimum, self.maximum
        if low is not None and high is not None:
            if low > high or (low == high and (self.exclusive_minimum or self.exclusive_maximum)):
                return True
            if low == high:
                return not self.contains(low)
        step = self.step
        if step is None:
            # An interval with more than a point: no multiples of anything fill it.
            return False
        if any((step / divisor).denominator == 1 for divisor in self._divisors_excluded):
            return True
        first, last = self.interval_of_multiples(step)
        if first is None and last is None:
            return False
        if first is not None and last is not None and first > last:
            return True
        # Runs of multiples that are all excluded are short: each divisor leaves out a part.
        start, way = (first, 1) if first is not None else (last or 0, -1)
        count = _MAX_SCANNED if first is None or last is None else last - first + 1
        if any(
            self._divides(step * (start + way * index)) for index in range(min(count, _MAX_SCANNED))
        ):
            return False
        if count > _MAX_SCANNED or first is None or last is None:
            raise UnsupportedError("too many multiples to find one that is allowed")
        return True

    def regex(self) -> str:
        """The exact regex of the spellings (Rust syntax, ASCII; no `|` outside of a group).

        Raises:
            UnsupportedError: there is none of reasonable size.
        """
        return f"(?:{number_spelling.regex(self)})"

    @property
    def step(self) -> Fraction | None:
        """What all are multiples of; integers are those of 1. None = nothing."""
        one = Fraction(1) if self.is_integer else None
        return _common_multiple(self.multiple_of, one)

    def multiples(self, limit: int) -> list[Fraction] | None:
        """All numbers of the set, in order; None where there is no step, or more than `limit`."""
        step = self.step
        if step is None:
            return None
        first, last = self.interval_of_multiples(step)
        if first is None or last is None or last - first >= limit:
            return None
        found = (step * index for index in range(first, last + 1))
        return [value for value in found if self._divides(value)]

    @property
    def _divisors_excluded(self) -> tuple[Fraction, ...]:
        one = (Fraction(1),) if self.is_integer is False else ()
        return self.not_multiple_of + one

    def _is_between(self, value: Fraction) -> bool:
        is_above = self.minimum is None or (
            value > self.minimum if self.exclusive_minimum else value >= self.minimum
        )
        is_below = self.maximum is None or (
            value < self.maximum if self.exclusive_maximum else value <= self.maximum
        )
        return is_above and is_below

    def _divides(self, value: Fraction) -> bool:
        if self.step is not None and (value / self.step).denominator != 1:
            return False
        return all((value / divisor).denominator != 1 for divisor in self._divisors_excluded)

    def interval_of_multiples(self, step: Fraction) -> tuple[int | None, int | None]:
        """First and last k with k * step between the bounds; None = no bound."""
        first = last = None
        if self.minimum is not None:
            first = math.ceil(self.minimum / step)
            first += self.exclusive_minimum and first * step == self.minimum
        if self.maximum is not None:
            last = math.floor(self.maximum / step)
            last -= self.exclusive_maximum and last * step == self.maximum
        return first, last


def _filtered(finite: NumberSet, other: NumberSet) -> tuple[NumberSet, ...]:
    kept: dict[Fraction, str] = {}
    for spelling in finite.values or ():
        value = exact(spelling)
        if value in kept or not other.contains(value):
            continue
        # Where an integer is asked for, 1.0 is written as 1.
        kept[value] = str(value) if other.is_integer else spelling
    return (replace(finite, values=tuple(kept.values())),) if kept else ()


def _stricter(
    left: tuple[Fraction | None, bool],
    right: tuple[Fraction | None, bool],
    choose: Callable[[Fraction, Fraction], Fraction],
) -> tuple[Fraction | None, bool]:
    if left[0] is None or right[0] is None:
        return right if left[0] is None else left
    if left[0] == right[0]:
        return left[0], left[1] or right[1]
    return left if choose(left[0], right[0]) == left[0] else right


def _common_multiple(left: Fraction | None, right: Fraction | None) -> Fraction | None:
    if left is None or right is None:
        return right if left is None else left
    return Fraction(
        math.lcm(left.numerator * right.denominator, right.numerator * left.denominator),
        left.denominator * right.denominator,
    )


def _between(values: list[Fraction]) -> tuple[NumberSet, ...]:
    """The intervals between values."""
    points = sorted(set(values))
    if len(points) > MAX_VALUES:
        raise UnsupportedError(f"a negation of more than {MAX_VALUES} numbers")

    def intervals() -> Iterator[NumberSet]:
        low: Fraction | None = None
        for high in [*points, None]:
            yield NumberSet(
                minimum=low,
                exclusive_minimum=low is not None,
                maximum=high,
                exclusive_maximum=high is not None,
            )
            low = high

    return tuple(intervals())
