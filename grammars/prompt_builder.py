"""From messages to prompt token ids, with generated turns spliced in as they were generated."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from os.path import commonprefix
from typing import Protocol

from specrt.errors import ContextLengthError
from specrt.grammars.chat import ChatRenderer
from specrt.grammars.messages import read_messages
from specrt.grammars.special_text import Rendering
from specrt.grammars.tool_format import ToolFormat
from specrt.grammars.tools import read_tools
from specrt.grammars.turn_memo import NamedCall, Place, PromptDigest, TurnMemo, turn_key

# Characters of text whose ids are kept; about 100 bytes a token with the ids.
_MAX_CACHED_CHARS = 4 << 20


class PromptTokenizer(Protocol):
    """The part of a tokenizer that prompts need. No method adds or drops special tokens."""

    @property
    def eos_token_ids(self) -> Collection[int]:
        """Ids that end an output."""
        ...

    @property
    def special_token_ids(self) -> Collection[int]:
        """Ids of control tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text; special-token text becomes special tokens."""
        ...

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text; special-token text is text like any other."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        ...


class ChatTokenizer(PromptTokenizer, Protocol):
    """A tokenizer that also brings its model's chat template."""

    @property
    def chat_template(self) -> str | None:
        """Jinja source."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Names that templates use -> text."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt.

    Attributes:
        token_ids: what the model reads.
        text: their text: decode(token_ids) == text.
        num_spliced_turns: assistant turns whose generated ids were taken from the memo.
        place: of a turn that is generated behind it.
    """

    token_ids: list[int]
    text: str
    num_spliced_turns: int
    place: Place


