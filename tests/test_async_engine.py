"""The engine in its own process: streams, aborts, death."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes import tiny_model_folder

from specrt import async_engine
from specrt.async_engine import AsyncEngine
from specrt.config import CacheConfig, EngineConfig, ModelConfig
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


async def test_an_engine_that_keeps_dying_stays_down(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_engine, "MAX_DEATHS", 1)
    engine._process.kill()
    while engine.is_healthy:
        await asyncio.sleep(0.02)
    with pytest.raises(EngineUnavailableError, match="too often"):
        await collect(engine, request("next"))


async def test_a_bad_model_folder_is_a_config_error(tmp_path: Path) -> None:
    engine = AsyncEngine(EngineConfig(model=ModelConfig(model_path=str(tmp_path))))
    with pytest.raises(ConfigError, match="config.json"):
        await engine.start()
