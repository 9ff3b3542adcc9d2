"""What of a JSON Schema an engine can enforce, and the schema that is left when the rest is gone.

Two steps. The rewrite drops annotations and the keywords that llguidance does not know, brings all
references into `$defs`, and notes what it left out. If the engine still refuses, single keywords
are removed at the innermost place that it refuses, until it does not: so a tool loses only the
keyword at fault. Removing a keyword never makes a schema stricter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from specrt.errors import SchemaError
from specrt.grammars.schema_rewrite import Finding, Schema, SchemaRewrite, as_list
from specrt.grammars.schema_walk import join_pointer

Probe = Callable[[Schema], str]  # why the engine refuses this schema, "" when it does not

# llguidance's reason when no value satisfies a schema.
_IMPOSSIBLE = "Unsatisfiable"

# Keywords that may go one at a time, the likeliest culprit first. Not `properties`, `items` and
# `prefixItems`: without them `additionalProperties` and `items` would bite more.
_REMOVABLE = (
    *("format", "pattern", "patternProperties", "minProperties", "maxProperties", "allOf", "anyOf"),
    *("$ref", "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "minimum"),
    *("maximum", "exclusiveMinimum", "exclusiveMaximum", "additionalProperties", "required"),
    *("additionalItems", "enum", "const"),
)
# Characters of schema to try, about a second's worth. Not a time: equal schemas come out equal.
_MAX_PROBED = 1_000_000


class Audit(NamedTuple):
    """The outcome: what to compile, and what it does not say."""

    schema: Schema
    findings: tuple[Finding, ...]


def audit_schema(document: object, probe: Probe) -> Audit:
    """Find the closest schema that the engine takes.

    Args:
        document: a schema that passed `check_schema`.
        probe: asks the engine.

    Raises:
        SchemaError: no value satisfies the schema.
    """
    rewrite = SchemaRewrite(document)
    rewrite.prune_endless()
    num_probed = 0

    def ask(schema: Schema) -> str:
        nonlocal num_probed
        document = rewrite.with_defs(schema)
        num_probed += len(json.dumps(document))
        return probe(document)

    reason = ask(rewrite.top)
    if reason and _IMPOSSIBLE not in reason:
        for pointer, site in rewrite.sites:
            while num_probed < _MAX_PROBED and _is_refused(why := ask(site)):
                _relax(pointer, site, why, ask, rewrite.findings)
        reason = ask(rewrite.top)
    if _is_refused(reason) and num_probed >= _MAX_PROBED:
        # Too large to look for the culprits: they are mostly these.
        for pointer, site in rewrite.sites:
            if "oneOf" in site:
                _relax(pointer, site, reason, lambda _: "", rewrite.findings)
        reason = ask(rewrite.top)
    if _IMPOSSIBLE in reason:
        raise _impossible(rewrite, ask, reason)
    if reason:
        loosest: Schema = {"type": kind} if isinstance(kind := rewrite.top.get("type"), str) else {}
        return Audit(loosest, (Finding("", "", reason),))
    return Audit(rewrite.with_defs(rewrite.top), tuple(sorted(set(rewrite.findings))))


def _is_refused(reason: str) -> bool:
    return bool(reason) and _IMPOSSIBLE not in reason


def _impossible(rewrite: SchemaRewrite, ask: Probe, reason: str) -> SchemaError:
    pointer = next((p for p, site in rewrite.sites[:200] if _IMPOSSIBLE in ask(site)), "")
    detail = reason.rpartition(_IMPOSSIBLE + " schema: ")[2]
    return SchemaError(
        f"an impossible schema: no value satisfies it ({detail}) at {pointer or 'its top'}",
        pointer=pointer,
    )


def _relax(pointer: str, site: Schema, reason: str, ask: Probe, findings: list[Finding]) -> None:
    """Loosen `site` in place until the engine takes it."""
    trials: list[tuple[Schema, tuple[str, ...]]] = []
    if "oneOf" in site:
        options = {"anyOf": site["oneOf"]}
        loose = {k: v for k, v in site.items() if k != "oneOf"}
        both = {"allOf": [*as_list(site.get("allOf")), options]}
        trials.append(({**loose, **(both if "anyOf" in site else options)}, ("oneOf",)))
    for keyword in (k for k in _REMOVABLE if k in site):
        gone: tuple[str, ...] = (keyword,)
        if keyword == "patternProperties" and "additionalProperties" in site:
            gone = ("patternProperties", "additionalProperties")
        trials.append(({k: v for k, v in site.items() if k not in gone}, gone))
    trials.append(({k: v for k, v in site.items() if k == "type"}, ("",)))
    for trial, keywords in trials:
        if trial is trials[-1][0] or not _is_refused(ask(trial)):
            for keyword in keywords:
                here = join_pointer(pointer, keyword) if keyword else pointer
                findings.append(Finding(here, keyword, reason))
            site.clear()
            site.update(trial)
            return
