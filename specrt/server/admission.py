"""Who is let in: a bounded number of requests, and nobody new while the server drains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from specrt.errors import EngineUnavailableError, OverloadedError


class Admission:
    """Counts what is inside, and refuses what would be too much.

    Attributes:
        is_draining: no new HTTP request is let in any more.
    """

    def __init__(self, max_running: int, max_queued: int) -> None:
        """Args: how many engine requests run at once, and how many more may wait for that."""
        self.is_draining = False
        self._max_running = max_running
        self._max_queued = max_queued
        self._num_choices = 0
        self._num_http = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def http_request(self) -> Iterator[None]:
        """Around an HTTP request, the sending of its answer included.

        Raises:
            EngineUnavailableError: the server is draining.
        """
        if self.is_draining:
            raise EngineUnavailableError("the server is shutting down; try again later")
        self._num_http += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_http -= 1
            if not self._num_http:
                self._idle.set()

    @contextmanager
    def choices(self, count: int) -> Iterator[None]:
        """Around the engine requests of one HTTP request, let in together or not at all.

        When nothing else is inside, any number is let in: it would be refused for ever otherwise.

        Raises:
            OverloadedError: the queue has no room for them.
        """
        limit = self._max_running + self._max_queued
        if self._num_choices and self._num_choices + count > limit:
            raise OverloadedError(
                f"the queue is full: {self._num_choices} generations are running or waiting, and"
                f" {count} more would exceed the limit of {limit} ({self._max_running} running,"
                f" --max-running-requests, and {self._max_queued} waiting, --max-queued-requests);"
                " try again later",
                code="queue_full",
            )
        self._num_choices += count
        try:
            yield
        finally:
            self._num_choices -= count

    async def drain(self, timeout_s: float) -> bool:
        """Let nobody in any more and wait until all are out; False when the time was too short."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True
