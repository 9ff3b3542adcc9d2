"""Answers requests of the Messages API, on top of the chat service."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from anthropic.types import (
    Message,
    MessageDeltaUsage,
    MessageTokensCount,
    RawMessageStartEvent,
    RawMessageStopEvent,
    RawMessageStreamEvent,
    StopReason,
    Usage,
)
from anthropic.types.raw_message_delta_event import Delta

from specrt.grammars.recipes import build_recipe
from specrt.server.access import RequestRecord
from specrt.server.chat import ChatService, Turn
from specrt.server.messages.blocks import BlockBuilder, matched_stop
from specrt.server.messages.call_memo import CallMemo
from specrt.server.messages.protocol import (
    CountTokensRequest,
    MessageDelta,
    MessagesRequest,
    MessagesResponse,
)
from specrt.server.messages.request import chat_request, prompt_fields
from specrt.server.served_model import ServedModel

# The package has no type for it; its clients skip it.
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessagesService:
    """Answers requests for messages and for counts of tokens."""

    def __init__(self, model: ServedModel, chat: ChatService) -> None:
        self._model = model
        self._chat = chat
        self._calls = CallMemo()

    async def count_tokens(self, body: CountTokensRequest) -> MessageTokensCount:
        """The length of the prompt that a message with these fields would have.

        Raises:
            RequestError: the request is at fault.
        """
        prompt = prompt_fields(body, self._calls)
        build_recipe(  # only to refuse what a message would refuse
            prompt.tools,
            tool_choice=prompt.tool_choice,
            parallel_tool_calls=prompt.parallel_tool_calls,
            response_format=prompt.response_format,
        )
        built = await self._model.build_prompt(prompt.messages, prompt.tools)
        return MessageTokensCount(input_tokens=len(built.token_ids))

    async def complete(self, body: MessagesRequest, record: RequestRecord) -> MessagesResponse:
        """The whole message.

        Raises:
            RequestError: the request is at fault.
            EngineError: the engine failed.
        """
        turn, blocks = await self._start(body, record), BlockBuilder()
        is_warming = body.max_tokens == 0
        async with aclosing(turn.generation.outputs()) as outputs:
            async for _, output in outputs:
                for choice in turn.choices[0].push(output):
                    blocks.push(choice.delta)
                if output.finish_reason is not None and not is_warming:
                    await self._finish(turn, blocks)
        usage = _usage(turn)
        if is_warming:  # the one token that the engine had to write is dropped
            record.finish_reasons.append("length")
            usage.output_tokens, blocks = 0, BlockBuilder()
        stop_reason, stop_sequence = self._stop(body, turn)
        return MessagesResponse(
            id=record.generation_id,
            type="message",
            role="assistant",
            content=blocks.content(),
            model=self._model.name,
            stop_reason=stop_reason,
            stop_sequence=stop_sequence,
            usage=usage,
            specrt=turn.generation.report(turn.unenforced, turn.violations),
        )

    async def stream(
        self, body: MessagesRequest, record: RequestRecord
    ) -> AsyncGenerator[bytes, None]:
        """The message as server-sent events.

        Raises:
            RequestError: the request is at fault.
            EngineError: the engine failed.
        """
        turn, blocks = await self._start(body, record), BlockBuilder()
        has_begun = False
        async with aclosing(turn.generation.outputs()) as outputs:
            async for _, output in outputs:
                if not has_begun:  # not before: the first output tells what was cached
                    has_begun = True
                    yield encode(self._message_start(turn))
                    yield PING
                choices = turn.choices[0].push(output)
                if output.finish_reason is None:
                    for choice in choices:
                        for event in blocks.push(choice.delta):
                            yield encode(event)
                    continue
                last = [event for choice in choices for event in blocks.push(choice.delta)]
                last += blocks.end()
                # Before the client can answer: the next turn must find this one.
                await self._finish(turn, blocks)
                for event in last:
                    yield encode(event)
        yield encode(self._message_delta(body, turn))
        yield encode(RawMessageStopEvent(type="message_stop"))

    async def _start(self, body: MessagesRequest, record: RequestRecord) -> Turn:
        """Check and render everything; nothing reaches the engine before all of it is right."""
        request = chat_request(body, self._calls)
        return await self._chat.start(request, record, id_prefix="msg_", cut_max_tokens=True)

    async def _finish(self, turn: Turn, blocks: BlockBuilder) -> None:
        """Remember a finished message for the next turn, and check it against its schemas."""
        for call_id, arguments in blocks.calls():
            self._calls.remember(call_id, arguments)
        await self._chat.finish(turn, turn.choices[0])

    def _stop(self, body: MessagesRequest, turn: Turn) -> tuple[StopReason, str | None]:
        """Why the message ended, and the stop sequence that ended it."""
        choice = turn.choices[0]
        if choice.is_cut and body.max_tokens:
            stops = body.stop_sequences or []
            token_bytes = self._model.tokenizer.token_bytes
            return "stop_sequence", matched_stop(stops, choice.token_ids, token_bytes)
        if choice.finish_reason == "length" or not body.max_tokens:
            is_cut = turn.max_tokens < body.max_tokens
            return "model_context_window_exceeded" if is_cut else "max_tokens", None
        return "tool_use" if choice.finish_reason == "tool_calls" else "end_turn", None

    def _message_start(self, turn: Turn) -> RawMessageStartEvent:
        message = Message(
            id=turn.generation.record.generation_id,
            type="message",
            role="assistant",
            content=[],
            model=self._model.name,
            stop_reason=None,
            stop_sequence=None,
            usage=_usage(turn),
        )
        return RawMessageStartEvent(type="message_start", message=message)

    def _message_delta(self, body: MessagesRequest, turn: Turn) -> MessageDelta:
        stop_reason, stop_sequence = self._stop(body, turn)
        usage = _usage(turn)
        return MessageDelta(
            type="message_delta",
            delta=Delta(stop_reason=stop_reason, stop_sequence=stop_sequence),
            usage=MessageDeltaUsage(
                input_tokens=usage.input_tokens,
                cache_creation_input_tokens=usage.cache_creation_input_tokens,
                cache_read_input_tokens=usage.cache_read_input_tokens,
                output_tokens=usage.output_tokens,
            ),
            specrt=turn.generation.report(turn.unenforced, turn.violations),
        )


def _usage(turn: Turn) -> Usage:
    """Tokens so far; those of the prompt that were cached are counted apart."""
    usage = turn.generation.usage()
    details = usage.prompt_tokens_details
    num_cached = (details.cached_tokens if details is not None else None) or 0
    return Usage(
        input_tokens=usage.prompt_tokens - num_cached,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=num_cached,
        output_tokens=usage.completion_tokens,
        service_tier="standard",
    )


def encode(event: RawMessageStreamEvent) -> bytes:
    """One server-sent event; only fields that were set appear."""
    body = event.model_dump_json(exclude_unset=True)
    return f"event: {event.type}\ndata: {body}\n\n".encode()
