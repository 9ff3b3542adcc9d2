"""Is a set of strings empty? Mostly told by a string that is in it, without any automaton."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice, product

from specrt.grammars.schema import code_points as cp
from specrt.grammars.schema.pattern import Pattern
from specrt.grammars.schema.pattern_tree import Characters, Choice, Node, Repeat, Sequence
from specrt.grammars.schema.string_formats import string_format
from specrt.grammars.schema.string_set import StringSet
from specrt.grammars.schema.unsupported import UnsupportedError

MAX_SIZE = 150  # of patterns that automata are built for
_MAX_SAMPLES = 6
_MAX_CANDIDATES = 64
_USUAL = ("a", "x", "0", "A", "-", "_", " ", "\u00e4", "\u2603")


@lru_cache(maxsize=4096)
def is_surely_empty(strings: StringSet) -> bool:
    """Is a set of strings known to be empty? False where that is too hard to tell."""
    found = is_plainly_empty(strings)
    if found is not None:
        return found
    patterns = strings.patterns + strings.excluded_patterns
    size = sum(pattern.size for pattern in patterns) + sum(map(len, strings.excluded_values))
    if size > MAX_SIZE or (strings.formats and patterns):
        return False
    try:
        return bool(strings.is_empty())
    except UnsupportedError:
        return False


@lru_cache(maxsize=4096)
def is_plainly_empty(strings: StringSet) -> bool | None:
    """Is a set of strings empty, as far as that is plain to see? None where it is not."""
    if strings.values is not None:
        return not strings.values
    if strings.max_length is not None and strings.min_length > strings.max_length:
        return True
    if strings.max_length == 0:
        return not _contains(strings, "")
    if not (strings.patterns or strings.excluded_patterns or strings.formats):
        return False
    if any(_contains(strings, text) for text in _candidates(strings)):
        return False
    if _start_differently(strings.patterns):
        return True
    return None


def _contains(strings: StringSet, text: str) -> bool:
    try:
        return strings.contains(text)
    except UnsupportedError:
        return False


def _candidates(strings: StringSet) -> list[str]:
    """Strings of which one is probably in the set."""
    lists = [_pattern_samples(pattern) for pattern in strings.patterns]
    for name in strings.formats:
        try:
            lists += [_pattern_samples(pattern) for pattern in string_format(name).patterns]
        except UnsupportedError:
            return []
    found = [sample for samples in lists for sample in samples]
    if len(lists) > 1:
        found += ["".join(parts) for parts in islice(product(*lists), _MAX_CANDIDATES)]
    found += ["", *_USUAL]
    for suffix in ("x", "0", "xx", "_other", " \u2603"):
        found += [f"{sample}{suffix}" for samples in lists for sample in samples]
    missing = strings.min_length
    if missing > 1:
        found += [sample.ljust(min(missing, 10_000), "x") for sample in found]
    return list(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def _pattern_samples(pattern: Pattern) -> tuple[str, ...]:
    found: list[str] = []
    for alternative in pattern.alternatives[:_MAX_SAMPLES]:
        found += _samples(alternative.body)
    return tuple(dict.fromkeys(found))


def _samples(node: Node) -> list[str]:
    """A few strings that match a node."""
    if isinstance(node, Characters):
        return _usual_members(node.members.sure)
    if isinstance(node, Choice):
        samples = [_samples(option) for option in node.options[:_MAX_SAMPLES]]
        return [text for texts in samples for text in texts[:2]][: 2 * _MAX_SAMPLES]
    if isinstance(node, Repeat):
        inner = _samples(node.part)[:2]
        counts = {node.minimum, node.minimum + 1 if node.maximum is None else node.maximum}
        return [text * min(count, 10_000) for count in sorted(counts) for text in inner] or (
            [""] if node.minimum == 0 else []
        )
    if isinstance(node, Sequence):
        samples = [_samples(part) for part in node.parts]
        if not all(samples):
            return []
        longest = max(map(len, samples), default=1)
        return [
            "".join(texts[min(index, len(texts) - 1)] for texts in samples)
            for index in range(min(longest, _MAX_SAMPLES))
        ]
    return [""]


def _usual_members(members: cp.CodePoints) -> list[str]:
    found = [text for text in _USUAL if cp.has(members, ord(text))]
    found += [chr(first) for first, _ in members if not 0xD800 <= first <= 0xDFFF]
    return list(dict.fromkeys(found))[:_MAX_SAMPLES]


def _start_differently(patterns: tuple[Pattern, ...]) -> bool:
    """Do two patterns want different characters at the same place after the start?"""
    starts = [_starts(pattern) for pattern in patterns]
    for index, left in enumerate(starts):
        for right in starts[index + 1 :]:
            if left and right and all(_differ(one, other) for one in left for other in right):
                return True
    return False


def _differ(left: list[cp.CodePoints], right: list[cp.CodePoints]) -> bool:
    return any(not cp.intersection(one, other) for one, other in zip(left, right, strict=False))


def _starts(pattern: Pattern) -> list[list[cp.CodePoints]]:
    """The sets of the first characters of each alternative; [] if one may stand anywhere."""
    found = []
    for alternative in pattern.alternatives:
        if not alternative.at_start:
            return []
        body = alternative.body
        parts = body.parts if isinstance(body, Sequence) else (body,)
        sets = []
        for part in parts:
            if not isinstance(part, Characters):
                break
            sets.append(part.members.possible)
        found.append(sets)
    return found
