"""Which of the public trace files' conversations are for measuring alone.

    python -m specrt.train.dev_split TRACES.jsonl.gz OUT_DIR

writes `train.jsonl` and `dev.jsonl`. A conversation is decided by a hash of what it shares with its
siblings: its tool list, the task (LiveMCPBench: ten runs of each), or only itself where all of a
source offer the same few tool lists (STAR, Taskmaster). Those that
`specrt bench` ships as its sample are in neither file.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from specrt.bench.traces import load_traces
from specrt.errors import ConfigError
from specrt.train.traces import TrainingTrace, load_training_traces

SHARE = 0.05


def is_dev(trace: TrainingTrace) -> bool:
    """Whether a conversation belongs to the development set."""
    digest = hashlib.sha256(_key(trace).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big") < SHARE * 2**32


def _key(trace: TrainingTrace) -> str:
    source = trace.source.split("/")[0]
    if source == "livemcpbench":  # one task, run by ten models
        first = next(m["content"] for m in trace.messages if m["role"] == "user")
        return first if isinstance(first, str) else json.dumps(first, ensure_ascii=False)
    return trace.trace_id if source in ("star", "taskmaster4") else trace.tools_key


def write_split(path: str, out_dir: Path) -> tuple[int, int]:
    """Write the two files.

    Args:
        path: .jsonl or .jsonl.gz file of conversations.
        out_dir: where to, made if missing.

    Returns:
        (conversations in train.jsonl, in dev.jsonl).

    Raises:
        ConfigError: the file cannot be read, or a line is no conversation.
    """
    sample = {trace.trace_id for trace in load_traces()}
    parts: tuple[list[TrainingTrace], list[TrainingTrace]] = ([], [])
    for trace in load_training_traces(path):
        if trace.trace_id not in sample:
            parts[is_dev(trace)].append(trace)
    out_dir.mkdir(parents=True, exist_ok=True)
    for name, part in zip(("train.jsonl", "dev.jsonl"), parts, strict=True):
        (out_dir / name).write_text(_lines(part), encoding="utf-8")
    return len(parts[0]), len(parts[1])


def _lines(traces: Iterable[TrainingTrace]) -> str:
    rows = (
        {
            "id": trace.trace_id,
            "source": trace.source,
            "licence": trace.licence,
            "tools": trace.tools,
            "messages": trace.messages,
        }
        for trace in traces
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def main(arguments: list[str]) -> int:
    """The command above."""
    if len(arguments) != 2:
        print("usage: python -m specrt.train.dev_split TRACES.jsonl[.gz] OUT_DIR", file=sys.stderr)
        return 2
    try:
        train, dev = write_split(arguments[0], Path(arguments[1]))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{train} conversations to train on, {dev} to measure with")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
