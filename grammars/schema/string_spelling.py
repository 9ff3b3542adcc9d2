"""How the strings of a description are spelled: few regexes, one where that is possible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from specrt.grammars.regular import automaton
from specrt.grammars.schema.pattern import Pattern
from specrt.grammars.schema.pattern_regex import escape, regex, spell
from specrt.grammars.schema.pattern_tree import (
    ANY_CHARACTER,
    ANYTHING,
    Choice,
    Node,
    Repeat,
    Sequence,
    choice,
    has_nothing,
    is_nothing,
    lengths,
    literal,
    possible_texts,
    sequence,
)
from specrt.grammars.schema.text_complement import all_but
from specrt.grammars.schema.unsupported import UnsupportedError

# Excluded texts and prefixes up to this many are left out by a tree of prefixes.
_MAX_EXCLUDED_TEXTS = 256
_MAX_TREE_DEPTH = 64
_MAX_TREE_CHARACTERS = 4096
_MAX_TREE_POSITIONS = 4096


@dataclass(frozen=True, slots=True)
class Description:
    """What a string must be like.

    Attributes:
        patterns: all are found.
        excluded_patterns: none is found.
        excluded_values: it is none of them.
        min_length: code points.
        max_length: None = no bound.
    """

    patterns: tuple[Pattern, ...]
    excluded_patterns: tuple[Pattern, ...]
    excluded_values: frozenset[str]
    min_length: int
    max_length: int | None


def literals(values: Iterable[str]) -> tuple[str, ...]:
    """Regexes of the spellings of the values that can be written: none with lone surrogates."""
    return tuple(escape(spell(value)) for value in values if _is_writable(value))


def is_empty(description: Description) -> bool:
    """Can nothing be like that? Exact, by automata where a look does not tell.

    Raises:
        UnsupportedError: it is too large to decide, or cannot be written.
    """
    required, excluded = _nodes(description)
    if any(is_nothing(node, possible=False) for node in required):
        return True
    if not excluded and (len(required) == 1 or _has_shortest(required, description)):
        return False
    found = automaton.build(regex(required[0]))
    for node in required[1:]:
        found = automaton.intersect(found, automaton.build(regex(node)))
    for node in excluded:
        found = automaton.complement_within(automaton.build(regex(node, possible=True)), found)
    return found.is_empty()


@lru_cache(maxsize=1024)
def regexes(description: Description) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(regexes that must all match, at least one; regexes none of which may match).

    Raises:
        UnsupportedError: a pattern cannot be written so, or nothing can match.
    """
    required, excluded = _nodes(description)
    if any(is_nothing(node, possible=False) for node in required):
        raise UnsupportedError("no string matches")
    return (
        tuple(dict.fromkeys(regex(node) for node in required)),
        tuple(dict.fromkeys(regex(node, possible=True) for node in excluded)),
    )


def _nodes(description: Description) -> tuple[list[Node], list[Node]]:
    """Trees whose spellings must all match, at least one, and trees that must not match."""
    required: list[Node] = []
    excluded: list[Node] = []
    for pattern in description.patterns:
        _require(pattern, required, excluded)
    required = [node for node in dict.fromkeys(required) if node != ANYTHING]
    texts = {value for value in description.excluded_values if _matters(value, description)}
    prefixes: set[str] = set()
    for pattern in description.excluded_patterns:
        if not _exclude_finite(pattern, texts, prefixes):
            excluded.append(_possible(pattern))
    minimum, maximum = description.min_length, description.max_length
    if not required and _is_small([*texts, *prefixes], maximum):
        return [all_but(texts, prefixes, minimum, maximum)], excluded
    excluded += [literal(text) for text in sorted(texts)]
    excluded += [sequence(literal(prefix), ANYTHING) for prefix in sorted(prefixes)]
    excluded = [choice(*excluded)] if excluded else []
    for index, node in enumerate(required):
        limited = with_length(node, minimum, maximum)
        if limited is not None:
            required[index] = limited
            return required, excluded
    return [*required, _any_text(description)], excluded


def _has_shortest(required: list[Node], description: Description) -> bool:
    """Is there only one tree besides that of the length, whose shortest texts are right?"""
    if len(required) != 2 or required[1] != _any_text(description) or has_nothing(required[0]):
        return False
    shortest, _ = lengths(required[0])
    maximum = description.max_length
    return description.min_length <= shortest and (maximum is None or shortest <= maximum)


