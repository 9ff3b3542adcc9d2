"""Recipes to grammars: what the worker asks when it opens a request.

It decides what strictness means; what can be enforced is schema_audit.py's finding, and how an
output is spelled is lark_text.py's.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from concurrent.futures import Future
from functools import lru_cache
from typing import NamedTuple

from specrt.errors import SchemaError
from specrt.grammars.base import Grammar, GrammarRecipe, ToolSpec, Unenforced
from specrt.grammars.formats import ToolFormat, load_format
from specrt.grammars.lark_text import json_block, json_lark, tools_lark
from specrt.grammars.llguidance_engine import LLGuidanceGrammar, RefusedError, build_matcher
from specrt.grammars.schema_audit import audit_schema
from specrt.grammars.schema_check import check_schema
from specrt.grammars.schema_rewrite import Finding
from specrt.grammars.vocabulary import Vocabulary

_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_PLAIN = {"type", "properties", "title", "description", "$schema", "$id"}

# A compiled grammar without its lexer states, and what each byte of its text adds.
_BASE_BYTES = 200_000
_BYTES_PER_CHARACTER = 40


class _Part(NamedTuple):
    """One schema, ready to stand in a grammar."""

    block: str
    findings: tuple[Finding, ...]


class GrammarCompiler:
    """Compiles recipes and keeps what it compiled. Thread safe.

    llguidance releases the GIL while it compiles: call this off the event loop.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, max_entries: int = 256, max_bytes: int = 256 << 20
    ) -> None:
        """Args:
        vocabulary: the model's tokens.
        max_entries: compiled grammars to keep; the least recently used goes first.
        max_bytes: bound on their size in bytes, as estimated from their text.
        """
        self._vocabulary = vocabulary
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[GrammarRecipe, Future[Grammar]] = OrderedDict()
        self._sizes: dict[GrammarRecipe, int] = {}
        self._part = lru_cache(maxsize=4 * max_entries)(self._make_part)

    def compile(self, recipe: GrammarRecipe) -> Grammar:
        """The grammar of a recipe; equal recipes share one, also when they arrive together.

        Args:
            recipe: what the output must look like.

        Raises:
            SchemaError: a schema is malformed, impossible, or strict and not enforceable; the
                message names the function, the JSON pointer and the keyword.
            ConfigError: there is no such tool-call format.
        """
        with self._lock:
            future = self._entries.get(recipe)
            is_ours = future is None
            if future is None:
                future = self._entries[recipe] = Future()
            self._entries.move_to_end(recipe)
        if is_ours:
            try:
                grammar, size = self._build(recipe)
            except BaseException as error:
                with self._lock:
                    self._entries.pop(recipe, None)
                future.set_exception(error)
                raise
            future.set_result(grammar)
            self._keep(recipe, size)
        return future.result()

    def _keep(self, recipe: GrammarRecipe, size: int) -> None:
        with self._lock:
            self._sizes[recipe] = size
            total = sum(self._sizes.values())
            for old in list(self._entries):  # the least recently used first
                if total <= self._max_bytes and len(self._sizes) <= self._max_entries:
                    break
                if old != recipe and old in self._sizes:  # one still compiling has no size
                    total -= self._sizes.pop(old)
                    del self._entries[old]

    def _build(self, recipe: GrammarRecipe) -> tuple[Grammar, int]:
        tool_format = load_format(recipe.tool_format)
        unenforced: list[Unenforced] = []
        if recipe.kind == "json":
            param = "response_format"
            part = self._part(recipe.schema, False, tool_format)
            unenforced += _settle(part, recipe.strict, "", param)
            lark = json_lark(part.block)
        else:
            param = "tools"
            tools = []
            for tool in recipe.tools:
                part = self._tool_part(tool, tool_format)
                unenforced += _settle(part, tool.strict, tool.name, param)
                tools.append((tool.name, part.block))
            lark = tools_lark(
                tool_format, tools, require_call=recipe.require_call, parallel=recipe.parallel
            )
        try:
            grammar = LLGuidanceGrammar(
                self._vocabulary,
                lark,
                unenforced=tuple(unenforced),
                canonical=recipe.canonical,
            )
        except RefusedError as error:
            raise SchemaError(
                f"the schemas together are more than the grammar engine takes ({error}): "
                "send fewer or smaller ones",
                param=param,
            ) from error
        return grammar, _BASE_BYTES + _BYTES_PER_CHARACTER * len(lark)

    def _tool_part(self, tool: ToolSpec, tool_format: ToolFormat) -> _Part:
        try:
            return self._part(tool.parameters, True, tool_format)
        except SchemaError as error:
            raise SchemaError(
                f"function {tool.name!r}: {error.message}",
                param="tools",
                pointer=error.pointer,
                keyword=error.keyword,
            ) from error

    def _make_part(self, text: str, is_arguments: bool, tool_format: ToolFormat) -> _Part:
        param = "tools" if is_arguments else "response_format"
        try:
            schema = json.loads(text) if text.strip() else None
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"expected a schema as JSON text: {error}", param=param) from error
        if is_arguments:
            schema = _arguments_schema({} if schema is None else schema)
        check_schema(schema, param)
        separators = (tool_format.item_separator, tool_format.key_separator)

        def probe(candidate: dict[str, object]) -> str:
            try:
                build_matcher(self._vocabulary, json_lark(json_block(candidate, *separators)))
            except RefusedError as error:
                return str(error)
            return ""

        try:
            audit = audit_schema(schema, probe)
        except SchemaError as error:
            error.param = param
            raise
        return _Part(json_block(audit.schema, *separators), audit.findings)


def _arguments_schema(schema: object) -> object:
    """A tool's parameters as the schema of an object; what is no schema is left for the check."""
    if schema is True or schema == {}:
        return _NO_ARGUMENTS
    if not isinstance(schema, dict):
        return schema
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise SchemaError(
            f"expected parameters of type object, got {kinds!r}",
            param="tools",
            pointer="/type",
            keyword="type",
        )
    if schema.get("properties") == {} and not schema.keys() - _PLAIN:
        # How a function that takes nothing is commonly written.
        return {**schema, **_NO_ARGUMENTS}
    return {"type": "object", **schema, **({"type": "object"} if kinds != "object" else {})}


def _settle(part: _Part, strict: bool, tool: str, param: str) -> list[Unenforced]:
    """What is not enforced, unless the schema is strict: then it is an error."""
    if strict and part.findings:
        finding = part.findings[0]
        raise SchemaError(
            (f"function {tool!r}: " if tool else "")
            + f"a strict schema must be enforced exactly; {finding.keyword or 'the schema'!r} at "
            f"{finding.pointer or 'its top'} cannot be ({finding.reason}): "
            "remove it or set strict to false",
            param=param,
            pointer=finding.pointer,
            keyword=finding.keyword,
        )
    return [Unenforced(tool, finding.pointer, finding.keyword) for finding in part.findings]
