"""One choice of a text completion: engine outputs in, pieces of the answer out."""

from __future__ import annotations

from collections.abc import Sequence

from openai.types.completion_choice import CompletionChoice, Logprobs

from specrt.grammars.tool_parser import ParsedMessage
from specrt.request import RequestOutput
from specrt.server.logprobs import TokenBytes, completion_logprobs

_FINISH = {"stop": "stop", "length": "length"}


class TextChoice:
    """Reads one engine request's outputs.

    Attributes:
        index: of the choice.
        text: the output so far, without an echoed prompt.
        finish_reason: as the API says it; None while running.
        is_cut: a stop string ended the output inside a token.
    """

    def __init__(
        self,
        index: int,
        token_bytes: TokenBytes,
        *,
        echo: str = "",
        prompt_token_ids: Sequence[int] | None = None,
    ) -> None:
        """
        Args:
            index: of the choice.
            token_bytes: bytes of a token id, for logprobs.
            echo: stands in front of the output.
            prompt_token_ids: to be told, with the ids of the output; None = tell neither.
        """  # noqa: D415
        self.index = index
        self.text = ""
        self.finish_reason: str | None = None
        self.is_cut = False
        self._token_bytes = token_bytes
        self._echo = echo
        self._prompt_token_ids = prompt_token_ids
        self._has_begun = False
        self._offset = 0

    @property
    def parsed(self) -> ParsedMessage:
        """The output as a message: all of it is text."""
        return ParsedMessage(self.text, ())

    def push(self, output: RequestOutput) -> CompletionChoice:
        """Read one output; returns what a stream sends for it."""
        logprobs: Logprobs | None = None
        if output.logprobs is not None:
            logprobs, self._offset = completion_logprobs(
                output.logprobs, self._token_bytes, self._offset
            )
        self.text += output.text
        self.finish_reason = _FINISH.get(output.finish_reason or "")
        self.is_cut = output.stop_cut
        # The type has no null for a choice that is still running; the API sends one.
        piece = CompletionChoice.model_construct(
            index=self.index,
            text=output.text if self._has_begun else self._echo + output.text,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
        )
        if self._prompt_token_ids is not None:
            ids: dict[str, object] = {"token_ids": list(output.token_ids)}
            if not self._has_begun:
                ids["prompt_token_ids"] = list(self._prompt_token_ids)
            piece = piece.model_copy(update=ids)
        self._has_begun = True
        return piece


def append(choice: CompletionChoice, piece: CompletionChoice) -> None:
    """Add the next piece of a choice to those before it."""
    choice.text += piece.text
    choice.finish_reason = piece.finish_reason
    if "token_ids" in (choice.model_extra or {}):
        choice.model_extra["token_ids"] += piece.model_extra["token_ids"]  # type: ignore[index]
    if choice.logprobs is None or piece.logprobs is None:
        return
    for name in Logprobs.model_fields:
        getattr(choice.logprobs, name).extend(getattr(piece.logprobs, name))
