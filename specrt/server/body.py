"""From the bytes of a request body to a validated request, with errors that say where."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn, TypeVar

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect

from specrt.errors import RequestError
from specrt.grammars.json_style import repair_surrogates
from specrt.server.errors import BodyTooLargeError, ClientGone
from specrt.server.protocol import StrictModel
from specrt.server.refused import REFUSED, REFUSED_VALUES

# About 8M tokens of text: far above any context, far below what would hurt the server.
MAX_BODY_BYTES = 32 * 2**20

_Request = TypeVar("_Request", bound=StrictModel)


async def read_body(request: Request) -> bytes:
    """The request's body.

    Raises:
        BodyTooLargeError: it is longer than MAX_BODY_BYTES.
        ClientGone: the client went away before its end.
    """
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise BodyTooLargeError(
                    f"request body: expected at most {MAX_BODY_BYTES} bytes, got more"
                )
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


def parse_body(
    kind: type[_Request],
    raw: bytes,
    *,
    refused: Mapping[str, str] = REFUSED,
    refused_values: Mapping[str, str] = REFUSED_VALUES,
) -> _Request:
    """Parse and validate a request body.

    Args:
        kind: the request's model.
        raw: UTF-8 JSON.
        refused: fields that are not served -> the reason.
        refused_values: paths of fields of which `kind` takes some values only -> the reason.

    Raises:
        RequestError: not JSON (the message has the position), or a field is unknown, unsupported
            or wrong (`param` is its path).
    """
    data = _parse_json(raw)
    if not isinstance(data, dict):
        raise RequestError(f"request body: expected a JSON object, got {_json_type(data)}")
    data = {name: value for name, value in data.items() if value is not None}
    for name, reason in refused.items():
        if name in data:
            raise RequestError(
                f"`{name}`: {reason}; remove the field", param=name, code="unsupported_parameter"
            )
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _request_error(error, data, refused_values) from None


def _parse_json(raw: bytes) -> object:
    try:
        data: object = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
        if b"\\ud" in raw.lower():
            # Clients that cut text by UTF-16 units send half pairs, which no tokenizer can encode.
            data = json.loads(repair_surrogates(json.dumps(data, ensure_ascii=False)))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise RequestError(
            f"request body: malformed JSON at {where} (character {error.pos}): {error.msg}",
            code="invalid_json",
        ) from None
    except UnicodeDecodeError as error:
        raise RequestError(
            f"request body: expected UTF-8 text, got something else at byte {error.start}",
            code="invalid_json",
        ) from None
    except (RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RequestError(f"request body: {reason}", code="invalid_json") from None
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON; numbers must be finite")


def _json_type(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    return "null" if value is None else f"the number {value}"


def _field_path(loc: Sequence[int | str], data: object) -> tuple[str, object]:
    """`messages[0].content` and the value there; names of union arms are left out of the path."""
    path = ""
    for step in loc:
        if isinstance(step, int) and isinstance(data, list) and step < len(data):
            path, data = f"{path}[{step}]", data[step]
        elif isinstance(step, str) and isinstance(data, dict) and step in data:
            path, data = (f"{path}.{step}" if path else step), data[step]
    return path, data


def _child(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _describe(detail: ErrorDetails, data: object) -> tuple[str, str]:
    """The path of the field at fault, and what is wrong with it."""
    path, value = _field_path(detail["loc"], data)
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return _child(path, detail["loc"][-1]), "this field is required"
        case "extra_forbidden":
            return path, "unknown field; remove it"
        case "union_tag_not_found":
            return _child(path, context["discriminator"].strip("'")), "this field is required"
        case "union_tag_invalid":
            expected = f"expected one of {context['expected_tags']}, got '{context['tag']}'"
            return _child(path, context["discriminator"].strip("'")), expected
        case "model_type" | "model_attributes_type":
            return path, f"expected an object, got {_json_type(value)}"
    message = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return path, f"expected {message.removeprefix('expected ')}, got {_json_type(value)}"


def _depth(path: str) -> int:
    return path.count(".") + path.count("[")


def _request_error(
    error: ValidationError, data: object, refused_values: Mapping[str, str]
) -> RequestError:
    """One error: the first field at fault, as deep inside it as the arms of its union got."""
    details = error.errors(include_url=False, include_input=False)
    found = [(*_describe(detail, data), detail["type"]) for detail in details]
    field = re.split(r"[.\[]", found[0][0])[0]
    inside = [f for f in found if re.split(r"[.\[]", f[0])[0] == field]
    path, _, kind = max(inside, key=lambda f: _depth(f[0]))
    if path in refused_values:
        reason = refused_values[path]
        return RequestError(f"`{path}`: {reason}", param=path, code="unsupported_value")
    codes = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter"}
    reason = "; or ".join(dict.fromkeys(text for where, text, _ in inside if where == path))
    return RequestError(f"`{path}`: {reason}", param=path, code=codes.get(kind, "invalid_value"))
