"""Grammar engines behind one face, so that `specrt bench grammar` asks each the same questions.

What cannot be asked for without something else says so: the two matchers move along a tree by
taking tokens and rolling back, so their masks of a tree hold that, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from llguidance import LLMatcher

from specrt.errors import SchemaError
from specrt.grammars.base import DEAD, Grammar, GrammarRecipe, ToolSpec
from specrt.grammars.compile_worker import CompileWorker
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.vocabulary import Vocabulary

ITEM_SEPARATOR, KEY_SEPARATOR = ", ", ": "
Action = Callable[[], object]


class Refused(Exception):
    """The engine does not take a schema, or not the path through it."""


class Path(NamedTuple):
    """A way through a grammar, with branches.

    Attributes:
        token_ids: a whole output.
        siblings: at each of the first nodes another token that is allowed there, None = none is.
    """

    token_ids: list[int]
    siblings: list[int | None]


class Engine(Protocol):
    """One engine with the vocabulary read.

    Attributes:
        name: in the table.
    """

    name: str

    def compile_tool(self, schema: str) -> Any:
        """The grammar of one tool's parameters, nothing of it cached.

        Raises:
            Refused: the engine does not take it.
        """
        ...

    def list_compiler(self, tools: Sequence[ToolSpec]) -> Action:
        """Compiles the grammar of a list of tools whose parts are cached, where there is a cache.

        Raises:
            Refused: the engine does not take them.
        """
        ...

    def tree_masks(self, grammar: Any, path: Path) -> Action:
        """Masks of a tree: the first nodes of the path, and their siblings.

        Raises:
            Refused: a token of the path is not allowed.
        """
        ...

    def advances(self, grammar: Any, path: Path) -> Action:
        """Opens a state and goes along the whole path."""
        ...

    def forced_runs(self, grammar: Any, path: Path) -> Action:
        """Asks at every node of the path what must come."""
        ...


class SpecrtEngine:
    """This runtime's grammars.

    Attributes:
        name: "specrt".
    """

    name = "specrt"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # Only the caches are new each time; a server has its process, too.
        self._worker = CompileWorker(modules=["specrt.grammars.prepare"])
        self._worker.warm()

    def compile_tool(self, schema: str) -> Grammar:
        """See Engine."""
        try:
            compiler = GrammarCompiler(self._vocabulary, worker=self._worker)
            return compiler.compile(GrammarRecipe(kind="json", schema=schema))
        except SchemaError as error:
            raise Refused(error.message) from error

    def list_compiler(self, tools: Sequence[ToolSpec]) -> Action:
        """See Engine. Each call leaves out another tool, or the list itself would be cached."""
        compiler = GrammarCompiler(self._vocabulary, worker=self._worker)
        lists = [tuple(tools[i:]) + tuple(tools[:i]) for i in range(len(tools))]
        try:
            for tool in tools:
                compiler.compile(_calls_of((tool,)))
        except SchemaError as error:
            raise Refused(error.message) from error
        orders = iter(lists * 1000)
        return lambda: compiler.compile(_calls_of(next(orders)))

    def tree_masks(self, grammar: Grammar, path: Path) -> Action:
        """See Engine."""
        state = grammar.open()
        node, nodes = state.root, []
        for token_id, sibling in zip(path.token_ids, path.siblings, strict=False):
            if sibling is not None:
                nodes.append(state.advance(node, sibling))
            node = state.advance(node, token_id)
            nodes.append(node)
        if DEAD in nodes:
            raise Refused("a token of the path")
        out = np.zeros((len(nodes), self._vocabulary.num_words), dtype=np.int32)
        return lambda: state.masks(nodes, out)

    def advances(self, grammar: Grammar, path: Path) -> Action:
        """See Engine."""

        def go() -> None:
            state = grammar.open()
            node = state.root
            for token_id in path.token_ids:
                node = state.advance(node, token_id)

        return go

    def forced_runs(self, grammar: Grammar, path: Path) -> Action:
        """See Engine."""
        state = grammar.open()
        nodes = [state.root]
        for token_id in path.token_ids:
            nodes.append(state.advance(nodes[-1], token_id))
        return lambda: [state.forced(node) for node in nodes[:-1]]


class LLGuidanceEngine:
    """llguidance by itself, as its documentation shows it.

    Attributes:
        name: "llguidance".
    """

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def compile_tool(self, schema: str) -> LLMatcher:
        """See Engine."""
        options = {
            "item_separator": ITEM_SEPARATOR,
            "key_separator": KEY_SEPARATOR,
            "whitespace_flexible": False,
        }
        document = json.dumps({**json.loads(schema), "x-guidance": options})
        grammar = LLMatcher.grammar_from_json_schema(document)
        matcher = LLMatcher(self._vocabulary.ll_tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise Refused(matcher.get_error().partition("\n")[0])
        return matcher

    def list_compiler(self, tools: Sequence[ToolSpec]) -> Action:
        """See Engine. It has no cache."""
        schema = _union_schema(tools)
        self.compile_tool(schema)
        return lambda: self.compile_tool(schema)

    def tree_masks(self, grammar: LLMatcher, path: Path) -> Action:
        """See Engine."""

        def go() -> None:
            matcher = grammar.deep_copy()
            for token_id, sibling in zip(path.token_ids, path.siblings, strict=False):
                if sibling is not None:
                    matcher.consume_token(sibling)
                    matcher.compute_bitmask()
                    matcher.rollback(1)
                matcher.consume_token(token_id)
                matcher.compute_bitmask()
            if matcher.is_error():
                raise Refused(matcher.get_error().partition("\n")[0])

        go()
        return go

    def advances(self, grammar: LLMatcher, path: Path) -> Action:
        """See Engine."""

        def go() -> None:
            matcher = grammar.deep_copy()
            for token_id in path.token_ids:
                matcher.consume_token(token_id)

        return go

    def forced_runs(self, grammar: LLMatcher, path: Path) -> Action:
        """See Engine. Its answer is not kept, and moving on is part of the figure."""

        def go() -> None:
            matcher = grammar.deep_copy()
            for token_id in path.token_ids:
                matcher.compute_ff_tokens()
                matcher.consume_token(token_id)

        return go


class XGrammarEngine:
    """xgrammar, on one thread.

    Attributes:
        name: "xgrammar".
    """

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Read the vocabulary.

        Raises:
            ImportError: it is not installed, or a part of it is missing.
        """
        import xgrammar

        self._xgrammar: Any = xgrammar
        self._info = xgrammar.TokenizerInfo(
            [text or b"<special>" for text in vocabulary.token_bytes],
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=list(vocabulary.eos_token_ids),
        )
        self._out = np.zeros((1, vocabulary.num_words), dtype=np.int32)

    def compile_tool(self, schema: str) -> Any:
        """See Engine."""
        compiler = self._xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        try:
            return compiler.compile_json_schema(
                schema, any_whitespace=False, separators=(ITEM_SEPARATOR, KEY_SEPARATOR)
            )
        except Exception as error:  # it raises bare RuntimeError and others
            raise Refused(str(error)[:200]) from error

    def list_compiler(self, tools: Sequence[ToolSpec]) -> Action:
        """See Engine. Its cache holds whole schemas, which a list of tools never is."""
        schema = _union_schema(tools)
        self.compile_tool(schema)
        return lambda: self.compile_tool(schema)

    def tree_masks(self, grammar: Any, path: Path) -> Action:
        """See Engine."""

        def go() -> None:
            matcher = self._matcher(grammar)
            for token_id, sibling in zip(path.token_ids, path.siblings, strict=False):
                if sibling is not None and matcher.accept_token(sibling):
                    matcher.fill_next_token_bitmask(self._out)
                    matcher.rollback(1)
                if not matcher.accept_token(token_id):
                    raise Refused("a token of the path")
                matcher.fill_next_token_bitmask(self._out)

        go()
        return go

    def advances(self, grammar: Any, path: Path) -> Action:
        """See Engine."""

        def go() -> None:
            matcher = self._matcher(grammar)
            for token_id in path.token_ids:
                matcher.accept_token(token_id)

        return go

    def forced_runs(self, grammar: Any, path: Path) -> Action:
        """See Engine. It gives text, not tokens; moving on is part of the figure."""

        def go() -> None:
            matcher = self._matcher(grammar)
            for token_id in path.token_ids:
                matcher.find_jump_forward_string()
                matcher.accept_token(token_id)

        return go

    def _matcher(self, grammar: Any) -> Any:
        return self._xgrammar.GrammarMatcher(grammar)


def _calls_of(tools: tuple[ToolSpec, ...]) -> GrammarRecipe:
    return GrammarRecipe(kind="tools", tools=tools, require_call=True)


def _union_schema(tools: Sequence[ToolSpec]) -> str:
    """What one call looks like, as a schema: how the other engines are given a list of tools."""
    branches = [
        {
            "type": "object",
            "properties": {"name": {"const": t.name}, "arguments": json.loads(t.parameters)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for t in tools
    ]
    return json.dumps({"anyOf": branches})
