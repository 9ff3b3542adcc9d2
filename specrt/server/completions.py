"""/v1/completions: plain text in, plain text out, no chat template and no grammar."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing

from openai.types import CompletionUsage
from openai.types.completion_choice import CompletionChoice, Logprobs

from specrt.errors import RequestError
from specrt.grammars.prompt_builder import check_length
from specrt.request import EngineRequest, RequestOutput
from specrt.server.access import RequestRecord
from specrt.server.generation import Backend, Generation, num_slots
from specrt.server.logprobs import completion_logprobs
from specrt.server.protocol import CompletionRequest, Prompts, Report, TextResponse
from specrt.server.sampling import resolve_max_tokens, resolve_seed, sampling_params
from specrt.server.served_model import ServedModel
from specrt.server.streaming import DONE, event

# OpenAI's default for this endpoint; "all that fits" is no use without a stop condition.
DEFAULT_MAX_TOKENS = 16
_FINISH = {"stop": "stop", "length": "length"}


class _Choice:
    """One choice: outputs in, text pieces with their logprobs out."""

    def __init__(self, index: int, model: ServedModel) -> None:
        self.index = index
        self._model = model
        self._offset = 0

    def push(self, output: RequestOutput) -> CompletionChoice:
        logprobs = None
        if output.logprobs is not None:
            logprobs, self._offset = completion_logprobs(
                output.logprobs, self._model.tokenizer.token_bytes, self._offset
            )
        # The type has no null for a choice that is still running; the API sends one.
        return CompletionChoice.model_construct(
            index=self.index,
            text=output.text,
            logprobs=logprobs,
            finish_reason=_FINISH.get(output.finish_reason or ""),
        )


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
        generation = await self._start(body, record)
        merged: dict[int, CompletionChoice] = {}
        async with aclosing(self._pieces(generation)) as pieces:
            async for piece in pieces:
                if piece.index in merged:
                    _append(merged[piece.index], piece)
                else:
                    merged[piece.index] = piece
        return self._response(
            record, [merged[i] for i in sorted(merged)], generation.report(), generation.usage()
        )

    async def stream(
        self, body: CompletionRequest, record: RequestRecord
    ) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events.

        Raises:
            RequestError: the request is at fault.
            EngineError: the engine failed.
        """
        generation = await self._start(body, record)
        num_running = generation.num_choices
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        async with aclosing(self._pieces(generation)) as pieces:
            async for piece in pieces:
                num_running -= piece.finish_reason is not None
                is_last = not num_running and not with_usage
                report = generation.report() if is_last else None
                yield event(self._response(record, [piece], report))
        if with_usage:
            yield event(self._response(record, [], generation.report(), generation.usage()))
        yield DONE

    async def _pieces(self, generation: Generation) -> AsyncGenerator[CompletionChoice, None]:
        choices = [_Choice(i, self._model) for i in range(generation.num_choices)]
        async with aclosing(generation.outputs()) as outputs:
            async for index, output in outputs:
                piece = choices[index].push(output)
                if piece.finish_reason is not None:
                    generation.record.finish_reasons.append(piece.finish_reason)
                yield piece

    async def _start(self, body: CompletionRequest, record: RequestRecord) -> Generation:
        """Tokenise and check everything; nothing reaches the engine before all of it is right."""
        record.generation_id = f"cmpl-{uuid.uuid4().hex}"
        prompts = await asyncio.to_thread(self._tokenise, body.prompt)
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
                        namespace=body.cache_salt,
                    )
                )
        return Generation(self._backend, record, requests, n=body.n)

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


def _append(choice: CompletionChoice, piece: CompletionChoice) -> None:
    choice.text += piece.text
    choice.finish_reason = piece.finish_reason
    if choice.logprobs is None or piece.logprobs is None:
        return
    for name in Logprobs.model_fields:
        getattr(choice.logprobs, name).extend(getattr(piece.logprobs, name))
