"""Runs the application: the socket, the engine's life, the signals."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Coroutine
from typing import NoReturn

import uvicorn
from fastapi import FastAPI

from specrt.config import ServerConfig
from specrt.errors import ConfigError
from specrt.server.generation import Engine

# Streams that are still running at shutdown get this long to end (seconds).
SHUTDOWN_GRACE_S = 3


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


def run(app: FastAPI, engine: Engine, listener: socket.socket, ready: str) -> int:
    """Start the engine, serve `app` until a signal, stop the engine.

    Args:
        app: uses the engine.
        engine: not started yet.
        listener: a listening socket.
        ready: printed when requests are answered.

    Returns:
        Exit status: 0 after a signal.

    Raises:
        SpecrtError: the engine could not be started.
    """
    try:
        _run_loop(_serve(app, engine, listener, ready))
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


async def _serve(app: FastAPI, engine: Engine, listener: socket.socket, ready: str) -> None:
    # uvicorn takes the signals over while it serves, and sends them again once it has ended.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _leave)
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
    await engine.start()
    try:
        await server.serve(sockets=[listener])
    finally:
        await engine.stop()


class _Server(uvicorn.Server):
    """Says that it serves once it does."""

    def __init__(self, config: uvicorn.Config, ready: str) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self._ready, flush=True)


def _leave(signum: int, frame: object) -> NoReturn:
    raise SystemExit(0)


def _run_loop(main: Coroutine[object, object, None]) -> None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(main)
    else:
        uvloop.run(main)
