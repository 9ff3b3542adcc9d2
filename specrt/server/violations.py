"""Finished output against its schemas: what the grammar could not enforce may be broken."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence

from specrt.grammars.base import GrammarRecipe, Unenforced
from specrt.grammars.schema_check import validate_instance
from specrt.server.chat_choice import ChatChoice
from specrt.server.protocol import ViolationEntry

logger = logging.getLogger(__name__)


def find_violations(choice: ChatChoice, recipe: GrammarRecipe) -> list[ViolationEntry]:
    """What the finished calls, or the finished JSON value, of a choice break.

    Args:
        choice: finished; calls and values that were cut are not checked.
        recipe: what the choice had to look like.
    """
    found: list[ViolationEntry] = []
    for index, (tool, schema, text) in enumerate(_values(choice, recipe)):
        try:
            instance = json.loads(text)
        except ValueError as error:
            broken = [("", "", f"not JSON: {error}")]
        else:
            broken = [
                (v.pointer, v.keyword, v.message) for v in validate_instance(schema, instance)
            ]
        for pointer, keyword, message in broken:
            found.append(
                ViolationEntry(
                    choice=choice.index,
                    tool=tool,
                    index=index,
                    pointer=pointer,
                    keyword=keyword,
                    message=message,
                )
            )
    return found


def _values(choice: ChatChoice, recipe: GrammarRecipe) -> Iterator[tuple[str, str, str]]:
    """(tool, schema, JSON text) of each finished call, or of the finished value."""
    if recipe.kind == "json":
        if choice.finish_reason == "stop" and not choice.is_cut:
            yield "", recipe.schema, choice.text
        return
    schemas = {tool.name: tool.parameters for tool in recipe.tools}
    for call in choice.parsed.calls:
        if call.complete:
            yield call.name, schemas.get(call.name, "false"), call.arguments


def log_unexplained(
    request_id: str, violations: Iterable[ViolationEntry], unenforced: Sequence[Unenforced]
) -> None:
    """Log what nothing unenforced explains: the grammar let through what it must forbid."""
    for violation in violations:
        if any(_explains(finding, violation) for finding in unenforced):
            continue
        logger.error(
            "%s: BUG: the grammar of %r let through what it enforces: %s at %s: %s",
            request_id,
            violation["tool"] or "the response schema",
            violation["keyword"] or "JSON",
            violation["pointer"],
            violation["message"],
        )


def _explains(finding: Unenforced, violation: ViolationEntry) -> bool:
    """The same keyword (a `$ref` changes its pointer), or a place below the finding's."""
    is_below = f"{violation['pointer']}/".startswith(f"{finding.pointer}/")
    return finding.tool == violation["tool"] and (
        is_below or finding.keyword == violation["keyword"]
    )
