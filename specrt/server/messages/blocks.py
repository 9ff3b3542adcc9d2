"""The content blocks of one message, made of the deltas of a chat choice.

The whole message is made of the same blocks as the stream, so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from anthropic.types import (
    ContentBlock,
    InputJSONDelta,
    RawContentBlockDeltaEvent,
    RawContentBlockStartEvent,
    RawContentBlockStopEvent,
    RawMessageStreamEvent,
    TextBlock,
    TextDelta,
    ToolUseBlock,
)
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall
from pydantic_core import from_json

from specrt.errors import GrammarError
from specrt.server.messages.history import CALL_PREFIX


class TokenBytes(Protocol):
    """The bytes that a token stands for."""

    def __call__(self, token_id: int, /) -> bytes: ...  # noqa: D102


class BlockBuilder:
    """Reads deltas; text and calls become blocks in the order in which they come."""

    def __init__(self) -> None:
        self._blocks: list[TextBlock | ToolUseBlock] = []
        self._arguments: dict[int, str] = {}  # by the index of the block
        self._is_open = False

    def push(self, delta: ChoiceDelta) -> list[RawMessageStreamEvent]:
        """Read one delta; returns what a stream sends for it."""
        events: list[RawMessageStreamEvent] = []
        if delta.content:
            if not (self._is_open and isinstance(self._blocks[-1], TextBlock)):
                events += self._begin(TextBlock(type="text", text=""))
            block = self._blocks[-1]
            assert isinstance(block, TextBlock)
            block.text += delta.content
            events.append(self._delta(TextDelta(type="text_delta", text=delta.content)))
        for call in delta.tool_calls or []:
            events += self._push_call(call)
        return events

    def _push_call(self, call: ChoiceDeltaToolCall) -> list[RawMessageStreamEvent]:
        events: list[RawMessageStreamEvent] = []
        function = call.function
        assert function is not None, "a call without a function"
        if call.id is not None:
            assert function.name is not None, "a call begins with its name"
            call_id = CALL_PREFIX + call.id.removeprefix("call_")
            events += self._begin(
                ToolUseBlock(type="tool_use", id=call_id, name=function.name, input={})
            )
            self._arguments[len(self._blocks) - 1] = ""
        if function.arguments:
            self._arguments[len(self._blocks) - 1] += function.arguments
            delta = InputJSONDelta(type="input_json_delta", partial_json=function.arguments)
            events.append(self._delta(delta))
        return events

    def end(self) -> list[RawMessageStreamEvent]:
        """Nothing follows; returns what ends the last block, if there is one."""
        if not self._is_open:
            return []
        self._is_open = False
        index = len(self._blocks) - 1
        return [RawContentBlockStopEvent(type="content_block_stop", index=index)]

    def calls(self) -> list[tuple[str, str]]:
        """(id, argument text) of each call so far."""
        return [
            (block.id, self._arguments[index])
            for index, block in enumerate(self._blocks)
            if isinstance(block, ToolUseBlock)
        ]

    def content(self) -> list[ContentBlock]:
        """The finished blocks. Of arguments that were cut, what is there of them.

        Raises:
            GrammarError: arguments are not JSON.
        """
        content: list[ContentBlock] = []
        for index, block in enumerate(self._blocks):
            if isinstance(block, ToolUseBlock):
                block = block.model_copy(update={"input": _parse(self._arguments[index])})
            content.append(block)
        return content

    def _begin(self, block: TextBlock | ToolUseBlock) -> list[RawMessageStreamEvent]:
        ends = self.end()
        self._is_open = True
        self._blocks.append(block)
        start = RawContentBlockStartEvent(
            type="content_block_start",
            index=len(self._blocks) - 1,
            content_block=block.model_copy(),  # the text of the block grows
        )
        return [*ends, start]

    def _delta(self, delta: TextDelta | InputJSONDelta) -> RawContentBlockDeltaEvent:
        index = len(self._blocks) - 1
        return RawContentBlockDeltaEvent(type="content_block_delta", index=index, delta=delta)


def _parse(arguments: str) -> object:
    # The parser and the mode with which Anthropic's client reads the fragments of a stream.
    try:
        return from_json(arguments, allow_partial=True) if arguments else {}
    except ValueError as error:
        raise GrammarError(f"the arguments of a call are not JSON: {error}") from None


def matched_stop(stops: Sequence[str], token_ids: Sequence[int], token_bytes: TokenBytes) -> str:
    """Which stop string ended an output: the one that its last token completed.

    Args:
        stops: the stop strings; one of them ended the output.
        token_ids: the output.
        token_bytes: of a token.
    """
    wanted = max(len(stop.encode()) for stop in stops)
    last = token_bytes(token_ids[-1]) if token_ids else b""
    tail, position = last, len(token_ids) - 2
    while position >= 0 and len(tail) < wanted + len(last):
        tail = token_bytes(token_ids[position]) + tail
        position -= 1
    found = []
    for index, stop in enumerate(stops):
        text = stop.encode()
        # Its end lies in the last token.
        begin = tail.find(text, max(0, len(tail) - len(last) - len(text) + 1))
        if begin >= 0:
            found.append((begin, index))
    # A tokenizer that holds text back may see it a token late.
    return stops[min(found)[1]] if found else max(stops, key=lambda stop: tail.rfind(stop.encode()))
