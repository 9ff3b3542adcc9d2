"""The automaton of a normal form, put together from those of its parts.

What strings and numbers look like is the same in every schema: their automata are built once and
kept. Fixed texts need no building. What is left is the ways through the schema: a regex with one
symbol for each text or part, whose automaton has a state for each place between two of them. There
the texts are put in as a tree of prefixes, the parts as copies. That is exact where the next byte
tells the ways apart; elsewhere the whole regex is built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from specrt.grammars.base import DEAD
from specrt.grammars.regular.automaton import MAX_STATES, NUM_BYTES, Automaton, build
from specrt.grammars.regular.converter import RegexWriter
from specrt.grammars.regular.regex_piece import RegexText, part_size
from specrt.grammars.schema.normal import NormalSchema
from specrt.grammars.schema.unsupported import UnsupportedError

_KEPT_PARTS = 32
_MAX_KEPT_POSITIONS = 1_500  # of a part: about as many states, 1 kB each

# What a skeleton consists of: groups, repeats, and between them fixed text, control characters in
# place of parts, and groups of nothing but fixed texts.
_TEXT = r"(?:[^\\.+*?()|\[\]{}^$\x00-\x08\x0b\x0c\x0e-\x1f]|\\.)+"
_PIECE = re.compile(
    rf"\(\?:(?P<texts>{_TEXT}(?:\|{_TEXT})+)\)|\(\?:|\{{\d+,?\d*\}}"
    rf"|(?P<text>{_TEXT})|(?P<mark>[\x04-\x1f])",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_SYMBOLS = [code for code in range(4, 0x7F) if chr(code) not in r"\.+*?()|[]{}^$"]
_END = -1  # key in a tree of prefixes: the state behind a text that ends there

Table = npt.NDArray[np.int32]
Tree = dict[int, Any]


def schema_automaton(
    schema: NormalSchema, *, item_separator: str, key_separator: str, max_states: int = MAX_STATES
) -> Automaton:
    """The automaton of the JSON texts that a schema allows.

    Args:
        schema: the normal form.
        item_separator: between items and between properties, as ", ".
        key_separator: between a property's name and its value, as ": ".
        max_states: most states of the result.

    Raises:
        NotRegular: as `to_regex`.
        UnsupportedError: it is too large, or no value satisfies the schema.

    Returns:
        States are numbered part by part; some may be left over that nothing leads to.
    """
    text = RegexWriter(schema, item_separator, key_separator).write()
    stitched = _stitch(text, max_states)
    return build(text.whole(), max_states=max_states) if stitched is None else stitched


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The automaton of a string or a number, ready to be copied.

    Attributes:
        numbers: int32 [num_states], a state's row in a copy + 1; 0 = it has none: dead, an end that
            nothing follows, or a start that is never met again.
        is_end: bool [num_states], ends that nothing follows: what is behind the part begins there.
        first: int32 [256], the states behind the first byte.
        rows: int32 [n, 256], the states that have rows in a copy.
        final: bool [n], those of them where the part may end.
    """

    numbers: Table
    is_end: npt.NDArray[np.bool_]
    first: Table
    rows: Table
    final: npt.NDArray[np.bool_]


def _stitch(text: RegexText, max_states: int) -> Automaton | None:
    """None where the next byte does not tell which way to go, or there are too many symbols."""
    meanings: dict[tuple[bytes, ...] | str, int] = {}
    regex = _PIECE.sub(lambda match: _symbol(match, text, meanings), text.skeleton)
    if len(meanings) > len(_SYMBOLS):
        return None
    ways = build(regex, max_states=max_states, alphabet=bytes(meanings.values()))
    stitcher = _Stitcher(ways)
    symbols = list(meanings.values())
    contents = [m if isinstance(m, tuple) else _part(m) for m in meanings]
    trees: dict[int, Tree] = {}
    for state, index in np.argwhere(ways.table[:, symbols]).tolist():
        content, behind = contents[index], int(ways.table[state, symbols[index]])
        if isinstance(content, _Part):
            stitcher.add_part(state, content, behind)
        else:
            tree = trees.setdefault(state, {})
            if not all(_insert(tree, data, behind) for data in content):
                return None
    for state, tree in trees.items():
        stitcher.add_tree(state, tree)
    if stitcher.num_states > max_states:
        raise UnsupportedError(f"too large: an automaton of {stitcher.num_states} states")
    return stitcher.finish()


