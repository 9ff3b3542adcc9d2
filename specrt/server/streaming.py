"""Server-sent events, and the end of work when the client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specrt.server.access import record_of
from specrt.server.errors import ClientGone, error_event, error_status

_T = TypeVar("_T")

DONE = b"data: [DONE]\n\n"


def event(message: BaseModel) -> bytes:
    """One server-sent event; only fields that were set appear."""
    return b"data: " + message.model_dump_json(exclude_unset=True).encode() + b"\n\n"


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work`, and cancel it when the client goes away first.

    Args:
        receive: the connection, its request body read to the end.
        work: what to do for the client.

    Raises:
        ClientGone: the client went away; `work` has been cancelled and has ended.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of server-sent events.

    It begins with the first event, so an error before it is answered with a status of its own; an
    error after it becomes an event without [DONE].
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        error_event: Callable[[Exception], bytes] = error_event,
    ) -> None:
        """
        Args:
            events: encoded, [DONE] included; closed when the client goes away.
            error_event: the last event of a stream that breaks.
        """  # noqa: D415
        self.status_code = 200
        self.background = None
        self.body = b""
        self._events = events
        self._error_event = error_event
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        # The length is known only at the end.
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        await until_disconnect(receive, self._send_events(scope, send))

    async def _send_events(self, scope: Scope, send: Send) -> None:
        async with aclosing(self._events) as events:
            first = await anext(events)
            start = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **start})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for body in events:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            except Exception as error:
                record = record_of(scope)
                record.status, record.error = error_status(error), str(error)
                last = self._error_event(error)
                await send({"type": "http.response.body", "body": last, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
