"""AsyncEngine: the server's handle on the engine process.

One PAIR socket, one supervisor task. When the engine dies, what was in flight fails with
EngineError and the engine is started again; new requests wait for that a while. Nothing in flight
is retried. An engine that keeps dying is given up.
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
from collections.abc import AsyncIterator, Callable
from multiprocessing.process import BaseProcess
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
WATCH_S = 0.2  # the engine is looked after this often
MAX_DEATHS = 3
DEATHS_WITHIN_S = 60.0
MAX_WAIT_S = 30.0

# What a request waits for: its time in the queue (seconds), outputs, an error.
_Item = float | RequestOutput | Exception

_GIVEN_UP = f"the engine died {MAX_DEATHS} times within {DEATHS_WITHIN_S:.0f} s; its log says why"


class Pulse:
    """How long the engine has been silent while somebody listened.

    When a look comes late, this process was held up itself (a starved event loop, a suspended
    machine): nobody could have heard the engine, and its silence begins anew.
    """

    def __init__(self, now_s: float) -> None:
        """Args: `now_s`, here and below, is read from one clock (seconds)."""
        self._heard_s = self._looked_s = now_s

    def heard(self, now_s: float) -> None:
        """Take note of a sign of life."""
        self._heard_s = now_s

    def silence(self, now_s: float) -> float:
        """Look, which is due every WATCH_S: seconds without a sign of life."""
        if now_s - self._looked_s > 5 * WATCH_S:
            self._heard_s = now_s
        self._looked_s = now_s
        return now_s - self._heard_s


class AsyncEngine:
    """Runs an LLMEngine in a process of its own.

    Args:
        config: of the engine.
        max_silence_s: an engine that gives no sign of life for longer is killed; its heart beats
            every `engine_process.HEARTBEAT_S`.

    Attributes:
        info: what the engine said of itself when it was ready.
        is_healthy: it is loaded, alive and answers.
    """

    def __init__(self, config: EngineConfig, *, max_silence_s: float = MAX_SILENCE_S) -> None:
        self.config = config
        self.info: dict[str, object] = {}
        self.is_healthy = False
        self._max_silence_s = max_silence_s
        self._queues: dict[str, asyncio.Queue[_Item]] = {}
        self._answers: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._query_ids = itertools.count(1)
        self._ready = asyncio.Event()
        self._given_up = asyncio.Event()
        self._deaths: list[float] = []
        self._pulse = Pulse(time.monotonic())
        self._process: BaseProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None

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
        except BaseException:  # a cancelled start leaves no process either
            await self.stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """End the process, which has nothing to save; what is in flight fails."""
        self.is_healthy = False
        self._ready.set()  # nobody need wait for it any more
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        await self._bury()
        self._fail_all(EngineUnavailableError, "the server is shutting down")
        self._context.term()
        self._folder.cleanup()

    async def until_down(self) -> None:
        """Wait until the engine has been given up, which may be for ever.

        Raises:
            EngineError: it has died too often.
        """
        await self._given_up.wait()
        raise EngineError(_GIVEN_UP)

    async def generate(
        self, request: EngineRequest, on_start: Callable[[float], None] | None = None
    ) -> AsyncIterator[RequestOutput]:
        """Run a request; closing the iterator aborts it within a step.

        Args:
            request: what to generate.
            on_start: called when it leaves the engine's queue, with its time there (seconds).

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
                if isinstance(item, float):
                    if on_start is not None:
                        on_start(item)
                    continue
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
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ready.wait(), MAX_WAIT_S)
        if self._given_up.is_set():
            raise EngineUnavailableError(_GIVEN_UP)
        if not self.is_healthy:
            raise EngineUnavailableError("the engine is not running; try again later")

    async def _send(self, command: messages.Command) -> None:
        await self._socket.send(messages.encode(command))

    async def _receive(self) -> messages.Event:
        event = messages.decode_event(await self._socket.recv())
        self._pulse.heard(time.monotonic())
        return event

    async def _read(self) -> None:
        """Hand events to those who wait for them."""
        while True:
            match await self._receive():
                case messages.Started(queue_s):
                    for request_id, waited_s in queue_s.items():
                        self._put(request_id, waited_s)
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

    def _fail_all(self, kind: type[EngineError], message: str) -> None:
        for request_id in list(self._queues):
            self._put(request_id, kind(message))
        for future in self._answers.values():
            if not future.done():
                future.set_exception(kind(message))

    # ---- the process -------------------------------------------------------------------------

    async def _launch(self) -> None:
        """One process and the line to it; see `start`."""
        # A name of its own: a late message of the last process must not reach the new line.
        address = f"ipc://{Path(self._folder.name) / f'engine-{len(self._deaths)}'}"
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.set_hwm(0)
        self._socket.bind(address)
        # spawn: a forked copy of a process with threads and an event loop is not safe to run.
        level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
        process = multiprocessing.get_context("spawn").Process(
            target=run_engine,
            args=(self.config, address, os.getpid(), level),
            name="specrt-engine",
            daemon=True,
        )
        process.start()
        self._process = process
        first = asyncio.create_task(self._receive())
        died = asyncio.create_task(_wait_for_death(process))
        try:
            await asyncio.wait({first, died}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                raise EngineError("the engine process died while it was starting; see its log")
            event = first.result()
        finally:
            first.cancel()
            died.cancel()
        if isinstance(event, messages.Failed):
            raise (ConfigError if event.is_config else EngineError)(event.message)
        assert isinstance(event, messages.Ready)
        self.info = event.info
        self._pulse = Pulse(time.monotonic())
        self.is_healthy = True
        self._ready.set()

    async def _supervise(self) -> None:
        """Follow the engine to its end, fail what is in flight, start another one, and again."""
        while True:
            if self.is_healthy:
                await self._follow()
            self.is_healthy = False
            self._ready.clear()
            await self._bury()
            self._fail_all(EngineError, "the engine process died; the request may be sent again")
            now = time.monotonic()
            self._deaths.append(now)
            if sum(now - death < DEATHS_WITHIN_S for death in self._deaths) >= MAX_DEATHS:
                logger.critical(_GIVEN_UP)
                self._given_up.set()
                self._ready.set()  # nobody need wait for it any more
                return
            try:
                await self._launch()
            except SpecrtError as error:
                logger.error("the engine could not be started again: %s", error)

    async def _follow(self) -> None:
        """Hand its events on until the process is dead, or silent and therefore killed."""
        process, pulse = self._process, self._pulse
        assert process is not None
        reader = asyncio.create_task(self._read())
        try:
            while process.is_alive():
                silence = pulse.silence(time.monotonic())
                if silence > self._max_silence_s:
                    logger.error("no sign of life from the engine for %.1f s: ending it", silence)
                    return
                await asyncio.sleep(WATCH_S)
            logger.error("the engine process died (exit code %s)", process.exitcode)
        finally:
            reader.cancel()

    async def _bury(self) -> None:
        """Make sure that the process is gone, and close the line to it."""
        if self._process is not None:
            self._process.kill()  # does nothing to a dead one, ends a stopped one
            await asyncio.to_thread(self._process.join)
        self._socket.close()


async def _wait_for_death(process: BaseProcess) -> None:
    while process.is_alive():
        await asyncio.sleep(0.1)


def _as_item(output: RequestOutput) -> _Item:
    if output.finish_reason == "error":
        return EngineError(output.error or "the request failed inside the engine")
    return output


def _as_error(rejected: messages.Rejected) -> RequestError:
    if rejected.kind == "ContextLengthError":
        return ContextLengthError(rejected.message)
    return RequestError(rejected.message, param=rejected.param, code=rejected.code)
