"""Where the tokens before a position have occurred earlier in one growing token list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MIN_MATCH = 2
MAX_MATCH = 16
# The most recent ones: bounds the work of a search; more, or longer matches, draft no better.
MAX_OCCURRENCES = 32


class Match(NamedTuple):
    """An earlier occurrence of the context.

    Attributes:
        end: position of the token that followed it.
        length: how many tokens before `end` equal the context's last ones, MAX_MATCH at most.
    """

    end: int
    length: int


class SuffixIndex:
    """An index by pairs of tokens.

    What the list holds at first, a prompt, may be long and is looked through when a pair is first
    asked for (128k tokens: some 60 us); what it gains is indexed in constant time per token.

    Attributes:
        token_ids: the list.
    """

    def __init__(self, token_ids: list[int]) -> None:
        """Index a list; it may grow later but never change or shrink."""
        self.token_ids = token_ids
        self._first = np.asarray(token_ids, dtype=np.int32)
        self._ends: dict[tuple[int, int], list[int]] = {}
        self._num_indexed = max(MIN_MATCH, len(token_ids))

    def update(self) -> None:
        """Index what the list has gained."""
        tokens = self.token_ids
        for end in range(self._num_indexed, len(tokens)):
            self._ends_of(tokens[end - 2], tokens[end - 1]).append(end)
        self._num_indexed = max(self._num_indexed, len(tokens))

    def _ends_of(self, before: int, last: int) -> list[int]:
        """Positions behind a pair, ascending; of the first tokens, the most recent ones only."""
        ends = self._ends.get((before, last))
        if ends is None:
            pairs = (self._first[:-2] == before) & (self._first[1:-1] == last)
            ends = (np.flatnonzero(pairs)[-MAX_OCCURRENCES:] + 2).tolist()
            self._ends[before, last] = ends
        return ends

    def search(self, context: Sequence[int]) -> list[Match]:
        """Occurrences of the context's last tokens that have a token after them.

        Args:
            context: the last MAX_MATCH tokens, or more, of the text to continue.

        Returns:
            The most recent occurrences of the last MIN_MATCH tokens, in position order, each with
            its own match length.
        """
        if len(context) < MIN_MATCH:
            return []
        tokens = self.token_ids
        longest = min(len(context), MAX_MATCH)
        matches = []
        for end in self._ends_of(context[-2], context[-1])[-MAX_OCCURRENCES:]:
            limit = min(longest, end)
            length = MIN_MATCH
            while length < limit and tokens[end - length - 1] == context[-length - 1]:
                length += 1
            matches.append(Match(end, length))
        return matches

    def follow(self, matches: Sequence[Match], token_id: int) -> list[Match]:
        """The matches that go on with `token_id`, one token longer; no search."""
        tokens = self.token_ids
        last = len(tokens) - 1
        return [
            Match(end + 1, min(length + 1, MAX_MATCH))
            for end, length in matches
            if end < last and tokens[end] == token_id
        ]
