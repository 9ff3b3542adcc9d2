"""The engine in its own process: streams, aborts, death."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes import tiny_model_folder

from specrt.async_engine import WATCH_S, AsyncEngine, Pulse
from specrt.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from specrt.errors import (
    ConfigError,
    ContextLengthError,
    EngineError,
    EngineUnavailableError,
)
from specrt.request import EngineRequest, RequestOutput, SamplingParams

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(
        EngineConfig(
            model=ModelConfig(model_path=str(folder), num_threads=1),
            cache=CacheConfig(max_total_tokens=1024),
        )
    )
    await engine.start()
    yield engine
    await engine.stop()


def request(request_id: str, max_tokens: int = 20) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=[10, 11, 12, 13],
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
    )


async def collect(engine: AsyncEngine, wanted: EngineRequest) -> list[RequestOutput]:
    return [output async for output in engine.generate(wanted)]


async def test_streams_aborts_queries_and_refusals(engine: AsyncEngine) -> None:
    results = await asyncio.gather(*(collect(engine, request(f"r{i}")) for i in range(3)))
    ids = [[t for o in outputs for t in o.token_ids] for outputs in results]
    assert len(ids[0]) == 20 and ids[0] == ids[1] == ids[2]

    with pytest.raises(ContextLengthError, match="512"):
        await collect(engine, request("long", max_tokens=600))

    stream = engine.generate(request("gone", max_tokens=400))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    for _ in range(50):
        stats = await engine.stats()
        if stats["num_running"] == 0:
            break
        await asyncio.sleep(0.02)
    assert stats["num_running"] == 0
    assert stats["num_held_slots"] == 0
    assert await engine.flush_cache()
    assert (await engine.stats())["num_cached_slots"] == 0


async def test_death_fails_what_is_in_flight_and_is_noticed(engine: AsyncEngine) -> None:
    stream = engine.generate(request("r", max_tokens=400))
    await anext(stream)
    assert engine._process is not None
    pid = engine._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="died"):
        async for _ in stream:
            pass
    assert not engine.is_healthy
    with pytest.raises(EngineUnavailableError, match="not running"):
        await engine.stats()
    outputs = await collect(engine, request("next"))  # waits for the new engine
    assert sum(len(o.token_ids) for o in outputs) == 20
    assert engine._process.pid != pid


async def test_an_engine_that_keeps_dying_is_given_up(engine: AsyncEngine) -> None:
    down = asyncio.create_task(engine.until_down())
    for _ in range(3):
        await engine._until_ready()
        assert not down.done()
        assert engine._process is not None
        engine._process.kill()
        while engine.is_healthy:
            await asyncio.sleep(0.02)
    with pytest.raises(EngineError, match="died 3 times within 60 s"):
        await down
    with pytest.raises(EngineUnavailableError, match="died 3 times"):
        await collect(engine, request("next"))


async def test_the_time_in_the_queue_is_told(folder: Path) -> None:
    config = EngineConfig(
        model=ModelConfig(model_path=str(folder), num_threads=1),
        cache=CacheConfig(max_total_tokens=1024),
        scheduler=SchedulerConfig(max_running_requests=1),
    )
    engine = AsyncEngine(config)
    await engine.start()
    waits: dict[str, float] = {}

    async def run(request_id: str) -> None:
        async for _ in engine.generate(
            request(request_id, max_tokens=100), lambda s: waits.__setitem__(request_id, s)
        ):
            pass

    await asyncio.gather(run("first"), run("second"))
    await engine.stop()
    assert 0 <= waits["first"] < waits["second"]


async def test_a_cancelled_start_and_a_stopped_engine_leave_no_process(folder: Path) -> None:
    engine = AsyncEngine(EngineConfig(model=ModelConfig(model_path=str(folder))))
    start = asyncio.create_task(engine.start())
    while engine._process is None:
        await asyncio.sleep(0.01)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert not engine._process.is_alive()


def test_silence_counts_only_while_somebody_listened() -> None:
    pulse, now = Pulse(100.0), 100.0
    for _ in range(60):
        now += WATCH_S
        silence = pulse.silence(now)
    assert silence == pytest.approx(60 * WATCH_S)
    now += 30  # this process was held up: nobody could have heard the engine
    assert pulse.silence(now) == 0
    assert pulse.silence(now + WATCH_S) == pytest.approx(WATCH_S), "it is listened to again"
    pulse.heard(now + 1.5 * WATCH_S)
    assert pulse.silence(now + 2 * WATCH_S) == pytest.approx(WATCH_S / 2)


async def test_a_bad_model_folder_is_a_config_error(tmp_path: Path) -> None:
    engine = AsyncEngine(EngineConfig(model=ModelConfig(model_path=str(tmp_path))))
    with pytest.raises(ConfigError, match="config.json"):
        await engine.start()
