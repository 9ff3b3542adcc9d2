"""What stands between the brackets of an array, as a regex."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specrt.grammars.regular.regex_piece import (
    NotRegular,
    Piece,
    literal,
    repeat,
    sequence,
    union,
)
from specrt.grammars.schema.normal import ArrayShape, Contains, RuleId

MAX_DISTINCT = 5  # values whose arrangements are all written down: 325 of five

_NOTHING = literal("")


class ItemWriter:
    """Writes the items of arrays."""

    def __init__(
        self,
        separator: Piece,
        write_rule: Callable[[RuleId], Piece],
        values_of: Callable[[RuleId], Sequence[Piece]],
    ) -> None:
        """Take what is needed to write items.

        Args:
            separator: between items.
            write_rule: a rule -> its regex.
            values_of: a rule -> its values, no two equal; raises NotRegular when it has no end.
        """
        self._separator = separator
        self._write_rule = write_rule
        self._values_of = values_of

    def write(self, shape: ArrayShape) -> Piece:
        """The items of an array.

        Raises:
            NotRegular: too large, or keywords that are not written together.
        """
        most = shape.max_items
        if shape.distinct and (most is None or most > 1):
            return self._distinct(shape)
        if shape.contains is not None:
            return self._with_hits(shape, shape.contains)
        prefix = shape.prefix if most is None else shape.prefix[:most]
        if shape.rest is None or most == len(prefix):
            items = _NOTHING
        else:
            least = max(shape.min_items - len(prefix), 0)
            most = None if most is None else most - len(prefix)
            item = self._write_rule(shape.rest)
            if prefix:
                items = repeat(sequence(self._separator, item), least, most)
            else:
                items = self.list_of(item, least, most)
        for index in range(len(prefix) - 1, -1, -1):
            items = sequence(self._write_rule(prefix[index]), items)
            if index:
                items = sequence(self._separator, items)
            if index >= shape.min_items:
                items = repeat(items, 0, 1)
        return items

    def list_of(self, item: Piece, least: int, most: int | None) -> Piece:
        """So many items with separators between them; most >= 1, None = without end."""
        further = repeat(
            sequence(self._separator, item),
            max(least - 1, 0),
            None if most is None else most - 1,
        )
        return repeat(sequence(item, further), min(least, 1), 1)

    def _with_hits(self, shape: ArrayShape, contains: Contains) -> Piece:
        """Items some of which count: others before the first hit, and behind each."""
        if shape.max_items is not None or shape.min_items > contains.minimum or shape.rest is None:
            raise NotRegular("contains beside bounds on the number of items", "", "contains")
        other = self._write_rule(shape.rest if contains.miss is None else contains.miss)
        forms = [] if contains.minimum else [self.list_of(other, 0, None)]
        if contains.maximum != 0:
            hit = self._write_rule(contains.hit)
            others = repeat(sequence(self._separator, other), 0, None)
            further = repeat(
                sequence(others, self._separator, hit),
                max(contains.minimum - 1, 0),
                None if contains.maximum is None else contains.maximum - 1,
            )
            before = repeat(sequence(other, self._separator), 0, None)
            forms.append(sequence(before, hit, further, others))
        return union(forms)

    def _distinct(self, shape: ArrayShape) -> Piece:
        """All arrangements of a few values."""
        if shape.prefix or shape.contains is not None or shape.rest is None:
            raise NotRegular("uniqueItems beside other keywords for items", "", "uniqueItems")
        values = self._values_of(shape.rest)
        if len(values) > MAX_DISTINCT:
            raise NotRegular(f"uniqueItems with more than {MAX_DISTINCT} values", "", "uniqueItems")
        most = len(values) if shape.max_items is None else min(shape.max_items, len(values))
        if most < shape.min_items:
            raise NotRegular("uniqueItems with fewer values than items", "", "uniqueItems")
        return self._arrangements(values, _NOTHING, shape.min_items, most)

    def _arrangements(
        self, values: Sequence[Piece], separator: Piece, least: int, most: int
    ) -> Piece:
        if most == 0:
            return _NOTHING
        forms = []
        for index, value in enumerate(values):
            left = [*values[:index], *values[index + 1 :]]
            further = self._arrangements(left, self._separator, least - 1, most - 1)
            forms.append(sequence(separator, value, further))
        return repeat(union(forms), 0 if least <= 0 else 1, 1)
