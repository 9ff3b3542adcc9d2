"""Finished output against its schemas: what the grammar could not enforce may be broken."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence

from specrt.grammars.base import GrammarRecipe, Unenforced
from specrt.grammars.schema_check import Violation, validate_instance
from specrt.server.chat_choice import ChatChoice
from specrt.server.protocol import ViolationEntry

logger = logging.getLogger(__name__)


def find_violations(
    request_id: str, choice: ChatChoice, recipe: GrammarRecipe, unenforced: Sequence[Unenforced]
) -> list[ViolationEntry]:
    """What the finished calls, or the finished JSON value, of a choice break.

    What nothing unenforced explains is logged as an error: the grammar let it through.

    Args:
        request_id: for the log.
        choice: finished; calls and values that were cut are not checked.
        recipe: what the choice had to look like.
        unenforced: what its grammar does not enforce.
    """
    found: list[ViolationEntry] = []
    for index, (tool, schema, text) in enumerate(_values(choice, recipe)):
        pointers = [finding.pointer for finding in unenforced if finding.tool == tool]
        for violation in _check(schema, text):
            found.append(
                ViolationEntry(
                    choice=choice.index,
                    tool=tool,
                    index=index,
                    pointer=violation.pointer,
                    keyword=violation.keyword,
                    message=violation.message,
                )
            )
            if not any(violation.is_due_to(pointer) for pointer in pointers):
                logger.error(
                    "%s: BUG: the grammar of %r let through what it enforces: %s at %s: %s",
                    request_id,
                    tool or "the response schema",
                    violation.keyword or "JSON",
                    violation.pointer,
                    violation.message,
                )
    return found


def _check(schema: str, text: str) -> list[Violation]:
    try:
        instance = json.loads(text)
    except ValueError as error:
        return [Violation("", "", f"not JSON: {error}", ())]
    return validate_instance(schema, instance)


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
