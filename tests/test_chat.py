"""The terminal chat against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from specrt import chat
from specrt.errors import ConfigError


def _delta(delta: dict[str, Any]) -> dict[str, Any]:
    return {"id": "x", "object": "c", "choices": [{"index": 0, "delta": delta}]}


CALL = _delta({"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f"}}]})
ARGUMENTS = _delta({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]})


class ScriptedServer:
    """Answers with the next of its replies; None is a failure."""

    def __init__(self, *replies: list[dict[str, Any]] | None) -> None:
        self.replies = list(replies)
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        self.bodies.append(json.loads(request.content))
        reply = self.replies.pop(0)
        if reply is None:
            return httpx.Response(400, json={"error": {"message": "too long"}})
        lines = "".join(f"data: {json.dumps(event)}\n\n" for event in reply)
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, text=lines + "data: [DONE]\n\n")


def _talk(
    monkeypatch: pytest.MonkeyPatch, server: ScriptedServer, lines: list[str], **options: Any
) -> None:
    typed: Iterator[str] = iter(lines)

    def read(prompt: str = "") -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    assert chat.run(chat.ChatOptions(**options), httpx.MockTransport(server)) == 0


def test_turns_are_streamed_and_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ScriptedServer(
        [_delta({"content": "Hel"}), _delta({"content": "lo"})], [_delta({"content": "Bye"})]
    )
    _talk(monkeypatch, server, ["hi", "", "bye", "/quit", "never"], system="Be brief.")
    assert capsys.readouterr().out == "Hello\nBye\n"
    assert [m["content"] for m in server.bodies[1]["messages"]] == [
        "Be brief.",
        "hi",
        "Hello",
        "bye",
    ]
    assert server.bodies[0]["model"] == "m"
    assert server.bodies[0]["stream"] is True


def test_reset_forgets_all_but_the_system_message(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ScriptedServer([_delta({"content": "a"})], [_delta({"content": "b"})])
    _talk(monkeypatch, server, ["one", "/reset", "two"], system="S")
    assert [m["content"] for m in server.bodies[1]["messages"]] == ["S", "two"]


def test_a_failed_turn_is_shown_and_taken_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ScriptedServer(None, [_delta({"content": "fine"})])
    _talk(monkeypatch, server, ["one", "two"])
    out = capsys.readouterr().out
    assert "error:" in out and "too long" in out
    assert [m["content"] for m in server.bodies[1]["messages"]] == ["two"]


def test_calls_are_shown_and_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "f"}}]))
    server = ScriptedServer([CALL, ARGUMENTS], [_delta({"content": "done"})])
    _talk(monkeypatch, server, ["go", "42"], tools=str(tools))
    assert capsys.readouterr().out == '[calls f({"a": 1})]\ndone\n\n'
    assert server.bodies[0]["tools"][0]["function"]["name"] == "f"
    call, result = server.bodies[1]["messages"][1:]
    assert call["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "42"}


def test_no_result_ends_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ScriptedServer([CALL, ARGUMENTS])
    _talk(monkeypatch, server, ["go"])
    assert len(server.bodies) == 1


@pytest.mark.parametrize("content", ["{", '{"name": "f"}', "[1]"])
def test_a_bad_tools_file_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(content)
    options = chat.ChatOptions(tools=str(path))
    with pytest.raises(ConfigError, match="--tools"):
        chat.run(options, httpx.MockTransport(ScriptedServer()))


def test_without_a_server_there_is_no_chat() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(401, json={}))
    with pytest.raises(ConfigError, match="no answer from"):
        chat.run(chat.ChatOptions(), transport)
