"""Sets of strings, as JSON Schema can describe them: what is in them and how they are spelled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from specrt.grammars.schema import string_spelling
from specrt.grammars.schema.pattern import Pattern, split_look_aheads
from specrt.grammars.schema.string_formats import StringFormat, string_format
from specrt.grammars.schema.unsupported import UnsupportedError

Item = TypeVar("Item")


class Spellings(NamedTuple):
    """JSON string contents between the quotes, as regexes over the spelled text.

    Rust syntax; a regex must match the whole contents.

    Attributes:
        required: all must match; at least one.
        excluded: none may match.
    """

    required: tuple[str, ...]
    excluded: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StringSet:
    """A set of strings (code points, not spellings); `StringSet()` = all.

    Where readers of patterns differ (see pattern.py), strings that only some of them take are in
    neither a set nor its negation.

    Attributes:
        values: a finite set in schema order (then nothing else is set).
        patterns: all are found somewhere in the string.
        excluded_patterns: none is found.
        excluded_values: strings that are not in the set.
        formats: names of string_formats.py; the string has all of them.
        min_length: code points.
        max_length: code points; None = no bound.
    """

    values: tuple[str, ...] | None = None
    patterns: tuple[Pattern, ...] = ()
    excluded_patterns: tuple[Pattern, ...] = ()
    excluded_values: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset()
    min_length: int = 0
    max_length: int | None = None

    def intersect(self, other: StringSet) -> tuple[StringSet, ...]:
        """What is in both: one set, or none where it is plain to see that nothing is.

        Raises:
            UnsupportedError: it cannot be decided whether a value has a format.
        """
        if self.values is not None or other.values is not None:
            first, second = (self, other) if self.values is not None else (other, self)
            kept = tuple(value for value in _distinct(first.values or ()) if second.contains(value))
            return (StringSet(values=kept),) if kept else ()
        maxima = [length for length in (self.max_length, other.max_length) if length is not None]
        both = StringSet(
            patterns=_distinct(self.patterns + other.patterns),
            excluded_patterns=_distinct(self.excluded_patterns + other.excluded_patterns),
            excluded_values=self.excluded_values | other.excluded_values,
            formats=self.formats | other.formats,
            min_length=max(self.min_length, other.min_length),
            max_length=min(maxima, default=None),
        )
        is_plainly_empty = (
            both.max_length is not None and both.min_length > both.max_length
        ) or not set(both.patterns).isdisjoint(both.excluded_patterns)
        return () if is_plainly_empty else (both,)

    def negate(self) -> tuple[StringSet, ...]:
        """Sets whose union is every other string.

        Raises:
            UnsupportedError: it has formats, or look-aheads.
        """
        if self.values is not None:
            return (StringSet(excluded_values=frozenset(self.values)),)
        if self.formats:
            raise UnsupportedError("format under a negation")
        sets = [part for pattern in self.patterns for part in _without(pattern)]
        sets += [StringSet(patterns=(pattern,)) for pattern in self.excluded_patterns]
        if self.excluded_values:
            sets.append(StringSet(values=tuple(sorted(self.excluded_values))))
        if self.min_length > 0:
            sets.append(StringSet(max_length=self.min_length - 1))
        if self.max_length is not None:
            sets.append(StringSet(min_length=self.max_length + 1))
        return tuple(sets)

    def contains(self, text: str) -> bool:
        """Is a string in the set?

        Raises:
            UnsupportedError: it has a format, or a negated look-ahead, that cannot be decided.
        """
        if self.values is not None:
            return text in self.values
        plain = self._without_formats()
        return (
            plain.min_length <= len(text)
            and (plain.max_length is None or len(text) <= plain.max_length)
            and text not in plain.excluded_values
            and all(pattern.finds(text) for pattern in plain.patterns)
            and not any(pattern.may_find(text) for pattern in plain.excluded_patterns)
        )

    def is_empty(self) -> bool:
        """Is no string in the set? Exact.

        Raises:
            UnsupportedError: it is too large to decide.
        """
        if self.values is not None:
            return not self.values
        if self.max_length is not None and self.min_length > self.max_length:
            return True
        if not (self.patterns or self.excluded_patterns or self.excluded_values or self.formats):
            return False
        return string_spelling.is_empty(self._description())

    def spellings(self) -> Spellings:
        """How to write the strings of the set.

        One required regex and no excluded one wherever that is exact and cheap.

        Raises:
            UnsupportedError: a format or pattern cannot be written, or there is no string to write.
        """
        if self.values is not None:
            spelled = string_spelling.literals(self.values)
            if not spelled:
                raise UnsupportedError("no string that can be written")
            return Spellings(("|".join(spelled),), ())
        return Spellings(*string_spelling.regexes(self._description()))

    def _without_formats(self) -> StringSet:
        """The same set, each format replaced by what it means."""
        if not self.formats:
            return self
        plain = replace(self, formats=frozenset())
        for name in sorted(self.formats):
            meaning: StringFormat = string_format(name)
            maxima = [n for n in (plain.max_length, meaning.max_length) if n is not None]
            plain = replace(
                plain,
                patterns=_distinct(plain.patterns + meaning.patterns),
                excluded_patterns=_distinct(plain.excluded_patterns + meaning.excluded_patterns),
                max_length=min(maxima, default=None),
            )
        return plain

    def _description(self) -> string_spelling.Description:
        plain = self._without_formats()
        return string_spelling.Description(
            plain.patterns,
            plain.excluded_patterns,
            plain.excluded_values,
            plain.min_length,
            plain.max_length,
        )


def _without(pattern: Pattern) -> tuple[StringSet, ...]:
    """Sets whose union is every string in which no reader finds a pattern."""
    if not pattern.has_conditions:
        return (StringSet(excluded_patterns=(pattern,)),)
    conditions, rest = split_look_aheads(pattern)
    return (
        StringSet(excluded_patterns=(rest,)),
        *(
            StringSet(patterns=(looked_for,))
            if is_negative
            else StringSet(excluded_patterns=(looked_for,))
            for looked_for, is_negative in conditions
        ),
    )


def _distinct(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(dict.fromkeys(items))
