"""Finished outputs that later requests may draft from, by key: who asked, with which tools.

A key's outputs lie in one list that only grows, so that requests may look through it while others
join it. When it is full its newer half starts a new list; requests keep the list they started with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from specrt.speculative.suffix_index import SuffixIndex

# Stands between two outputs; no token.
BREAK = -1


class SharedOutputs:
    """A bounded store of token ids.

    Attributes:
        num_tokens: all tokens that it holds, those between outputs included.
    """

    def __init__(self, max_tokens: int, max_tokens_per_key: int | None = None) -> None:
        """Make an empty store.

        Args:
            max_tokens: held at most; beyond it the keys that were used least recently go.
            max_tokens_per_key: of one key; None = a quarter of all.
        """
        self._max_tokens = max_tokens
        self._max_per_key = max_tokens_per_key or max(2, max_tokens // 4)
        self._indexes: OrderedDict[str, SuffixIndex] = OrderedDict()
        self.num_tokens = 0

    def index(self, key: str) -> SuffixIndex:
        """The outputs of a key; it grows as others are added."""
        if key not in self._indexes:
            self._indexes[key] = SuffixIndex([])
        self._indexes.move_to_end(key)
        return self._indexes[key]

    def add(self, key: str, token_ids: Sequence[int]) -> None:
        """Add an output, with the end of the prompt it follows; its last tokens if it is long."""
        new = [*token_ids[-(self._max_per_key // 2) :], BREAK]
        index = self.index(key)
        if len(index.token_ids) + len(new) > self._max_per_key:
            self.num_tokens -= len(index.token_ids)
            kept = _newest(index.token_ids, self._max_per_key // 2 - len(new))
            index = self._indexes[key] = SuffixIndex(kept)
            self.num_tokens += len(kept)
        index.token_ids.extend(new)
        index.update()
        self.num_tokens += len(new)
        while self.num_tokens > self._max_tokens:
            _, oldest = self._indexes.popitem(last=False)
            self.num_tokens -= len(oldest.token_ids)


def _newest(token_ids: Sequence[int], size: int) -> list[int]:
    """The last whole outputs of at most `size` tokens together."""
    tail = list(token_ids[-size:]) if size > 0 else []
    if len(tail) < len(token_ids):
        tail = tail[tail.index(BREAK) + 1 :] if BREAK in tail else []
    return tail
