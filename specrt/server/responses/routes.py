"""The routes under /v1/responses."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse

from specrt.errors import RequestError
from specrt.server.access import record_of
from specrt.server.body import parse_body, read_body
from specrt.server.responses.output import to_json
from specrt.server.responses.request import REFUSED, REFUSED_VALUES, ResponsesRequest
from specrt.server.responses.service import ResponseService
from specrt.server.streaming import EventStream, until_disconnect

MAX_PAGE = 100
_FLAGS = {"stream": "ended responses are not streamed again", "include_obfuscation": "no padding"}


def response_routes(service: ResponseService, check_model: Callable[[str], None]) -> APIRouter:
    """What OpenAI's clients call under /v1.

    Args:
        service: answers.
        check_model: refuses other models than the one that is served.
    """
    router = APIRouter()

    @router.post("/responses")
    async def create_response(request: Request) -> Response:
        body = parse_body(
            ResponsesRequest,
            await read_body(request),
            refused=REFUSED,
            refused_values=REFUSED_VALUES,
        )
        check_model(body.model)
        record = record_of(request.scope)
        if body.stream:
            return EventStream(service.stream(body, record))
        return _json(await until_disconnect(request.receive, service.complete(body, record)))

    @router.get("/responses/{response_id}")
    async def get_response(request: Request, response_id: str) -> Response:
        _check_query(request.query_params, "include", "stream", "include_obfuscation")
        return _json(service.get(response_id))

    @router.delete("/responses/{response_id}")
    async def delete_response(request: Request, response_id: str) -> Response:
        _check_query(request.query_params)
        await service.delete(response_id)
        # The package has no type for it.
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    @router.post("/responses/{response_id}/cancel")
    async def cancel_response(request: Request, response_id: str) -> Response:
        _check_query(request.query_params)
        return _json(await service.cancel(response_id))

    @router.get("/responses/{response_id}/input_items")
    async def list_input_items(request: Request, response_id: str) -> Response:
        query = request.query_params
        _check_query(query, "include", "after", "limit", "order")
        limit, order = query.get("limit", "20"), query.get("order", "desc")
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:9]) <= MAX_PAGE):
            raise _query_error("limit", f"a number from 1 to {MAX_PAGE}", limit)
        if order not in ("asc", "desc"):
            raise _query_error("order", "'asc' or 'desc'", order)
        page = service.input_items(
            response_id,
            after=query.get("after"),
            limit=int(limit),
            newest_first=order == "desc",
        )
        return _json(page)

    return router


def _json(message: BaseModel) -> Response:
    return Response(to_json(message), media_type="application/json")


def _check_query(query: QueryParams, *known: str) -> None:
    """Refuse parameters that would be ignored; `include` names only what is always shown."""
    for name in query:
        if name.removesuffix("[]") not in known:
            raise RequestError(
                f"`{name}`: unknown or unsupported query parameter; remove it",
                param=name,
                code="unknown_parameter",
            )
    for name, reason in _FLAGS.items():
        if query.get(name, "false").lower() != "false":
            raise RequestError(
                f"`{name}`: {reason}; send false or leave it out",
                param=name,
                code="unsupported_value",
            )


def _query_error(name: str, expected: str, got: str) -> RequestError:
    return RequestError(
        f"`{name}`: expected {expected}, got {got[:40]!r}", param=name, code="invalid_value"
    )
