"""Log-probabilities in the two shapes of the API: chat, and the older one of completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openai.types.chat import ChatCompletionTokenLogprob
from openai.types.chat.chat_completion_token_logprob import TopLogprob
from openai.types.completion_choice import Logprobs

from specrt.request import TokenLogprob

TokenBytes = Callable[[int], bytes]


def chat_logprobs(
    logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes
) -> list[ChatCompletionTokenLogprob]:
    """One entry per output token; half a character shows as U+FFFD, `bytes` has it exactly."""
    entries = []
    for token in logprobs:
        raw = token_bytes(token.token_id)
        top = []
        for token_id, logprob in token.top:
            other = token_bytes(token_id)
            top.append(TopLogprob(token=_text(other), bytes=list(other), logprob=logprob))
        entries.append(
            ChatCompletionTokenLogprob(
                token=_text(raw), bytes=list(raw), logprob=token.logprob, top_logprobs=top
            )
        )
    return entries


def completion_logprobs(
    logprobs: Sequence[TokenLogprob], token_bytes: TokenBytes, offset: int
) -> tuple[Logprobs, int]:
    """The older shape: parallel lists, alternatives as {token text: logprob}.

    Args:
        logprobs: of the output tokens.
        token_bytes: bytes of a token id.
        offset: characters of output before the first token, as its text_offset.

    Returns:
        The lists, and the offset after the last token.
    """
    result = Logprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    assert result.tokens is not None and result.token_logprobs is not None
    assert result.top_logprobs is not None and result.text_offset is not None
    for token in logprobs:
        text = _name(token_bytes(token.token_id))
        result.tokens.append(text)
        result.token_logprobs.append(token.logprob)
        # The chosen token is always listed, also when it is not among the best.
        top = {_name(token_bytes(token_id)): logprob for token_id, logprob in token.top}
        result.top_logprobs.append({**top, text: token.logprob})
        result.text_offset.append(offset)
        offset += len(_text(token_bytes(token.token_id)))
    return result, offset


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


def _name(raw: bytes) -> str:
    r"""The token's text; the spelling `bytes:\xe2\x80` keeps pieces of characters apart."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
