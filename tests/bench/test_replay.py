"""The replay against a small fake server: what it sends, what it counts, what it survives."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from specrt.bench import replay as replay_module
from specrt.bench.client import ChatClient
from specrt.bench.options import ReplayOptions
from specrt.bench.replay import Turn, replay
from specrt.bench.report import percentile, summarise, table
from specrt.bench.traces import Trace, load_traces
from specrt.cli import main
from specrt.errors import ConfigError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "minLength": 2}},
                "required": ["city"],
            },
        },
    }
]


def _call(city: str, call_id: str = "call_0") -> dict[str, Any]:
    function = {"name": "weather", "arguments": json.dumps({"city": city})}
    return {"id": call_id, "type": "function", "function": function}


# user -> call -> result -> text -> user -> text
TRACE = Trace(
    "t1",
    "test/loop",
    TOOLS,
    [
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [_call("Rome")]},
        {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
        {"role": "user", "content": "Thanks!"},
        {"role": "assistant", "content": "You're welcome."},
    ],
)


def _sse(*events: object, is_done: bool = True) -> bytes:
    lines = [e if isinstance(e, str) else json.dumps(e) for e in events]
    return "".join(f"data: {line}\n\n" for line in [*lines, *["[DONE]"] * is_done]).encode()


def _event(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> Any:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "x", "object": "chat.completion.chunk", "choices": choices, **more}


class FakeServer:
    """One byte is one token; the cache holds the whole turn before, but for its last token."""

    def __init__(self, arguments: str = '{"city": "Rome"}', shortfall: int = 0) -> None:
        self.arguments = arguments
        self.shortfall = shortfall
        self.bodies: list[dict[str, Any]] = []
        self.report: dict[str, Any] = {}
        self._cached = b""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"object": "list", "data": [{"id": "fake"}]})
        if request.url.path == "/get_server_info":
            return httpx.Response(200, json={"version": "1"})
        body = json.loads(request.content)
        self.bodies.append(body)
        prompt = self._render(body["messages"])
        if body.get("tool_choice") == "required":
            message = {"role": "assistant", "content": None, "tool_calls": [self._own_call()]}
        else:
            message = {"role": "assistant", "content": "Hello there"}
        output = self._render([message])
        cached = 0
        for a, b in zip(self._cached, prompt, strict=False):
            if a != b:
                break
            cached += 1
        self._cached = (prompt + output)[:-1]
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(output),
            "total_tokens": len(prompt) + len(output),
            "prompt_tokens_details": {"cached_tokens": max(0, cached - self.shortfall)},
        }
        report = {
            "passes": 4,
            "drafted": {"forced": {"key": 6, "value": 4}},
            "accepted": {"forced": {"key": 6, "value": 2}},
            **self.report,
        }
        first = _event({"role": "assistant"}, prompt_token_ids=list(prompt))
        last = _event({}, "tool_calls" if message.get("tool_calls") else "stop")
        last["choices"][0]["token_ids"] = list(output)
        tail = _event(usage=usage, specrt=report)
        if not body.get("return_token_ids"):
            del first["prompt_token_ids"], last["choices"][0]["token_ids"]
        content = _sse(first, *self._deltas(message), last, tail)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=content)

    def _own_call(self) -> dict[str, Any]:
        return {
            "id": f"own_{len(self.bodies)}",
            "type": "function",
            "function": {"name": "weather", "arguments": self.arguments},
        }

    @staticmethod
    def _render(messages: list[dict[str, Any]]) -> bytes:
        shown = [[m["role"], m.get("content"), m.get("tool_calls")] for m in messages]
        return "".join(json.dumps(part) for part in shown).encode()

    @staticmethod
    def _deltas(message: dict[str, Any]) -> list[Any]:
        if not message.get("tool_calls"):
            words = message["content"].split(" ")
            return [_event({"content": w if i == 0 else " " + w}) for i, w in enumerate(words)]
        call = message["tool_calls"][0]
        head = {"index": 0, "id": call["id"], "type": "function"}
        text = call["function"]["arguments"]
        return [
            _event({"tool_calls": [{**head, "function": {"name": "weather", "arguments": ""}}]}),
            _event({"tool_calls": [{"index": 0, "function": {"arguments": text[:5]}}]}),
            _event({"tool_calls": [{"index": 0, "function": {"arguments": text[5:]}}]}),
        ]


def _replay(server: Callable[[httpx.Request], httpx.Response], **options: Any) -> list[Turn]:
    settings = ReplayOptions(**{"mode": "own", **options})
    client = ChatClient(settings, httpx.MockTransport(server))
    try:
        assert settings.mode != "both"
        turns, _ = replay(client, [TRACE], settings.mode, settings)
    finally:
        client.close()
    return turns


def test_own_mode_continues_with_the_replies() -> None:
    server = FakeServer()
    turns = _replay(server, seed=5, max_tokens=50)
    assert [t.reply.error for t in turns] == [None] * 3
    first, second, third = server.bodies
    assert first["messages"] == TRACE.messages[:1]
    assert (first["tool_choice"], second["tool_choice"]) == ("required", "auto")
    assert (first["model"], first["seed"], first["max_tokens"]) == ("fake", 5, 50)
    assert "return_token_ids" not in first
    own = second["messages"][1]["tool_calls"][0]
    assert (own["id"], own["function"]["arguments"]) == ("own_1", '{"city": "Rome"}')
    assert second["messages"][2] == {"role": "tool", "tool_call_id": "own_1", "content": "sunny"}
    assert third["messages"][3:] == [
        {"role": "assistant", "content": "Hello there"},
        {"role": "user", "content": "Thanks!"},
    ]


def test_own_mode_gives_every_call_a_result() -> None:
    server = FakeServer()
    turns = _replay(server, tool_choice="required")
    assert len(turns) == 3
    # The second own call has no recorded result at its place.
    assert server.bodies[2]["messages"][4]["content"] == '{"status": "ok"}'


def test_own_mode_skips_a_turn_when_nothing_was_said_since() -> None:
    server = FakeServer()
    turns = _replay(server, tool_choice="none")
    assert [t.index for t in turns] == [0, 1]
    assert [m["role"] for m in server.bodies[1]["messages"]] == ["user", "assistant", "user"]


def test_recorded_mode_sends_the_recorded_history() -> None:
    server = FakeServer()
    turns = _replay(server, mode="recorded", token_ids=True)
    assert [b["messages"] for b in server.bodies] == [TRACE.messages[:n] for n in (1, 3, 5)]
    assert server.bodies[0]["return_token_ids"] is True
    # The fake caches exactly the common prefix with the turn before.
    assert [t.reusable_tokens for t in turns][1:] == [t.reply.cached_tokens for t in turns][1:]
    assert turns[0].reusable_tokens is None
    summary = summarise(turns, 1.0)
    assert summary["cache"]["cached_per_reusable"] == 1.0
    assert 0 < summary["cache"]["reusable_share"] < 1


def test_recorded_mode_without_token_ids_knows_no_reusable_share() -> None:
    turns = _replay(FakeServer(), mode="recorded")
    assert [t.reusable_tokens for t in turns] == [None] * 3
    assert summarise(turns, 1.0)["cache"]["cached_per_reusable"] is None


@pytest.mark.parametrize("with_ids", [False, True])
def test_a_cache_that_forgets_is_seen(with_ids: bool) -> None:
    perfect = summarise(_replay(FakeServer(), token_ids=with_ids), 1.0)["cache"]
    assert (perfect["fully_reused_turns"], perfect["later_turns"]) == (2, 2)
    assert (perfect["shortfall_tokens"], perfect["worst"]) == (0, [])
    short = summarise(_replay(FakeServer(shortfall=3), token_ids=with_ids), 1.0)["cache"]
    assert (short["fully_reused_turns"], short["shortfall_tokens"]) == (0, 6)
    assert short["worst"][0]["shortfall"] == 3


def test_timing_usage_and_speculation_are_added_up() -> None:
    turns = _replay(FakeServer())
    assert all(t.reply.ttft_s is not None and t.reply.itl_ms is not None for t in turns)
    assert all(0 < (t.reply.ttft_s or 0) <= t.reply.duration_s for t in turns)
    summary = summarise(turns, 2.0)
    tokens = sum(t.reply.completion_tokens for t in turns)
    assert summary["tok_per_s"] == tokens / 2.0
    assert summary["speculation"] == {
        "passes": 12,
        "acceptance_length": tokens / 12,
        "sources": {"forced": {"drafted": 30, "accepted": 24, "rate": 0.8}},
    }
    text = table({"own": summary})
    assert "accepted, forced" in text and "24/30 (80.0 %)" in text
    assert "finished calls valid" in text and "1/1" in text


def _unenforced(tool: str, pointer: str) -> dict[str, Any]:
    return {"unenforced": [{"tool": tool, "pointer": pointer, "keyword": "minLength"}]}


@pytest.mark.parametrize(
    ("arguments", "report", "verdict"),
    [
        ('{"city": "Rome"}', {}, "valid"),
        ('{"city": "R"}', {}, "invalid"),
        ('{"city": "R"}', _unenforced("weather", "/properties/city/minLength"), None),
        ('{"city": "R"}', _unenforced("other", "/properties/city/minLength"), "invalid"),
        ('{"city": "R"}', _unenforced("weather", "/properties/city/pattern"), "invalid"),
        ('{"city": "R"}', {"violations": [{"tool": "weather"}]}, "invalid"),
        ('{"city": ', {}, "not_json"),
    ],
)
def test_calls_are_judged(arguments: str, report: dict[str, Any], verdict: str | None) -> None:
    server = FakeServer(arguments)
    server.report = report
    turns = _replay(server)
    assert turns[0].checks[0].verdict == (verdict or "unenforced")
    calls = summarise(turns, 1.0)["calls"]
    assert calls["broken"] == (verdict in ("invalid", "not_json"))
    if verdict == "not_json":
        assert len(turns) == 1, "half a call cannot be sent back"


class _Broken(FakeServer):
    """Answers the second request with something that is no whole reply."""

    def __init__(self, answer: Callable[[], httpx.Response]) -> None:
        super().__init__()
        self._answer = answer

    def __call__(self, request: httpx.Request) -> httpx.Response:
        response = super().__call__(request)
        return self._answer() if len(self.bodies) == 2 else response


def _stream(*events: object, is_done: bool = True) -> httpx.Response:
    headers = {"content-type": "text/event-stream"}
    return httpx.Response(200, headers=headers, content=_sse(*events, is_done=is_done))


def _lost() -> httpx.Response:
    raise httpx.ConnectError("connection refused")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: httpx.Response(500, json={"error": {"message": "boom"}}), "InternalServerError"),
        (lambda: httpx.Response(400, json={"error": {"message": "too long"}}), "too long"),
        (lambda: httpx.Response(503, text="<html>"), "503"),
        (_lost, "APIConnectionError"),
        (lambda: _stream(_event({"content": "Hel"}), is_done=False), "without a finish_reason"),
        (lambda: _stream(), "without a finish_reason"),
        (lambda: _stream('{"choices": [{"index": 0, "del'), "broken reply"),
        (lambda: _stream({"choices": [{"index": 0}]}), "broken reply"),
        (lambda: _stream({"choices": None}), "broken reply"),
        (lambda: _stream(_event({"tool_calls": [{"index": "first"}]})), "broken reply"),
        (lambda: _stream(_event({}, "stop"), _event(usage={"prompt_tokens": "?"})), "broken reply"),
        (lambda: _stream(_event({"content": "a"}), {"error": {"message": "died"}}), "died"),
        (lambda: httpx.Response(200, json={"choices": []}), "without a finish_reason"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_reply_is_counted_and_ends_its_conversation(
    answer: Callable[[], httpx.Response], said: str
) -> None:
    turns = _replay(_Broken(answer))
    assert [bool(t.reply.error) for t in turns] == [False, True]
    assert said in (turns[1].reply.error or "")
    summary = summarise(turns, 1.0)
    assert (summary["requests"], summary["errors"]) == (2, 1)
    assert table({"own": summary})


def test_conversations_run_at_once_and_come_back_in_order() -> None:
    settings = ReplayOptions(mode="recorded", concurrency=4)
    client = ChatClient(settings, httpx.MockTransport(FakeServer()))
    traces = [Trace(f"t{i}", TRACE.source, TOOLS, TRACE.messages) for i in range(6)]
    turns, _ = replay(client, traces, "recorded", settings)
    client.close()
    assert [(t.trace_id, t.index) for t in turns] == [
        (f"t{i}", k) for i in range(6) for k in range(3)
    ]


def test_run_prints_and_writes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"id": "t1", "source": "test/loop", "tools": TOOLS, "messages": TRACE.messages}
    traces = tmp_path / "traces.jsonl"
    traces.write_text(json.dumps(row) + "\n")
    server = FakeServer()
    monkeypatch.setattr(
        replay_module, "ChatClient", lambda o: ChatClient(o, httpx.MockTransport(server))
    )
    out = tmp_path / "out.json"
    options = ReplayOptions(traces=str(traces), json=str(out), api_key="secret")
    assert replay_module.run(options) == 0
    printed = capsys.readouterr().out
    assert "model fake, 1 conversations" in printed and "recorded" in printed
    document = json.loads(out.read_text())
    assert document["server"] == {"version": "1"}
    assert len(document["turns"]) == 6
    assert document["options"]["seed"] == 0
    assert document["environment"]["versions"]["torch"]
    assert "secret" not in out.read_text()
    server.arguments = '{"city": 5}'
    assert replay_module.run(ReplayOptions(traces=str(traces))) == 1


class _Handler(BaseHTTPRequestHandler):
    """The fake server behind a real socket; `breaks` drops the connection inside the stream."""

    server: Any

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        request = httpx.Request(
            self.command, f"http://x{self.path}", content=self.rfile.read(length)
        )
        response = self.server.fake(request)
        self.send_response(response.status_code)
        self.send_header("content-type", response.headers["content-type"])
        breaks = self.server.breaks and self.command == "POST"
        self.send_header("content-length", str(len(response.content) + (10 if breaks else 0)))
        self.end_headers()
        self.wfile.write(response.content[:200] if breaks else response.content)

    do_POST = do_GET

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def live_server() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.fake, server.breaks = FakeServer(), False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_command_replays_the_sample_over_a_socket(
    live_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{live_server.server_port}/v1"
    argv = ["bench", "--url", url, "--limit", "3", "--mode", "recorded", "--api-key", "k"]
    # The fake calls a tool that the sample does not have.
    assert main(argv) == 1
    captured = capsys.readouterr()
    assert "3 conversations" in captured.out
    assert "errors" in captured.out
    live_server.breaks = True
    assert main(argv) == 1
    assert capsys.readouterr().err.count(" turn 0: ") == 3


def test_a_server_that_is_not_there_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no answer from http"):
        ChatClient(ReplayOptions(), httpx.MockTransport(lambda request: _lost()))
    empty = httpx.MockTransport(lambda request: httpx.Response(200, json={"data": []}))
    with pytest.raises(ConfigError, match="lists no model"):
        ChatClient(ReplayOptions(), empty)


def test_percentile_is_the_nearest_rank() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.95) == 3.0
    assert percentile([float(i) for i in range(1, 21)], 0.95) == 19.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0


def test_the_sample_loads_and_can_be_filtered(tmp_path: Path) -> None:
    traces = load_traces()
    assert len(traces) == 25
    assert {t.source for t in load_traces(sources="star, taskmaster4")} == {"star", "taskmaster4"}
    assert [t.trace_id for t in load_traces(limit=2)] == [t.trace_id for t in traces[:2]]
    with pytest.raises(ConfigError, match="no conversation"):
        load_traces(sources="nothing")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bad.jsonl", b'{"id": 1}\n', "line 1: expected a JSON object with id, source"),
        ("bad.jsonl", b"{\n", "line 1"),
        ("bad.jsonl", b"[]\n", "line 1"),
        ("bad.jsonl.gz", b"not gzip", "cannot read"),
        ("bad.jsonl", b"\xff\xfe", "cannot read"),
    ],
)
def test_bad_trace_files_are_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load_traces(str(path))
