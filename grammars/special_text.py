"""Keeps special-token text inside message content from becoming special tokens.

`<|im_end|>` in a web page that a tool returned must stay text. Before rendering, a private-use
character breaks every special-token text inside the messages; afterwards whatever special-token
text is left whole was written by the template, and the breaks are taken out again. This works for
any template: content without special-token text is not altered at all, and a break stands inside a
word, where trimming and splitting do not see it.
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os.path import commonprefix
from typing import NamedTuple

_PRIVATE_USE = range(0xE000, 0xF8FF)


class Segment(NamedTuple):
    """Text that can be tokenised on its own: it begins at a special token or after spliced ids.

    Attributes:
        special: special-token text that the template wrote, "" for none.
        text: what follows, up to the next one.
        is_literal: `text` holds special-token text that came with the messages and must be
            tokenised as plain text.
    """

    special: str
    text: str
    is_literal: bool


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered conversation.

    Attributes:
        text: what the model reads.
        specials: (start, end) offsets of the special tokens that the template wrote, ascending.
        breaks: offsets inside special-token text that came with the messages, ascending.
    """

    text: str
    specials: tuple[tuple[int, int], ...]
    breaks: tuple[int, ...]

    def special_starts(self, start: int) -> list[int]:
        """Offsets of the special tokens at or behind `start`, and of the end."""
        index = bisect_right(self.specials, (start - 1, len(self.text) + 1))
        return [*(begin for begin, _ in self.specials[index:]), len(self.text)]

    def segments(self, start: int = 0, end: int | None = None) -> list[Segment]:
        """Cut text[start:end] in front of each special token; no special token may be cut."""
        end = len(self.text) if end is None else end
        if start >= end:
            return []
        first = bisect_right(self.specials, (start - 1, len(self.text) + 1))
        last = bisect_right(self.specials, (end - 1, len(self.text) + 1))
        spans = list(self.specials[first:last])
        if start < (spans[0][0] if spans else end):
            spans.insert(0, (start, start))
        stops = [span[0] for span in spans[1:]] + [end]
        return [
            Segment(self.text[a:b], self.text[b:stop], self._has_break(b, stop))
            for (a, b), stop in zip(spans, stops, strict=True)
            if a < stop
        ]

    def _has_break(self, start: int, end: int) -> bool:
        index = bisect_right(self.breaks, start)
        return index < len(self.breaks) and self.breaks[index] <= end


class SpecialText:
    """Breaks special-token text in the values of one conversation, and takes the breaks out.

    Args:
        special_tokens: texts of the tokenizer's special tokens.
        values: everything from outside that a template may print (for choosing a character that
            does not occur).
    """

    def __init__(self, special_tokens: Sequence[str], values: Iterable[object] = ()) -> None:
        self._tokens, self._whole, self._starts, self._beginnings = _patterns(tuple(special_tokens))
        self._lead = commonprefix(self._tokens)
        self._max_beginning = max(map(len, self._beginnings), default=0)
        self._mark = self._choose_mark(values)

    @staticmethod
    def _choose_mark(values: Iterable[object]) -> str:
        texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
        texts = [text for text in texts if not text.isascii()]
        marks = map(chr, _PRIVATE_USE)
        return next(mark for mark in marks if not any(mark in text for text in texts))

    def broken(self, text: str) -> str:
        """`text` with a break inside every special-token text.

        A beginning of one at the very end is broken too: the template may put two texts together.
        """
        cuts: set[int] = set()
        if self._lead in text and any(token in text for token in self._tokens):
            cuts.update(match.end(1) for match in self._starts.finditer(text))
        if text.endswith(self._beginnings):
            for start in range(max(0, len(text) - self._max_beginning), len(text)):
                if text[start:] in self._beginnings:
                    cuts.add(start + 1)
        if not cuts:
            return text
        stops = [0, *sorted(cuts), len(text)]
        return self._mark.join(text[a:b] for a, b in pairwise(stops))

    def broken_json(self, value: object) -> object:
        """A JSON value with a break inside every special-token text, keys included."""
        if isinstance(value, str):
            return self.broken(value)
        if isinstance(value, Mapping):
            return {self.broken(str(k)): self.broken_json(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.broken_json(item) for item in value]
        return value

    def spelled(self, text: str) -> str:
        r"""JSON text with a break that was escaped as \uXXXX made a character again."""
        return text.replace(f"\\u{ord(self._mark):04x}", self._mark)

    def resolve(self, rendered: str) -> Rendering:
        """Take the breaks out of a template's output."""
        breaks = [match.start() for match in re.finditer(self._mark, rendered)]
        specials = []
        for match in self._whole.finditer(rendered):
            shift = bisect_right(breaks, match.start())
            specials.append((match.start() - shift, match.end() - shift))
        return Rendering(
            text=rendered.replace(self._mark, ""),
            specials=tuple(specials),
            breaks=tuple(offset - index for index, offset in enumerate(breaks)),
        )


@functools.lru_cache(maxsize=8)
def _patterns(
    special_tokens: tuple[str, ...],
) -> tuple[list[str], re.Pattern[str], re.Pattern[str], tuple[str, ...]]:
    """Tokens, longest first; what finds a whole one, and its first character; their beginnings."""
    tokens = sorted(filter(None, special_tokens), key=len, reverse=True)
    whole = "|".join(map(re.escape, tokens)) or r"(?!)"
    beginnings = {token[:length] for token in tokens for length in range(1, len(token))}
    return (
        tokens,
        re.compile(whole, re.DOTALL),
        re.compile(f"(?=(?:{whole}))(.)", re.DOTALL),
        tuple(beginnings),
    )
