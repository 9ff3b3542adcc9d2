"""What surrounds every request: id, API key, last-resort error answer, log line, metrics."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import time
import uuid
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specrt.request import RequestStats
from specrt.server.admission import Admission
from specrt.server.errors import CLIENT_CLOSED, AuthenticationError, error_response, error_status
from specrt.server.messages import errors as messages_errors
from specrt.server.metrics import ServerMetrics

logger = logging.getLogger("specrt.server")

# Probes and scrapers carry no key, and would fill the log.
OPEN_PATHS = frozenset({"/health", "/metrics"})
_PLAIN = re.compile(r"[!#-~]+")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(slots=True)
class RequestRecord:
    """What one HTTP request did, for its log line and the metrics.

    Attributes:
        request_id: from or for the X-Request-Id header.
        tenant: digest of the API key that the client sent; "" = none.
        started: time.perf_counter() at arrival (seconds).
        created: Unix time at arrival (seconds).
        status: HTTP status; of the error event when a stream broke, 499 when the client left.
        generation_id: id in the response and, with the choice appended, in the engine.
        queue_s: longest wait of a choice for its slots in the engine (seconds); None before.
        choices: the latest counts of each choice.
        finish_reasons: of the finished choices.
        error: message of the error that was answered.
    """

    request_id: str
    tenant: str = ""
    started: float = field(default_factory=time.perf_counter)
    created: int = field(default_factory=lambda: int(time.time()))
    status: int = 0
    generation_id: str = ""
    queue_s: float | None = None
    choices: dict[int, RequestStats] = field(default_factory=dict)
    finish_reasons: list[str] = field(default_factory=list)
    error: str = ""

    def fields(self) -> dict[str, object]:
        """What a generation did, by the names of the log line; empty when none began."""
        fields: dict[str, object] = {}
        if self.queue_s is not None:
            fields |= {"generation": self.generation_id, "queue_ms": round(self.queue_s * 1000)}
        if self.choices:
            first, choices = next(iter(self.choices.values())), self.choices.values()
            num_output = sum(stats.num_output_tokens for stats in choices)
            num_passes = sum(stats.num_passes for stats in choices)
            fields |= {
                "prompt": first.num_prompt_tokens,
                "cached": first.num_cached_tokens,
                "output": num_output,
                "passes": num_passes,
                "acceptance_length": round(num_output / num_passes, 2) if num_passes else 0.0,
                "finish": ",".join(dict.fromkeys(self.finish_reasons)) or "unfinished",
            }
        if self.error:
            fields["error"] = self.error
        return fields


def record_of(scope: Scope) -> RequestRecord:
    """The record that the middleware keeps for this request."""
    record = scope["state"]["record"]
    assert isinstance(record, RequestRecord)
    return record


class AccessMiddleware:
    """Pure ASGI middleware: it sees the end of a stream, and leaves `receive` to the routes."""

    def __init__(
        self, app: ASGIApp, *, metrics: ServerMetrics, admission: Admission, api_key: str | None
    ) -> None:
        self.app = app
        self.metrics = metrics
        self._admission = admission
        self._api_key = api_key.encode() if api_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_messages = messages_errors.is_messages_path(scope["path"])
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        keys = _keys(headers)
        record = RequestRecord(request_id, hashlib.sha256(keys[0]).hexdigest() if keys else "")
        scope.setdefault("state", {})["record"] = record
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                record.status = record.status or message["status"]
                sent = MutableHeaders(scope=message)
                sent["X-Request-Id"] = request_id
                if is_messages:
                    sent["request-id"] = request_id
            await send(message)

        try:
            if scope["path"] in OPEN_PATHS:
                await self.app(scope, receive, send_with_id)
            else:
                self._authenticate(headers)
                with self._admission.http_request():
                    await self.app(scope, receive, send_with_id)
        except Exception as error:
            record.status = error_status(error)
            record.error = str(error)
            if record.status == CLIENT_CLOSED:
                pass
            elif has_started:
                logger.exception("%s: the response could not be completed", request_id)
            else:
                answer: Response = (
                    messages_errors.error_response(error, request_id)
                    if is_messages
                    else error_response(error)
                )
                record.status = answer.status_code
                await answer(scope, receive, send_with_id)
        finally:
            self._finish(scope, record)

    def _authenticate(self, headers: Headers) -> None:
        if self._api_key is None:
            return
        given = _keys(headers)
        if not given and " " not in headers.get("authorization", "").strip():
            raise AuthenticationError(
                "no API key: expected the header `Authorization: Bearer KEY` or `x-api-key: KEY`"
                " with the key that the server was started with (--api-key)"
            )
        if not any(hmac.compare_digest(key, self._api_key) for key in given):
            raise AuthenticationError(
                "wrong API key: it is not the one that the server was started with (--api-key)"
            )

    def _finish(self, scope: Scope, record: RequestRecord) -> None:
        path, took_s = scope["path"], time.perf_counter() - record.started
        if path in OPEN_PATHS:
            return
        # A route template, not the path: clients must not be able to add label values.
        route = getattr(scope.get("route"), "path", "unknown")
        # A status of 0: cancelled from outside before there was an answer.
        status = record.status or CLIENT_CLOSED
        self.metrics.count_request(route, status)
        if record.choices and record.status == 200:
            self.metrics.e2e_s.observe(took_s)
        fields = {
            "id": record.request_id,
            "method": scope["method"],
            "path": path,
            "status": status,
            "duration_ms": round(took_s * 1000),
            **record.fields(),
        }
        logger.info("%s", " ".join(f"{name}={_logged(fields[name])}" for name in fields))


def _keys(headers: Headers) -> list[bytes]:
    """The API keys that a client sent.

    Clients with both an API key and a token send both; either may be the one meant for us.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return [key.encode() for key in (bearer, headers.get("x-api-key", "").strip()) if key]


def _logged(value: object) -> str:
    """A value in the log line; quoted unless it is one plain word, so that a line stays one."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