def _any_text(description: Description) -> Node:
    return Repeat(ANY_CHARACTER, description.min_length, description.max_length)


def _require(pattern: Pattern, required: list[Node], excluded: list[Node]) -> None:
    """Write down where all readers find a pattern."""
    if not pattern.has_conditions:
        required.append(choice(*(a.whole(possible=False) for a in pattern.alternatives)))
        return
    if len(pattern.alternatives) > 1:
        raise UnsupportedError(
            f"pattern {pattern.source[:80]!r}: a look-ahead in one of several alternatives"
        )
    [alternative] = pattern.alternatives
    required.append(replace(alternative, at_start=True).whole(possible=False))
    for condition in alternative.conditions:
        into = excluded if condition.is_negative else required
        into.append(
            choice(*(a.whole(possible=condition.is_negative) for a in condition.alternatives))
        )


def _possible(pattern: Pattern) -> Node:
    """Where any reader finds a pattern that is excluded."""
    if pattern.has_conditions:
        raise UnsupportedError(
            f"pattern {pattern.source[:80]!r}: excluding a look-ahead is not supported"
        )
    return choice(*(a.whole(possible=True) for a in pattern.alternatives))


def _exclude_finite(pattern: Pattern, texts: set[str], prefixes: set[str]) -> bool:
    """Add what a pattern excludes to texts and prefixes, if it is a few of them."""
    new_texts: set[str] = set()
    new_prefixes: set[str] = set()
    for alternative in pattern.alternatives:
        found = possible_texts(alternative.body, _MAX_EXCLUDED_TEXTS)
        if found is None or not alternative.at_start or alternative.conditions:
            return False
        if alternative.at_end:
            new_texts |= found | {text + "\n" for text in found}
        else:
            new_prefixes |= found
    texts |= new_texts
    prefixes |= new_prefixes
    return True


def _matters(value: str, description: Description) -> bool:
    """Would an excluded value be right but for being excluded, and can it be written?"""
    maximum = description.max_length
    return (
        _is_writable(value)
        and description.min_length <= len(value)
        and (maximum is None or len(value) <= maximum)
        and all(pattern.finds(value) for pattern in description.patterns)
    )


def _is_small(texts: list[str], maximum: int | None) -> bool:
    """Is a tree of prefixes small? Each branch of it ends in all strings of the length left."""
    total = sum(map(len, texts))
    return (
        max(map(len, texts), default=0) <= _MAX_TREE_DEPTH
        and total <= _MAX_TREE_CHARACTERS
        and (maximum is None or not texts or (total + 1) * maximum <= _MAX_TREE_POSITIONS)
    )


def with_length(node: Node, minimum: int, maximum: int | None) -> Node | None:
    """What a node matches with `minimum` to `maximum` code points; None if that is not simple."""
    low, high = lengths(node)
    if low >= minimum and (maximum is None or (high is not None and high <= maximum)):
        return node
    if (maximum is not None and low > maximum) or (high is not None and high < minimum):
        return Choice(())
    match node:
        case Choice(options):
            limited = [with_length(option, minimum, maximum) for option in options]
            known = [option for option in limited if option is not None]
            return choice(*known) if len(known) == len(limited) else None
        case Repeat(part, fewest, most):
            shortest, longest = lengths(part)
            if shortest != longest or not shortest:
                return None
            fewest = max(fewest, -(-minimum // shortest))
            bound = None if maximum is None else maximum // shortest
            most = min((n for n in (most, bound) if n is not None), default=None)
            if most is not None and fewest > most:
                return Choice(())
            return Repeat(part, fewest, most)
        case Sequence(parts):
            bounds = [lengths(part) for part in parts]
            loose = [index for index, (least, most) in enumerate(bounds) if least != most]
            if len(loose) != 1:
                return None
            [index] = loose
            fixed = sum(least for i, (least, _) in enumerate(bounds) if i != index)
            limited_part = with_length(
                parts[index],
                max(0, minimum - fixed),
                None if maximum is None else maximum - fixed,
            )
            if limited_part is None:
                return None
            return sequence(*parts[:index], limited_part, *parts[index + 1 :])
        case _:
            return None


def _is_writable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
