"""Training traces: every bad line is named with what was expected; held-out tool lists stay out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specrt.errors import ConfigError
from specrt.train.traces import TrainingTrace, load_training_traces, split

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "one and one?"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 1}'}}],
}
GOOD: dict[str, Any] = {"id": "good", "messages": [USER, CALL], "tools": [TOOL]}


def _call(name: str, arguments: object) -> dict[str, Any]:
    calls = [{"function": {"name": name, "arguments": arguments}}]
    return {**GOOD, "messages": [USER, {**CALL, "tool_calls": calls}]}


BAD_LINES = {
    "broken": ('{"messages": [', "expected a JSON object"),
    "not UTF-8": (b'{"id": "\xff"}', "expected a JSON object"),
    "no object": ("[]", "expected a JSON object with messages"),
    "no messages": ({"tools": []}, "messages: expected a list of at least one message"),
    "empty messages": ({"messages": []}, "messages: expected a list of at least one message"),
    "no role": ({"messages": [{"content": "x"}]}, r"messages\[0\].role: expected one of"),
    "unknown role": (
        {"messages": [USER, {"role": "robot", "content": "x"}]},
        r"messages\[1\].role: expected one of .* got 'robot'",
    ),
    "unknown tool": (_call("sub", "{}"), r"tool_calls\[0\].function.name: .*\(add\), got 'sub'"),
    "no JSON arguments": (_call("add", "{a}"), "arguments: expected the JSON text of an object"),
    "no object arguments": (_call("add", "[1]"), "arguments: expected the JSON text of an object"),
    "number arguments": (_call("add", 1), "arguments: expected the JSON text of an object"),
    "same tool twice": ({**GOOD, "tools": [TOOL, TOOL]}, "expected a name that no other tool has"),
    "no turn": (
        {"messages": [{"role": "system", "content": "x"}]},
        "expected an assistant message, or a last message to reply to",
    ),
    "same id": (GOOD, "id: expected one that no other line has, got 'good', which line 1 has"),
    "id is no text": ({**GOOD, "id": 3}, "id: expected text, got 3"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_an_error_with_its_number(case: str, tmp_path: Path) -> None:
    line, expected = BAD_LINES[case]
    raw = line if isinstance(line, bytes) else None
    text = line if isinstance(line, str) else "" if raw else json.dumps(line)
    path = tmp_path / "traces.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n\n" + (raw or text.encode()) + b"\n")
    with pytest.raises(ConfigError, match=f"^--traces: {path}, line 3: .*{expected}"):
        load_training_traces(str(path))


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(ConfigError, match="--traces: .*empty.jsonl: expected at least one"):
        load_training_traces(str(empty))
    with pytest.raises(ConfigError, match="--traces: cannot read .*missing"):
        load_training_traces(str(tmp_path / "missing.jsonl"))
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(gzip.compress(json.dumps(GOOD).encode())[:-9])
    with pytest.raises(ConfigError, match="--traces: cannot read .*torn"):
        load_training_traces(str(torn))


def test_what_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl.gz"
    lines = [json.dumps(GOOD), "", json.dumps({"messages": [USER]})]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    recorded, open_ended = load_training_traces(str(path))
    assert (recorded.trace_id, recorded.source, recorded.turns) == ("good", "", [1])
    assert (open_ended.trace_id, open_ended.tools, open_ended.turns) == ("line 3", [], [1])


def _trace(number: int, tool: int) -> TrainingTrace:
    tools = [{"type": "function", "function": {"name": f"tool_{tool}"}}]
    return TrainingTrace(f"trace {number}", "", tools, [USER])


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.sampled_from([0.0, 0.1, 0.5]))
def test_split(tools: list[int], holdout: float) -> None:
    traces = [_trace(number, tool) for number, tool in enumerate(tools)]
    train, held = split(traces, holdout)
    assert sorted(t.trace_id for t in train + held) == sorted(t.trace_id for t in traces)
    assert train
    assert bool(held) == (holdout > 0 and len(traces) > 1)
    if len(set(tools)) >= 3:
        assert not {t.tools_key for t in train} & {t.tools_key for t in held}
    backwards = split(traces[::-1], holdout)
    assert {t.trace_id for t in backwards[1]} == {t.trace_id for t in held}
