"""Is a tool call what the tool's schema asks for? Judged by `jsonschema`, not by the grammar."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

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
        unenforced: `tool` and `pointer` of what the server says it did not enforce.
    """
    schemas = {t["function"]["name"]: t["function"].get("parameters") or {} for t in tools}
    named = [(str(entry.get("tool")), str(entry.get("pointer"))) for entry in unenforced]
    checks = []
    for number, call in enumerate(calls, start=1):
        name = call["function"]["name"]
        pointers = [pointer for tool, pointer in named if tool == name]
        check = _check(call["function"], schemas, pointers)
        if is_cut and number == len(calls) and check.verdict not in ("valid", "unenforced"):
            check = CallCheck("unfinished", check.reason)
        checks.append(check)
    return checks


def _check(function: Mapping[str, str], schemas: dict[str, Any], pointers: list[str]) -> CallCheck:
    from specrt.grammars.schema_check import validate_instance

    name = function["name"]
    if name not in schemas:
        return CallCheck("unknown_tool", repr(name))
    try:
        arguments = json.loads(function["arguments"])
    except ValueError as error:
        return CallCheck("not_json", f"{name}: {error}")
    broken = validate_instance(schemas[name], arguments)
    for violation in broken:
        if not any(violation.is_due_to(pointer) for pointer in pointers):
            return CallCheck("invalid", f"{name}: {violation.keyword}: {violation.message}")
    if broken:
        return CallCheck("unenforced", f"{name}: {', '.join(v.keyword for v in broken)}")
    return CallCheck("valid")
