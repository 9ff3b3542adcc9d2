"""A bounded memo of generated assistant turns: which ids were generated for this message?

A client sends back text. Tokenising it again may give other ids than were generated, and the cached
prefix would end there; the memo gives the generated ids back. It knows ids and strings only: no
template, no tokenizer (see prompt_builder.py).
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol


class TurnKey(NamedTuple):
    """What makes two assistant messages equal: call ids, null and absent fields do not count.

    Attributes:
        content: the text, "" for none.
        calls: (name, argument text) of each call.
    """

    content: str
    calls: tuple[tuple[str, str], ...]


class NamedCall(Protocol):
    """Anything with a function name and an argument text."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def arguments(self) -> str: ...  # noqa: D102


def turn_key(content: str | None, calls: Iterable[NamedCall]) -> TurnKey:
    """The key of a message as it was sent or came back."""
    return TurnKey(content or "", tuple((call.name, call.arguments) for call in calls))


class Place(NamedTuple):
    """Where a turn was generated: behind which prompt.

    Attributes:
        num_chars: length of the prompt's text.
        digest: of the prompt's ids (16 bytes instead of the ids: the turns of a long conversation
            would hold its beginning again and again).
    """

    num_chars: int
    digest: bytes


class PromptDigest:
    """Digest of token ids that grow at the end; extending costs only the new ids."""

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self._hash = blake2b(array("q", token_ids).tobytes(), digest_size=16)

    def extended(self, token_ids: Sequence[int]) -> PromptDigest:
        """The digest of these ids and `token_ids` behind them."""
        longer = PromptDigest.__new__(PromptDigest)
        longer._hash = self._hash.copy()
        longer._hash.update(array("q", token_ids).tobytes())
        return longer

    def value(self) -> bytes:
        """16 bytes."""
        return self._hash.digest()


class TurnMemo:
    """Least recently used turns are forgotten first. Safe to use from several threads.

    Args:
        max_tokens: output tokens kept at most, over all turns; 0 keeps none.
    """

    def __init__(self, max_tokens: int = 1 << 20) -> None:
        self._max_tokens = max_tokens
        self._turns: OrderedDict[tuple[TurnKey, Place], array[int]] = OrderedDict()
        self._places: dict[TurnKey, set[Place]] = {}
        self._lock = threading.Lock()
        self.num_tokens = 0

    def remember(self, key: TurnKey, place: Place, token_ids: Sequence[int]) -> None:
        """Keep a generated turn.

        Args:
            key: the message as it was sent.
            place: the prompt that it was generated from.
            token_ids: all generated ids, with or without the end-of-turn token; may reach beyond
                the message when a stop string cut it. Of two turns with the same prompt and message
                the later one is kept.
        """
        with self._lock:
            self._forget(key, place)
            self._turns[key, place] = array("q", token_ids)
            self._places.setdefault(key, set()).add(place)
            self.num_tokens += len(token_ids)
            while self.num_tokens > self._max_tokens:
                self._forget(*next(iter(self._turns)))

    def _forget(self, key: TurnKey, place: Place) -> None:
        token_ids = self._turns.pop((key, place), None)
        if token_ids is not None:
            self.num_tokens -= len(token_ids)
            self._places[key].remove(place)
            if not self._places[key]:
                del self._places[key]

    def places(self, key: TurnKey) -> list[Place]:
        """Where this message was generated, shortest prompt first."""
        with self._lock:
            return sorted(self._places.get(key, ()))

    def find(self, key: TurnKey, place: Place) -> list[int] | None:
        """The ids generated for this message at this place, or None."""
        with self._lock:
            token_ids = self._turns.get((key, place))
            if token_ids is None:
                return None
            self._turns.move_to_end((key, place))
            return token_ids.tolist()
