"""Finished responses, kept in memory for as long as there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from openai.types.responses import Response

from specrt.server.responses.items import Item
from specrt.server.responses.output import to_json

MAX_RESPONSES = 4096
# Of JSON; the objects in memory take a few times as much.
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response.

    Attributes:
        response: as it was answered.
        input_items: of its own request, those of the responses before it not included.
        output_items: of the response, as a later request reads them.
    """

    response: Response
    input_items: tuple[Item, ...]
    output_items: tuple[Item, ...]

    def num_bytes(self) -> int:
        """Length of its JSON."""
        return sum(len(to_json(part)) for part in (self.response, *self.input_items))


class ResponseStore:
    """A bounded store; what was not used for longest is dropped first.

    Using a response uses all that it continues, and these count as used later than it: a
    conversation loses its newest responses first and never its beginning alone.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._items: dict[str, tuple[str, Item]] = {}  # item id -> (response id, item)
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Of all that is stored."""
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, stored: StoredResponse) -> None:
        """Keep a response; drops others, or itself, until the limits hold."""
        response_id = stored.response.id
        self._stored[response_id] = stored
        self._sizes[response_id] = stored.num_bytes()
        self._num_bytes += self._sizes[response_id]
        for item in (*stored.input_items, *stored.output_items):
            # The first owner stays: an item that a client sends again is the same item.
            self._items.setdefault(str(item.id), (response_id, item))
        list(self.chain(response_id))
        while len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes:
            self.remove(next(iter(self._stored)))

    def get(self, response_id: str) -> StoredResponse | None:
        """A response, which counts as used; None when there is none."""
        list(self.chain(response_id))
        return self._stored.get(response_id)

    def chain(self, response_id: str) -> Iterator[StoredResponse | None]:
        """A response and those before it, newest first; all count as used. None: one is gone."""
        following: str | None = response_id
        while following is not None:
            stored = self._stored.get(following)
            yield stored
            if stored is None:
                return
            self._stored.move_to_end(following)
            following = stored.response.previous_response_id

    def find_item(self, item_id: str) -> Item | None:
        """An input or output item of a stored response."""
        owner = self._items.get(item_id)
        return None if owner is None else owner[1]

    def remove(self, response_id: str) -> bool:
        """Drop a response; False when there is none."""
        stored = self._stored.pop(response_id, None)
        if stored is None:
            return False
        self._num_bytes -= self._sizes.pop(response_id)
        for item in (*stored.input_items, *stored.output_items):
            owner = self._items.get(str(item.id))
            if owner is not None and owner[0] == response_id:
                del self._items[str(item.id)]
        return True
