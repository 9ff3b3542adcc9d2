"""Deterministic automata over bytes: made from a regex by outlines-core, intersected, subtracted.

outlines-core is used as a builder alone: over a vocabulary of the 256 single bytes, between two
sentinel bytes. The one in front keeps it from building for unanchored search, which explodes on
counted repeats; the one behind keeps it from dropping what may follow a complete match. Neither
byte stands in JSON text, and no automaton here accepts a text that holds one.

It cannot be cancelled: regexes of strangers belong in a process that can be killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count

import numpy as np
import numpy.typing as npt
from outlines_core import Index, Vocabulary

from specrt.grammars.base import DEAD
from specrt.grammars.regular.regex_size import regex_size
from specrt.grammars.schema.unsupported import UnsupportedError

NUM_BYTES = 256
MAX_STATES = 20_000
MAX_REGEX_LENGTH = 1_000_000
MAX_POSITIONS = 100_000
MAX_DEPTH = 240  # the crate allows 250

_START, _END = 2, 3
_END_OF_SEQUENCE = NUM_BYTES  # outlines-core wants one; it stands on no path between sentinels


@dataclass(frozen=True, slots=True, eq=False)
class Automaton:
    """A deterministic automaton over bytes.

    Every state but DEAD can be reached from the start and reaches a final state. They are numbered
    as they are met from the start, breadth first where nothing else is said.

    Attributes:
        table: int32 [num_states, 256], the state behind each byte; row DEAD (0) is all DEAD.
        start: the first state, 1; DEAD when nothing is accepted.
        final: bool [num_states].
    """

    table: npt.NDArray[np.int32]
    start: int
    final: npt.NDArray[np.bool_]

    @property
    def num_states(self) -> int:
        """Rows of the table, DEAD included."""
        return len(self.table)

    def is_empty(self) -> bool:
        """Is nothing accepted?"""
        return self.start == DEAD

    def accepts(self, data: bytes) -> bool:
        """Is `data` in the language?"""
        state = self.start
        for byte in data:
            state = int(self.table[state, byte])
        return bool(self.final[state])


def build(regex: str, *, max_states: int = MAX_STATES, alphabet: bytes | None = None) -> Automaton:
    """The automaton of the UTF-8 texts that a regex matches as a whole.

    Args:
        regex: in the syntax of Rust's regex crate, without anchors, look-around, word boundaries
            and empty classes. `.` is any character but a line break.
        max_states: most states of the result.
        alphabet: all bytes that its texts consist of, where that is known: saves time.

    Raises:
        UnsupportedError: it is too large, or the crate cannot read it.
    """
    if len(regex) > MAX_REGEX_LENGTH:
        raise _too_large(f"a regex of {len(regex)} characters")
    size = regex_size(regex)
    if size.positions > MAX_POSITIONS:
        raise _too_large(f"a regex of {size.positions} positions")
    if size.depth > MAX_DEPTH:
        raise _too_large(f"a regex of {size.depth} groups inside each other")
    try:
        index = Index(f"\\x02(?:{regex})\\x03", _byte_vocabulary(alphabet))
    except ValueError as error:
        raise UnsupportedError(f"outlines-core cannot build this regex: {error}"[:400]) from error
    transitions = index.get_transitions()
    # A state more or less for the sentinels: the exact number is known when they are gone.
    if len(transitions) > max_states + 3:
        raise _too_large(f"an automaton of {len(transitions)} states")
    states = np.fromiter(transitions, np.int64, len(transitions))
    states.sort()
    dense = np.zeros(int(states[-1]) + 1, np.int32)
    dense[states] = np.arange(1, len(states) + 1, dtype=np.int32)
    edges = list(transitions.values())
    num_edges = sum(map(len, edges))
    sources = np.repeat(
        dense[np.fromiter(transitions, np.int64, len(edges))],
        np.fromiter(map(len, edges), np.int64, len(edges)),
    )
    symbols = np.fromiter(chain.from_iterable(edges), np.int64, num_edges)
    targets = np.fromiter(chain.from_iterable(edge.values() for edge in edges), np.int64, num_edges)
    table = np.zeros((len(states) + 1, NUM_BYTES + 1), np.int32)
    table[sources, symbols] = dense[targets]
    accepting = np.zeros(len(table), np.bool_)
    accepting[dense[list(index.get_final_states())]] = True
    final = accepting[table[:, _END]]
    start = int(table[dense[index.get_initial_state()], _START])
    table[:, (_START, _END)] = DEAD
    return trim(table[:, :NUM_BYTES], start, final)


def intersect(a: Automaton, b: Automaton, *, max_states: int = MAX_STATES) -> Automaton:
    """The automaton of what both accept.

    Raises:
        UnsupportedError: it has more than `max_states` states.
    """
    return _product(a, b, negate_second=False, max_states=max_states)


def complement_within(
    a: Automaton, universe: Automaton, *, max_states: int = MAX_STATES
) -> Automaton:
    """The automaton of what `universe` accepts and `a` does not.

    Raises:
        UnsupportedError: it has more than `max_states` states.
    """
    return _product(universe, a, negate_second=True, max_states=max_states)


def _product(a: Automaton, b: Automaton, *, negate_second: bool, max_states: int) -> Automaton:
    """Pairs of states, breadth first: (a, b) with b DEAD allowed only where it is negated."""
    if a.start == DEAD or (b.start == DEAD and not negate_second):
        return trim(np.zeros((1, NUM_BYTES), np.int32), DEAD, np.zeros(1, np.bool_))
    width = b.num_states
    start = a.start * width + b.start
    numbers = {start: 1}  # pair -> its row
    frontier = np.array([start], np.int64)
    rows = [np.zeros((1, NUM_BYTES), np.int64)]  # of pairs, 0 = DEAD
    pairs = [np.zeros(1, np.int64)]
    while len(frontier):
        first, second = np.divmod(frontier, width)
        next_first = a.table[first].astype(np.int64)
        next_second = b.table[second]
        codes = next_first * width + next_second
        codes[next_first == DEAD] = 0
        if not negate_second:
            codes[next_second == DEAD] = 0
        rows.append(codes)
        pairs.append(frontier)
        new = [code for code in _distinct(codes) if code and code not in numbers]
        if len(numbers) + len(new) > max_states:
            raise _too_large(f"an automaton of more than {max_states} states")
        numbers.update(dict(zip(new, count(len(numbers) + 1), strict=False)))
        frontier = np.array(new, np.int64)
    order = np.concatenate(pairs)  # row -> pair, rows numbered as in `numbers`
    by_code = np.argsort(order)
    table = by_code[np.searchsorted(order[by_code], np.concatenate(rows))].astype(np.int32)
    first, second = np.divmod(order, width)
    return trim(table, 1, a.final[first] & (b.final[second] != negate_second))


def _distinct(codes: npt.NDArray[np.int64]) -> list[int]:
    """The different values of a matrix whose rows hold long runs of equal ones."""
    is_new = np.ones(codes.shape, np.bool_)
    is_new[:, 1:] = codes[:, 1:] != codes[:, :-1]
    values: list[int] = np.unique(codes[is_new]).tolist()
    return values


def trim(table: npt.NDArray[np.int32], start: int, final: npt.NDArray[np.bool_]) -> Automaton:
    """The automaton of a table: its states on a path from the start to a final one.

    Args:
        table: int32 [num_states, 256], row DEAD all DEAD.
        start: the first state, or DEAD.
        final: bool [num_states].
    """
    is_new = np.ones(table.shape, np.bool_)
    is_new[:, 1:] = table[:, 1:] != table[:, :-1]
    is_new &= table != DEAD
    sources, symbols = np.nonzero(is_new)
    targets = table[sources, symbols]
    useful = _reaching(sources, targets, final)
    bounds = np.searchsorted(sources, np.arange(len(table) + 1)).tolist()
    successors = targets.tolist()
    order = [start] if useful[start] else []
    seen = set(order)
    for state in order:  # grows while it is read
        for target in successors[bounds[state] : bounds[state + 1]]:
            if target not in seen and useful[target]:
                seen.add(target)
                order.append(target)
    numbers = np.zeros(len(table), np.int32)
    numbers[order] = np.arange(1, len(order) + 1, dtype=np.int32)
    rows = [DEAD, *order]
    result = numbers[table[rows]]
    result[DEAD] = DEAD
    is_final = final[rows]
    is_final[DEAD] = False
    for array in (result, is_final):
        array.setflags(write=False)
    return Automaton(result, 1 if order else DEAD, is_final)


def _reaching(
    sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int32], final: npt.NDArray[np.bool_]
) -> list[bool]:
    """For each state: does a path lead from it to a final one?"""
    order = np.argsort(targets, kind="stable")
    bounds = np.searchsorted(targets[order], np.arange(len(final) + 1)).tolist()
    predecessors = sources[order].tolist()
    useful: list[bool] = final.tolist()
    useful[DEAD] = False
    waiting = [state for state, is_useful in enumerate(useful) if is_useful]
    while waiting:
        state = waiting.pop()
        for source in predecessors[bounds[state] : bounds[state + 1]]:
            if not useful[source]:
                useful[source] = True
                waiting.append(source)
    return useful


def _too_large(what: str) -> UnsupportedError:
    return UnsupportedError(f"too large: {what}")


@lru_cache(maxsize=64)
def _byte_vocabulary(alphabet: bytes | None) -> Vocabulary:
    symbols = range(NUM_BYTES) if alphabet is None else [_START, _END, *alphabet]
    return Vocabulary(_END_OF_SEQUENCE, {bytes([byte]): [byte] for byte in symbols})
