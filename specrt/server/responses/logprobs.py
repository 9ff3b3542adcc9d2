"""Log-probabilities of the text of a response, without those of calls and of the turn's end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from openai.types.chat import ChatCompletionTokenLogprob
from openai.types.responses import (
    response_output_text,
    response_text_delta_event,
    response_text_done_event,
)
from pydantic import BaseModel

_Kind = TypeVar("_Kind", bound=BaseModel)


class TextLogprobs:
    """Tokens that wait for their text.

    Tokens come when they are generated, their text when it is certain that it is no call. Each text
    takes the tokens that cover its bytes.
    """

    def __init__(self) -> None:
        self._waiting: list[ChatCompletionTokenLogprob] = []

    def push(self, tokens: Sequence[ChatCompletionTokenLogprob]) -> None:
        """More tokens."""
        self._waiting += tokens

    def drop(self) -> None:
        """What waits belongs to a call."""
        self._waiting = []

    def keep_last(self, text: str) -> None:
        """Of what waits, only the last tokens that cover `text` do not belong to a call."""
        num_bytes, first = len(text.encode(errors="replace")), len(self._waiting)
        while first and num_bytes > 0:
            first -= 1
            num_bytes -= len(self._waiting[first].bytes or ())
        del self._waiting[:first]

    def take(self, text: str) -> list[ChatCompletionTokenLogprob]:
        """The tokens of `text`, which no longer wait."""
        num_bytes, taken = len(text.encode(errors="replace")), 0
        while taken < len(self._waiting) and num_bytes > 0:
            num_bytes -= len(self._waiting[taken].bytes or ())
            taken += 1
        tokens, self._waiting = self._waiting[:taken], self._waiting[taken:]
        return tokens


def whole_logprobs(
    tokens: Sequence[ChatCompletionTokenLogprob],
) -> list[response_output_text.Logprob]:
    """As the text of a message shows them."""
    return [response_output_text.Logprob.model_validate(token.model_dump()) for token in tokens]


def delta_logprobs(
    tokens: Sequence[ChatCompletionTokenLogprob],
) -> list[response_text_delta_event.Logprob]:
    """As a delta shows them."""
    return [_short(response_text_delta_event.Logprob, token) for token in tokens]


def done_logprobs(
    tokens: Sequence[ChatCompletionTokenLogprob],
) -> list[response_text_done_event.Logprob]:
    """As the end of a text shows them."""
    return [_short(response_text_done_event.Logprob, token) for token in tokens]


def _short(kind: type[_Kind], token: ChatCompletionTokenLogprob) -> _Kind:
    top = [{"token": other.token, "logprob": other.logprob} for other in token.top_logprobs]
    return kind.model_validate(
        {"token": token.token, "logprob": token.logprob, "top_logprobs": top}
    )
