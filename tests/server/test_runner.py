"""The socket, the ready line and the signals, with the server in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from specrt.config import ServerConfig
from specrt.errors import ConfigError
from specrt.server.runner import bind

TESTS = Path(__file__).resolve().parents[1]
SERVER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from server.fake_engine import make_model, says
from specrt.config import EngineConfig, ServerConfig
from specrt.errors import ConfigError
from specrt.server.app import create_app
from specrt.server.runner import bind, run

class Engine(type(says())):
    async def start(self):
        print("starting", flush=True)
        if sys.argv[2] == "slow":
            await asyncio.sleep(60)
        if sys.argv[2] == "broken":
            raise ConfigError("no such model")
    async def stop(self):
        print("stopped, aborted", len(self.aborted), flush=True)

engine = Engine(says("a", asyncio.Event(), "b").script)
config = ServerConfig(port=0)
with bind(config) as listener:
    app = create_app(config, EngineConfig(), engine, make_model())
    try:
        status = run(app, engine, listener, f"ready {listener.getsockname()[1]}")
    except ConfigError as error:
        print(error, flush=True)
        status = 2
sys.exit(status)
"""


@contextmanager
def server(mode: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(TESTS), mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_server_that_streams(signum: signal.Signals) -> None:
    with server("fast") as process:
        assert line(process) == "starting"
        ready, port = line(process).split()
        assert ready == "ready"
        body = {"model": "fake-model", "messages": [{"role": "user", "content": "x"}]}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        with httpx.stream("POST", url, json={**body, "stream": True}) as response:
            assert next(response.iter_text()).startswith("data: ")
            process.send_signal(signum)
            out, err = process.communicate(timeout=20)
    assert out == "stopped, aborted 1\n"
    assert process.returncode == 0, err


def test_signal_while_starting() -> None:
    with server("slow") as process:
        assert line(process) == "starting"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert "Traceback" not in err


def test_engine_that_cannot_start() -> None:
    with server("broken") as process:
        out, err = process.communicate(timeout=20)
    assert out.splitlines()[1:] == ["no such model"] and process.returncode == 2
    assert "Traceback" not in err


def test_taken_port_is_named() -> None:
    with bind(ServerConfig(port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}: cannot listen there .*in use"):
            bind(ServerConfig(port=port))


def test_unknown_host_is_named() -> None:
    with pytest.raises(ConfigError, match="--host 203.0.113.7"):
        bind(ServerConfig(host="203.0.113.7", port=0))
