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
from specrt.errors import ConfigError, EngineError, SpecrtError
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
    async def until_down(self):
        if sys.argv[2] == "dies":
            raise EngineError("the engine died 3 times")
        # A line on standard input lets the stream go on.
        asyncio.get_running_loop().add_reader(0, go_on.set)
        await super().until_down()

go_on = asyncio.Event()
engine = Engine(says("a", go_on, "b").script)
config = ServerConfig(port=0)
with bind(config) as listener:
    app = create_app(config, EngineConfig(), engine, make_model())
    try:
        ready = f"ready {listener.getsockname()[1]}"
        status = run(app, engine, listener, ready, drain_timeout_s=float(sys.argv[3]))
    except SpecrtError as error:
        print(error, flush=True)
        status = 2
sys.exit(status)
"""


@contextmanager
def server(mode: str, drain_timeout_s: float = 60) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(TESTS), mode, str(drain_timeout_s)],
        stdin=subprocess.PIPE,
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


@contextmanager
def streaming(process: subprocess.Popen[str]) -> Iterator[tuple[str, Iterator[str]]]:
    """The server's URL and the rest of a stream that has begun and waits."""
    assert line(process) == "starting"
    ready, port = line(process).split()
    assert ready == "ready"
    url = f"http://127.0.0.1:{port}"
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=30) as response:
        texts = response.iter_text()
        assert next(texts).startswith("data: ")
        yield url, texts


def wait_until_draining(url: str) -> None:
    while httpx.get(f"{url}/health").status_code != 503:
        pass


def test_sigterm_lets_a_stream_finish_and_refuses_what_is_new() -> None:
    with server("fast") as process, streaming(process) as (url, rest):
        process.send_signal(signal.SIGTERM)
        wait_until_draining(url)
        refused = httpx.get(f"{url}/v1/models")
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
        assert "shutting down" in refused.json()["error"]["message"]
        out, err = process.communicate("go on\n", timeout=20)
        assert "".join(rest).endswith("data: [DONE]\n\n")
    assert out == "stopped, aborted 0\n"
    assert process.returncode == 0, err


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(signum: signal.Signals) -> None:
    with server("fast") as process, streaming(process) as (url, _):
        process.send_signal(signal.SIGTERM)
        wait_until_draining(url)
        process.send_signal(signum)
        out, err = process.communicate(timeout=20)
    assert out == "stopped, aborted 0\n", "the engine goes first, what is in flight then"
    assert process.returncode == 0, err


@pytest.mark.parametrize(
    ("signum", "drain_timeout_s"), [(signal.SIGTERM, 0.1), (signal.SIGINT, 60)]
)
def test_a_stream_that_does_not_finish_in_time_is_ended(
    signum: signal.Signals, drain_timeout_s: float
) -> None:
    with server("fast", drain_timeout_s) as process, streaming(process):
        process.send_signal(signum)
        out, err = process.communicate(timeout=20)
    assert out == "stopped, aborted 0\n"
    assert process.returncode == 0, err


def test_an_engine_that_is_down_for_good_ends_the_server() -> None:
    with server("dies") as process:
        out, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert out.splitlines()[-2:] == ["stopped, aborted 0", "the engine died 3 times"]
    assert "Traceback" not in err


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
