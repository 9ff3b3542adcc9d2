"""Other spellings of the numbers in a value: JSON Schema compares numbers, not their spelling."""

from __future__ import annotations

from typing import Any

_MAX_EXACT = 2**53  # a double holds every integer up to here


def with_plain_integers(value: Any) -> Any:
    """The value with 2 for 2.0, wherever that is the same number."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _MAX_EXACT:
        return int(value)
    return _inside(value, with_plain_integers)


def with_points(value: Any) -> Any:
    """The value with 2.0 for 2, wherever that is the same number."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_EXACT:
        return float(value)
    return _inside(value, with_points)


def _inside(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        return {key: change(item) for key, item in value.items()}
    if isinstance(value, list):
        return [change(item) for item in value]
    return value
