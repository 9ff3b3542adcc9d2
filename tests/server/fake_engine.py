"""A scripted engine, a byte tokenizer, and a real HTTP server around them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import random
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import uvicorn

from specrt.config import EngineConfig, GrammarConfig, ServerConfig
from specrt.errors import EngineError, SchemaError
from specrt.grammars.base import GrammarRecipe, Unenforced
from specrt.grammars.chat import ChatRenderer
from specrt.grammars.formats import load_format
from specrt.grammars.prompt_builder import PromptBuilder
from specrt.grammars.turn_memo import TurnMemo
from specrt.request import (
    DraftStats,
    EngineRequest,
    FinishReason,
    RequestOutput,
    RequestStats,
    TokenLogprob,
)
from specrt.server.admission import Admission
from specrt.server.app import create_app
from specrt.server.generation import Backend, Engine
from specrt.server.metrics import ServerMetrics
from specrt.server.served_model import ServedModel

MODEL = "fake-model"
SPECIAL = ("<|im_start|>", "<|im_end|>")
EOS = 257
VOCAB_SIZE = 258
CONTEXT_LENGTH = 4096


class ByteTokenizer:
    """One token a byte, and the special tokens of the Hermes template."""

    eos_token_ids = frozenset({EOS})
    special_token_ids = frozenset(range(256, 256 + len(SPECIAL)))

    def encode(self, text: str) -> list[int]:
        for index, special in enumerate(SPECIAL):
            if special in text:
                before, _, after = text.partition(special)
                return [*self.encode(before), 256 + index, *self.encode(after)]
        return self.encode_plain(text)

    def encode_plain(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(self.token_bytes(i) for i in token_ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else SPECIAL[token_id - 256].encode()


class FakeCompiler:
    """Refuses `not`, cannot enforce `uniqueItems`, takes everything else."""

    def __init__(self) -> None:
        self.recipes: list[GrammarRecipe] = []

    def compile(self, recipe: GrammarRecipe) -> FakeCompiler:
        self.recipes.append(recipe)
        schemas = {tool.name: tool.parameters for tool in recipe.tools} or {"": recipe.schema}
        for schema in schemas.values():
            if '"not"' in schema:
                raise SchemaError("tools[0]: cannot enforce 'not' at /not", keyword="not")
        self.unenforced = tuple(
            Unenforced(name, "/properties/a/uniqueItems", "uniqueItems")
            for name, schema in schemas.items()
            if "uniqueItems" in schema
        )
        return self


@dataclass
class Script:
    """What the engine says for one request.

    `pieces` are the texts of its steps; an exception among them is raised, an event is waited for.
    """

    pieces: Sequence[str | Exception | asyncio.Event]
    finish: FinishReason = "stop"
    cached: int = 3
    stop_cut: bool = False


def chop(text: str, seed: int) -> list[str]:
    """`text` in pieces of random size; every piece is a step of a speculating engine."""
    rng, pieces = random.Random(seed), []
    while text:
        size = rng.randint(1, rng.choice((1, 3, 12)))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


@dataclass
class FakeEngine:
    """Follows a script per request; keeps what it was asked and what was aborted."""

    script: Callable[[EngineRequest], Script]
    info: dict[str, object] = field(default_factory=dict)
    is_healthy: bool = True
    is_busy: bool = False
    requests: list[EngineRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def until_down(self) -> None:
        await asyncio.Event().wait()

    async def generate(
        self, request: EngineRequest, on_start: Callable[[float], None]
    ) -> AsyncIterator[RequestOutput]:
        self.requests.append(request)
        on_start(0.25)
        script = self.script(request)
        stats = RequestStats(
            num_prompt_tokens=len(request.prompt_token_ids), num_cached_tokens=script.cached
        )
        is_done = False
        try:
            for index, piece in enumerate(script.pieces):
                await asyncio.sleep(0)
                if isinstance(piece, Exception):
                    is_done = True
                    raise piece
                if isinstance(piece, asyncio.Event):
                    self.waiting.set()
                    await piece.wait()
                    continue
                is_done = index == len(script.pieces) - 1
                yield self._output(request, script, stats, piece, is_done)
        finally:
            if not is_done:
                self.aborted.append(request.request_id)

    def _output(
        self,
        request: EngineRequest,
        script: Script,
        stats: RequestStats,
        piece: str,
        is_last: bool,
    ) -> RequestOutput:
        token_ids = list(piece.encode())
        if is_last and script.finish == "stop":
            token_ids.append(EOS)
        logprobs = None
        if request.sampling.logprobs is not None:
            top = tuple((65 + k, -2.0 - k) for k in range(request.sampling.logprobs))
            logprobs = [TokenLogprob(i, -0.5, top) for i in token_ids]
        stats = RequestStats(
            num_prompt_tokens=stats.num_prompt_tokens,
            num_cached_tokens=stats.num_cached_tokens,
            num_output_tokens=(num := self._count(request, len(token_ids))),
            num_passes=max(1, num // 2),
            drafts=DraftStats(
                drafted={"forced": {"key": num}, "history": {"value": 3, "key": 1}},
                accepted={"forced": {"key": num // 2}, "history": {"value": 1, "key": 0}},
                tokens_of_passes={2: max(1, num // 2)},
                verify_s=0.25,
            ),
        )
        return RequestOutput(
            request_id=request.request_id,
            token_ids=token_ids,
            text=piece,
            logprobs=logprobs,
            finish_reason=script.finish if is_last else None,
            stats=stats,
            stop_cut=is_last and script.stop_cut,
        )

    def _count(self, request: EngineRequest, num: int) -> int:
        self._counts = getattr(self, "_counts", {})
        self._counts[request.request_id] = self._counts.get(request.request_id, 0) + num
        return int(self._counts[request.request_id])

    async def stats(self) -> dict[str, object]:
        if not self.is_healthy:
            raise EngineError("the engine is not running")
        return {
            "prompt_tokens_total": 200,
            "cached_tokens_total": 150,
            "output_tokens_total": 90,
            "decisions_total": 30,
            "passes_total": 31,
            "num_running": 1,
            "num_waiting": 2,
            "num_total_slots": 1000,
            "num_free_slots": 600,
            "num_cached_slots": 300,
            "num_held_slots": 100,
            "last_gen_throughput": 12.5,
            "drafted_total": {"forced": {"key": 50}, "history": {"value": 20}},
            "accepted_total": {"forced": {"key": 49}, "history": {"value": 5}},
            "tokens_of_passes_total": {1: 7, 5: 2, 60: 1},
            "context_length": CONTEXT_LENGTH,
        }

    async def flush_cache(self) -> bool:
        return not self.is_busy


def says(*pieces: str | Exception | asyncio.Event, **settings: Any) -> FakeEngine:
    """An engine that says the same for every request."""
    return FakeEngine(lambda request: Script(pieces, **settings))


def make_model(**settings: Any) -> ServedModel:
    tool_format, tokenizer = load_format("hermes"), ByteTokenizer()
    renderer = ChatRenderer(None, tool_format, special_tokens=SPECIAL)
    fields: dict[str, Any] = {
        "name": MODEL,
        "context_length": CONTEXT_LENGTH,
        "vocab_size": VOCAB_SIZE,
        "tokenizer": tokenizer,
        "prompts": PromptBuilder(renderer, tokenizer, TurnMemo()),
        "compiler": FakeCompiler(),
        "tool_format": tool_format,
        "grammar": GrammarConfig(),
    }
    return ServedModel(**{**fields, **settings})


def make_backend(engine: Engine) -> Backend:
    """A backend without limits."""
    return Backend(engine=engine, metrics=ServerMetrics(), admission=Admission(1000, 0))


class Client:
    """Two ways to talk to a running server, and the server's own door."""

    def __init__(self, url: str, http: httpx.AsyncClient, admission: Admission) -> None:
        self.url = url
        self.http = http
        self.admission = admission

    @functools.cached_property
    def openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    async def aclose(self) -> None:
        if "openai" in vars(self):
            await self.openai.close()

    async def chat(self, **body: Any) -> Any:
        """POST /v1/chat/completions; returns the httpx response."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **body}
        # Not json=: escapes let lone surrogates through, as other clients do.
        return await self.http.post("/v1/chat/completions", content=json.dumps(body))

    async def complete(self, **body: Any) -> Any:
        """POST /v1/completions; returns the httpx response."""
        body = {"model": MODEL, "prompt": "a", **body}
        return await self.http.post("/v1/completions", content=json.dumps(body))


@contextlib.asynccontextmanager
async def serving(
    engine: Engine,
    model: ServedModel | None = None,
    config: ServerConfig | None = None,
    engine_config: EngineConfig | None = None,
) -> AsyncIterator[Client]:
    """Serve on a free port, in this event loop."""
    config, engine_config = config or ServerConfig(), engine_config or EngineConfig()
    app = create_app(config, engine_config, engine, model or make_model())
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    )
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        while not server.started:
            await asyncio.sleep(0.005)
        # No TLS here: loading the certificates would take longer than the test.
        http = httpx.AsyncClient(base_url=url, timeout=10, verify=False)
        client = Client(url, http, app.state.admission)
        async with http, contextlib.aclosing(client):
            yield client
    finally:
        server.should_exit = True
        await task
        listener.close()
