"""/v1/completions: plain text in, plain text out, no chat template."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from openai.types import CompletionUsage
from openai.types.completion_choice import CompletionChoice

from specrt.errors import RequestError
from specrt.grammars.base import GrammarRecipe, Unenforced
from specrt.grammars.prompt_builder import check_length
from specrt.grammars.recipes import build_recipe
from specrt.request import EngineRequest
from specrt.server.access import RequestRecord
from specrt.server.chat_shape import check_ending, named_as_sent
from specrt.server.completion_choice import TextChoice, append
from specrt.server.generation import Backend, Generation, num_slots
from specrt.server.obfuscation import obfuscated
from specrt.server.protocol import (
    CompletionRequest,
    PaddedStreamOptions,
    Prompts,
    Report,
    TextResponse,
    ViolationEntry,
)
from specrt.server.sampling import resolve_max_tokens, resolve_seed, sampling_params
from specrt.server.served_model import ServedModel
from specrt.server.streaming import DONE, event
from specrt.server.violations import find_violations

# OpenAI's default for this endpoint; "all that fits" is no use without a stop condition.
DEFAULT_MAX_TOKENS = 16


@dataclass(slots=True, kw_only=True)
class _Run:
    """One completion request on its way.

    Attributes:
        generation: its engine requests.
        choices: what has come out of each.
        recipe: what the output must look like.
        unenforced: what the grammar does not enforce of it.
        violations: what finished output breaks.
    """

    generation: Generation
    choices: list[TextChoice]
    recipe: GrammarRecipe | None
    unenforced: tuple[Unenforced, ...]
    violations: list[ViolationEntry]

    def report(self) -> Report:
        return self.generation.report(self.unenforced, self.violations)


class CompletionService:
    """Answers text completion requests."""

    def __init__(self, model: ServedModel, backend: Backend) -> None:
        self._model = model
        self._backend = backend

    async def complete(self, body: CompletionRequest, record: RequestRecord) -> TextResponse:
        """The whole answer.

        Raises:
            RequestError: the request is at fault.
            EngineError: the engine failed.
        """
        run = await self._start(body, record)
        merged: dict[int, CompletionChoice] = {}
        async with aclosing(self._pieces(run)) as pieces:
            async for piece in pieces:
                if piece.index in merged:
                    append(merged[piece.index], piece)
                else:
                    merged[piece.index] = piece
        choices = [merged[i] for i in sorted(merged)]
        return self._response(record, choices, run.report(), run.generation.usage())

    async def stream(
        self, body: CompletionRequest, record: RequestRecord
    ) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events.

        Raises:
            RequestError: the request is at fault.
            EngineError: the engine failed.
        """
        run = await self._start(body, record)
        num_running = len(run.choices)
        options = body.stream_options or PaddedStreamOptions()
        with_usage = bool(options.include_usage)

        def sent(response: TextResponse) -> bytes:
            return event(obfuscated(response) if options.include_obfuscation else response)

        async with aclosing(self._pieces(run)) as pieces:
            async for piece in pieces:
                num_running -= piece.finish_reason is not None
                is_last = not num_running and not with_usage
                yield sent(self._response(record, [piece], run.report() if is_last else None))
        if with_usage:
            yield sent(self._response(record, [], run.report(), run.generation.usage()))
        yield DONE

    async def _pieces(self, run: _Run) -> AsyncGenerator[CompletionChoice, None]:
        record = run.generation.record
        async with aclosing(run.generation.outputs()) as outputs:
            async for index, output in outputs:
                choice = run.choices[index]
                piece = choice.push(output)
                if choice.finish_reason is not None:
                    record.finish_reasons.append(choice.finish_reason)
                    if run.recipe is not None:
                        run.violations += await asyncio.to_thread(
                            find_violations, record.request_id, choice, run.recipe, run.unenforced
                        )
                yield piece

    async def _start(self, body: CompletionRequest, record: RequestRecord) -> _Run:
        """Tokenise and check everything; nothing reaches the engine before all of it is right."""
        record.generation_id = f"cmpl-{uuid.uuid4().hex}"
        _check(body)
        with named_as_sent(body):
            recipe = build_recipe(
                guided=body.guided_fields(),
                tool_format=self._model.tool_format.name,
                strict_level=self._model.grammar.tool_strict_level,
                canonical=not self._model.grammar.no_canonical,
            )
            check_ending(body, recipe)
            prompts, unenforced = await asyncio.gather(
                asyncio.to_thread(self._tokenise, body.prompt), self._model.compile(recipe)
            )
        seed = resolve_seed(body.seed)
        requests: list[EngineRequest] = []
        for prompt in prompts:
            max_tokens = resolve_max_tokens(
                body.max_tokens,
                len(prompt),
                self._model.context_length,
                num_slots=num_slots(self._backend.engine),
                param="prompt",
            )
            if body.max_tokens is None:
                max_tokens = min(max_tokens, DEFAULT_MAX_TOKENS)
            for choice_index in range(body.n):
                requests.append(
                    EngineRequest(
                        request_id=f"{record.generation_id}-{len(requests)}",
                        prompt_token_ids=prompt,
                        sampling=sampling_params(
                            body,
                            max_tokens=max_tokens,
                            seed=seed,
                            choice_index=choice_index,
                            logprobs=body.logprobs,
                            vocab_size=self._model.vocab_size,
                        ),
                        grammar=recipe,
                        namespace=body.cache_salt,
                        tenant=record.tenant,
                    )
                )
        return _Run(
            generation=Generation(self._backend, record, requests, n=body.n),
            choices=[self._choice(body, index, request) for index, request in enumerate(requests)],
            recipe=recipe,
            unenforced=unenforced,
            violations=[],
        )

    def _choice(self, body: CompletionRequest, index: int, request: EngineRequest) -> TextChoice:
        token_bytes, echo = self._model.tokenizer.token_bytes, ""
        if body.echo:
            prompt = body.prompt[index // body.n]
            ids = b"".join(map(token_bytes, request.prompt_token_ids))
            echo = prompt if isinstance(prompt, str) else ids.decode("utf-8", "replace")
        return TextChoice(
            index,
            token_bytes,
            echo=echo,
            prompt_token_ids=request.prompt_token_ids if body.return_token_ids else None,
        )

    def _tokenise(self, prompts: Prompts) -> list[list[int]]:
        tokenised = []
        for index, prompt in enumerate(prompts):
            param = "prompt" if len(prompts) == 1 else f"prompt[{index}]"
            if isinstance(prompt, str):
                check_length(prompt, self._model.max_prompt_chars, param)
                token_ids = self._model.tokenizer.encode(prompt)
            else:
                token_ids = list(prompt)
                wrong = [i for i in token_ids if not 0 <= i < self._model.vocab_size]
                if wrong:
                    raise RequestError(
                        f"`{param}`: expected token ids from 0 to {self._model.vocab_size - 1},"
                        f" got {wrong[0]}",
                        param=param,
                        code="invalid_value",
                    )
            if not token_ids:
                raise RequestError(
                    f"`{param}`: expected at least one token, got an empty text",
                    param=param,
                    code="invalid_value",
                )
            tokenised.append(token_ids)
        return tokenised

    def _response(
        self,
        record: RequestRecord,
        choices: list[CompletionChoice],
        report: Report | None = None,
        usage: CompletionUsage | None = None,
    ) -> TextResponse:
        fields = {"specrt": report, "usage": usage}
        return TextResponse.model_construct(
            None,
            id=record.generation_id,
            object="text_completion",
            created=record.created,
            model=self._model.name,
            choices=choices,
            **{name: value for name, value in fields.items() if value is not None},
        )


def _check(body: CompletionRequest) -> None:
    """
    Raises:
        RequestError: a value is not served.
    """  # noqa: D205, D415
    if body.best_of is not None and body.best_of != body.n:
        raise RequestError(
            f"`best_of`: expected the number of choices ({body.n}) or no such field: all that are"
            f" generated are returned, got {body.best_of}; use n and choose",
            param="best_of",
            code="unsupported_value",
        )
    if body.echo and body.logprobs is not None:
        raise RequestError(
            "`echo`: expected false beside logprobs: log-probabilities of prompt tokens are not"
            " computed",
            param="echo",
            code="unsupported_value",
        )
