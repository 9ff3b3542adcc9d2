"""Recorded tool-call conversations: one JSON object a line, plain or gzipped.

Needs `id`, `source`, `tools` (OpenAI list) and `messages` (OpenAI chat messages, `arguments` a JSON
string); other keys are ignored.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from specrt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Trace:
    """One recorded conversation.

    Attributes:
        trace_id: unique in its file.
        source: `dataset/part`.
        tools: OpenAI tools, possibly none.
        messages: OpenAI chat messages.
    """

    trace_id: str
    source: str
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]


def load_traces(
    path: str | None = None, *, sources: str | None = None, limit: int | None = None
) -> list[Trace]:
    """Read conversations in file order.

    Args:
        path: .jsonl or .jsonl.gz file; None is the sample that ships with specrt.
        sources: comma-separated starts of `source`; None keeps all.
        limit: conversations at most.

    Raises:
        ConfigError: the file cannot be read, a line is no conversation, or nothing is left.
    """
    prefixes = tuple(s.strip() for s in sources.split(",") if s.strip()) if sources else ("",)
    name = path or "the sample"
    traces: list[Trace] = []
    for number, line in enumerate(_lines(path), start=1):
        if limit is not None and len(traces) == limit:
            break
        if not line.strip():
            continue
        trace = _parse(line, f"{name}, line {number}")
        if trace.source.startswith(prefixes):
            traces.append(trace)
    if not traces:
        raise ConfigError(f"--traces: no conversation in {name} with a source like {prefixes}")
    return traces


def _parse(line: str, where: str) -> Trace:
    try:
        row = json.loads(line)
        trace = Trace(row["id"], row["source"], row["tools"], row["messages"])
        is_whole = all(isinstance(m, dict) and "role" in m for m in trace.messages) and all(
            isinstance(t["function"]["name"], str) for t in trace.tools
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--traces: {where}: expected a JSON object with id, source, tools and messages:"
            f" {type(error).__name__} {error}"
        ) from None
    if not is_whole:
        raise ConfigError(f"--traces: {where}: a message without a role")
    return trace


def _lines(path: str | None) -> Iterator[str]:
    if path is None:
        sample = files("specrt.bench").joinpath("data", "sample_traces.jsonl")
        yield from sample.read_text(encoding="utf-8").splitlines()
        return
    try:
        if path.endswith(".gz"):
            with gzip.open(path, "rt", encoding="utf-8") as stream:
                yield from stream
        else:
            with Path(path).open(encoding="utf-8") as stream:
                yield from stream
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigError(f"--traces: cannot read {path}: {error}") from None
