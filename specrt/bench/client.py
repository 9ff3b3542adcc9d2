"""One streamed chat completion, timed: what came back, when, and what the server says about it.

Knows no conversation. A server that fails or talks nonsense makes a reply with `error`, never an
exception: a benchmark counts failures.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specrt.errors import ConfigError

if TYPE_CHECKING:
    import httpx
    from openai.types.chat import ChatCompletionChunk

    from specrt.bench.options import ReplayOptions


@dataclass(slots=True)
class Reply:
    """One assistant turn.

    Attributes:
        content: its text.
        tool_calls: its calls in wire form, in order of their index.
        finish_reason: as the server gave it; None when the stream broke off.
        error: what went wrong; None when the reply is whole.
        ttft_s: seconds to the first text or call delta; None without one.
        itl_ms: mean milliseconds per token after the first; None below two tokens.
        duration_s: seconds to the end of the stream.
        prompt_tokens: from `usage`; 0 when the server sent none, as the next two.
        completion_tokens: from `usage`.
        cached_tokens: prompt tokens taken from the cache.
        specrt: the report that a specrt server adds; None from others.
        prompt_token_ids: when asked for and given.
        token_ids: output token ids, when asked for and given.
    """

    content: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    ttft_s: float | None = None
    itl_ms: float | None = None
    duration_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    specrt: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None

    def message(self) -> dict[str, Any]:
        """The reply as the next request's history has it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        elif not self.content:
            message["content"] = ""
        return message


class ChatClient:
    """Chat completions of one model behind one URL. Safe to use from several threads."""

    def __init__(
        self, options: ReplayOptions, transport: httpx.BaseTransport | None = None
    ) -> None:
        """Connect and settle the model's name.

        Args:
            options: url, model, api_key, sampling.
            transport: replaces the network.

        Raises:
            ConfigError: the server cannot be reached or lists no model.
        """
        import httpx
        import openai

        self._options = options
        self._http = httpx.Client(transport=transport, timeout=options.timeout)
        self._root = options.url.rstrip("/").removesuffix("/v1")
        self._openai = openai.OpenAI(
            base_url=f"{self._root}/v1",
            api_key=options.api_key or "none",
            max_retries=0,
            timeout=options.timeout,
            http_client=self._http if transport is not None else None,  # type: ignore[arg-type]
        )
        self.model = options.model or self._first_model()

    def close(self) -> None:
        """Close the connections."""
        self._openai.close()
        self._http.close()

    def _first_model(self) -> str:
        import openai

        try:
            models = [model.id for model in self._openai.models.list().data or []]
        except openai.OpenAIError as error:
            raise ConfigError(f"--url: no answer from {self._root}/v1/models: {error}") from None
        if not models:
            raise ConfigError(f"--url: {self._root}/v1/models lists no model; give --model")
        return models[0]

    def server_info(self) -> dict[str, Any] | None:
        """What /get_server_info says; None from servers without it."""
        import httpx

        key = self._options.api_key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            response = self._http.get(f"{self._root}/get_server_info", headers=headers)
            info = response.json() if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None
        return info if isinstance(info, dict) else None

    def complete(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]], tool_choice: str
    ) -> Reply:
        """Ask for one assistant turn and wait for its end.

        Args:
            messages: the history.
            tools: OpenAI tools; without any, tool_choice is not sent.
            tool_choice: auto, none or required.
        """
        import openai

        options = self._options
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
            "seed": options.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if tools:
            body |= {"tools": tools, "tool_choice": tool_choice}
        if options.token_ids:
            body["extra_body"] = {"return_token_ids": True}
        stream = _Collector()
        try:
            with self._openai.chat.completions.create(**body) as events:
                for event in events:
                    stream.add(event)
        except openai.OpenAIError as error:
            stream.reply.error = f"{type(error).__name__}: {error}"
        except Exception as error:
            # Any type: the openai client builds its objects unchecked, so nonsense shows up on
            # use, and a stream that breaks off raises what the HTTP library of its version raises.
            stream.reply.error = f"broken reply: {type(error).__name__}: {error}"
        return stream.finish()


class _Collector:
    """Puts the events of one stream together."""

    def __init__(self) -> None:
        self.reply = Reply()
        self._start = time.perf_counter()
        self._last_delta = self._start
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, event: ChatCompletionChunk) -> None:
        """Take one event."""
        reply, extra = self.reply, event.model_extra or {}
        if event.usage is not None:
            reply.prompt_tokens = int(event.usage.prompt_tokens)
            reply.completion_tokens = int(event.usage.completion_tokens)
            details = event.usage.prompt_tokens_details
            reply.cached_tokens = int((details and details.cached_tokens) or 0)
        if isinstance(extra.get("specrt"), dict):
            reply.specrt = extra["specrt"]
        if extra.get("prompt_token_ids") is not None:
            reply.prompt_token_ids = [int(i) for i in extra["prompt_token_ids"]]
        for choice in event.choices:
            given = (choice.model_extra or {}).get("token_ids")
            if given is not None:
                reply.token_ids = (reply.token_ids or []) + [int(i) for i in given]
            if choice.delta.content or choice.delta.tool_calls:
                self._last_delta = time.perf_counter()
                if reply.ttft_s is None:
                    reply.ttft_s = self._last_delta - self._start
            reply.content += choice.delta.content or ""
            for delta in choice.delta.tool_calls or []:
                new = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                call = self._calls.setdefault(int(delta.index), new)
                call["id"] = delta.id or call["id"]
                if delta.function is not None:
                    call["function"]["name"] += delta.function.name or ""
                    call["function"]["arguments"] += delta.function.arguments or ""
            reply.finish_reason = choice.finish_reason or reply.finish_reason

    def finish(self) -> Reply:
        """The reply as far as it came."""
        reply = self.reply
        reply.duration_s = time.perf_counter() - self._start
        reply.tool_calls = [self._calls[index] for index in sorted(self._calls)]
        if reply.error is None and reply.finish_reason is None:
            reply.error = "the stream ended without a finish_reason"
        if reply.ttft_s is not None and reply.completion_tokens > 1:
            decoding_s = self._last_delta - self._start - reply.ttft_s
            reply.itl_ms = 1000 * decoding_s / (reply.completion_tokens - 1)
        return reply
