"""AsyncEngine: the server's handle on the engine process.

One PAIR socket, one reader task. When the engine dies, what was in flight fails with EngineError
and the engine is started again; new requests wait for that a while. Nothing in flight is retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import zmq
import zmq.asyncio

from specrt import messages
from specrt.config import EngineConfig
from specrt.engine_process import run_engine
from specrt.errors import (
    ConfigError,
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
    RequestError,
    SpecrtError,
)
from specrt.request import EngineRequest, RequestOutput

logger = logging.getLogger(__name__)

# A step is far below this; start-up (loading weights) is not under this limit.
MAX_SILENCE_S = 10.0
SHUTDOWN_S = 5.0
# The engine is looked after this often. A look that comes much later means that this process was
# held up, and then silence says nothing about the engine.
WATCH_S = 0.2
MAX_DEATHS = 3
DEATHS_WITHIN_S = 60.0
MAX_WAIT_S = 30.0

_Item = RequestOutput | Exception


class AsyncEngine:
    """Runs an LLMEngine in a process of its own.

    Attributes:
        info: what the engine said of itself when it was ready.
        is_healthy: it is loaded, alive and answers.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.info: dict[str, object] = {}
        self.is_healthy = False
        self._queues: dict[str, asyncio.Queue[_Item]] = {}
        self._answers: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._query_ids = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._last_event = 0.0
        self._ready = asyncio.Event()
        self._deaths: list[float] = []

    async def start(self) -> None:
        """Start the process and wait until it serves.

        Raises:
            ConfigError: a flag or a model file cannot be used.
            EngineError: it died on the way.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="specrt-")
        self._context = zmq.asyncio.Context()
        try:
            await self._launch()
        except SpecrtError:
            await self.stop()
            raise

    async def _launch(self) -> None:
        """One process and the line to it; see `start`."""
        address = f"ipc://{Path(self._folder.name) / f'engine-{len(self._deaths)}'}"
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.set_hwm(0)
        self._socket.bind(address)
        # spawn: a forked copy of a process with threads and an event loop is not safe to run.
        spawn = multiprocessing.get_context("spawn")
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        self._process = spawn.Process(
            target=run_engine,
            args=(self.config, address, os.getpid(), level),
            name="specrt-engine",
            daemon=True,
        )
        self._process.start()
        died = asyncio.create_task(self._wait_for_death())
        first = asyncio.create_task(self._receive())
        await asyncio.wait({died, first}, return_when=asyncio.FIRST_COMPLETED)
        died.cancel()
        if not first.done():
            first.cancel()
            raise EngineError("the engine process died while it was starting; see the log above")
        event = first.result()
        if isinstance(event, messages.Failed):
            raise (ConfigError if event.is_config else EngineError)(event.message)
        assert isinstance(event, messages.Ready)
        self.info = event.info
        self.is_healthy = True
        self._ready.set()
        self._last_event = time.monotonic()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._watch())]

    async def stop(self) -> None:
        """End the process; what is in flight fails."""
        self.is_healthy = False
        for task in self._tasks:
            task.cancel()
        if self._process.is_alive():
            with contextlib.suppress(zmq.ZMQError, asyncio.TimeoutError):
                await asyncio.wait_for(self._send(messages.Shutdown()), 1.0)
            await asyncio.to_thread(self._process.join, SHUTDOWN_S)
            if self._process.is_alive():
                self._process.kill()
                await asyncio.to_thread(self._process.join)
        self._fail_all("the server is shutting down")
        self._socket.close()
        self._context.term()
        self._folder.cleanup()

    async def generate(self, request: EngineRequest) -> AsyncIterator[RequestOutput]:
        """Run a request; closing the iterator aborts it within a step.

        Raises:
            RequestError: the engine did not take it.
            EngineError: the engine died, or the request failed inside.
            EngineUnavailableError: it died before, and did not come back within MAX_WAIT_S.
        """
        await self._until_ready()
        queue: asyncio.Queue[_Item] = asyncio.Queue()
        self._queues[request.request_id] = queue
        is_done = False
        try:
            await self._send(messages.Add(request))
            while True:
                item = await queue.get()
                if isinstance(item, Exception):
                    is_done = True
                    raise item
                is_done = item.finish_reason is not None
                yield item
                if is_done:
                    return
        finally:
            self._queues.pop(request.request_id, None)
            if not is_done and self.is_healthy:
                await asyncio.shield(self._send(messages.Abort(request.request_id)))

    async def stats(self) -> dict[str, object]:
        """The engine's counters and gauges."""
        return await self._ask(messages.GetStats)

    async def flush_cache(self) -> bool:
        """Forget every cached prefix; False when requests run."""
        answer = await self._ask(messages.FlushCache)
        return bool(answer["flushed"])

    # ---- the line ----------------------------------------------------------------------------

    async def _ask(
        self, query: type[messages.GetStats] | type[messages.FlushCache]
    ) -> dict[str, object]:
        if not self.is_healthy:
            raise EngineUnavailableError("the engine is not running")
        query_id = next(self._query_ids)
        future: asyncio.Future[dict[str, object]] = asyncio.get_running_loop().create_future()
        self._answers[query_id] = future
        try:
            await self._send(query(query_id))
            return await future
        finally:
            self._answers.pop(query_id, None)

    async def _until_ready(self) -> None:
        try:
            await asyncio.wait_for(self._ready.wait(), MAX_WAIT_S)
        except asyncio.TimeoutError:
            raise EngineUnavailableError("the engine is not running; try again later") from None
        if not self.is_healthy:
            raise EngineUnavailableError("the engine died too often; the server's log says why")

    async def _send(self, command: messages.Command) -> None:
        await self._socket.send(messages.encode(command))

    async def _receive(self) -> messages.Event:
        event = messages.decode_event(await self._socket.recv())
        self._last_event = time.monotonic()
        return event

    async def _read(self) -> None:
        """Hand events to those who wait for them."""
        while True:
            match await self._receive():
                case messages.Outputs(outputs):
                    for output in outputs:
                        self._put(output.request_id, _as_item(output))
                case messages.Rejected() as rejected:
                    self._put(rejected.request_id, _as_error(rejected))
                case messages.Answer(query_id, value):
                    future = self._answers.get(query_id)
                    if future is not None and not future.done():
                        future.set_result(value)
                case _:
                    pass

    def _put(self, request_id: str, item: _Item) -> None:
        queue = self._queues.get(request_id)
        if queue is not None:  # else its client is gone
            queue.put_nowait(item)

    async def _wait_for_death(self) -> None:
        while self._process.is_alive():
            await asyncio.sleep(0.1)

    async def _watch(self) -> None:
        """Notice a dead or silent engine, fail what is in flight, start another one."""
        last_look = time.monotonic()
        while self._process.is_alive():
            now = time.monotonic()
            if now - last_look > 5 * WATCH_S:
                self._last_event = now
            last_look = now
            silence = now - self._last_event
            if silence > MAX_SILENCE_S:
                logger.error("the engine gave no sign of life for %.0f s: ending it", silence)
                self._process.kill()
                await asyncio.to_thread(self._process.join)
                break
            await asyncio.sleep(WATCH_S)
        self.is_healthy = False
        self._ready.clear()
        logger.error("the engine process died (exit code %s)", self._process.exitcode)
        self._fail_all("the engine process died; the request may be sent again")
        self._tasks[0].cancel()  # the reader; this task is the other one
        self._socket.close()
        now = time.monotonic()
        self._deaths.append(now)
        try:
            if sum(now - death < DEATHS_WITHIN_S for death in self._deaths) >= MAX_DEATHS:
                raise EngineError(f"the engine died {MAX_DEATHS} times within a minute")
            await self._launch()
        except SpecrtError as error:
            logger.critical("the engine stays down: %s", error)
            self._ready.set()  # nobody need wait

    def _fail_all(self, message: str) -> None:
        for request_id in list(self._queues):
            self._put(request_id, EngineError(message))
        for future in self._answers.values():
            if not future.done():
                future.set_exception(EngineError(message))


def _as_item(output: RequestOutput) -> _Item:
    if output.finish_reason == "error":
        return EngineError(output.error or "the request failed inside the engine")
    return output


def _as_error(rejected: messages.Rejected) -> RequestError:
    if rejected.kind == "ContextLengthError":
        return ContextLengthError(rejected.message)
    return RequestError(rejected.message, param=rejected.param, code=rejected.code)
