"""The HTTP application: its routes, each a thin line to a service."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response
from openai.types import Model
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse

from specrt.async_engine import AsyncEngine
from specrt.config import EngineConfig, ServerConfig
from specrt.server.access import AccessMiddleware, record_of
from specrt.server.admission import Admission
from specrt.server.body import parse_body, read_body
from specrt.server.chat import ChatService
from specrt.server.completions import CompletionService
from specrt.server.errors import install_error_handlers
from specrt.server.generation import Backend, Engine
from specrt.server.messages.routes import messages_routes
from specrt.server.messages.service import MessagesService
from specrt.server.metrics import ServerMetrics
from specrt.server.operations import operation_routes
from specrt.server.paths import TrailingSlashMiddleware
from specrt.server.protocol import ChatRequest, CompletionRequest
from specrt.server.responses.routes import response_routes
from specrt.server.responses.service import ResponseService
from specrt.server.responses.store import ResponseStore
from specrt.server.runner import bind, run
from specrt.server.served_model import ServedModel, load_served_model
from specrt.server.streaming import EventStream, until_disconnect
from specrt.server.tokenization import tokenization_routes


def create_app(
    config: ServerConfig, engine_config: EngineConfig, engine: Engine, model: ServedModel
) -> FastAPI:
    """The application; `state.admission` of it lets it drain.

    It uses the engine, and neither starts nor stops it.

    Args:
        config: of the server.
        engine_config: shown by /get_server_info.
        engine: answers when it is started.
        model: what is served.
    """
    metrics = ServerMetrics()
    admission = Admission(engine_config.scheduler.max_running_requests, config.max_queued_requests)
    backend = Backend(
        engine=engine, metrics=metrics, admission=admission, timeout_s=config.request_timeout
    )
    app = FastAPI(title="specrt", docs_url=None, redoc_url=None, openapi_url=None)
    install_error_handlers(app)
    app.state.admission = admission
    app.add_middleware(
        AccessMiddleware, metrics=metrics, admission=admission, api_key=config.api_key
    )
    app.add_middleware(TrailingSlashMiddleware)
    if config.cors_origins:  # outermost: a preflight carries no key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[origin.strip() for origin in config.cors_origins.split(",")],
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    app.include_router(_api_routes(model, backend))
    app.include_router(tokenization_routes(model))
    app.include_router(operation_routes(config, engine_config, model, backend))
    return app


def _json(message: BaseModel) -> Response:
    return Response(message.model_dump_json(exclude_unset=True), media_type="application/json")


def _api_routes(model: ServedModel, backend: Backend) -> APIRouter:
    """What OpenAI's clients call."""
    router = APIRouter(prefix="/v1")
    chat = ChatService(model, backend)
    completions = CompletionService(model, backend)

    def listed(name: str) -> Model:
        return Model(id=name, object="model", created=model.created, owned_by="specrt")

    @router.post("/chat/completions")
    async def create_chat_completion(request: Request) -> Response:
        body = parse_body(ChatRequest, await read_body(request))
        model.check_name(body.model)
        record = record_of(request.scope)
        if body.stream:
            return EventStream(chat.stream(body, record))
        return _json(await until_disconnect(request.receive, chat.complete(body, record)))

    @router.post("/completions")
    async def create_completion(request: Request) -> Response:
        body = parse_body(CompletionRequest, await read_body(request))
        model.check_name(body.model)
        record = record_of(request.scope)
        if body.stream:
            return EventStream(completions.stream(body, record))
        return _json(await until_disconnect(request.receive, completions.complete(body, record)))

    @router.get("/models")
    async def list_models() -> Response:
        return JSONResponse(
            {"object": "list", "data": [listed(name).to_dict() for name in model.names]}
        )

    @router.get("/models/{name:path}")
    async def get_model(name: str) -> Response:
        model.check_name(name)
        return _json(listed(name))

    router.include_router(messages_routes(MessagesService(model, chat), model.check_name))
    responses = ResponseService(chat, model.name, ResponseStore())
    router.include_router(response_routes(responses, model.check_name))
    return router


def serve(config: ServerConfig, engine_config: EngineConfig) -> int:
    """Serve until a signal; SIGTERM lets running requests finish first.

    Args:
        config: where to listen.
        engine_config: what to serve.

    Returns:
        Exit status: 0 after a signal.

    Raises:
        ConfigError: the address, a flag or a model file cannot be used.
        EngineError: the engine died while it was starting, or too often later.
    """
    # First the address: a taken port must not cost the time that loading a model takes.
    with bind(config) as listener:
        model = load_served_model(engine_config)
        engine = AsyncEngine(engine_config)
        app = create_app(config, engine_config, engine, model)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        ready = f"specrt serves {model.name} at http://{shown}:{port}/v1"
        return run(app, engine, listener, ready, drain_timeout_s=config.drain_timeout)
