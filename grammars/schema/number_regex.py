"""Regexes of JSON numbers in canonical spelling: ranges, and what the last digits decide.

ASCII only, for Rust's regex crate and Python's `re` alike; a regex matches the whole number. A
number has at most 64 integer digits and 20 fraction digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

INTEGER_DIGITS = 64
FRACTION_DIGITS = 20
GREATEST_INTEGER = 10**INTEGER_DIGITS - 1

_INTEGER = f"(?:0|[1-9][0-9]{{0,{INTEGER_DIGITS - 1}}})"
_FRACTION = rf"(?:\.[0-9]{{1,{FRACTION_DIGITS}}})"

# So large that no number it stands behind is infinite as a double: 64 digits to e+239, one digit to
# e+307, and what is left of one digit at e+308.
_EXPONENT = (
    r"[eE](?:\+?(?:[0-9]{1,2}|1[0-9]{2}|2[0-3][0-9])"
    r"|-(?:[0-9]{1,2}|[12][0-9]{2}|3[01][0-9]|32[0-4]))"
)
_LARGE_EXPONENT = rf"[0-9]{_FRACTION}?[eE]\+?(?:2[4-9][0-9]|30[0-7])"
_LARGEST = rf"1(?:\.[0-6][0-9]{{0,{FRACTION_DIGITS - 1}}})?[eE]\+?308"

ANY_INTEGER = f"-?[1-9][0-9]{{0,{INTEGER_DIGITS - 1}}}|0"
ANY_NUMBER = f"-?(?:{_INTEGER}{_FRACTION}?(?:{_EXPONENT})?|{_LARGE_EXPONENT}|{_LARGEST})"


def digits_between(low: str, high: str) -> str:
    """Digit strings from `low` to `high`, all of one length; "" when both are empty.

    Args:
        low: digits.
        high: as many digits, not smaller.
    """
    if not low:
        return ""
    if set(low) == {"0"} and set(high) == {"9"}:
        return "[0-9]" if len(low) == 1 else f"[0-9]{{{len(low)}}}"
    if low[0] == high[0]:
        return low[0] + digits_between(low[1:], high[1:])
    rest = len(low) - 1
    # First digits with all behind them join the class in the middle.
    first = int(low[0]) + (low[1:] != "0" * rest)
    last = int(high[0]) - (high[1:] != "9" * rest)
    options = []
    if first > int(low[0]):
        options.append(low[0] + digits_between(low[1:], "9" * rest))
    if first <= last:
        options.append(_digit(first, last) + digits_between("0" * rest, "9" * rest))
    if last < int(high[0]):
        options.append(high[0] + digits_between("0" * rest, high[1:]))
    return _any_of(options)


def integers_between(low: int, high: int) -> str:
    """Integers from `low` to `high`, without leading zeros.

    Args:
        low: at least 0.
        high: at least `low`.
    """
    options = []
    while low <= high:
        last = min(high, 10 ** len(str(low)) - 1)
        # Runs of whole lengths make one option: 10 to 99999.
        length = len(str(low))
        if low == 10 ** (length - 1) and last == 10**length - 1 and low:
            while 10 ** (len(str(last)) + 1) - 1 <= high:
                last = last * 10 + 9
            options.append(f"[1-9]{_up_to('[0-9]', length - 1, len(str(last)) - 1)}")
        else:
            options.append(digits_between(str(low), str(last)))
        low = last + 1
    return _any_of(options)


def texts(values: Iterable[str]) -> str:
    """Digit strings of one length, those with the same first digit to stand behind together."""
    by_rest: dict[frozenset[str], list[str]] = {}
    by_first: dict[str, set[str]] = {}
    for value in values:
        if value:
            by_first.setdefault(value[0], set()).add(value[1:])
    for first, rest in sorted(by_first.items()):
        by_rest.setdefault(frozenset(rest), []).append(first)
    return _any_of([_class(firsts) + texts(rest) for rest, firsts in by_rest.items()])


def decimals_between(low: Fraction, high: Fraction, digits: int) -> str:
    """Numbers from `low` to `high` with up to `digits` fraction digits; "" when there are none.

    Args:
        low: at least 0, with no more than `digits` fraction digits.
        high: at least `low`; no more than 64 integer digits.
        digits: at least 1.
    """
    first, last = int(low), int(high)
    low_digits, high_digits = _fraction_digits(low, digits), _fraction_digits(high, digits)
    if first == last:
        return str(first) + _fraction(low_digits, high_digits, digits)
    options = []
    inner_first, inner_last = first, last
    if low_digits:
        options.append(str(first) + _fraction(low_digits, None, digits))
        inner_first += 1
    if high_digits != "9" * digits:
        inner_last -= 1
    if inner_first <= inner_last:
        options.append(integers_between(inner_first, inner_last) + _fraction("", None, digits))
    if inner_last < last:
        options.append(str(last) + _fraction("", high_digits, digits))
    return _any_of(options)


def with_fractions(low: int, high: int, fraction_low: str, fraction_high: str) -> str:
    """Integers from `low` to `high`, each with a fraction in a range that 0 is not in.

    Args:
        low: at least 0.
        high: at least `low`.
        fraction_low: digits behind the point; the last is not 0.
        fraction_high: the same.
    """
    return integers_between(low, high) + _fraction(fraction_low, fraction_high, FRACTION_DIGITS)


def endings(
    low: int, high: int, unit_digits: int, tail_digits: int, tails: Iterable[int], integral: str
) -> str:
    """Numbers N / 10**unit_digits with N from `low` to `high` whose last digits are of a set.

    Args:
        low: at least 0.
        high: at least `low`.
        unit_digits: fraction digits.
        tail_digits: how many last digits of N decide; at least `unit_digits`.
        tails: the sets of them, as numbers.
        integral: regex of what stands behind an integer.

    Returns:
        The regex; "" when there are none.
    """
    modulus = 10**tail_digits
    allowed = sorted(tails)

    def written(chosen: Iterable[int], *, behind_digits: bool) -> str:
        by_fraction: dict[str, list[str]] = {}
        for tail in chosen:
            whole, part = divmod(tail, 10**unit_digits)
            integer = str(whole)
            if behind_digits:
                width = tail_digits - unit_digits
                integer = str(whole).zfill(width) if width else ""
            behind = _exact_fraction(part, unit_digits) if unit_digits else integral
            by_fraction.setdefault(behind, []).append(integer)
        return _any_of([_by_length(integers) + behind for behind, integers in by_fraction.items()])

    options = []
    first, last = low // modulus, high // modulus
    if first == 0:
        options.append(written([t for t in allowed if low <= t <= high], behind_digits=False))
        first, low = 1, modulus
    borders: Mapping[int, list[int]] = {
        head: [t for t in allowed if low <= head * modulus + t <= high] for head in {first, last}
    }
    for head in sorted(borders):
        if first <= head <= last and borders[head] != allowed and borders[head]:
            options.append(str(head) + written(borders[head], behind_digits=True))
    inner_first = first + (borders[first] != allowed)
    inner_last = last - (borders[last] != allowed)
    if inner_first <= inner_last and allowed:
        options.append(
            integers_between(inner_first, inner_last) + written(allowed, behind_digits=True)
        )
    return _any_of([option for option in options if option])


def _by_length(integers: list[str]) -> str:
    lengths = sorted({len(integer) for integer in integers})
    return _any_of([texts([i for i in integers if len(i) == length]) for length in lengths])


def _exact_fraction(part: int, digits: int) -> str:
    """`part` / 10**digits behind an integer, with or without zeros at the end."""
    written = str(part).zfill(digits).rstrip("0")
    zeros = digits - len(written)
    if not written:
        return rf"(?:\.{_up_to('0', 1, zeros)})?"
    return rf"\.{written}" + (_up_to("0", 0, zeros) if zeros else "")


def _fraction_digits(value: Fraction, digits: int) -> str:
    """The digits behind the point (cut, if there are more), without zeros at the end."""
    part = (value - int(value)) * 10**digits
    return str(int(part)).zfill(digits).rstrip("0")


def _fraction(low: str, high: str | None, digits: int) -> str:
    """What may stand behind an integer: nothing, or a point and digits."""
    some, may_be_empty = _tails(low, high, digits)
    if some is None:
        return ""
    return rf"(?:\.{some})?" if may_be_empty else rf"\.{some}"


def _tails(low: str, high: str | None, digits: int) -> tuple[str | None, bool]:
    """Digits s with 0.low <= 0.s <= 0.high (None: no bound): (regex of one or more, is none one?).

    Args:
        low: without zeros at the end.
        high: without zeros at the end.
        digits: most digits.
    """
    may_be_empty = not low
    if digits == 0:
        return None, may_be_empty
    if high == "":
        return (_up_to("0", 1, digits) if may_be_empty else None), may_be_empty
    if not low and high is None:
        return _up_to("[0-9]", 1, digits), True
    groups: dict[tuple[str, str | None], list[str]] = {}
    first = int(low[0]) if low else 0
    last = int(high[0]) if high is not None else 9
    for digit in range(first, last + 1):
        rest_low = low[1:] if low and digit == first else ""
        rest_high = high[1:] if high is not None and digit == last else None
        groups.setdefault((rest_low, rest_high), []).append(str(digit))
    options = []
    for (rest_low, rest_high), firsts in groups.items():
        some, is_none_one = _tails(rest_low, rest_high, digits - 1)
        if some is not None:
            options.append(_class(firsts) + (f"(?:{some})?" if is_none_one else some))
        elif is_none_one:
            options.append(_class(firsts))
    return (_any_of(options) if options else None), may_be_empty


def _up_to(unit: str, minimum: int, maximum: int) -> str:
    if minimum == maximum:
        return "" if maximum == 0 else unit if maximum == 1 else f"{unit}{{{maximum}}}"
    return f"{unit}{{{minimum},{maximum}}}"


def _digit(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _class(digits: list[str]) -> str:
    if len(digits) == 1:
        return digits[0]
    is_run = int(digits[-1]) - int(digits[0]) == len(digits) - 1
    return f"[{digits[0]}-{digits[-1]}]" if is_run else f"[{''.join(digits)}]"


def _any_of(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})" if options else ""
