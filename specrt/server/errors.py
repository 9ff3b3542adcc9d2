"""Errors as HTTP answers in the shape that OpenAI's clients parse.

Every error body is {"error": {"message", "type", "param", "code"}}.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from specrt.errors import RequestError, SpecrtError

logger = logging.getLogger(__name__)

# nginx's number for a client that went away; nobody receives it, the log and the metrics show it.
CLIENT_CLOSED = 499
# Seconds after which a full queue is worth another try; an error may state its own.
QUEUE_RETRY_S = 1


class AuthenticationError(RequestError):
    """The API key is missing or wrong."""

    status = 401

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key")


class NotFoundError(RequestError):
    """There is no such route or model."""

    status = 404


class BodyTooLargeError(RequestError):
    """The request body is larger than the server reads."""

    status = 413


class BusyError(RequestError):
    """The operation needs an idle engine."""


class RequestTimeoutError(SpecrtError):
    """The request took longer than --request-timeout; what it ran in the engine was aborted."""

    status = 504


class ClientGone(Exception):
    """The client closed the connection before it had its answer."""

    status = CLIENT_CLOSED

    def __init__(self) -> None:
        super().__init__("the client went away")


def _kind(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def error_body(error: Exception) -> dict[str, object]:
    """The JSON body for `error`; an error that specrt did not raise on purpose shows no details."""
    if isinstance(error, RequestError):
        message, param, code = error.message, error.param, error.code
    elif isinstance(error, SpecrtError):
        code = "request_timeout" if isinstance(error, RequestTimeoutError) else "engine_error"
        message, param = str(error), None
    else:
        message, param, code = "internal error; the server's log has the details", None, None
    return {
        "error": {
            "message": message,
            "type": _kind(error_status(error)),
            "param": param,
            "code": code,
        }
    }


def error_status(error: Exception) -> int:
    """The HTTP status for `error`: its own `status`, 500 when it has none."""
    status = getattr(error, "status", 500)
    return status if isinstance(status, int) else 500


def error_response(error: Exception) -> JSONResponse:
    """The answer for `error`."""
    status = error_status(error)
    _log_unforeseen(error)
    headers: dict[str, str] = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    retry_after = getattr(error, "retry_after", QUEUE_RETRY_S if status == 429 else None)
    if isinstance(retry_after, int):
        headers["Retry-After"] = str(retry_after)
    return JSONResponse(error_body(error), status, headers=headers)


def error_event(error: Exception) -> bytes:
    """The server-sent event that ends a stream which has begun; no [DONE] follows it."""
    _log_unforeseen(error)
    return b"data: " + json.dumps(error_body(error)).encode() + b"\n\n"


def _log_unforeseen(error: Exception) -> None:
    """Errors raised on purpose are in the request's log line; for others the place matters."""
    if error_status(error) >= 500 and not isinstance(error, SpecrtError):
        logger.error("%s: %s", type(error).__name__, error, exc_info=error)


def _routing_response(
    status: int, message: str, code: str, headers: Mapping[str, str] | None
) -> JSONResponse:
    body = {"message": message, "type": _kind(status), "param": None, "code": code}
    return JSONResponse({"error": body}, status, headers=headers)


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    """Routing errors of the framework: no such route, wrong method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        message = f"no such route: {what}; the API is under /v1 (GET /v1/models, say)"
        return _routing_response(404, message, "not_found", error.headers)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"wrong method: {what}; this route takes {allowed}"
        return _routing_response(405, message, "method_not_allowed", error.headers)
    return _routing_response(error.status_code, str(error.detail), "http_error", error.headers)


def install_error_handlers(app: FastAPI) -> None:
    """Let `app` answer routing errors in OpenAI's shape; all others reach AccessMiddleware."""
    app.add_exception_handler(HTTPException, _on_http_exception)
