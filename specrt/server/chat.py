"""/v1/chat/completions: messages and tools in, text and valid tool calls out."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from specrt.errors import RequestError
from specrt.grammars.base import GrammarRecipe, Unenforced
from specrt.grammars.prompt_builder import Prompt
from specrt.request import EngineRequest
from specrt.server.access import RequestRecord
from specrt.server.chat_choice import ChatChoice
from specrt.server.chat_shape import named_as_sent, read_shape
from specrt.server.generation import Backend, Generation, num_slots
from specrt.server.obfuscation import obfuscated
from specrt.server.protocol import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    PaddedStreamOptions,
    ViolationEntry,
)
from specrt.server.sampling import resolve_max_tokens, resolve_seed, sampling_params
from specrt.server.served_model import ServedModel
from specrt.server.streaming import DONE, event
from specrt.server.violations import find_violations

_Choice = TypeVar("_Choice", bound=BaseModel)


@dataclass(slots=True, kw_only=True)
class Turn:
    """One chat request on its way.

    Attributes:
        generation: its engine requests.
        choices: what has come out of each.
        prompt: of all choices.
        max_tokens: output tokens at most, of each choice.
        recipe: what the output must look like.
        unenforced: what the grammar does not enforce of it.
        violations: what finished output breaks.
    """

    generation: Generation
    choices: list[ChatChoice]
    prompt: Prompt
    max_tokens: int
    recipe: GrammarRecipe | None
    unenforced: tuple[Unenforced, ...]
    violations: list[ViolationEntry]


class ChatService:
    """Answers chat requests."""

    def __init__(self, model: ServedModel, backend: Backend) -> None:
        self._model = model
        self._backend = backend

    async def complete(self, body: ChatRequest, record: RequestRecord) -> ChatResponse:
        """The whole answer.

        Raises:
            RequestError: the request is at fault.
            EngineError: the engine failed.
        """
        turn = await self.start(body, record)
        async with aclosing(turn.generation.outputs()) as outputs:
            async for index, output in outputs:
                turn.choices[index].push(output)
                if output.finish_reason is not None:
                    await self.finish(turn, turn.choices[index])
        asked: dict[str, Any] = {}
        if body.return_token_ids:
            asked["prompt_token_ids"] = turn.prompt.token_ids
        if body.service_tier is not None:
            asked["service_tier"] = "default"
        return ChatResponse(
            id=record.generation_id,
            object="chat.completion",
            created=record.created,
            model=self._model.name,
            choices=[
                _with_ids(choice.choice(), choice.token_ids)
                if body.return_token_ids
                else choice.choice()
                for choice in turn.choices
            ],
            usage=turn.generation.usage(),
            specrt=turn.generation.report(turn.unenforced, turn.violations),
            **asked,
        )

    async def stream(self, body: ChatRequest, record: RequestRecord) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events.

        Raises:
            RequestError: the request is at fault.
            EngineError: the engine failed.
        """
        turn = await self.start(body, record)
        generation, num_running = turn.generation, len(turn.choices)
        options = body.stream_options or PaddedStreamOptions()
        with_usage = bool(options.include_usage)

        num_sent_ids = [0] * num_running
        is_first = True

        def chunk(**fields: object) -> ChatChunk:
            nonlocal is_first
            if is_first and body.return_token_ids:
                fields["prompt_token_ids"] = turn.prompt.token_ids
            is_first = False
            fields |= {"id": record.generation_id, "object": "chat.completion.chunk"}
            fields |= {"created": record.created, "model": self._model.name}
            if body.service_tier is not None:
                fields["service_tier"] = "default"
            made = ChatChunk.model_validate(fields)
            return obfuscated(made) if options.include_obfuscation else made

        async with aclosing(generation.outputs()) as outputs:
            async for index, output in outputs:
                choices = turn.choices[index].push(output)
                if output.finish_reason is not None:
                    # Before the client can answer: the next turn must find this one.
                    await self.finish(turn, turn.choices[index])
                    num_running -= 1
                if body.return_token_ids and choices:
                    token_ids = turn.choices[index].token_ids
                    choices[0] = _with_ids(choices[0], token_ids[num_sent_ids[index] :])
                    num_sent_ids[index] = len(token_ids)
                for position, choice in enumerate(choices):
                    is_last = not num_running and position == len(choices) - 1
                    if is_last and not with_usage:
                        report = generation.report(turn.unenforced, turn.violations)
                        yield event(chunk(choices=[choice], specrt=report))
                    else:
                        yield event(chunk(choices=[choice]))
        if with_usage:
            report = generation.report(turn.unenforced, turn.violations)
            yield event(chunk(choices=[], usage=generation.usage(), specrt=report))
        yield DONE

    async def start(
        self,
        body: ChatRequest,
        record: RequestRecord,
        *,
        id_prefix: str = "chatcmpl-",
        cut_max_tokens: bool = False,
    ) -> Turn:
        """Check, render and compile; nothing reaches the engine before all of it is right.

        Args:
            body: the request.
            record: gets the id.
            id_prefix: of the id.
            cut_max_tokens: a max_tokens that does not fit behind the prompt is cut to what does,
                instead of refused.

        Raises:
            RequestError: the request is at fault.
        """
        record.generation_id = f"{id_prefix}{uuid.uuid4().hex}"
        logprobs = _num_logprobs(body)
        shape = read_shape(body, self._model)
        recipe = shape.recipe
        with named_as_sent(body):
            prompt, unenforced = await asyncio.gather(
                self._model.build_prompt(body.messages, shape.tools, shape.variables),
                self._model.compile(recipe),
            )
        wanted = _max_tokens(body)
        max_tokens = resolve_max_tokens(
            None if cut_max_tokens else wanted,
            len(prompt.token_ids),
            self._model.context_length,
            num_slots=num_slots(self._backend.engine),
            param="messages",
        )
        if wanted is not None:
            max_tokens = min(max_tokens, wanted)
        seed = resolve_seed(body.seed)
        requests = [
            EngineRequest(
                request_id=f"{record.generation_id}-{choice_index}",
                prompt_token_ids=prompt.token_ids,
                sampling=sampling_params(
                    body,
                    max_tokens=max_tokens,
                    seed=seed,
                    choice_index=choice_index,
                    logprobs=logprobs,
                    vocab_size=self._model.vocab_size,
                ),
                grammar=recipe,
                namespace=body.cache_salt,
                tenant=record.tenant,
            )
            for choice_index in range(body.n)
        ]
        has_calls = recipe is not None and recipe.kind == "tools"
        return Turn(
            generation=Generation(self._backend, record, requests, n=body.n),
            choices=[
                ChatChoice(
                    index,
                    self._model.tool_format,
                    self._model.tokenizer.token_bytes,
                    has_calls=has_calls,
                    is_older=shape.is_older,
                )
                for index in range(body.n)
            ],
            prompt=prompt,
            max_tokens=max_tokens,
            recipe=recipe,
            unenforced=unenforced,
            violations=[],
        )

    async def finish(self, turn: Turn, choice: ChatChoice) -> None:
        """Remember a finished choice for the next turn, and check it against its schemas."""
        record = turn.generation.record
        record.finish_reasons.append(str(choice.finish_reason))
        parsed = choice.parsed
        self._model.prompts.remember(turn.prompt, parsed.content, parsed.calls, choice.token_ids)
        if turn.recipe is not None:
            # A client's pattern may take long to match.
            turn.violations += await asyncio.to_thread(
                find_violations, record.request_id, choice, turn.recipe, turn.unenforced
            )


def _with_ids(choice: _Choice, token_ids: list[int]) -> _Choice:
    """A choice that carries token ids, as an extra field."""
    return choice.model_copy(update={"token_ids": token_ids})


def _max_tokens(body: ChatRequest) -> int | None:
    """max_completion_tokens, or the older max_tokens.

    Raises:
        RequestError: both are given and differ.
    """
    older, newer = body.max_tokens, body.max_completion_tokens
    if older is not None and newer is not None and older != newer:
        raise RequestError(
            f"`max_tokens`: expected it absent or equal to max_completion_tokens ({newer}), which"
            f" replaces it, got {older}",
            param="max_tokens",
            code="invalid_value",
        )
    return older if newer is None else newer


def _num_logprobs(body: ChatRequest) -> int | None:
    """Alternatives a token; None = no logprobs.

    Raises:
        RequestError: top_logprobs without logprobs.
    """
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs is not None:
        raise RequestError(
            "`top_logprobs`: expected `logprobs`: true beside it; add that, or remove top_logprobs",
            param="top_logprobs",
            code="invalid_value",
        )
    return None
