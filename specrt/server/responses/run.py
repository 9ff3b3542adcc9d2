"""One response while it is being generated: events for a reader, an end that others can ask for.

It generates in a task of its own, so that a cancellation ends it at once, whoever reads the events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress

from openai.types.responses import Response, ResponseError
from openai.types.responses.response import IncompleteDetails

from specrt.server.chat import ChatService, Turn
from specrt.server.errors import error_message
from specrt.server.responses.output import (
    response_usage,
    with_output,
)
from specrt.server.responses.stream import Event, EventBuilder

# An error this soon is answered with a status of its own: a stream does not begin before it.
SETTLE_S = 0.05


class Run:
    """A running response.

    Attributes:
        response: as it is now; the last one once it has ended.
        error: what broke it; None = nothing.
        task: generates.
    """

    def __init__(
        self,
        chat: ChatService,
        turn: Turn,
        response: Response,
        builder: EventBuilder,
        *,
        on_end: Callable[[Response], None] | None,
    ) -> None:
        """Begin to generate.

        Args:
            chat: remembers the turn.
            turn: one choice, started.
            response: in progress.
            builder: of its events.
            on_end: keeps the response when it has ended, unless it failed, before its last event
                can be read; None = it is not kept.
        """
        self.response = response
        self.error: Exception | None = None
        self._chat = chat
        self._turn = turn
        self._builder = builder
        self._on_end = on_end
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._is_cancelled = False
        self._has_begun = asyncio.Event()  # there is output, or the end
        self.task = asyncio.create_task(self._generate())

    @property
    def is_kept(self) -> bool:
        """It can be found while it runs, and later."""
        return self._on_end is not None

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events, for one reader; closing it early ends the response and forgets it.

        Raises:
            SpecrtError: it failed before there was any output; later failures are events.
        """
        try:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._has_begun.wait(), SETTLE_S)
            if self.error is not None and not self._builder.output:
                raise self.error
            while (event := await self._events.get()) is not None:
                yield event
        finally:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def result(self) -> Response:
        """The response at its end; cancelling this ends it early and forgets it.

        Raises:
            SpecrtError: it failed.
        """
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        if self.error is not None:
            raise self.error
        return self.response

    async def cancel(self) -> Response:
        """End it now; returns the response with what there is of its output."""
        self._is_cancelled = True
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        return self.response

    async def _generate(self) -> None:
        try:
            self._send(self._builder.begin(self.response))
            async with aclosing(self._turn.generation.outputs()) as outputs:
                async for _, output in outputs:
                    deltas = self._turn.choices[0].push(output)
                    if output.finish_reason is not None:
                        # Before the client can answer: the next turn must find this one.
                        await self._chat.finish(self._turn, self._turn.choices[0])
                    for delta in deltas:
                        self._send(self._builder.push(delta))
                    self._has_begun.set()
            self._end(
                "incomplete" if self._turn.choices[0].finish_reason == "length" else "completed"
            )
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
            self._turn.generation.record.finish_reasons.append("cancelled")
            self._end("cancelled")
        except Exception as error:
            self.error = error
            self._end("failed")
        finally:
            self._has_begun.set()
            self._events.put_nowait(None)

    def _end(self, status: str) -> None:
        generation, is_whole = self._turn.generation, status == "completed"
        self._send(self._builder.end_item("completed" if is_whole else "incomplete"))
        changes: dict[str, object] = {
            "status": status,
            "usage": response_usage(generation.usage()),
            "specrt": generation.report(self._turn.unenforced, self._turn.violations),
        }
        if is_whole:
            changes["completed_at"] = float(int(time.time()))
        elif status == "incomplete":
            changes["incomplete_details"] = IncompleteDetails(reason="max_output_tokens")
        elif status == "failed":
            assert self.error is not None
            changes["error"] = ResponseError(code="server_error", message=error_message(self.error))
        self.response = with_output(self.response, self._builder.output, **changes)
        if self._on_end is not None and self.error is None:
            self._on_end(self.response)
        self._send(self._builder.end(self.response))

    def _send(self, events: Iterable[Event]) -> None:
        for event in events:
            self._events.put_nowait(event)
