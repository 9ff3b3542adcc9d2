"""The automaton of a whole turn: free text, markers, heads and tails of calls, holes for values.

It runs over bytes, so a token may lie across any border; a special token that the format names is
one symbol of its own, and its text as bytes is not the same. What stands in a hole (the arguments
of a tool, or the one value of a response) is the business of an engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from specrt.errors import ConfigError
from specrt.grammars.base import DEAD
from specrt.grammars.tool_format import ID_SLOT, ToolFormat

NUM_BYTES = 256

Symbols = tuple[int, ...]  # bytes, and NUM_BYTES + i for the i-th special token


@dataclass(frozen=True, slots=True)
class Hole:
    """Where a value stands.

    Attributes:
        entry: the state before its first byte; no transition leads out of it.
        exit: the state behind its last byte.
    """

    entry: int
    exit: int


@dataclass(frozen=True, slots=True)
class TurnAutomaton:
    """A turn without its values.

    Attributes:
        table: int32 [num_states, 256 + number of special tokens]; row DEAD is all DEAD.
        start: where an output begins.
        final: bool [num_states], where it may end.
        holes: one per tool, in their order; a single one for a response.
        specials: texts of the special tokens that are symbols, in the order of their columns.
    """

    table: npt.NDArray[np.int32]
    start: int
    final: npt.NDArray[np.bool_]
    holes: tuple[Hole, ...]
    specials: tuple[str, ...] = ()


class _Builder:
    """States and edges that grow, behind those of an automaton that is there already."""

    def __init__(self, specials: Sequence[str], base: TurnAutomaton | None = None) -> None:
        self._texts = tuple(specials)
        self._specials = sorted(enumerate(specials), key=lambda item: -len(item[1]))
        self._num_symbols = NUM_BYTES + len(specials)
        self._base = base
        num_states = 1 if base is None else len(base.table)
        self.edges: list[dict[int, int]] = [{} for _ in range(num_states)]
        self.final: set[int] = set()

    def state(self) -> int:
        self.edges.append({})
        return len(self.edges) - 1

    def symbols(self, text: str) -> Symbols:
        """`text` as bytes, special tokens in it as their symbols."""
        if not self._specials:
            return tuple(text.encode())
        found: list[int] = []
        while text:
            index, special = next(
                ((i, s) for i, s in self._specials if text.startswith(s)), (-1, text[0])
            )
            found += special.encode() if index < 0 else [NUM_BYTES + index]
            text = text[len(special) :]
        return tuple(found)

    def literal(self, start: int, symbols: Symbols, end: int | None = None) -> int:
        """Lead from `start` along `symbols`, sharing what is there; into `end` when it is given."""
        state = start
        for position, symbol in enumerate(symbols):
            into = end if position == len(symbols) - 1 else None
            if symbol not in self.edges[state]:
                self.edges[state][symbol] = self.state() if into is None else into
            state = self.edges[state][symbol]
        return state

    def build(self, start: int, holes: Sequence[Hole]) -> TurnAutomaton:
        table = np.zeros((len(self.edges), self._num_symbols), dtype=np.int32)
        final = np.zeros(len(self.edges), dtype=np.bool_)
        if self._base is not None:
            table[: len(self._base.table)] = self._base.table
            final[: len(self._base.final)] = self._base.final
        found = [
            (state, symbol, after)
            for state, edges in enumerate(self.edges)
            for symbol, after in edges.items()
        ]
        states, symbols, behind = np.array(found, dtype=np.int32).reshape(-1, 3).T
        table[states, symbols] = behind
        final[list(self.final)] = True
        return TurnAutomaton(table, start, final, tuple(holes), self._texts)


def value_turn(specials: Sequence[str] = (), *, reasoning_end: str = "") -> TurnAutomaton:
    """One value and nothing else.

    Args:
        specials: texts of the special tokens that stand for themselves.
        reasoning_end: any text up to and including this comes first; "" = none does.
    """
    builder = _Builder(specials)
    hole = Hole(builder.state(), builder.state())
    builder.final.add(hole.exit)
    return builder.build(_reasoning(builder, reasoning_end, hole.entry), [hole])


def calls_turn(
    tool_format: ToolFormat,
    names: Sequence[str],
    *,
    require_call: bool,
    parallel: bool,
    specials: Sequence[str] = (),
    reasoning_end: str = "",
) -> TurnAutomaton:
    """Text, or text and calls, or calls.

    Args:
        tool_format: how calls are written.
        names: of the tools; none only if no call is required.
        require_call: calls alone, at least one.
        parallel: more than one call may follow.
        specials: texts of the special tokens that stand for themselves.
        reasoning_end: any text up to and including this comes first; "" = none does.

    Raises:
        ConfigError: calls of two tools begin with the same text.
    """
    base, opened = _before_calls(
        tool_format, require_call, bool(names), tuple(specials), reasoning_end
    )
    builder = _Builder(specials, base)
    tail = builder.state()
    called = builder.literal(tail, builder.symbols(tool_format.tail))
    holes = [Hole(_head(builder, opened, tool_format, name), tail) for name in names]
    entries = {hole.entry for hole in holes}
    if len(entries) < len(holes) or any(builder.edges[entry] for entry in entries):
        raise ConfigError(
            f"tool-call format {tool_format.name!r}: calls of {', '.join(map(repr, names))} cannot"
            " be told apart by how they begin"
        )
    if parallel and tool_format.is_parallel and names:
        again = builder.symbols(tool_format.call_separator + tool_format.prefix)
        builder.literal(called, again, opened)
    builder.final.add(builder.literal(called, builder.symbols(tool_format.calls_end)))
    return builder.build(base.start, holes)


def _head(builder: _Builder, start: int, tool_format: ToolFormat, name: str) -> int:
    """From the literal beginning of a call to the hole of `name`."""
    states = [start]  # behind an id of any length that it may have
    for part in tool_format.head(name):
        if part == ID_SLOT:
            states = _id(builder, states[0], tool_format)
            continue
        symbols = builder.symbols(part)
        end = builder.literal(states[0], symbols)
        for state in states[1:]:
            builder.literal(state, symbols, end)
        states = [end]
    return states[0]


def _id(builder: _Builder, state: int, tool_format: ToolFormat) -> list[int]:
    """The states behind the ids that the model may write."""
    characters, at_least, at_most = tool_format.id_range
    states = [state]
    for _ in range(at_most):
        after = builder.state()
        builder.edges[states[-1]] |= dict.fromkeys(map(ord, characters), after)
        states.append(after)
    return states[at_least:]


_TRIGGERED = 1  # the state behind the trigger of a call


@lru_cache(maxsize=32)
def _before_calls(
    tool_format: ToolFormat,
    require_call: bool,
    has_names: bool,
    specials: tuple[str, ...],
    reasoning_end: str,
) -> tuple[TurnAutomaton, int]:
    """What comes before the name of the first call, the same for all lists of tools.

    Returns:
        The automaton, and the state where the name follows.
    """
    builder = _Builder(specials)
    assert builder.state() == _TRIGGERED
    trigger = builder.symbols(tool_format.trigger)
    opening = builder.symbols(tool_format.calls_begin + tool_format.prefix)
    opened = builder.literal(_TRIGGERED, opening[len(trigger) :])
    if require_call:
        start = builder.state()
        builder.literal(start, trigger, _TRIGGERED)
    else:
        start = _text(builder, tool_format, _TRIGGERED if has_names else DEAD)
    return builder.build(_reasoning(builder, reasoning_end, start), []), opened


def _text(builder: _Builder, tool_format: ToolFormat, triggered: int) -> int:
    """Free text without the trigger; behind the separator, or before any text, it leads on.

    Without a separator only text that begins with the trigger does; further on it is text like any.
    An Aho-Corasick automaton. The beginning of the text counts as a symbol of its own.
    """
    begin = -1
    trigger = builder.symbols(tool_format.trigger)
    first = (begin, *trigger)
    leads_on, patterns = {first}, {first}
    if tool_format.text_separator is not None:
        after_text = (*builder.symbols(tool_format.text_separator), *trigger)
        no_text = (begin, *after_text)  # a separator with nothing before it
        leads_on.add(after_text)
        # The parser reads text: a special token must not be spelled in other tokens either.
        patterns |= {after_text, no_text, trigger, tuple(tool_format.trigger.encode())}
    forbidden = patterns - leads_on

    def step(seen: Symbols, symbol: int) -> Symbols | int:
        text = (*seen, symbol)
        while not any(pattern[: len(text)] == text for pattern in patterns):
            text = text[1:]
        if text in leads_on:
            return triggered
        return DEAD if any(text[-len(pattern) :] == pattern for pattern in forbidden) else text

    symbols = {s for pattern in patterns for s in pattern if s != begin}
    return _scan(builder, (begin,), step, symbols, is_final=True)


def _reasoning(builder: _Builder, end: str, behind: int) -> int:
    """Any text up to and including `end`, then on from `behind`."""
    if not end:
        return behind
    pattern = builder.symbols(end)

    def step(seen: Symbols, symbol: int) -> Symbols | int:
        text = (*seen, symbol)
        while pattern[: len(text)] != text:
            text = text[1:]
        return behind if text == pattern else text

    return _scan(builder, (), step, set(pattern), is_final=False)


def _scan(
    builder: _Builder,
    start: Symbols,
    step: Callable[[Symbols, int], Symbols | int],
    symbols: set[int],
    *,
    is_final: bool,
) -> int:
    """States for well-formed UTF-8 that `step` watches; a special token only where it is watched.

    Args:
        builder: gets the states.
        start: what has been seen at first.
        step: (seen, symbol) -> what is seen then, or the state that it leads out to.
        symbols: those that occur in what is watched for; all others are as good as one another.
        is_final: may the output end behind any whole character?
    """
    other = next(byte for byte in range(NUM_BYTES) if byte not in symbols)
    states: dict[tuple[Symbols, int], int] = {}
    queue: deque[tuple[Symbols, int]] = deque()

    def state_of(seen: Symbols, pending: int) -> int:
        if (seen, pending) not in states:
            states[seen, pending] = builder.state()
            queue.append((seen, pending))
            if is_final and pending == _WHOLE:
                builder.final.add(states[seen, pending])
        return states[seen, pending]

    first = state_of(start, _WHOLE)
    while queue:
        seen, pending = queue.popleft()
        edges = builder.edges[states[seen, pending]]
        after = {symbol: step(seen, symbol) for symbol in (*symbols, other)}
        for byte, next_pending in _utf8_edges()[pending].items():
            seen_next = after[byte if byte in symbols else other]
            if isinstance(seen_next, int):
                edges[byte] = seen_next if next_pending == _WHOLE else DEAD
            else:
                edges[byte] = state_of(seen_next, next_pending)
        for symbol in symbols:
            if symbol >= NUM_BYTES and pending == _WHOLE:
                seen_next = after[symbol]
                edges[symbol] = (
                    seen_next if isinstance(seen_next, int) else state_of(seen_next, _WHOLE)
                )
    return first


_WHOLE = 0  # between characters


@lru_cache(maxsize=1)
def _utf8_edges() -> Mapping[int, Mapping[int, int]]:
    """Well-formed UTF-8 (Unicode 3.9, table 3-7): what is pending -> byte -> what is then."""
    one, two, three, after_e0, after_ed, after_f0, after_f4 = range(1, 8)
    first = dict.fromkeys(range(0x80), _WHOLE)
    first |= dict.fromkeys(range(0xC2, 0xE0), one)
    first |= dict.fromkeys(range(0xE0, 0xF0), two) | {0xE0: after_e0, 0xED: after_ed}
    first |= dict.fromkeys(range(0xF0, 0xF5), three) | {0xF0: after_f0, 0xF4: after_f4}
    return {
        _WHOLE: first,
        one: dict.fromkeys(range(0x80, 0xC0), _WHOLE),
        two: dict.fromkeys(range(0x80, 0xC0), one),
        three: dict.fromkeys(range(0x80, 0xC0), two),
        after_e0: dict.fromkeys(range(0xA0, 0xC0), one),
        after_ed: dict.fromkeys(range(0x80, 0xA0), one),
        after_f0: dict.fromkeys(range(0x90, 0xC0), two),
        after_f4: dict.fromkeys(range(0x80, 0x90), two),
    }
