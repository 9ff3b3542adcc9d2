"""A bounded memo of generated tool calls: which argument text was generated for this call?

A client sends back the parsed arguments. Printed again, 1.50 becomes 1.5 and 1.0 becomes 1: the
text, and with it the cached prefix, would differ from what was generated.
"""

from __future__ import annotations

import json
from collections import OrderedDict

_MAX_CHARS = 8 << 20


class CallMemo:
    """Argument texts by call id; the least recently used are forgotten first.

    Args:
        max_chars: of ids and texts kept at most.
    """

    def __init__(self, max_chars: int = _MAX_CHARS) -> None:
        self._max_chars = max_chars
        self._num_chars = 0
        self._arguments: OrderedDict[str, str] = OrderedDict()

    def remember(self, call_id: str, arguments: str) -> None:
        """Keep the text of a call."""
        try:
            json.loads(arguments)
        except (ValueError, RecursionError):
            return  # cut short, or a number of thousands of digits: no client sends that back
        self._arguments[call_id] = arguments
        self._num_chars += len(call_id) + len(arguments)
        while self._num_chars > self._max_chars:
            self._num_chars -= sum(map(len, self._arguments.popitem(last=False)))

    def arguments(self, call_id: str, value: object) -> str:
        """JSON text for the arguments `value` of a call: as generated if that has this value."""
        text = self._arguments.get(call_id)
        if text is not None and _is_same(json.loads(text), value):
            self._arguments.move_to_end(call_id)
            return text
        return json.dumps(value, ensure_ascii=False)


def _is_same(one: object, other: object) -> bool:
    """Equal JSON values, in the same order of keys; 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other
