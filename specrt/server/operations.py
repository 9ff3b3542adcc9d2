"""What operators and load balancers call: health, metrics, information, load, cache."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from contextlib import aclosing
from typing import cast

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, PlainTextResponse

from specrt.config import EngineConfig, ServerConfig
from specrt.errors import RequestError, SpecrtError
from specrt.request import EngineRequest, SamplingParams
from specrt.server.access import record_of
from specrt.server.body import parse_body, read_body
from specrt.server.errors import BusyError
from specrt.server.generation import Backend, Generation
from specrt.server.info import load_info, model_info, server_info
from specrt.server.protocol import StrictModel
from specrt.server.served_model import ServedModel

# A healthy engine answers a one-token request within this even when it is full.
_PROBE_S = 30.0


class AbortRequest(StrictModel):
    """Body of POST /abort_request, in SGLang's keys."""

    rid: str | None = None
    abort_all: bool = False


def operation_routes(
    config: ServerConfig, engine_config: EngineConfig, model: ServedModel, backend: Backend
) -> APIRouter:
    """The routes.

    Args:
        config: of the server.
        engine_config: of the engine.
        model: what is served.
        backend: what runs it.
    """
    router = APIRouter()
    engine, metrics = backend.engine, backend.metrics

    def problem() -> str:
        if backend.admission.is_draining:
            return "the server is shutting down\n"
        return "" if engine.is_healthy else "the engine is not healthy\n"

    @router.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        return PlainTextResponse(problem() or "ok\n", 503 if problem() else 200)

    @router.get("/health_generate")
    async def health_generate(request: Request) -> Response:
        """Health that is proven by a token."""
        if problem():
            return PlainTextResponse(problem(), 503)
        record = record_of(request.scope)
        record.generation_id = f"health-{uuid.uuid4().hex}"
        probe = EngineRequest(
            request_id=record.generation_id,
            prompt_token_ids=model.tokenizer.encode("a") or [0],
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            namespace="specrt-health",  # shares no prefix with anybody
        )
        try:
            await asyncio.wait_for(_finish(Generation(backend, record, [probe])), _PROBE_S)
        except asyncio.TimeoutError:
            return PlainTextResponse(f"no token within {_PROBE_S:.0f} s\n", 503)
        except SpecrtError as error:
            return PlainTextResponse(f"{error}\n", 503)
        return PlainTextResponse("ok\n")

    @router.get("/metrics")
    async def show_metrics() -> Response:
        stats = None
        # A scrape must not fail with the engine: the server's own metrics are most telling then.
        with contextlib.suppress(SpecrtError):
            stats = await engine.stats()
        text = metrics.render(stats, is_up=engine.is_healthy)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    @router.get("/get_server_info")
    @router.get("/server_info")
    async def show_server_info() -> Response:
        stats = await engine.stats()
        return JSONResponse(server_info(config, engine_config, model.name, stats))

    @router.get("/get_model_info")
    @router.get("/model_info")
    async def show_model_info() -> Response:
        return JSONResponse(model_info(engine_config, model))

    @router.get("/get_load")
    async def show_load() -> Response:
        return JSONResponse(load_info(await engine.stats()))

    @router.api_route("/flush_cache", methods=["GET", "POST"])
    async def flush_cache() -> Response:
        if not await engine.flush_cache():
            raise BusyError("the cache is in use: requests are running; try again when they end")
        return PlainTextResponse("cache flushed\n")

    @router.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        body = parse_body(AbortRequest, await read_body(request), refused={})
        if body.abort_all == (body.rid is not None):
            raise RequestError(
                "`rid`: expected the id of a request (of its X-Request-Id header, or of its"
                " response), or abort_all: true instead",
                param="rid",
                code="invalid_value",
            )
        return JSONResponse({"num_aborted": backend.abort(body.rid)})

    return router


async def _finish(generation: Generation) -> None:
    async with aclosing(generation.outputs()) as outputs:
        async for _, output in outputs:
            generation.record.finish_reasons += (
                [cast(str, output.finish_reason)] if output.finish_reason else []
            )
