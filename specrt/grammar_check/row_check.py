"""One row against one engine: the job of a worker process, which may be killed at any time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from specrt.bench.vocabulary import load_vocabulary
from specrt.errors import SchemaError
from specrt.grammar_check.judges import (
    GrammarJudge,
    Judge,
    LLGuidanceJudge,
    default_separators,
    spell,
)
from specrt.grammar_check.key_order import in_schema_order
from specrt.grammar_check.normal_order import arranged, normal_form
from specrt.grammar_check.number_spellings import with_plain_integers, with_points
from specrt.grammar_check.options import Backend
from specrt.grammar_check.rows import Instance, SchemaRow
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.schema_check import validate_instance
from specrt.grammars.vocabulary import Vocabulary

Outcome = Literal["checked", "refused", "unfinished"]
SPECRT = "specrt"
BASELINE = "llguidance"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """What holds for all rows of a run.

    Attributes:
        model_path: whose tokenizer; None = the embedded model.
        backend: engine of specrt's grammars.
        strict: exactly or not at all; otherwise what slips through must be flagged.
    """

    model_path: str | None
    backend: Backend
    strict: bool


@dataclass(slots=True, kw_only=True)
class Miss:
    """An instance on which grammar and label disagree.

    Attributes:
        instance: its number in the row, from 0.
        description: the row's.
        is_flagged: not strict, and the finished value would be reported as broken.
    """

    instance: int
    description: str
    is_flagged: bool = False


@dataclass(slots=True, kw_only=True)
class RowResult:
    """What came of a row. Plain JSON in its fields.

    Attributes:
        row_id: of the row.
        source: of the row.
        outcome: checked; refused by the compiler; unfinished: took too long or died.
        pointer: of the keyword that is refused.
        keyword: that is refused; "" when the schema is malformed or too large.
        reason: why it is refused or unfinished.
        valid: valid instances of a checked row.
        invalid: invalid ones.
        valid_rejected: valid ones that the grammar does not take.
        invalid_accepted: invalid ones that it takes.
    """

    row_id: str
    source: str
    outcome: Outcome = "checked"
    pointer: str = ""
    keyword: str = ""
    reason: str = ""
    valid: int = 0
    invalid: int = 0
    valid_rejected: list[Miss] = field(default_factory=list)
    invalid_accepted: list[Miss] = field(default_factory=list)


@lru_cache(maxsize=1)
def _vocabulary(model_path: str | None) -> Vocabulary:
    return load_vocabulary(model_path)


@lru_cache(maxsize=1)
def _compiler(model_path: str | None, backend: Backend) -> GrammarCompiler:
    return GrammarCompiler(_vocabulary(model_path), backend=backend)


def get_ready(settings: CheckSettings) -> None:
    """Load what all rows share, so that no row's time is spent on it.

    Raises:
        ConfigError: there is no such model.
    """
    _compiler(settings.model_path, settings.backend)


def check_row(row: SchemaRow, engine: str, settings: CheckSettings) -> RowResult:
    """Compile the schema of a row and try its instances.

    A valid instance is tried with its keys in the order in which the grammar writes them; an
    invalid one also as it stands and in the order of the schema. llguidance's order is its own, so
    there a valid instance may be taken in any of the three. Each is also tried with its integers
    spelled with and without a point: to JSON Schema those are the same value (in draft 4, where
    only 2 is an integer, a valid instance is tried without points, if it stays valid so).

    Args:
        row: schema and instances.
        engine: SPECRT or BASELINE.
        settings: of the run.
    """
    result = RowResult(row_id=row.row_id, source=row.source)
    vocabulary = _vocabulary(settings.model_path)
    text = json.dumps(row.schema)
    separators = default_separators()
    judge: Judge
    try:
        if engine == SPECRT:
            compiler = _compiler(settings.model_path, settings.backend)
            judge = GrammarJudge(compiler, vocabulary, text, strict=settings.strict)
        else:
            judge = LLGuidanceJudge(vocabulary, row.schema, separators)
    except SchemaError as error:
        result.outcome, result.reason = "refused", error.message
        result.pointer, result.keyword = error.pointer, error.keyword
        return result
    normal = normal_form(row.schema, strict=settings.strict)
    is_draft4 = isinstance(row.schema, dict) and "draft-04" in str(row.schema.get("$schema"))
    for number, instance in enumerate(row.instances):
        own_order = arranged(normal, row.schema, instance.data)
        values = [own_order]
        if not instance.is_valid or engine == BASELINE:
            values += [instance.data, in_schema_order(row.schema, instance.data)]
        if not is_draft4:
            values += [change(v) for v in values for change in (with_plain_integers, with_points)]
        elif instance.is_valid and not _violations(text, with_plain_integers(instance.data)):
            values.append(with_plain_integers(own_order))
        texts = dict.fromkeys(spell(value, separators) for value in values)
        is_accepted = any(judge.accepts(text) for text in texts if text is not None)
        miss = Miss(instance=number, description=instance.description)
        if instance.is_valid:
            result.valid += 1
            if not is_accepted:
                result.valid_rejected.append(miss)
        else:
            result.invalid += 1
            if is_accepted:
                miss.is_flagged = isinstance(judge, GrammarJudge) and _is_flagged(
                    judge, text, instance
                )
                result.invalid_accepted.append(miss)
    return result


def _is_flagged(judge: GrammarJudge, schema: str, instance: Instance) -> bool:
    """Would a server report this instance as broken?"""
    return bool(judge.grammar.unenforced) and bool(_violations(schema, instance.data))


def _violations(schema: str, value: Any) -> bool:
    try:
        return bool(validate_instance(schema, value))
    except Exception:  # a reference or a pattern that jsonschema cannot follow: a server says so
        return True
