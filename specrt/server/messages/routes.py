"""The routes of the Messages API, below /v1."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from specrt.server.access import record_of
from specrt.server.body import parse_body, read_body
from specrt.server.messages.errors import error_event
from specrt.server.messages.protocol import (
    REFUSED,
    REFUSED_VALUES,
    CountTokensRequest,
    MessagesRequest,
)
from specrt.server.messages.service import MessagesService
from specrt.server.streaming import EventStream, until_disconnect


def messages_routes(service: MessagesService, check_model: Callable[[str], None]) -> APIRouter:
    """What Anthropic's clients call.

    Args:
        service: answers.
        check_model: raises NotFoundError for a model that is not served.
    """
    router = APIRouter(prefix="/messages")
    parse = functools.partial(parse_body, refused=REFUSED, refused_values=REFUSED_VALUES)

    @router.post("")
    async def create_message(request: Request) -> Response:
        body = parse(MessagesRequest, await read_body(request))
        check_model(body.model)
        record = record_of(request.scope)
        if body.stream:
            on_error = functools.partial(error_event, request_id=record.request_id)
            return EventStream(service.stream(body, record), on_error)
        return _json(await until_disconnect(request.receive, service.complete(body, record)))

    @router.post("/count_tokens")
    async def count_tokens(request: Request) -> Response:
        body = parse(CountTokensRequest, await read_body(request))
        check_model(body.model)
        return _json(await until_disconnect(request.receive, service.count_tokens(body)))

    return router


def _json(message: BaseModel) -> Response:
    return Response(message.model_dump_json(exclude_unset=True), media_type="application/json")
