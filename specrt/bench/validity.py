"""Is a tool call what the tool's schema asks for? Judged by `jsonschema`, not by our grammar."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

Verdict = Literal["valid", "unenforced", "unfinished", "not_json", "unknown_tool", "invalid"]


class CallCheck(NamedTuple):
    """One call's verdict.

    Attributes:
        verdict: valid; unenforced (breaks only keywords that the server named as not enforced);
            unfinished (cut by max_tokens); not_json; unknown_tool; invalid.
        reason: what is wrong, "" when valid.
    """

    verdict: Verdict
    reason: str = ""


def check_calls(
    calls: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    *,
    is_cut: bool = False,
    unenforced: Iterable[Mapping[str, Any]] = (),
) -> list[CallCheck]:
    """Judge the calls of one reply.

    Args:
        calls: wire form, `arguments` a JSON string.
        tools: the OpenAI tools of the request.
        is_cut: the reply ended at max_tokens, so that its last call may be unfinished.
        unenforced: `tool` and `keyword` of what the server says it did not enforce.
    """
    schemas = {t["function"]["name"]: t["function"].get("parameters") or {} for t in tools}
    named = {(entry.get("tool"), entry.get("keyword")) for entry in unenforced}
    checks = []
    for number, call in enumerate(calls, start=1):
        check = _check(call["function"], schemas, named)
        if is_cut and number == len(calls) and check.verdict not in ("valid", "unenforced"):
            check = CallCheck("unfinished", check.reason)
        checks.append(check)
    return checks


def _check(
    function: Mapping[str, str], schemas: dict[str, Any], named: set[tuple[Any, Any]]
) -> CallCheck:
    from jsonschema import Draft202012Validator

    name = function["name"]
    if name not in schemas:
        return CallCheck("unknown_tool", repr(name))
    try:
        arguments = json.loads(function["arguments"])
    except ValueError as error:
        return CallCheck("not_json", f"{name}: {error}")
    errors = list(Draft202012Validator(schemas[name]).iter_errors(arguments))
    hard = [error for error in errors if not _is_named(error, name, named)]
    if hard:
        return CallCheck("invalid", f"{name}: {hard[0].validator}: {hard[0].message}"[:300])
    if errors:
        return CallCheck("unenforced", f"{name}: {', '.join(str(e.validator) for e in errors)}")
    return CallCheck("valid")


def _is_named(error: ValidationError, tool: str, named: set[tuple[Any, Any]]) -> bool:
    """Did the server name the keyword, or one below it (anyOf fails with its branches)?"""
    if (tool, error.validator) in named:
        return True
    return any(_is_named(below, tool, named) for below in error.context or [])
