"""Checks of raw JSON objects, with errors that name the field, what was expected and what came."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from specrt.errors import RequestError
from specrt.grammars.tools import shown

_KINDS: dict[type, str] = {
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}

Fields = Mapping[str, type | tuple[type, ...]]


def wrong(path: str, expected: str, got: object) -> RequestError:
    """The error for a field that holds something else."""
    return RequestError(f"`{path}`: expected {expected}, got {shown(got)}", param=path)


def refuse(path: str, reason: str) -> RequestError:
    """The error for a field or a value that is not served."""
    return RequestError(f"`{path}`: {reason}", param=path, code="unsupported_value")


def check_object(value: object, path: str, what: str) -> dict[str, object]:
    """`value`, which must be an object.

    Raises:
        RequestError: it is not; `what` says in the message what was expected.
    """
    if not isinstance(value, dict):
        raise wrong(path, what, value)
    return value


def check_fields(
    value: Mapping[str, object], path: str, fields: Fields, required: Collection[str]
) -> None:
    """Check names and types of an object's fields; null is the same as an absent field.

    Args:
        value: the object.
        path: of it.
        fields: the fields that it may have, and their types.
        required: those that it must have.

    Raises:
        RequestError: a field is unknown, missing or of another type.
    """
    for name, content in value.items():
        if name not in fields:
            raise RequestError(f"`{path}.{name}`: unknown field; remove it", param=f"{path}.{name}")
        kinds = fields[name]
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        if content is not None and not isinstance(content, kinds):
            raise wrong(f"{path}.{name}", " or ".join(_KINDS[kind] for kind in kinds), content)
    for name in required:
        if value.get(name) is None:
            raise RequestError(f"`{path}.{name}`: this field is required", param=f"{path}.{name}")
