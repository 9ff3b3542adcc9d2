"""From the deltas of a chat completion to the events of a response and its output items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from openai.types import responses as wire
from openai.types.chat import ChatCompletionTokenLogprob
from openai.types.chat import chat_completion_chunk as chunk

from specrt.server.responses.items import new_id
from specrt.server.responses.logprobs import (
    TextLogprobs,
    delta_logprobs,
    done_logprobs,
    whole_logprobs,
)
from specrt.server.responses.output import OutputItem

Event = (
    wire.ResponseCompletedEvent
    | wire.ResponseContentPartAddedEvent
    | wire.ResponseContentPartDoneEvent
    | wire.ResponseCreatedEvent
    | wire.ResponseErrorEvent
    | wire.ResponseFailedEvent
    | wire.ResponseFunctionCallArgumentsDeltaEvent
    | wire.ResponseFunctionCallArgumentsDoneEvent
    | wire.ResponseIncompleteEvent
    | wire.ResponseInProgressEvent
    | wire.ResponseOutputItemAddedEvent
    | wire.ResponseOutputItemDoneEvent
    | wire.ResponseTextDeltaEvent
    | wire.ResponseTextDoneEvent
)
ItemStatus = Literal["completed", "incomplete"]


class EventBuilder:
    """Builds the events of one response, numbered in order.

    The output is made of the same deltas as the events, so the two cannot disagree.

    Attributes:
        output: the items so far; the last one may still grow.
    """

    def __init__(self, origins: Mapping[str, tuple[str, str]], *, with_logprobs: bool) -> None:
        """
        Args:
            origins: name in the prompt -> (namespace, name) of functions in a namespace.
            with_logprobs: the texts carry log-probabilities.
        """  # noqa: D415
        self.output: list[OutputItem] = []
        self._origins = origins
        self._with_logprobs = with_logprobs
        self._is_open = False
        self._number = -1
        self._waiting = TextLogprobs()
        self._tokens: list[ChatCompletionTokenLogprob] = []  # of the open message

    def begin(self, response: wire.Response) -> Iterator[Event]:
        """The first two events."""
        yield wire.ResponseCreatedEvent(
            type="response.created", response=response, sequence_number=self._next()
        )
        yield wire.ResponseInProgressEvent(
            type="response.in_progress", response=response, sequence_number=self._next()
        )

    def push(self, choice: chunk.Choice) -> Iterator[Event]:
        """The events of one delta."""
        if choice.logprobs is not None:
            self._waiting.push(choice.logprobs.content or ())
        delta = choice.delta
        if delta.content is not None and (delta.content or not self.output):
            yield from self._push_text(delta.content)
        for call in delta.tool_calls or ():
            yield from self._push_call(call)
        if isinstance(self._open_item(), wire.ResponseFunctionToolCall):
            self._waiting.drop()

    def end_item(self, status: ItemStatus) -> Iterator[Event]:
        """End the item that is open, if one is."""
        item = self._open_item()
        if item is None:
            return
        self._is_open = False
        index = len(self.output) - 1
        if isinstance(item, wire.ResponseFunctionToolCall):
            yield wire.ResponseFunctionCallArgumentsDoneEvent(
                type="response.function_call_arguments.done",
                item_id=item.id or "",
                output_index=index,
                arguments=item.arguments,
                sequence_number=self._next(),
            )
        else:
            part = item.content[0]
            assert isinstance(part, wire.ResponseOutputText)
            if self._with_logprobs:
                part.logprobs = whole_logprobs(self._tokens)
            yield wire.ResponseTextDoneEvent(
                type="response.output_text.done",
                item_id=item.id,
                output_index=index,
                content_index=0,
                text=part.text,
                logprobs=done_logprobs(self._tokens),
                sequence_number=self._next(),
            )
            yield wire.ResponseContentPartDoneEvent(
                type="response.content_part.done",
                item_id=item.id,
                output_index=index,
                content_index=0,
                part=part.model_copy(),
                sequence_number=self._next(),
            )
        item.status = status
        yield wire.ResponseOutputItemDoneEvent(
            type="response.output_item.done",
            output_index=index,
            item=item.model_copy(deep=True),
            sequence_number=self._next(),
        )

    def end(self, response: wire.Response) -> Iterator[Event]:
        """The last event; a cancelled response has none of its own and ends as incomplete."""
        if response.status == "failed":
            error = response.error
            assert error is not None
            yield wire.ResponseErrorEvent(
                type="error",
                code=error.code,
                message=error.message,
                param=None,
                sequence_number=self._next(),
            )
            yield wire.ResponseFailedEvent(
                type="response.failed", response=response, sequence_number=self._next()
            )
        elif response.status == "completed":
            yield wire.ResponseCompletedEvent(
                type="response.completed", response=response, sequence_number=self._next()
            )
        else:
            yield wire.ResponseIncompleteEvent(
                type="response.incomplete", response=response, sequence_number=self._next()
            )

    def _push_text(self, text: str) -> Iterator[Event]:
        item = self._open_item()
        if not isinstance(item, wire.ResponseOutputMessage):
            if item is not None:
                self._waiting.keep_last(text)
            yield from self.end_item("completed")
            yield from self._begin_message()
        if not text:
            return
        item = self._open_item()
        assert isinstance(item, wire.ResponseOutputMessage)
        part = item.content[0]
        assert isinstance(part, wire.ResponseOutputText)
        part.text += text
        tokens = self._waiting.take(text)
        self._tokens += tokens
        yield wire.ResponseTextDeltaEvent(
            type="response.output_text.delta",
            item_id=item.id,
            output_index=len(self.output) - 1,
            content_index=0,
            delta=text,
            logprobs=delta_logprobs(tokens),
            sequence_number=self._next(),
        )

    def _begin_message(self) -> Iterator[Event]:
        item = wire.ResponseOutputMessage(
            id=new_id("msg"), type="message", role="assistant", status="in_progress", content=[]
        )
        self._tokens = []
        yield self._added(item)
        part = wire.ResponseOutputText(type="output_text", text="", annotations=[])
        if self._with_logprobs:
            part.logprobs = []
        item.content.append(part)
        yield wire.ResponseContentPartAddedEvent(
            type="response.content_part.added",
            item_id=item.id,
            output_index=len(self.output) - 1,
            content_index=0,
            part=part.model_copy(),
            sequence_number=self._next(),
        )

    def _push_call(self, call: chunk.ChoiceDeltaToolCall) -> Iterator[Event]:
        function = call.function
        assert function is not None
        if call.id is not None:
            yield from self.end_item("completed")
            namespace, name = self._origins.get(function.name or "", (None, function.name or ""))
            started = wire.ResponseFunctionToolCall(
                id=new_id("fc"),
                type="function_call",
                call_id=call.id,
                name=name,
                arguments="",
                status="in_progress",
            )
            if namespace is not None:
                started.namespace = namespace
            yield self._added(started)
        item = self._open_item()
        assert isinstance(item, wire.ResponseFunctionToolCall)
        if function.arguments:
            item.arguments += function.arguments
            yield wire.ResponseFunctionCallArgumentsDeltaEvent(
                type="response.function_call_arguments.delta",
                item_id=item.id or "",
                output_index=len(self.output) - 1,
                delta=function.arguments,
                sequence_number=self._next(),
            )

    def _added(self, item: OutputItem) -> wire.ResponseOutputItemAddedEvent:
        self.output.append(item)
        self._is_open = True
        return wire.ResponseOutputItemAddedEvent(
            type="response.output_item.added",
            output_index=len(self.output) - 1,
            item=item.model_copy(deep=True),
            sequence_number=self._next(),
        )

    def _open_item(self) -> OutputItem | None:
        return self.output[-1] if self._is_open else None

    def _next(self) -> int:
        self._number += 1
        return self._number
