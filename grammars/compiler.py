"""Recipes to grammars: what the worker asks when it opens a request.

It keeps what it compiled, in memory and on disk, and sends what may take long to a process that can
be killed. prepare.py decides how a schema is run, regions.py runs it.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specrt.errors import SchemaError
from specrt.grammars.base import GrammarRecipe, ToolSpec, Unenforced
from specrt.grammars.byte_cache import ByteCache, CacheCounters
from specrt.grammars.compile_worker import CompileError, CompileWorker
from specrt.grammars.formats import load_format
from specrt.grammars.lark_schema import HEADER
from specrt.grammars.llguidance_engine import MatcherPrototype, RefusedError
from specrt.grammars.prepare import Backend, PreparedSchema, loosest_schema, prepare_schema
from specrt.grammars.regions import TurnGrammar, Value
from specrt.grammars.regular.automaton import Automaton, build
from specrt.grammars.schema.normal import Finding
from specrt.grammars.schema.unsupported import UnsupportedError
from specrt.grammars.table_store import Arrays, TableStore
from specrt.grammars.tool_format import ToolFormat
from specrt.grammars.turn_automaton import TurnAutomaton, calls_turn, value_turn
from specrt.grammars.vocabulary import Vocabulary

# Compiled here rather than in the worker: a millisecond or two, whatever is in it.
_SMALL = 4_096
_RISKY = ("pattern", "$ref", "anyOf", "allOf", "oneOf", "not", "if", "multipleOf")
_LARGE_COUNT = re.compile(r'"(?:min|max)[A-Z][a-zA-Z]*": *[0-9]{3}')

_MATCHER_BYTES = 200_000  # a matcher without its lexer states, and what its text adds
_BYTES_PER_CHARACTER = 40


class GrammarCounters(NamedTuple):
    """What the caches of a compiler did."""

    grammars: CacheCounters
    schemas: CacheCounters


class _Part(NamedTuple):
    """One schema with the engine that runs it."""

    value: Value
    findings: tuple[Finding, ...]
    num_bytes: int


class GrammarCompiler:
    """Compiles recipes and keeps what it compiled. Thread safe.

    Compiling takes milliseconds, seconds in the worst case: call it off the event loop.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        backend: Backend = "auto",
        open_arguments: bool = False,
        max_bytes: int = 256 << 20,
        store: TableStore | None = None,
        worker: CompileWorker | None = None,
    ) -> None:
        """Args:
        vocabulary: the model's tokens.
        backend: which engine may run a schema.
        open_arguments: calls may pass arguments that the schema neither lists nor forbids.
        max_bytes: bound on what is kept of grammars, and again on what is kept of schemas.
        store: where schemas made ready are kept between runs; None = nowhere.
        worker: where schemas that may take long are made ready; None = one of its own.
        """
        self._vocabulary = vocabulary
        self._backend: Backend = backend
        self._open_arguments = open_arguments
        self._store = store
        self._worker = worker or CompileWorker(modules=["specrt.grammars.prepare"])
        self._grammars: ByteCache[GrammarRecipe, TurnGrammar] = ByteCache(
            max_bytes, lambda grammar: 10_000 + grammar.num_bytes
        )
        self._parts: ByteCache[tuple[str, bool, bool, tuple[str, str]], _Part] = ByteCache(
            max_bytes, lambda part: part.num_bytes
        )

    def compile(self, recipe: GrammarRecipe) -> TurnGrammar:
        """The grammar of a recipe; equal recipes share one, also when they arrive together.

        Args:
            recipe: what the output must look like.

        Raises:
            SchemaError: a schema is malformed, impossible, or strict and not enforceable; the
                message names the function, the JSON pointer and the keyword.
            ConfigError: there is no such tool-call format.
        """
        return self._grammars.get_or_make(recipe, partial(self._build, recipe))

    def marker_ids(self, recipe: GrammarRecipe | None) -> frozenset[int]:
        """The special tokens that belong to the text of an output: its tool-call format's markers.

        Raises:
            ConfigError: there is no such tool-call format.
        """
        if recipe is None or recipe.kind != "tools":
            return frozenset()
        texts = self._specials(load_format(recipe.tool_format))
        return frozenset(self._vocabulary.special_texts[text] for text in texts)

    def warm(self) -> None:
        """Load what the first mask needs (about a second), before somebody waits for it."""
        state = self.compile(GrammarRecipe(kind="tools")).open()
        state.masks([state.root], np.zeros((1, self._vocabulary.num_words), dtype=np.int32))

    def counters(self) -> GrammarCounters:
        """For metrics."""
        return GrammarCounters(self._grammars.counters(), self._parts.counters())

    def close(self) -> None:
        """End the worker."""
        self._worker.close()

    def _build(self, recipe: GrammarRecipe) -> TurnGrammar:
        tool_format = load_format(recipe.tool_format)
        unenforced: list[Unenforced] = []
        values: list[Value] = []
        turn: TurnAutomaton
        if recipe.kind != "tools":
            turn = value_turn(reasoning_end=recipe.reasoning_end)
            if recipe.kind == "json":
                part = self._json_part(recipe, tool_format)
                values.append(part.value)
                unenforced += (Unenforced("", f.pointer, f.keyword) for f in part.findings)
            else:
                values.append(self._text_value(recipe))
        else:
            for tool in recipe.tools:
                part = self._tool_part(tool, tool_format)
                values.append(part.value)
                unenforced += (Unenforced(tool.name, f.pointer, f.keyword) for f in part.findings)
            turn = calls_turn(
                tool_format,
                [tool.name for tool in recipe.tools],
                require_call=recipe.require_call,
                parallel=recipe.parallel,
                specials=self._specials(tool_format),
                reasoning_end=recipe.reasoning_end,
            )
        return TurnGrammar(
            self._vocabulary,
            turn,
            values,
            unenforced=tuple(unenforced),
            canonical=recipe.canonical,
        )

    def _specials(self, tool_format: ToolFormat) -> list[str]:
        """Special tokens of the model that the format's markers name."""
        return [
            text
            for text in self._vocabulary.special_texts
            if any(text in marker for marker in tool_format.markers)
        ]

    def _json_part(self, recipe: GrammarRecipe, tool_format: ToolFormat) -> _Part:
        try:
            return self._part(recipe.schema, False, recipe.strict, tool_format)
        except SchemaError as error:
            error.param = error.param or "response_format"
            raise

    def _text_value(self, recipe: GrammarRecipe) -> Value:
        """What a regex or a Lark grammar describes."""
        try:
            if recipe.kind == "lark":
                if "%llguidance" in recipe.schema:
                    raise RefusedError("expected no %llguidance line: its options are set here")
                return MatcherPrototype(self._vocabulary, HEADER + recipe.schema)
            if self._backend == "llguidance":
                return MatcherPrototype(self._vocabulary, _regex_lark(recipe.schema))
            return self._worker.run(build, recipe.schema)
        except (UnsupportedError, CompileError) as error:
            if self._backend == "outlines":
                raise self._refused(recipe, str(error)) from error
        except RefusedError as error:
            raise self._refused(recipe, str(error)) from error
        try:
            return MatcherPrototype(self._vocabulary, _regex_lark(recipe.schema))
        except RefusedError as error:
            raise self._refused(recipe, str(error)) from error

    def _refused(self, recipe: GrammarRecipe, reason: str) -> SchemaError:
        return SchemaError(f"the {recipe.kind} cannot be used: {reason}", param=recipe.kind)

    def _tool_part(self, tool: ToolSpec, tool_format: ToolFormat) -> _Part:
        try:
            return self._part(tool.parameters, True, tool.strict, tool_format)
        except SchemaError as error:
            raise SchemaError(
                f"function {tool.name!r}: {error.message}",
                param="tools",
                pointer=error.pointer,
                keyword=error.keyword,
            ) from error

    def _part(self, text: str, is_arguments: bool, strict: bool, tool_format: ToolFormat) -> _Part:
        separators = (tool_format.item_separator, tool_format.key_separator)
        key = (text, is_arguments, strict, separators)
        return self._parts.get_or_make(key, partial(self._make_part, *key))

    def _make_part(
        self, text: str, is_arguments: bool, strict: bool, separators: tuple[str, str]
    ) -> _Part:
        def loosest(reason: str) -> PreparedSchema:
            if strict or self._backend == "outlines":
                raise SchemaError(
                    f"the schema is more than the grammar engine takes ({reason}): send a smaller"
                    " one"
                )
            return loosest_schema(is_arguments, separators, Finding("", "", reason))

        try:
            prepared = self._prepare(text, is_arguments, strict, separators)
        except CompileError as error:
            prepared = loosest(f"it {error.reason}")
        if prepared.automaton is not None:
            return _Part(prepared.automaton, prepared.findings, prepared.num_bytes)
        try:
            prototype = MatcherPrototype(self._vocabulary, prepared.lark)
        except RefusedError as error:
            prepared = loosest(str(error))
            prototype = MatcherPrototype(self._vocabulary, prepared.lark)
        size = _MATCHER_BYTES + _BYTES_PER_CHARACTER * len(prepared.lark)
        return _Part(prototype, prepared.findings, size)

    def _prepare(
        self, text: str, is_arguments: bool, strict: bool, separators: tuple[str, str]
    ) -> PreparedSchema:
        """In this process, from the disk, or in the worker."""
        arguments = (text, is_arguments, strict, separators, self._backend, self._open_arguments)
        if _is_small(text):
            return prepare_schema(*arguments)
        key = hashlib.sha256(repr((_maker(), arguments)).encode()).hexdigest()
        found = None if self._store is None else self._store.load(key, _is_sound)
        if found is not None:
            return _unpack(found)
        prepared = self._worker.run(prepare_schema, *arguments)
        if self._store is not None:
            self._store.save(key, _pack(prepared))
        return prepared


