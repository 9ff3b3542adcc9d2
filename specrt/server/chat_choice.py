"""One choice of a chat completion: engine outputs in, stream deltas and the message out.

The whole answer is made of the same deltas as the stream, so the two cannot disagree.
"""

from __future__ import annotations

import secrets
import string
from typing import Literal

from openai.types.chat import (
    ChatCompletionMessage,
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionTokenLogprob,
)
from openai.types.chat import chat_completion as whole
from openai.types.chat import chat_completion_chunk as chunk
from openai.types.chat.chat_completion_message import FunctionCall
from openai.types.chat.chat_completion_message_function_tool_call import Function

from specrt.grammars.tool_format import ToolFormat
from specrt.grammars.tool_parser import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Delta,
    ParsedMessage,
    TextDelta,
    ToolCallParser,
)
from specrt.request import RequestOutput
from specrt.server.logprobs import TokenBytes, chat_logprobs

_ALPHANUMERIC = string.ascii_letters + string.digits

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]


def _call_id() -> str:
    return "call_" + "".join(secrets.choice(_ALPHANUMERIC) for _ in range(24))


class ChatChoice:
    """Reads one engine request's outputs.

    Attributes:
        index: of the choice.
        text: the output text so far, tool calls included.
        token_ids: the output tokens so far.
        finish_reason: as the API says it; None while running.
        is_cut: a stop string ended the output inside a token.
    """

    def __init__(
        self,
        index: int,
        tool_format: ToolFormat,
        token_bytes: TokenBytes,
        *,
        has_calls: bool,
        is_older: bool = False,
    ) -> None:
        """
        Args:
            index: of the choice.
            tool_format: what calls look like.
            token_bytes: bytes of a token id, for logprobs.
            has_calls: False = the request allows no calls, so everything is content.
            is_older: the one call is told as `function_call`, as before there were tools.
        """  # noqa: D415
        self.index = index
        self.text = ""
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.is_cut = False
        self._parser = ToolCallParser(tool_format, has_calls)
        self._is_older = is_older
        self._token_bytes = token_bytes
        self._call_ids: list[str] = []
        self._logprobs: list[ChatCompletionTokenLogprob] | None = None
        self._has_begun = False

    def push(self, output: RequestOutput) -> list[chunk.Choice]:
        """Read one output; returns what a stream sends for it."""
        self.text += output.text
        self.token_ids += output.token_ids
        deltas = self._parser.push(output.text)
        if output.finish_reason is not None:
            is_cut = output.finish_reason == "length" or output.stop_cut
            deltas += self._parser.finish(cut=is_cut)
            self.is_cut = output.stop_cut
            self.finish_reason = "length" if output.finish_reason == "length" else "stop"
            if self.finish_reason == "stop" and self.parsed.calls:
                self.finish_reason = "function_call" if self._is_older else "tool_calls"
        sent = [self._delta(delta) for delta in deltas if not isinstance(delta, CallEnd)]
        if self.finish_reason is not None:
            is_empty = self.parsed.content == ""
            sent.append(chunk.ChoiceDelta(content="") if is_empty else chunk.ChoiceDelta())
        logprobs = None
        if output.logprobs is not None:
            logprobs = chat_logprobs(output.logprobs, self._token_bytes)
            self._logprobs = [*(self._logprobs or []), *logprobs]
            if logprobs and not sent:
                sent.append(chunk.ChoiceDelta())  # the text is held back, its tokens are not
        return [
            self._chunk(delta, logprobs if i == 0 else None, is_last=i == len(sent) - 1)
            for i, delta in enumerate(sent)
        ]

    @property
    def parsed(self) -> ParsedMessage:
        """Content and calls so far."""
        return self._parser.message()

    def message(self) -> ChatCompletionMessage:
        """The assistant message that the deltas add up to."""
        parsed = self.parsed
        message = ChatCompletionMessage(role="assistant", content=parsed.content, refusal=None)
        if parsed.calls and self._is_older:
            call = parsed.calls[0]
            message.function_call = FunctionCall(name=call.name, arguments=call.arguments)
        elif parsed.calls:
            message.tool_calls = [
                ChatCompletionMessageFunctionToolCall(
                    id=call_id,
                    type="function",
                    function=Function(name=call.name, arguments=call.arguments),
                )
                for call_id, call in zip(self._call_ids, parsed.calls, strict=True)
            ]
        return message

    def choice(self) -> whole.Choice:
        """The finished choice of a response that is not streamed."""
        assert self.finish_reason is not None, "the choice is not finished"
        logprobs = self._logprobs
        return whole.Choice(
            index=self.index,
            message=self.message(),
            logprobs=None if logprobs is None else whole.ChoiceLogprobs(content=logprobs),
            finish_reason=self.finish_reason,
        )

    def _delta(self, delta: Delta) -> chunk.ChoiceDelta:
        call: chunk.ChoiceDeltaToolCall
        match delta:
            case TextDelta(text):
                return chunk.ChoiceDelta(content=text)
            case CallStart(name=name) if self._is_older:
                older = chunk.ChoiceDeltaFunctionCall(name=name, arguments="")
                return chunk.ChoiceDelta(function_call=older)
            case ArgumentsDelta(_, text) if self._is_older:
                return chunk.ChoiceDelta(
                    function_call=chunk.ChoiceDeltaFunctionCall(arguments=text)
                )
            case CallStart(index, name, written):
                # An id that the model writes twice in a turn would mix up the results.
                is_new = written and written not in self._call_ids
                self._call_ids.append(written if is_new else _call_id())
                call = chunk.ChoiceDeltaToolCall(
                    index=index,
                    id=self._call_ids[-1],
                    type="function",
                    function=chunk.ChoiceDeltaToolCallFunction(name=name, arguments=""),
                )
            case ArgumentsDelta(index, text):
                call = chunk.ChoiceDeltaToolCall(
                    index=index, function=chunk.ChoiceDeltaToolCallFunction(arguments=text)
                )
            case CallEnd():
                raise AssertionError("the end of a call is not sent")
        return chunk.ChoiceDelta(tool_calls=[call])

    def _chunk(
        self,
        delta: chunk.ChoiceDelta,
        logprobs: list[ChatCompletionTokenLogprob] | None,
        *,
        is_last: bool,
    ) -> chunk.Choice:
        if not self._has_begun:
            self._has_begun = True
            # null must appear beside a role, so both are set.
            delta = delta.model_copy(update={"role": "assistant", "content": delta.content})
        return chunk.Choice(
            index=self.index,
            delta=delta,
            logprobs=None if logprobs is None else chunk.ChoiceLogprobs(content=logprobs),
            finish_reason=self.finish_reason if is_last else None,
        )