class PromptBuilder:
    """Builds prompts for one model. Safe to use from several threads.

    A generated turn is spliced into a message if its content and argument strings are byte-equal to
    what was sent, a prefix of the rendering has exactly the ids of the prompt that it was generated
    from (so the messages before it and the generation prompt are as they were), and the rendering
    goes on with its text. A turn cut by a stop string is spliced up to the last whole token inside
    the text that was kept. Everything else is tokenised afresh.

    Args:
        renderer: messages to text.
        tokenizer: text to ids.
        memo: the generated turns.
    """

    def __init__(self, renderer: ChatRenderer, tokenizer: PromptTokenizer, memo: TurnMemo) -> None:
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._memo = memo
        self._encoded: OrderedDict[tuple[str, bool], list[int]] = OrderedDict()
        self._num_chars = 0
        self._lock = threading.Lock()

    def build(
        self,
        messages: object,
        tools: object = None,
        *,
        variables: Mapping[str, object] | None = None,
        max_chars: int | None = None,
    ) -> Prompt:
        """The prompt of a chat request.

        Args:
            messages: the JSON value of the request's `messages`.
            tools: the JSON value of its `tools`.
            variables: further variables of the chat template.
            max_chars: a longer text cannot fit the context: it is refused before the (slow)
                tokenising.

        Raises:
            RequestError: a field is malformed or the template refuses the conversation.
            ContextLengthError: the text is longer than max_chars.
        """
        read = read_messages(messages, self._renderer.tool_format)
        rendering = self._renderer.render(read, read_tools(tools), variables=variables)
        check_length(rendering.text, max_chars)
        token_ids: list[int] = []
        digest, position, num_spliced = PromptDigest(), 0, 0  # the ids are those of text[:position]
        for message in read:
            if message.role != "assistant":
                continue
            key = turn_key(message.content, message.calls)
            for place in self._memo.places(key):
                start = place.num_chars
                if start < position or not rendering.text.startswith(message.content, start):
                    continue
                between = self._encode(rendering, position, start)
                before = digest.extended(between)
                if before.value() != place.digest:
                    continue
                kept, length = self._kept(self._memo.find(key, place) or [], rendering, start)
                if kept:
                    token_ids += between + kept
                    digest, position = before.extended(kept), start + length
                    num_spliced += 1
                    break
        rest = self._encode(rendering, position, len(rendering.text))
        place = Place(len(rendering.text), digest.extended(rest).value())
        return Prompt(token_ids + rest, rendering.text, num_spliced, place)

    def remember(
        self,
        prompt: Prompt,
        content: str | None,
        calls: Sequence[NamedCall],
        output_token_ids: Sequence[int],
    ) -> None:
        """Keep a generated turn, so that a conversation that returns it finds its ids.

        Args:
            prompt: as built for it.
            content: the content that was sent; None for none.
            calls: the calls that were sent.
            output_token_ids: all generated ids, the end-of-turn token included or not.
        """
        self._memo.remember(turn_key(content, calls), prompt.place, output_token_ids)

    def _kept(
        self, token_ids: list[int], rendering: Rendering, start: int
    ) -> tuple[list[int], int]:
        """The generated ids whose text the rendering has at `start`, and that text's length."""
        if token_ids and token_ids[-1] in self._tokenizer.eos_token_ids:
            token_ids = token_ids[:-1]  # the template writes the end of the turn itself
        text = rendering.text[start : self._end_of_text(token_ids, rendering, start)]
        generated = self._tokenizer.decode(token_ids)
        if text.startswith(generated):
            return token_ids, len(generated)
        common = len(commonprefix((text, generated)))
        low, high = 0, len(token_ids)
        while low < high:
            middle = (low + high + 1) // 2
            if len(self._tokenizer.decode(token_ids[:middle])) <= common:
                low = middle
            else:
                high = middle - 1
        # Inside a character of several tokens the length falls as the character is completed, so
        # the search may end a few tokens early; a token holds at least one of its four bytes.
        for count in range(min(low + 3, len(token_ids)), 0, -1):
            generated = self._tokenizer.decode(token_ids[:count])
            if text.startswith(generated):
                return token_ids[:count], len(generated)
        return [], 0

    def _end_of_text(self, token_ids: list[int], rendering: Rendering, start: int) -> int:
        """Up to where generated text and rendering have special tokens at the same places.

        Generated text must not stand for a special token of the template (the one that ends the
        turn), nor a generated special token for text.
        """
        special = self._tokenizer.special_token_ids
        places = [index for index, token_id in enumerate(token_ids) if token_id in special]
        for index, in_prompt in zip_longest(places, rendering.special_starts(start)):
            if in_prompt is None:
                break
            if index is None:
                return in_prompt
            generated = start + len(self._tokenizer.decode(token_ids[:index]))
            if generated != in_prompt:
                return min(generated, in_prompt)
        return len(rendering.text)

    def _encode(self, rendering: Rendering, start: int, end: int) -> list[int]:
        token_ids: list[int] = []
        for special, text, is_literal in rendering.segments(start, end):
            if is_literal:
                token_ids += self._encode_cached(special, False) if special else []
                token_ids += self._encode_cached(text, True)
            else:
                token_ids += self._encode_cached(special + text, False)
        return token_ids

    def _encode_cached(self, text: str, is_plain: bool) -> list[int]:
        """Ids of a segment; the segments of a conversation come back with every turn."""
        key = (text, is_plain)
        with self._lock:
            token_ids = self._encoded.get(key)
            if token_ids is not None:
                self._encoded.move_to_end(key)
                return token_ids
        encode = self._tokenizer.encode_plain if is_plain else self._tokenizer.encode
        token_ids = encode(text)
        with self._lock:
            if key not in self._encoded:
                self._encoded[key] = token_ids
                self._num_chars += len(text)
            while self._num_chars > _MAX_CACHED_CHARS:
                (oldest, _), _ = self._encoded.popitem(last=False)
                self._num_chars -= len(oldest)
        return token_ids


def check_length(text: str, max_chars: int | None, param: str = "messages") -> None:
    """Refuse a text that cannot fit the context, whatever its tokens; see `PromptBuilder.build`."""
    if max_chars is not None and len(text) > max_chars:
        raise ContextLengthError(
            f"the prompt has {len(text)} characters, but no text of more than {max_chars} fits the"
            " context; shorten the prompt",
            param=param,
        )


def make_prompt_builder(
    tokenizer: ChatTokenizer, tool_format: ToolFormat, *, is_chosen: bool = False
) -> PromptBuilder:
    """A builder with the model's own template and an empty memo.

    Args:
        tokenizer: brings the template.
        tool_format: how calls are written.
        is_chosen: the user chose the format, so that specrt's own template may replace one whose
            format is not supported.
    """
    renderer = make_renderer(tokenizer, tool_format, is_chosen=is_chosen)
    return PromptBuilder(renderer, tokenizer, TurnMemo())


def make_renderer(
    tokenizer: ChatTokenizer, tool_format: ToolFormat, *, is_chosen: bool = False
) -> ChatRenderer:
    """A renderer of the model's own template, as `make_prompt_builder`."""
    return ChatRenderer(
        tokenizer.chat_template,
        tool_format,
        special_tokens=[tokenizer.decode([i]) for i in sorted(tokenizer.special_token_ids)],
        bos_token=tokenizer.special_tokens.get("bos_token", ""),
        eos_token=tokenizer.special_tokens.get("eos_token", ""),
        is_chosen=is_chosen,
    )
