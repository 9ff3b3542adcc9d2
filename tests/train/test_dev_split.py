"""train.dev_split: nothing that a dev conversation is decided by is on both sides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specrt.bench.traces import load_traces
from specrt.train.dev_split import is_dev, main
from specrt.train.traces import TrainingTrace

_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def _trace(source: str, number: int, *, tools: int = 0, text: str = "Hello") -> TrainingTrace:
    tool = {**_TOOL, "function": {**_TOOL["function"], "description": str(tools)}}  # type: ignore[dict-item]
    return TrainingTrace(f"{source}-{number}", source, [tool], [{"role": "user", "content": text}])


def test_equal_tool_lists_share_a_side() -> None:
    for tools in range(200):
        sides = {is_dev(_trace("bfcl_v4/simple", number, tools=tools)) for number in range(5)}
        assert len(sides) == 1


def test_runs_of_one_task_share_a_side() -> None:
    for task in range(200):
        sides = {is_dev(_trace(f"livemcpbench/{n}", n, text=f"task {task}")) for n in range(5)}
        assert len(sides) == 1


@pytest.mark.parametrize("source", ["star", "taskmaster4", "bfcl_v4/simple"])
def test_one_in_twenty_is_dev(source: str) -> None:
    count = sum(is_dev(_trace(source, number, tools=number)) for number in range(4000))
    assert 140 < count < 260


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"id": t.trace_id, "source": t.source, "tools": t.tools, "messages": t.messages}
        for t in [_trace("star", number) for number in range(100)]
    ]
    sample = load_traces()[0]
    rows.append(
        {"id": sample.trace_id, "source": "star", "tools": [], "messages": rows[0]["messages"]}
    )
    path = tmp_path / "all.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main([str(path), str(tmp_path / "out")]) == 0
    train, dev = (
        [json.loads(line)["id"] for line in (tmp_path / "out" / name).read_text().splitlines()]
        for name in ("train.jsonl", "dev.jsonl")
    )
    assert sorted(train + dev) == sorted(row["id"] for row in rows[:-1])
    assert dev and not set(train) & set(dev)
    assert f"{len(train)} conversations" in capsys.readouterr().out


def test_a_file_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "missing.jsonl"), str(tmp_path)]) == 2
    assert "missing.jsonl" in capsys.readouterr().err
