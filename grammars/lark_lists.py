"""Lists that must be counted, as states and edges: how many items, hits or properties so far.

Each state becomes one left-recursive rule, "a list of at least one item that leads here".
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

from specrt.grammars.lark_terminals import choice, literal
from specrt.grammars.schema.normal import BooleanShape, NullShape, Shape
from specrt.grammars.schema.number_set import NumberSet
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

# llguidance looks at all of a list's edges at once, and at 2,000 items of rules at most.
_MAX_EDGES = 1_000

# Values of a finite set that are told apart.
_MAX_VALUES = 32

State = TypeVar("State", bound=Hashable)
Value = tuple[str, Fraction | str]


class Edge(NamedTuple):
    """One way into a state.

    Attributes:
        previous: the state before; None at the start of the list.
        item: what is written; "" if nothing is.
    """

    previous: Hashable | None
    item: str


def explore(
    step: Callable[[State | None], Iterable[tuple[str, State]]],
) -> dict[State, list[Edge]]:
    """All states that can be reached, nearest first, and the ways into them.

    Args:
        step: the items that may follow in a state (None: at the start) and where they lead.

    Raises:
        UnsupportedError: there are too many.
    """
    edges: dict[State, list[Edge]] = {}
    waiting: deque[State | None] = deque([None])
    total = 0
    while waiting:
        state = waiting.popleft()
        for item, following in step(state):
            if following not in edges:
                edges[following] = []
                waiting.append(following)
            edges[following].append(Edge(state, item))
            total += 1
            if total > _MAX_EDGES:
                raise UnsupportedError("too much to count")
    return edges


def counted_properties(
    pairs: Sequence[str], is_required: Sequence[bool], minimum: int, maximum: int | None
) -> dict[tuple[int, int], list[Edge]]:
    """Lists of listed properties; states are (properties looked at, properties written).

    Properties beyond `minimum` are not counted where there is no maximum.

    Args:
        pairs: the members.
        is_required: of each, must it be there?
        minimum: how many there must be.
        maximum: how many there may be; None = no bound.

    Raises:
        UnsupportedError: there are too many states.
    """

    def step(state: tuple[int, int] | None) -> Iterable[tuple[str, tuple[int, int]]]:
        if state is None:
            for index, pair in enumerate(pairs):
                if maximum != 0:
                    yield pair, (index + 1, _capped(1, minimum, maximum))
                if is_required[index]:
                    break
            return
        seen, count = state
        if seen == len(pairs):
            return
        if not is_required[seen]:
            yield "", (seen + 1, count)
        if maximum is None or count < maximum:
            yield pairs[seen], (seen + 1, _capped(count + 1, minimum, maximum))

    return explore(step)


def counted_items(
    hit: str,
    miss: str,
    *,
    hits: tuple[int, int | None],
    items: tuple[int, int | None],
) -> dict[tuple[int, int], list[Edge]]:
    """Lists of hits and misses; states are (hits, items), counted as far as it matters.

    Args:
        hit: an item that counts; "" if there is none.
        miss: one that does not count; "" if there is none.
        hits: least and greatest number of hits; None = no bound.
        items: least and greatest number of items.

    Raises:
        UnsupportedError: there are too many states.
    """
    least, most = items

    def step(state: tuple[int, int] | None) -> Iterable[tuple[str, tuple[int, int]]]:
        count, length = state or (0, 0)
        if most is not None and length >= most:
            return
        longer = _capped(length + 1, least, most)
        if miss:
            yield miss, (count, longer)
        if hit and (hits[1] is None or count < hits[1]):
            yield hit, (_capped(count + 1, *hits), longer)

    return explore(step)


def distinct_items(
    prefix: Sequence[Mapping[Value, str]], rest: Mapping[Value, str], most: int | None
) -> dict[frozenset[Value], list[Edge]]:
    """Lists of values that differ; states are the values used so far.

    Args:
        prefix: for each of the first items, what may stand there.
        rest: for all others.
        most: items at most; None = no bound.

    Raises:
        UnsupportedError: there are too many states.
    """

    def step(state: frozenset[Value] | None) -> Iterable[tuple[str, frozenset[Value]]]:
        used: frozenset[Value] = state or frozenset()
        if most is not None and len(used) >= most:
            return
        options = prefix[len(used)] if len(used) < len(prefix) else rest
        for value, spelling in options.items():
            if value not in used:
                yield spelling, used | {value}

    return explore(step)


def finite_values(shapes: Iterable[Shape]) -> dict[Value, str]:
    """The values of a small finite set and how they are spelled; equal numbers are one value.

    Raises:
        UnsupportedError: the set is not finite, or too large, or holds arrays or objects.
    """
    spellings: dict[Value, list[str]] = {}
    for shape in shapes:
        for value, spelling in _values(shape):
            spellings.setdefault(value, []).append(literal(spelling))
    if len(spellings) > _MAX_VALUES:
        raise UnsupportedError(f"uniqueItems over more than {_MAX_VALUES} values")
    return {value: choice(options) for value, options in spellings.items()}


def _values(shape: Shape) -> Iterable[tuple[Value, str]]:
    match shape:
        case NullShape():
            return [(("null", ""), "null")]
        case BooleanShape(values):
            names = [str(value).lower() for value in sorted(values)]
            return [(("boolean", name), name) for name in names]
        case StringSet(values=tuple(texts)):
            return [(("string", t), json.dumps(t, ensure_ascii=False)) for t in texts]
        case NumberSet(values=tuple(numbers)):
            return [(("number", Fraction(number)), number) for number in numbers]
    raise UnsupportedError("uniqueItems over values that are not a small finite set")


def _capped(count: int, minimum: int, maximum: int | None) -> int:
    """A count, no further than it matters."""
    return min(count, minimum) if maximum is None else count
