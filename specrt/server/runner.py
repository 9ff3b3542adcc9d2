"""Runs the application: the socket, the engine's life, the signals."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Coroutine, Iterator

import uvicorn
from fastapi import FastAPI

from specrt.config import ServerConfig
from specrt.errors import ConfigError
from specrt.server.generation import Engine

# When the engine is gone every answer ends; a slow client gets this long to read it (seconds).
SHUTDOWN_GRACE_S = 1


def bind(config: ServerConfig) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(
            f"--host {config.host} --port {config.port}: cannot listen there"
            f" ({error.strerror or error}); stop what uses the port, or choose another --port"
        ) from None


def run(
    app: FastAPI, engine: Engine, listener: socket.socket, ready: str, *, drain_timeout_s: float
) -> int:
    """Start the engine, serve `app` until a signal, stop the engine.

    SIGTERM lets running requests finish first, while new ones are refused; a second one, or
    SIGINT, ends them at once.

    Args:
        app: uses the engine; see `create_app`.
        engine: not started yet.
        listener: a listening socket.
        ready: printed when requests are answered.
        drain_timeout_s: what running requests get at most to finish (seconds).

    Returns:
        Exit status: 0 after a signal.

    Raises:
        SpecrtError: the engine could not be started, or died too often.
    """
    _run_loop(_serve(app, engine, listener, ready, drain_timeout_s))
    return 0


async def _serve(
    app: FastAPI, engine: Engine, listener: socket.socket, ready: str, drain_timeout_s: float
) -> None:
    leave, hurry = asyncio.Event(), asyncio.Event()

    def on_signal(signum: signal.Signals) -> None:
        if signum == signal.SIGINT or leave.is_set():
            hurry.set()
        leave.set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, on_signal, signum)
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
        ),
        ready,
    )
    if await _race(engine.start(), leave.wait()) == 1:
        return
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await _race(asyncio.shield(serving), leave.wait(), engine.until_down())
        await _race(app.state.admission.drain(drain_timeout_s), hurry.wait())
    finally:
        await engine.stop()  # first: what is still in flight ends with an error
        server.should_exit = True
        await serving


async def _race(*works: Awaitable[object]) -> int:
    """Run all until one is done, and cancel the others; the index of that one, or its error."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        winner = next(index for index, task in enumerate(tasks) if task.done())
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    tasks[winner].result()
    return winner


class _Server(uvicorn.Server):
    """Says that it serves once it does, and leaves the signals alone."""

    def __init__(self, config: uvicorn.Config, ready: str) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self._ready, flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _run_loop(main: Coroutine[object, object, None]) -> None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(main)
    else:
        uvloop.run(main)