@cache
def _maker() -> str:
    """Part of the key on disk: the code that makes schemas ready, some milliseconds to read."""
    digest = hashlib.sha256(version("outlines-core").encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _regex_lark(regex: str) -> str:
    """A grammar for what a regex matches from end to end."""
    return f"{HEADER}start: VALUE\nVALUE: /{regex.replace('/', chr(92) + '/')}/\n"


def _is_small(text: str) -> bool:
    """Can nothing in a schema take long?"""
    return (
        len(text) <= _SMALL
        and not any(f'"{keyword}' in text for keyword in _RISKY)
        and not _LARGE_COUNT.search(text)
    )


def _pack(prepared: PreparedSchema) -> Arrays:
    automaton = prepared.automaton
    words = json.dumps([prepared.lark, [list(finding) for finding in prepared.findings]])
    arrays: Arrays = {"words": np.frombuffer(words.encode(), dtype=np.uint8)}
    if automaton is not None:
        arrays |= {"table": automaton.table, "final": automaton.final}
        arrays["start"] = np.array([automaton.start], dtype=np.int32)
    return arrays


def _unpack(arrays: Arrays) -> PreparedSchema:
    lark, findings = json.loads(arrays["words"].tobytes())
    automaton = None
    if "table" in arrays:
        automaton = Automaton(arrays["table"], int(arrays["start"][0]), arrays["final"])
    return PreparedSchema(automaton, lark, tuple(Finding(*finding) for finding in findings))


def _is_sound(arrays: Arrays) -> bool:
    """Could `_pack` have made these?"""
    if "table" not in arrays:
        return "words" in arrays
    table, final, start = arrays["table"], arrays["final"], arrays["start"]
    return (
        table.ndim == 2
        and table.dtype == np.int32
        and final.shape == (len(table),)
        and final.dtype == np.bool_
        and start.shape == (1,)
        and bool(((table >= 0) & (table < len(table))).all())
        and 0 <= int(start[0]) < len(table)
    )
