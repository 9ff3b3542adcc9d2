"""LLM: the engine in the caller's own process.

from specrt import LLM

llm = LLM()                                        # the embedded model
reply = llm.chat(messages, tools=tools, tool_choice="required", max_tokens=200)
reply.tool_calls[0].name, reply.tool_calls[0].arguments
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specrt.config import EngineConfig, build, flatten
from specrt.engine import LLMEngine
from specrt.errors import ConfigError, EngineError
from specrt.grammars.base import GrammarRecipe, Unenforced
from specrt.grammars.format_detection import find_format
from specrt.grammars.prompt_builder import make_prompt_builder
from specrt.grammars.recipes import build_recipe
from specrt.grammars.tool_parser import ParsedCall, parse_message
from specrt.request import EngineRequest, RequestStats, SamplingParams


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished output.

    Attributes:
        text: all of it, tool calls included.
        token_ids: its tokens, the end-of-sequence token included.
        finish_reason: "stop" or "length".
        stats: tokens, passes, drafted and accepted counts.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished assistant turn.

    Attributes:
        content: text outside of calls; None when there is none.
        tool_calls: (name, arguments as JSON text, complete, id) of each call; the id is "" where
            the model writes none.
        unenforced: schema keywords that the grammar did not enforce (non-strict schemas only).
        completion: the output it was read from.
    """

    content: str | None
    tool_calls: Sequence[ParsedCall]
    unenforced: tuple[Unenforced, ...]
    completion: Completion

    @property
    def message(self) -> dict[str, Any]:
        """The turn as an OpenAI message: append it, and the next turn reuses all of its cache."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(self.tool_calls)
            ]
        return message


class LLM:
    """A model with its cache; one caller at a time."""

    def __init__(self, model_path: str | None = None, **options: Any) -> None:
        """Load a model.

        Args:
            model_path: transformers folder or .gguf file; None = the embedded model.
            options: the flags of `specrt serve` that concern the engine, with underscores
                (context_length=4096, speculative="none", ...).

        Raises:
            ConfigError: an option is unknown or out of range, or the model cannot be used.
        """
        known = flatten(EngineConfig())
        unknown = sorted(options.keys() - known.keys())
        if unknown:
            raise ConfigError(
                f"unknown options {', '.join(unknown)}; expected some of {', '.join(sorted(known))}"
            )
        self.engine = LLMEngine(build(EngineConfig, {"model_path": model_path, **options}))
        parser = self.engine.config.grammar.tool_call_parser
        self._format = find_format(self.engine.tokenizer, parser)
        self._prompts = make_prompt_builder(
            self.engine.tokenizer, self._format, is_chosen=parser is not None
        )
        self._ids = itertools.count()

    def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        response_format: dict[str, Any] | None = None,
        max_tokens: int = 512,
        **sampling: Any,
    ) -> Reply:
        """One assistant turn.

        Args:
            messages: OpenAI messages.
            tools: OpenAI tools.
            tool_choice: "auto", "none", "required" or a named function.
            parallel_tool_calls: may there be more than one call?
            response_format: OpenAI response_format.
            max_tokens: output tokens at most.
            sampling: further `SamplingParams` fields; without a seed one is drawn.

        Raises:
            RequestError: the request is at fault; the message names the field.
        """
        grammar_config = self.engine.config.grammar
        recipe = build_recipe(
            tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            response_format=response_format,
            tool_format=self._format.name,
            strict_level=grammar_config.tool_strict_level,
            canonical=not grammar_config.no_canonical,
        )
        unenforced = self.engine.worker.compiler.compile(recipe).unenforced if recipe else ()
        prompt = self._prompts.build(messages, tools)
        params = _sampling(max_tokens, sampling)
        (completion,) = self._run([(prompt.token_ids, params)], recipe)
        parsed = parse_message(
            self._format,
            completion.text,
            enabled=recipe is not None and recipe.kind == "tools",
            cut=completion.finish_reason == "length",
        )
        self._prompts.remember(prompt, parsed.content, parsed.calls, completion.token_ids)
        return Reply(parsed.content, parsed.calls, unenforced, completion)

    def generate(
        self, prompts: Sequence[str], *, max_tokens: int = 64, **sampling: Any
    ) -> list[Completion]:
        """Continue texts, all at once.

        Args:
            prompts: special-token text in them is parsed.
            max_tokens: output tokens of each at most.
            sampling: further `SamplingParams` fields.

        Raises:
            RequestError: a prompt does not fit.
        """
        params = _sampling(max_tokens, sampling)
        return self._run([(self.engine.tokenizer.encode(p), params) for p in prompts], None)

    def _run(
        self, prompts: list[tuple[list[int], SamplingParams]], recipe: GrammarRecipe | None
    ) -> list[Completion]:
        ids = [f"llm-{next(self._ids)}" for _ in prompts]
        texts = dict.fromkeys(ids, "")
        tokens: dict[str, list[int]] = {request_id: [] for request_id in ids}
        done: dict[str, Completion] = {}
        try:
            for request_id, (token_ids, params) in zip(ids, prompts, strict=True):
                self.engine.add(
                    EngineRequest(
                        request_id=request_id,
                        prompt_token_ids=token_ids,
                        sampling=params,
                        grammar=recipe,
                    )
                )
            while len(done) < len(ids):
                for output in self.engine.step():
                    key = output.request_id
                    texts[key] += output.text
                    tokens[key] += output.token_ids
                    if output.finish_reason == "error":
                        raise EngineError(output.error or "the request failed inside the engine")
                    if output.finish_reason is not None:
                        done[key] = Completion(
                            texts[key], tokens[key], output.finish_reason, output.stats
                        )
        finally:
            for request_id in ids:
                self.engine.abort(request_id)  # those that are done are not in flight
        return [done[request_id] for request_id in ids]


def _sampling(max_tokens: int, fields: dict[str, Any]) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **{"seed": secrets.randbits(64), **fields})


__all__ = ["LLM", "Completion", "Reply"]