def _symbol(
    match: re.Match[str], text: RegexText, meanings: dict[tuple[bytes, ...] | str, int]
) -> str:
    """What stands for a piece of a skeleton: itself for the structure, else a symbol."""
    meaning: tuple[bytes, ...] | str
    if match["mark"] is not None:
        meaning = text.parts[match["mark"]]
    elif match["text"] is not None:
        meaning = (_ESCAPE.sub(r"\1", match["text"]).encode(),)
    elif match["texts"] is not None:
        texts = re.findall(_TEXT, match["texts"])
        meaning = tuple(_ESCAPE.sub(r"\1", one).encode() for one in texts)
    else:
        return match[0]
    count = len(meanings)
    return chr(meanings.setdefault(meaning, _SYMBOLS[count] if count < len(_SYMBOLS) else 0))


def _insert(tree: Tree, data: bytes, behind: int) -> bool:
    """Put a text into a tree of prefixes; False where it is there and leads elsewhere."""
    for byte in data:
        tree = tree.setdefault(byte, {})
    return bool(tree.setdefault(_END, behind) == behind)


class _Stitcher:
    """Collects the states between the ones that the ways have."""

    def __init__(self, ways: Automaton) -> None:
        self.num_states = ways.num_states
        self._ways = ways
        self._edges: list[tuple[int, int, int]] = []  # state, byte, state behind
        self._ends: list[tuple[int, int]] = []  # state where a text ends or goes on, state behind
        self._copies: list[tuple[int, _Part, int, Table]] = []  # state before, state behind, names

    def add_tree(self, state: int, tree: Tree) -> None:
        """Let texts follow a state."""
        waiting = [(tree, state)]
        while waiting:
            node, before = waiting.pop()
            for byte, child in node.items():
                if byte == _END:
                    continue
                if len(child) == 1 and _END in child:
                    self._edges.append((before, byte, child[_END]))
                    continue
                self._edges.append((before, byte, self.num_states))
                waiting.append((child, self.num_states))
                if _END in child:
                    self._ends.append((self.num_states, child[_END]))
                self.num_states += 1

    def add_part(self, state: int, part: _Part, behind: int) -> None:
        """Let a part follow a state."""
        names = np.where(part.numbers, part.numbers + np.int32(self.num_states - 1), DEAD)
        names[part.is_end] = behind
        self._copies.append((state, part, behind, names.astype(np.int32)))
        self.num_states += len(part.rows)

    def finish(self) -> Automaton | None:
        """All of it; None where two ways begin with the same byte."""
        ways = self._ways
        table = np.zeros((self.num_states, NUM_BYTES), np.int32)
        final = np.zeros(self.num_states, np.bool_)
        final[: ways.num_states] = ways.final
        if self._edges:
            before, symbols, after = np.array(self._edges, np.int32).T
            table[before, symbols] = after
        for state, part, _, names in self._copies:
            if not _add_edges(table[state : state + 1], names[part.first]):
                return None
        # From here on the rows of the ways are whole.
        for state, behind in self._ends:
            if not _add_edges(table[state : state + 1], table[behind]):
                return None
            final[state] = ways.final[behind]
        for _, part, behind, names in self._copies:
            if not len(part.rows):
                continue
            rows = names[part.rows]
            if part.final.any():
                ends = rows[part.final]
                if not _add_edges(ends, table[behind]):
                    return None
                rows[part.final] = ends
            first = int(names[part.numbers == 1][0])
            table[first : first + len(rows)] = rows
            final[first : first + len(rows)] = part.final & ways.final[behind]
        return Automaton(table, ways.start, final)


def _add_edges(rows: Table, edges: Table) -> bool:
    """Put edges into rows, in place; False where a row has one for that byte."""
    if (rows[:, edges != DEAD] != DEAD).any():
        return False
    rows |= edges
    return True


def _part(regex: str) -> _Part:
    is_small = part_size(regex).positions <= _MAX_KEPT_POSITIONS
    return _kept_part(regex) if is_small else _make_part(regex)


def _make_part(regex: str) -> _Part:
    automaton = build(regex)
    if automaton.final[automaton.start]:
        raise ValueError(f"expected a part that is never empty, got {regex}")
    has_row: npt.NDArray[np.bool_] = np.logical_or.reduce(automaton.table != DEAD, axis=1)
    is_end = ~has_row
    is_end[DEAD] = False
    has_row[automaton.start] = (automaton.table == automaton.start).any()
    numbers = np.where(has_row, np.cumsum(has_row, dtype=np.int32), np.int32(DEAD))
    return _Part(
        numbers=numbers,
        is_end=is_end,
        first=automaton.table[automaton.start],
        rows=automaton.table[has_row],
        final=automaton.final[has_row],
    )


@lru_cache(maxsize=_KEPT_PARTS)
def _kept_part(regex: str) -> _Part:
    return _make_part(regex)
