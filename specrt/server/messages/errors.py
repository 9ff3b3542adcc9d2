"""Errors as HTTP answers in the shape that Anthropic's clients parse.

Every error body is {"type": "error", "error": {"type", "message"}, "request_id"}.
"""

from __future__ import annotations

import re

from anthropic.types import shared
from starlette.responses import Response

from specrt.errors import ContextLengthError
from specrt.server.errors import error_headers, error_message, error_status, log_unforeseen

# Where this shape is spoken; what lies below, too, though it may be no route.
PATH = "/v1/messages"
# Anthropic's own number for "no capacity right now"; its clients wait and try again.
OVERLOADED = 529

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
# Paths in chat requests, which errors of shared code name -> paths in requests of this API.
_PATHS = (
    (re.compile(r"\b(tools\[\d+\])\.function\.parameters\b"), r"\1.input_schema"),
    (re.compile(r"\b(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"\bresponse_format\.json_schema\b"), "output_config.format"),
)


def is_messages_path(path: str) -> bool:
    """Is this a path of the Messages API?"""
    return path == PATH or path.startswith(PATH + "/")


def _status(error: Exception) -> int:
    status = error_status(error)
    return OVERLOADED if status == 503 else status


def error_body(error: Exception, request_id: str) -> shared.ErrorResponse:
    """The body for `error`; an error that specrt did not raise on purpose shows no details."""
    message, status = error_message(error), _status(error)
    for path, replacement in _PATHS:
        message = path.sub(replacement, message)
    if isinstance(error, ContextLengthError):
        # Claude Code shortens a conversation when it reads these words.
        message = f"prompt is too long: {message}"
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    # Not validated: the union of error types lacks request_too_large, which the API has.
    return shared.ErrorResponse.model_construct(
        type="error",
        error=shared.APIErrorObject.model_construct(type=kind, message=message),
        request_id=request_id,
    )


def _json(error: Exception, request_id: str) -> bytes:
    return error_body(error, request_id).model_dump_json(warnings=False).encode()


def error_response(error: Exception, request_id: str) -> Response:
    """The answer for `error`."""
    log_unforeseen(error)
    return Response(
        _json(error, request_id),
        _status(error),
        headers=error_headers(error),
        media_type="application/json",
    )


def error_event(error: Exception, request_id: str) -> bytes:
    """The server-sent event that ends a stream which has begun; no message_stop follows it."""
    log_unforeseen(error)
    return b"event: error\ndata: " + _json(error, request_id) + b"\n\n"
