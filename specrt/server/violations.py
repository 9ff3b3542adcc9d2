"""Finished output against its schemas: what the grammar could not enforce may be broken."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from specrt.grammars.base import GrammarRecipe, Unenforced
from specrt.grammars.compile_worker import CompileError, CompileWorker
from specrt.grammars.schema_check import Violation, validate_instance
from specrt.grammars.tool_parser import ParsedMessage
from specrt.server.protocol import ViolationEntry

logger = logging.getLogger(__name__)

# Schemas in which a client can make a check take for ever: Python's `re` backtracks without a limit
# and without giving up the interpreter, references can multiply. They are checked in a process of
# their own, one after the other.
_RISKY = re.compile(r'"(pattern|patternProperties|propertyNames|\$ref|\$dynamicRef)"')
CHECK_S = 5.0
_worker = CompileWorker(queue_s=15.0, modules=["specrt.grammars.schema_check"])


class FinishedChoice(Protocol):
    """A choice of any endpoint."""

    index: int
    text: str
    is_cut: bool

    @property
    def finish_reason(self) -> str | None: ...  # noqa: D102
    @property
    def parsed(self) -> ParsedMessage: ...  # noqa: D102


def find_violations(
    request_id: str, choice: FinishedChoice, recipe: GrammarRecipe, unenforced: Sequence[Unenforced]
) -> list[ViolationEntry]:
    """What the finished calls, or the finished JSON value, of a choice break.

    Only schemas of which something is not enforced are checked: the others hold by construction.
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
        if not pointers:
            continue
        is_checked = True
        try:
            violations = _check(schema, text)
        except CompileError as error:
            is_checked = False
            if error.details:
                logger.warning("%s: a check failed: %s", request_id, error.details)
            violations = [Violation("", "", f"not checked: it {error.reason}", ())]
        for violation in violations:
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
            if is_checked and not any(violation.is_due_to(pointer) for pointer in pointers):
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
    """What the JSON `text` breaks.

    Raises:
        CompileError: the check did not come to its end.
    """
    try:
        instance = json.loads(text)
    except ValueError as error:
        return [Violation("", "", f"not JSON: {error}", ())]
    if not _RISKY.search(schema):
        return validate_instance(schema, instance)
    return _worker.run(validate_instance, schema, instance, deadline_s=CHECK_S)


def _values(choice: FinishedChoice, recipe: GrammarRecipe) -> Iterator[tuple[str, str, str]]:
    """(tool, schema, JSON text) of each finished call, or of the finished value."""
    if recipe.kind == "json":
        if choice.finish_reason == "stop" and not choice.is_cut:
            yield "", recipe.schema, choice.text
        return
    schemas = {tool.name: tool.parameters for tool in recipe.tools}
    for call in choice.parsed.calls:
        if call.complete:
            yield call.name, schemas.get(call.name, "false"), call.arguments
