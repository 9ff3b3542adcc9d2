"""One schema made ready for an engine: checked, normalised, written as an automaton or as Lark.

A pure function of its arguments that needs no vocabulary, so it can run in another process, and
what it returns can be kept on disk. It decides which engine runs a schema.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from specrt.errors import SchemaError
from specrt.grammars.lark_schema import schema_lark
from specrt.grammars.regular.automaton import Automaton
from specrt.grammars.regular.schema_automaton import schema_automaton
from specrt.grammars.schema.closing import closed, says_open
from specrt.grammars.schema.expand import ImpossibleError, normalise
from specrt.grammars.schema.normal import Finding, NormalSchema
from specrt.grammars.schema.unsupported import UnsupportedError
from specrt.grammars.schema_check import check_schema

Backend = Literal["auto", "outlines", "llguidance"]

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_PLAIN = {"type", "properties", "title", "description", "$schema", "$id"}


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """A schema that an engine can run.

    Attributes:
        automaton: for the regular engine; None where llguidance runs it.
        lark: for llguidance; "" where the regular engine runs it.
        findings: what is not enforced.
    """

    automaton: Automaton | None
    lark: str
    findings: tuple[Finding, ...]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, about."""
        return (
            1_000 + len(self.lark) + (0 if self.automaton is None else self.automaton.table.nbytes)
        )


def prepare_schema(
    text: str,
    is_arguments: bool,
    strict: bool,
    separators: tuple[str, str],
    backend: Backend,
    is_open: bool = False,
) -> PreparedSchema:
    """Make a schema ready.

    Args:
        text: the schema's JSON text, key order kept; "" = takes no arguments.
        is_arguments: of a tool: a value is an object, and a grammar goes on behind it.
        strict: enforce all of it, or raise.
        separators: between items, and between a key and its value.
        backend: which engine may run it; auto = the regular one where it can.
        is_open: arguments that the schema neither lists nor forbids may be written.

    Raises:
        SchemaError: the schema is malformed, impossible, or cannot be enforced as it must be; with
            JSON pointer and keyword.
    """
    document = read_schema(text, is_arguments=is_arguments)
    try:
        schema = normalise(document, strict=strict)
        if is_arguments and not is_open and not says_open(document):
            schema = closed(schema)
        return _write(schema, is_arguments, separators, backend)
    except ImpossibleError as error:
        where = f" at {error.pointer}" if error.pointer else ""
        raise SchemaError(
            f"an impossible schema: no value satisfies it ({error.reason}){where}",
            pointer=error.pointer,
        ) from error
    except UnsupportedError as error:
        if not strict and backend != "outlines":
            finding = Finding(error.pointer, error.keyword, error.reason)
            return loosest_schema(is_arguments, separators, finding)
        raise SchemaError(
            f"a strict schema must be enforced exactly; {error.keyword or 'the schema'!r} at"
            f" {error.pointer or 'its top'} cannot be ({error.reason}): remove it or set strict to"
            " false"
            if strict
            else f"--grammar-backend outlines cannot run this schema: {error.reason}",
            pointer=error.pointer,
            keyword=error.keyword,
        ) from error


def loosest_schema(
    is_arguments: bool, separators: tuple[str, str], finding: Finding
) -> PreparedSchema:
    """Any object as arguments, any value otherwise: for a schema that is not enforced at all."""
    schema = normalise({"type": "object"} if is_arguments else True, strict=True)
    loose = _write(schema, is_arguments, separators, "llguidance")
    return PreparedSchema(None, loose.lark, (finding,))


def _write(
    schema: NormalSchema, is_arguments: bool, separators: tuple[str, str], backend: Backend
) -> PreparedSchema:
    item_separator, key_separator = separators
    if backend != "llguidance":
        try:
            automaton = schema_automaton(
                schema, item_separator=item_separator, key_separator=key_separator
            )
            return PreparedSchema(automaton, "", schema.findings)
        except UnsupportedError:
            if backend == "outlines":
                raise
    lark = schema_lark(
        schema,
        item_separator=item_separator,
        key_separator=key_separator,
        then_anything=is_arguments,
    )
    return PreparedSchema(None, lark, schema.findings)


def read_schema(text: str, *, is_arguments: bool) -> object:
    """The schema of a JSON text, checked; that of arguments describes an object.

    Raises:
        SchemaError: it is no schema, or too large to be honest.
    """
    try:
        document = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"expected a schema as JSON text: {error}") from error
    if is_arguments:
        document = _arguments_schema({} if document is None else document)
    check_schema(document)
    return document


def _arguments_schema(schema: object) -> object:
    """A tool's parameters as the schema of an object; what is no schema is left for the check."""
    if schema is True or schema == {}:
        return _NO_ARGUMENTS
    if not isinstance(schema, dict):
        return schema
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise SchemaError(
            f"expected parameters of type object, got {kinds!r}", pointer="/type", keyword="type"
        )
    if schema.get("properties") == {} and not schema.keys() - _PLAIN:
        # How a function that takes nothing is commonly written.
        return {**schema, **_NO_ARGUMENTS}
    return {"type": "object", **schema, **({"type": "object"} if kinds != "object" else {})}
