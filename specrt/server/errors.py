"""Errors as HTTP answers in the shape that OpenAI's clients parse.

Every error body is {"error": {"message", "type", "param", "code"}}.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

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


class RoutingError(RequestError):
    """The framework found no route, or none for this method.

    Attributes:
        headers: of the answer.
    """

    def __init__(
        self, message: str, status: int, code: str, headers: Mapping[str, str] | None
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.headers = headers or {}


class BodyTooLargeError(RequestError):
    """The request body is larger than the server reads."""

    status = 413


class BusyError(RequestError):
    """The operation needs an idle engine."""


class RequestTimeoutError(SpecrtError):
    """The request took longer than --request-timeout; what it ran in the engine was aborted."""

    status = 504


class AbortedError(RequestError):
    """Somebody ended the request with /abort_request."""

    status = 410  # no client sends the request again on its own, as for 409 and 5xx

    def __init__(self) -> None:
        super().__init__("the request was ended by /abort_request", code="request_aborted")


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


def error_message(error: Exception) -> str:
    """What the client may read; an error that specrt did not raise on purpose shows no details."""
    is_ours = isinstance(error, SpecrtError)
    return str(error) if is_ours else "internal error; the server's log has the details"


def error_body(error: Exception) -> dict[str, object]:
    """The JSON body for `error`."""
    param: str | None = None
    code: str | None = None
    if isinstance(error, RequestError):
        param, code = error.param, error.code
    elif isinstance(error, SpecrtError):
        code = "request_timeout" if isinstance(error, RequestTimeoutError) else "engine_error"
    return {
        "error": {
            "message": error_message(error),
            "type": _kind(error_status(error)),
            "param": param,
            "code": code,
        }
    }


def error_status(error: Exception) -> int:
    """The HTTP status for `error`: its own `status`, 500 when it has none."""
    status = getattr(error, "status", 500)
    return status if isinstance(status, int) else 500


def error_headers(error: Exception) -> dict[str, str]:
    """The headers of the answer for `error`."""
    status = error_status(error)
    headers = dict(error.headers) if isinstance(error, RoutingError) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    retry_after = getattr(error, "retry_after", QUEUE_RETRY_S if status == 429 else None)
    if isinstance(retry_after, int):
        headers["Retry-After"] = str(retry_after)
    return headers


def error_response(error: Exception) -> JSONResponse:
    """The answer for `error`."""
    log_unforeseen(error)
    return JSONResponse(error_body(error), error_status(error), headers=error_headers(error))


def error_event(error: Exception) -> bytes:
    """The server-sent event that ends a stream which has begun; no [DONE] follows it."""
    log_unforeseen(error)
    return b"data: " + json.dumps(error_body(error)).encode() + b"\n\n"


def log_unforeseen(error: Exception) -> None:
    """Errors raised on purpose are in the request's log line; for others the place matters."""
    if error_status(error) >= 500 and not isinstance(error, SpecrtError):
        logger.error("%s: %s", type(error).__name__, error, exc_info=error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Routing errors of the framework, as ours: AccessMiddleware answers in the path's shape."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    message, code = str(error.detail), "http_error"
    if error.status_code == 404:
        message = f"no such route: {what}; the API is under /v1 (GET /v1/models, say)"
        code = "not_found"
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"wrong method: {what}; this route takes {allowed}"
        code = "method_not_allowed"
    raise RoutingError(message, error.status_code, code, error.headers)


def install_error_handlers(app: FastAPI) -> None:
    """Let AccessMiddleware answer all errors of `app`, those of its routing too."""
    app.add_exception_handler(HTTPException, _on_http_exception)
