"""`specrt chat`: a terminal chat with a running OpenAI-compatible server.

Lines are user turns; /reset forgets the conversation, /quit (or end of input) leaves. With --tools
the model may call; calls are shown and the result is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrt.config import flag
from specrt.errors import ConfigError

if TYPE_CHECKING:
    import httpx
    import openai


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Whom to talk to, and how."""

    url: str = flag("http://127.0.0.1:8000", "address of an OpenAI-compatible server")
    model: str | None = flag(None, "model name (default: the first that the server lists)")
    api_key: str | None = flag(None, "bearer token (default: none)")
    system: str | None = flag(None, "system message (default: none)")
    tools: str | None = flag(None, "JSON file with an OpenAI tools list (default: no tools)")
    max_tokens: int = flag(512, "tokens in one reply at most")
    temperature: float = flag(0.7, "sampling temperature")


class Chat:
    """One conversation."""

    def __init__(
        self, options: ChatOptions, client: openai.OpenAI, write: Callable[[str], object]
    ) -> None:
        """Args:
        options: model, sampling and tools.
        client: the server.
        write: takes text for the terminal.

        Raises:
            ConfigError: the tools file cannot be used, or the server lists no model.
        """
        self._options = options
        self._client = client
        self._write = write
        self._tools = _load_tools(options.tools) if options.tools else []
        self._model = options.model or _first_model(client)
        self.messages: list[dict[str, Any]] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        system = self._options.system
        self.messages[:] = [{"role": "system", "content": system}] if system else []

    def send(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add messages, stream the reply to the terminal and keep it.

        Returns:
            The calls of the reply in wire form.

        Raises:
            openai.OpenAIError: the server failed; the messages are taken back.
        """
        before = len(self.messages)
        self.messages += messages
        try:
            reply = self._stream()
        except BaseException:
            del self.messages[before:]
            raise
        self.messages.append(reply)
        calls: list[dict[str, Any]] = reply.get("tool_calls", [])
        return calls

    def _stream(self) -> dict[str, Any]:
        body: dict[str, Any] = {"tools": self._tools} if self._tools else {}
        body |= {
            "model": self._model,
            "messages": self.messages,
            "max_tokens": self._options.max_tokens,
            "temperature": self._options.temperature,
        }
        events = self._client.chat.completions.create(**body, stream=True)
        content, calls = "", dict[int, dict[str, Any]]()
        for event in events:
            for choice in event.choices:
                content += choice.delta.content or ""
                self._write(choice.delta.content or "")
                for delta in choice.delta.tool_calls or []:
                    function = {"name": "", "arguments": ""}
                    call = {"id": delta.id, "type": "function", "function": function}
                    call = calls.setdefault(delta.index, call)
                    if delta.function is not None:
                        call["function"]["name"] += delta.function.name or ""
                        call["function"]["arguments"] += delta.function.arguments or ""
        self._write("\n" if content else "")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        for call in message.get("tool_calls", []):
            self._write(f"[calls {call['function']['name']}({call['function']['arguments']})]\n")
        return message


def run(options: ChatOptions, transport: httpx.BaseTransport | None = None) -> int:
    """Talk until /quit or the end of the input.

    Args:
        options: whom to talk to.
        transport: replaces the network.

    Raises:
        ConfigError: the tools file cannot be used, or no server answers.
    """
    import httpx
    import openai

    root = options.url.rstrip("/").removesuffix("/v1")
    http = httpx.Client(transport=transport) if transport is not None else None
    with openai.OpenAI(
        base_url=f"{root}/v1",
        api_key=options.api_key or "none",
        http_client=http,  # type: ignore[arg-type]
    ) as client:
        chat = Chat(options, client, lambda text: print(text, end="", flush=True))
        while True:
            try:
                line = input("> ").strip()
            except EOFError:
                print()
                return 0
            if line == "/quit":
                return 0
            if line == "/reset":
                chat.reset()
            elif line:
                try:
                    _turn(chat, line)
                except openai.OpenAIError as error:
                    print(f"error: {error}")


def _turn(chat: Chat, line: str) -> None:
    """A user turn, and tool results for as long as the model calls."""
    calls = chat.send([{"role": "user", "content": line}])
    while calls:
        results = []
        for call in calls:
            try:
                content = input(f"result of {call['function']['name']}> ")
            except EOFError:
                content = ""
            results.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        if not any(result["content"] for result in results):
            return
        calls = chat.send(results)


def _load_tools(path: str) -> list[dict[str, Any]]:
    try:
        tools = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--tools: cannot read {path}: {error}") from None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ConfigError(f"--tools: {path}: expected a JSON list of OpenAI tools")
    return tools


def _first_model(client: openai.OpenAI) -> str:
    import openai

    try:
        models = [model.id for model in client.models.list().data or []]
    except openai.OpenAIError as error:
        raise ConfigError(f"--url: no answer from {client.base_url}models: {error}") from None
    if not models:
        raise ConfigError(f"--url: {client.base_url}models lists no model; give --model")
    return models[0]
