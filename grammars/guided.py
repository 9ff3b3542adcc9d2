"""Extensions of the API that say what the whole output must be, as vLLM and SGLang name them.

structured_outputs       {"json" | "regex" | "choice" | "grammar" | "json_object": ...}
guided_json              a JSON Schema, as an object or as its text
guided_regex, regex      a regular expression (Rust syntax) over the whole output
guided_choice            a list of texts
guided_grammar           a grammar in llguidance's Lark
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from specrt.errors import RequestError, SchemaError
from specrt.grammars.tools import check_depth, shown

# Name of a field of a request -> name in `structured_outputs`.
GUIDED_FIELDS = {
    "structured_outputs": "",
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "regex": "regex",
}
_NAMES = ("json", "regex", "choice", "grammar", "json_object")
# Options of vLLM's that ask for nothing when false.
_OPTIONS = ("disable_fallback", "disable_any_whitespace", "disable_additional_properties")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_SPECIAL = frozenset("\\.+*?()|[]{}^$")
MAX_CHOICES = 1024


class GuidedOutput(NamedTuple):
    """What the whole output must be.

    Attributes:
        kind: as of a recipe.
        text: the schema of a recipe of that kind.
        path: the field that asked for it.
    """

    kind: Literal["json", "regex", "lark"]
    text: str
    path: str


def read_guided(fields: Mapping[str, object]) -> GuidedOutput | None:
    """Read these fields of a request.

    Args:
        fields: some of GUIDED_FIELDS; None is the same as an absent one.

    Returns:
        What the output must be; None when nothing is asked for.

    Raises:
        RequestError: a field is malformed, or there are two; `param` names it.
    """
    found: list[GuidedOutput] = []
    for field, name in GUIDED_FIELDS.items():
        value = fields.get(field)
        if value is None:
            continue
        if name:
            found.append(_read(name, value, field))
        else:
            found += _read_structured(value, field)
    if len(found) > 1:
        raise RequestError(
            f"{found[1].path}: expected one description of the output, got {found[0].path} too;"
            " remove one of the two",
            param=found[1].path,
        )
    return found[0] if found else None


def choice_regex(choices: list[str]) -> str:
    """The regular expression of one of these texts, in Rust's syntax."""
    return "(?:" + "|".join(map(_escape, choices)) + ")"


def _escape(text: str) -> str:
    return "".join(
        f"\\x{{{ord(char):x}}}" if ord(char) < 0x20 else f"\\{char}" if char in _SPECIAL else char
        for char in text
    )


def _read_structured(value: object, path: str) -> list[GuidedOutput]:
    if not isinstance(value, dict):
        raise _error(path, "an object", value)
    found = []
    for name, inner in value.items():
        inner_path = f"{path}.{name}"
        if inner is None or (name in _OPTIONS and inner is False):
            continue
        if name not in _NAMES:
            raise _error(inner_path, f"no such field (one of {', '.join(_NAMES)})", inner)
        found.append(_read(name, inner, inner_path))
    if not found:
        raise _error(path, f"one of {', '.join(_NAMES)} in it", value)
    return found


def _read(name: str, value: object, path: str) -> GuidedOutput:
    if name == "json":
        return GuidedOutput("json", _schema(value, path), path)
    if name == "json_object":
        if value is not True:
            raise _error(path, "true or no such field", value)
        return GuidedOutput("json", '{"type": "object"}', path)
    if name == "choice":
        if not isinstance(value, list) or not 0 < len(value) <= MAX_CHOICES:
            raise _error(path, f"a list of 1 to {MAX_CHOICES} texts", value)
        for index, choice in enumerate(value):
            if not isinstance(choice, str) or _CONTROL.search(choice):
                raise _error(f"{path}[{index}]", "text without control characters", choice)
        return GuidedOutput("regex", choice_regex(value), path)
    if not isinstance(value, str) or not value:
        expected = "a regular expression" if name == "regex" else "the text of a Lark grammar"
        raise _error(path, expected, value)
    return GuidedOutput("regex" if name == "regex" else "lark", value, path)


def _schema(value: object, path: str) -> str:
    """The schema as JSON text; clients send it as text too."""
    schema = value
    if isinstance(value, str):
        try:
            schema = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise SchemaError(
                f"{path}: expected a JSON Schema, got {shown(value)} ({error})", param=path
            ) from None
    if not isinstance(schema, dict):
        raise SchemaError(f"{path}: expected a JSON Schema object, got {shown(value)}", param=path)
    check_depth(schema, path)
    return json.dumps(schema, ensure_ascii=False)


def _error(path: str, expected: str, got: object) -> RequestError:
    return RequestError(f"{path}: expected {expected}, got {shown(got)}", param=path)
