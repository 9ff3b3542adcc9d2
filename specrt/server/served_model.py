"""What the server process knows of the model: everything but the weights."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from specrt.config import EngineConfig, GrammarConfig
from specrt.grammars.base import GrammarRecipe, Unenforced
from specrt.grammars.compiler import GrammarCompiler
from specrt.grammars.format_detection import find_format
from specrt.grammars.prompt_builder import Prompt, PromptBuilder, make_prompt_builder
from specrt.grammars.table_store import TableStore, default_folder
from specrt.grammars.tool_format import ToolFormat
from specrt.grammars.vocabulary import Vocabulary
from specrt.model.loader import resolve_model_folder
from specrt.server.errors import NotFoundError
from specrt.tokenizer import Tokenizer


class ServerTokenizer(Protocol):
    """The part of a tokenizer that the server needs besides prompts."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special-token text becomes special tokens."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for."""
        ...


class CompiledGrammar(Protocol):
    """The part of a compiled grammar that the server needs."""

    unenforced: tuple[Unenforced, ...]


class RecipeCompiler(Protocol):
    """Compiles recipes; safe to use from several threads."""

    def compile(self, recipe: GrammarRecipe) -> CompiledGrammar:
        """Compile a recipe, or raise SchemaError."""
        ...


@dataclass(slots=True, kw_only=True)
class ServedModel:
    """The model as the API shows it.

    Attributes:
        name: in the API; answers carry it.
        aliases: other names that requests may give.
        context_length: prompt and output of one request at most (tokens).
        vocab_size: token ids are below it.
        tokenizer: text to ids and back.
        prompts: messages to prompt ids; remembers generated turns.
        compiler: tells before the first token whether a schema can be enforced.
        tool_format: how calls are written.
        grammar: how strictly schemas are enforced.
        max_prompt_chars: no longer text fits the context; None = not known.
        created: Unix time (seconds) that /v1/models shows.
    """

    name: str
    context_length: int
    vocab_size: int
    tokenizer: ServerTokenizer
    prompts: PromptBuilder
    compiler: RecipeCompiler
    tool_format: ToolFormat
    grammar: GrammarConfig = field(default_factory=GrammarConfig)
    max_prompt_chars: int | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names in the API."""
        return (self.name, *self.aliases)

    def check_name(self, name: str) -> None:
        """
        Raises:
            NotFoundError: a request for another model.
        """  # noqa: D205, D415
        if name not in self.names:
            raise NotFoundError(
                f"model {name!r} is not served here; served: {', '.join(map(repr, self.names))}",
                param="model",
                code="model_not_found",
            )

    async def build_prompt(
        self, messages: object, tools: object, variables: Mapping[str, object] | None = None
    ) -> Prompt:
        """The prompt of a chat request, built off the event loop.

        Args:
            messages: the JSON value of the field.
            tools: the JSON value of the field.
            variables: further variables of the chat template.

        Raises:
            RequestError: messages or tools are malformed, or the template refuses them.
        """
        build = functools.partial(self.prompts.build, max_chars=self.max_prompt_chars)
        return await asyncio.to_thread(build, messages, tools, variables=variables)

    async def compile(self, recipe: GrammarRecipe | None) -> tuple[Unenforced, ...]:
        """What the grammar of a recipe does not enforce; compiled off the event loop.

        Raises:
            SchemaError: a schema cannot be used.
        """
        if recipe is None:
            return ()
        grammar = await asyncio.to_thread(self.compiler.compile, recipe)
        return grammar.unenforced


def load_served_model(config: EngineConfig) -> ServedModel:
    """Load tokenizer, template and configuration of the target model; no weights.

    Raises:
        ConfigError: a model file is missing or cannot be used.
    """
    found = resolve_model_folder(config.model.model_path)
    vocab_size = found.config.vocab_size
    tokenizer = Tokenizer(found.folder, vocab_size, found.config.eos_token_ids)
    parser = config.grammar.tool_call_parser
    tool_format = find_format(tokenizer, parser)
    vocabulary = Vocabulary(tokenizer.tokenizer_json(), vocab_size, tokenizer.eos_token_ids)
    context_length = config.model.context_length or found.config.max_positions
    longest = max(len(tokenizer.token_bytes(token_id)) for token_id in range(len(tokenizer)))
    names = config.model.served_names or (found.name,)
    return ServedModel(
        name=names[0],
        aliases=names[1:],
        context_length=context_length,
        max_prompt_chars=context_length * longest,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        prompts=make_prompt_builder(tokenizer, tool_format, is_chosen=parser is not None),
        compiler=GrammarCompiler(
            vocabulary,
            backend=config.grammar.grammar_backend,
            open_arguments=config.grammar.open_arguments,
            store=TableStore(default_folder()),
        ),
        tool_format=tool_format,
        grammar=config.grammar,
    )
