"""`specrt bench replay`: recorded conversations against a server, one request per assistant turn.

recorded   every turn has the recorded history before it; the replies are dropped
own        the replies become the history; each call gets the recorded tool result of its position
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specrt.bench.client import ChatClient, Reply
from specrt.bench.environment import describe, environment
from specrt.bench.options import ReplayOptions
from specrt.bench.report import summarise, table, write_json
from specrt.bench.traces import Trace, load_traces
from specrt.bench.validity import CallCheck, check_calls

Mode = Literal["own", "recorded"]

# What a call gets for which the trace has no result.
_NO_RESULT = '{"status": "ok"}'


@dataclass(slots=True)
class Turn:
    """One request and what became of it.

    Attributes:
        trace_id: the conversation.
        source: its data set.
        mode: whose history the request carried.
        index: number of the turn in its conversation, from 0.
        reply: the answer.
        checks: one per call of the reply.
        reusable_tokens: prompt tokens that the turn before leaves in a perfect cache; None when
            there is no turn before, or (recorded mode) the server gave no token ids.
    """

    trace_id: str
    source: str
    mode: Mode
    index: int
    reply: Reply
    checks: list[CallCheck] = field(default_factory=list)
    reusable_tokens: int | None = None


def run(options: ReplayOptions) -> int:
    """Replay, print the table, write the JSON.

    Returns:
        0, or 1 when a request failed or a call broke its schema.

    Raises:
        ConfigError: no traces, no server, or --json cannot be written.
    """
    traces = load_traces(options.traces, sources=options.sources, limit=options.limit)
    client = ChatClient(options)
    try:
        modes: list[Mode] = ["own", "recorded"] if options.mode == "both" else [options.mode]
        env, server = environment(), client.server_info()
        print(f"{describe(env)}\n{options.url}, model {client.model}, {len(traces)} conversations")
        turns: list[Turn] = []
        summaries: dict[str, dict[str, Any]] = {}
        for mode in modes:
            played, wall_s = replay(client, traces, mode, options)
            summaries[mode] = summarise(played, wall_s)
            turns += played
    finally:
        client.close()
    print(table(summaries))
    for failed in [t for t in turns if t.reply.error][:5]:
        print(f"{failed.trace_id} turn {failed.index}: {failed.reply.error}", file=sys.stderr)
    if options.json is not None:
        document = {
            "environment": env,
            "options": {k: v for k, v in asdict(options).items() if k != "api_key"},
            "model": client.model,
            "server": server,
            "summaries": summaries,
            "turns": [asdict(turn) for turn in turns],
        }
        write_json(options.json, document)
    is_clean = all(s["errors"] == 0 and s["calls"]["broken"] == 0 for s in summaries.values())
    return 0 if is_clean else 1


def replay(
    client: ChatClient, traces: list[Trace], mode: Mode, options: ReplayOptions
) -> tuple[list[Turn], float]:
    """Play conversations, `concurrency` at once, each turn after turn.

    Returns:
        The turns in the order of the traces, and the wall time in seconds.
    """
    start = time.perf_counter()
    with ThreadPoolExecutor(max_workers=options.concurrency) as pool:
        played = pool.map(lambda trace: list(_play(client, trace, mode, options)), traces)
        turns = [turn for conversation in played for turn in conversation]
    return turns, time.perf_counter() - start


def _play(client: ChatClient, trace: Trace, mode: Mode, options: ReplayOptions) -> Iterator[Turn]:
    """One conversation; ends at a turn that fails, since the next builds on it."""
    history: list[dict[str, Any]] = []
    before: Reply | None = None
    index = 0
    for position, message in enumerate(trace.messages):
        role = message["role"]
        if role != "assistant":
            if mode == "recorded" or role != "tool":
                history.append(message)
            continue
        if mode == "own" and history and history[-1]["role"] == "assistant":
            continue  # nothing was said since the model's own text
        choice = options.tool_choice
        if choice == "recorded":
            choice = "required" if message.get("tool_calls") else "auto"
        reply = client.complete(history, trace.tools, choice)
        turn = Turn(trace.trace_id, trace.source, mode, index, reply)
        turn.checks = check_calls(
            reply.tool_calls,
            trace.tools,
            is_cut=reply.finish_reason == "length" or reply.error is not None,
            unenforced=_named(reply),
        )
        turn.reusable_tokens = _reusable(before, reply, mode)
        yield turn
        if reply.error is not None:
            return
        before, index = reply, index + 1
        if mode == "recorded":
            history.append(message)
            continue
        if any(check.verdict in ("not_json", "unfinished") for check in turn.checks):
            return  # half a call cannot be sent back
        history.append(reply.message())
        history += _tool_results(reply.tool_calls, trace.messages[position + 1 :])


def _tool_results(
    calls: list[dict[str, Any]], following: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A result for each own call: the recorded one of its position, or a fixed one."""
    recorded: list[str] = []
    for message in following:
        if message["role"] != "tool":
            break
        recorded.append(message["content"])
    recorded += [_NO_RESULT] * (len(calls) - len(recorded))
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": content}
        for call, content in zip(calls, recorded, strict=False)
    ]


def _named(reply: Reply) -> list[dict[str, Any]]:
    """Keywords that a specrt server says it did not enforce."""
    entries = (reply.specrt or {}).get("unenforced") or []
    return [entry for entry in entries if isinstance(entry, dict)]


def _reusable(before: Reply | None, reply: Reply, mode: Mode) -> int | None:
    """Prompt tokens that prompt and output of the turn before can spare this one."""
    if before is None or reply.error is not None:
        return None
    if reply.prompt_token_ids and before.prompt_token_ids:
        known = before.prompt_token_ids + (before.token_ids or [])
        # The last output token is drawn but never computed, the last prompt token always is.
        usable = min(len(known) - 1, len(reply.prompt_token_ids) - 1)
        pairs = zip(known[:usable], reply.prompt_token_ids, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), usable)
    if mode == "own" and before.prompt_tokens:
        return before.prompt_tokens + before.completion_tokens - 1
    return None
