"""Anchors and look-aheads of a regular expression resolved: alternatives and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from specrt.grammars.schema import code_points as cp
from specrt.grammars.schema.pattern_tree import (
    ANYTHING,
    EMPTY,
    Characters,
    Choice,
    End,
    LookAhead,
    Node,
    Repeat,
    Sequence,
    Start,
    choice,
    has_assertions,
    lengths,
    literal,
    sequence,
    size,
)
from specrt.grammars.schema.unsupported import UnsupportedError

_MAX_ALTERNATIVES = 64
_MAX_SIZE = 200_000


class Condition(NamedTuple):
    """A look-ahead at the start of the text.

    Attributes:
        alternatives: of what it looks for; all of them stand at the start.
        is_negative: must none be found?
    """

    alternatives: tuple[Alternative, ...]
    is_negative: bool


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to find a pattern.

    Attributes:
        at_start: nothing may stand before it.
        at_end: nothing may stand behind it.
        body: without anchors and look-aheads.
        conditions: on the whole text, which must be right too.
    """

    at_start: bool
    at_end: bool
    body: Node
    conditions: tuple[Condition, ...] = ()

    def whole(self, *, possible: bool) -> Node:
        """The whole texts that it is found in, leaving aside the conditions.

        Args:
            possible: for the readers that find most (some stop `$` before a last line feed).
        """
        body = self.body
        parts: list[Node] = [*body.parts] if isinstance(body, Sequence) else [body]
        # Of a repeat next to anything, what has to be there is enough: `a+` finds what `a` finds.
        if not self.at_end:
            _shorten(parts, -1)
        if not self.at_start:
            _shorten(parts, 0)
        if not (parts or self.at_start or self.at_end):
            return ANYTHING
        before = EMPTY if self.at_start else ANYTHING
        behind: Node = ANYTHING
        if self.at_end:
            behind = Repeat(literal("\n"), 0, 1) if possible else EMPTY
        return sequence(before, *parts, behind)


def alternatives(node: Node) -> list[Alternative]:
    """What a node is, anchors and look-aheads taken out of it."""
    if not has_assertions(node):
        return [Alternative(False, False, node)]
    match node:
        case Start():
            return [Alternative(True, False, EMPTY)]
        case End():
            return [Alternative(False, True, EMPTY)]
        case LookAhead(part, is_negative):
            inner = merged(alternatives(part))
            if any(alternative.conditions for alternative in inner):
                raise UnsupportedError("a look-ahead inside a look-ahead is not supported")
            at_start = tuple(Alternative(True, a.at_end, a.body) for a in inner)
            return [Alternative(False, False, EMPTY, (Condition(at_start, is_negative),))]
        case Choice(options):
            return merged([a for option in options for a in alternatives(option)])
        case Repeat(part, minimum, maximum):
            if maximum == 0:
                return [Alternative(False, False, EMPTY)]
            if maximum != 1:
                raise UnsupportedError("an anchor or look-ahead in a repeated group")
            none = [Alternative(False, False, EMPTY)] if minimum == 0 else []
            return merged(none + alternatives(part))
        case Sequence(parts):
            found = [Alternative(False, False, EMPTY)]
            for part in parts:
                following = alternatives(part)
                found = merged(
                    [j for left in found for right in following for j in _joined(left, right)]
                )
                if sum(size(alternative.body) for alternative in found) > _MAX_SIZE:
                    raise UnsupportedError("too many anchors")
            return found
    raise AssertionError(node)


def _joined(left: Alternative, right: Alternative) -> list[Alternative]:
    """One behind the other; nothing when the anchors leave no room."""
    left_body, right_body = left.body, right.body
    # Nothing can stand before the start: what stands there must be empty. The same behind the end,
    # but some readers' `$` may have a line feed behind it.
    if right.at_start:
        if lengths(left_body)[0] > 0:
            return []
        left_body = EMPTY
    if left.at_end:
        if lengths(right_body)[0] > 0:
            raise UnsupportedError("characters behind $ are not supported")
        right_body = EMPTY
    if right.conditions and (left_body != EMPTY or left.at_end):
        raise UnsupportedError("a look-ahead is supported only at the start")
    return [
        Alternative(
            left.at_start or right.at_start,
            left.at_end or right.at_end,
            sequence(left_body, right_body),
            left.conditions + right.conditions,
        )
    ]


def _shorten(parts: list[Node], index: int) -> None:
    """Take all but the least number of times off repeats at one end of a sequence."""
    while parts and isinstance(last := parts[index], Repeat):
        parts.pop(index)
        if last.minimum:
            least = Repeat(last.part, last.minimum, last.minimum)
            parts.insert(len(parts) if index else 0, least)
            return


def merged(found: list[Alternative]) -> list[Alternative]:
    """Alternatives that differ only in their bodies made one."""
    groups: dict[tuple[bool, bool, tuple[Condition, ...]], list[Node]] = {}
    for a in found:
        groups.setdefault((a.at_start, a.at_end, a.conditions), []).append(a.body)
    if len(groups) > _MAX_ALTERNATIVES:
        raise UnsupportedError("too many anchors or look-aheads")
    return [
        Alternative(at_start, at_end, choice(*bodies), conditions)
        for (at_start, at_end, conditions), bodies in groups.items()
    ]


def is_found(found: tuple[Alternative, ...], text: str, *, possible: bool) -> bool:
    """Is one of some alternatives found in a text?

    Args:
        found: the alternatives.
        text: searched.
        possible: by the reader that finds most, not by all.
    """
    return any(_matches(alternative, text, possible) for alternative in found)


def _matches(alternative: Alternative, text: str, possible: bool) -> bool:
    for condition in alternative.conditions:
        # What a negative one looks for is excluded: the other reading holds.
        reading = possible != condition.is_negative
        found = is_found(condition.alternatives, text, possible=reading)
        if found == condition.is_negative:
            return False
    at_start = alternative.at_start or bool(alternative.conditions)
    starts = frozenset([0]) if at_start else frozenset(range(len(text) + 1))
    ends = _ends(alternative.body, text, starts, possible)
    if not alternative.at_end:
        return bool(ends)
    return len(text) in ends or (possible and text.endswith("\n") and len(text) - 1 in ends)


def _ends(node: Node, text: str, starts: frozenset[int], possible: bool) -> frozenset[int]:
    """Where matches end that begin at `starts`: all of them at once, so nothing is tried twice."""
    match node:
        case Characters(members):
            ranges = members.possible if possible else members.sure
            return frozenset(
                at + 1 for at in starts if at < len(text) and cp.has(ranges, ord(text[at]))
            )
        case Sequence(parts):
            for part in parts:
                starts = _ends(part, text, starts, possible)
            return starts
        case Choice(options):
            return frozenset().union(*(_ends(o, text, starts, possible) for o in options))
        case Repeat(part, minimum, maximum):
            for _ in range(minimum):
                before, starts = starts, _ends(part, text, starts, possible)
                if starts == before:
                    break
            found = set(starts)
            new = starts
            times = minimum
            # Ends that are known already lead nowhere new, in a later round least of all.
            while new and (maximum is None or times < maximum):
                new = _ends(part, text, new, possible) - found
                found |= new
                times += 1
            return frozenset(found)
    raise AssertionError(node)
