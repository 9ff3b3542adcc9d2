"""The real engine process under the server: it dies or hangs while streams run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest
from fakes import tiny_model_folder
from server.fake_engine import Client, serving

from specrt.async_engine import AsyncEngine
from specrt.config import CacheConfig, EngineConfig, ModelConfig
from specrt.server.served_model import load_served_model

pytestmark = pytest.mark.anyio

BODY = {"model": "tiny", "prompt": "the weather", "temperature": 0, "ignore_eos": True}


async def stream(client: Client, begun: asyncio.Semaphore) -> list[str]:
    """Events of a stream that would take long; `begun` is released at the first."""
    events = []
    body = {**BODY, "stream": True, "max_tokens": 1900}
    async with client.http.stream("POST", "/v1/completions", json=body, timeout=60) as response:
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if line:
                events.append(line)
            if len(events) == 1 and line:
                begun.release()
    return events


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
async def test_eight_streams_end_with_an_error_and_the_next_request_is_answered(
    tmp_path: Path, signum: signal.Signals
) -> None:
    folder = tiny_model_folder(tmp_path, max_position_embeddings=2048)
    config = EngineConfig(
        model=ModelConfig(model_path=str(folder), served_model_name="tiny", num_threads=1),
        cache=CacheConfig(max_total_tokens=16384),
    )
    engine = AsyncEngine(config, max_silence_s=2.5)
    await engine.start()
    try:
        async with serving(engine, load_served_model(config), engine_config=config) as client:
            begun = asyncio.Semaphore(0)
            streams = [asyncio.create_task(stream(client, begun)) for _ in range(8)]
            for _ in streams:
                await begun.acquire()
            old = engine._process
            assert old is not None and old.pid is not None
            os.kill(old.pid, signum)
            for events in await asyncio.gather(*streams):
                error = json.loads(events[-1].removeprefix("data: "))["error"]
                assert "the engine process died" in error["message"]
                assert error["type"] == "server_error" and "data: [DONE]" not in events
            with pytest.raises(ProcessLookupError):
                os.kill(old.pid, 0)
            body = {**BODY, "max_tokens": 5}
            answer = await client.http.post("/v1/completions", json=body, timeout=60)
            assert answer.status_code == 200
            assert answer.json()["usage"]["completion_tokens"] == 5
            new = engine._process
            assert new is not None and new.pid not in (None, old.pid)
    finally:
        await engine.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(new.pid, 0)
