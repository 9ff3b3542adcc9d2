"""Two ways to say which texts a schema allows: specrt's grammars, and llguidance alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from llguidance import LLMatcher, LLParserLimits

from specrt.errors import GrammarError, SchemaError
from specrt.grammars.base import DEAD, DEFAULT_TOOL_FORMAT, Grammar, GrammarRecipe
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.formats import load_format
from specrt.grammars.vocabulary import Vocabulary


class Separators(NamedTuple):
    """How JSON is spaced.

    Attributes:
        item: between items.
        key: between a key and its value.
    """

    item: str
    key: str


def default_separators() -> Separators:
    """Those of the default tool-call format, which response schemas use, too."""
    tool_format = load_format(DEFAULT_TOOL_FORMAT)
    return Separators(tool_format.item_separator, tool_format.key_separator)


def spell(value: Any, separators: Separators) -> bytes | None:
    """The one text in which a grammar writes a value; None when JSON cannot hold it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=separators)
        return text.encode()
    except (ValueError, RecursionError):  # not finite, a lone surrogate, or too deep
        return None


class Judge(Protocol):
    """One compiled schema."""

    def accepts(self, text: bytes) -> bool:
        """Is `text` a whole output?"""
        ...


class GrammarJudge:
    """A schema as specrt compiles it.

    Attributes:
        grammar: with what it does not enforce.
    """

    def __init__(
        self,
        compiler: GrammarCompiler,
        vocabulary: Vocabulary,
        schema: str,
        *,
        strict: bool,
    ) -> None:
        """Compile.

        Args:
            compiler: for `vocabulary`.
            vocabulary: the tokens.
            schema: JSON text.
            strict: exactly, or not at all.

        Raises:
            SchemaError: it is refused.
        """
        recipe = GrammarRecipe(kind="json", schema=schema, strict=strict, canonical=False)
        self.grammar: Grammar = compiler.compile(recipe)
        self._vocabulary = vocabulary

    def accepts(self, text: bytes) -> bool:
        """Is `text`, in the model's own tokens, a whole output?"""
        state = self.grammar.open()
        node = state.root
        try:
            for token_id in _tokens(self._vocabulary, text):
                node = state.advance(node, token_id)
                if node == DEAD:
                    return False
            return state.is_final(node)
        except GrammarError:
            return False


class LLGuidanceJudge:
    """A schema as llguidance compiles it by itself, strictly and within its default limits."""

    def __init__(self, vocabulary: Vocabulary, schema: Any, separators: Separators) -> None:
        """Compile.

        Args:
            vocabulary: the tokens.
            schema: an object or a boolean.
            separators: the only white space that is allowed.

        Raises:
            SchemaError: llguidance refuses it.
        """
        options = {
            "item_separator": _regex(separators.item),
            "key_separator": _regex(separators.key),
            "whitespace_flexible": False,
            "lenient": False,
        }
        document = {True: {}, False: {"not": {}}}[schema] if isinstance(schema, bool) else schema
        lark = (
            '%llguidance {"no_forcing": true}\nstart: %json '
            + json.dumps({**document, "x-guidance": options})
            + "\n"
        )
        limits = LLParserLimits(verbose_errors=False)
        self._vocabulary = vocabulary
        self._matcher = LLMatcher(vocabulary.ll_tokenizer, lark, log_level=0, limits=limits)
        if self._matcher.is_error():
            first_line = self._matcher.get_error().partition("\n")[0]
            raise SchemaError(first_line.rpartition("JSON schema: ")[2].strip())

    def accepts(self, text: bytes) -> bool:
        """Is `text`, in the model's own tokens, a whole output?"""
        matcher = self._matcher.deep_copy()
        tokens = list(_tokens(self._vocabulary, text))
        # Unlike `consume_token` this leaves nothing half done at a token that is not allowed.
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def _tokens(vocabulary: Vocabulary, text: bytes) -> Iterable[int]:
    return vocabulary.encode(text) or vocabulary.pieces(text) or ()


def _regex(text: str) -> str:
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)
