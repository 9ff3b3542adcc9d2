"""Agent traces to train on, read strictly, and which of them are held out.

One JSON object a line (.jsonl or .jsonl.gz): `messages` as OpenAI's API takes them; `tools`, `id`
and `source` may be missing. A line that cannot be used is an error, never skipped.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from specrt.errors import ConfigError, RequestError
from specrt.grammars.base import DEFAULT_TOOL_FORMAT
from specrt.grammars.formats import load_format
from specrt.grammars.messages import read_messages
from specrt.grammars.tool_format import ToolFormat
from specrt.grammars.tools import read_tools, shown


@dataclass(frozen=True, slots=True)
class TrainingTrace:
    """One recorded conversation.

    Attributes:
        trace_id: unique in its file.
        source: where it comes from, `dataset/part`; "" when the line does not say.
        tools: OpenAI tools, possibly none.
        messages: OpenAI chat messages.
        licence: of the conversation, for the model card; "" when the line does not say.
    """

    trace_id: str
    source: str
    tools: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    licence: str = ""

    @property
    def turns(self) -> list[int]:
        """Indices of the assistant messages; without any, the reply that the end waits for."""
        recorded = [i for i, m in enumerate(self.messages) if m["role"] == "assistant"]
        return recorded or [len(self.messages)]

    @property
    def tools_key(self) -> str:
        """The tool list as text: equal lists render to equal beginnings of a prompt."""
        return json.dumps(self.tools, ensure_ascii=False)


def load_training_traces(path: str) -> list[TrainingTrace]:
    """Read conversations in file order; empty lines do not count.

    Args:
        path: .jsonl or .jsonl.gz file, UTF-8.

    Raises:
        ConfigError: the file cannot be read, has no conversation, or a line is none; the message
            names --traces, the file, the line and what was expected.
    """
    tool_format = load_format(DEFAULT_TOOL_FORMAT)
    traces: list[TrainingTrace] = []
    seen: dict[str, int] = {}
    for number, line in _lines(path):
        try:
            trace = _parse(line, number, tool_format)
        except RequestError as error:
            raise ConfigError(f"--traces: {path}, line {number}: {error}") from None
        if trace.trace_id in seen:
            raise ConfigError(
                f"--traces: {path}, line {number}: id: expected one that no other line has, got"
                f" {shown(trace.trace_id)}, which line {seen[trace.trace_id]} has"
            )
        seen[trace.trace_id] = number
        traces.append(trace)
    if not traces:
        raise ConfigError(f"--traces: {path}: expected at least one conversation, got none")
    return traces


def _parse(line: bytes, number: int, tool_format: ToolFormat) -> TrainingTrace:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"expected a JSON object, got no JSON: {error}") from None
    if not isinstance(row, dict):
        raise RequestError(f"expected a JSON object with messages, got {shown(row)}")
    trace_id, source = row.get("id", f"line {number}"), row.get("source", "")
    licence: Any = row.get("licence", row.get("license", ""))
    for name, value in (("id", trace_id), ("source", source), ("licence", licence)):
        if not isinstance(value, str) or (name == "id" and not value):
            raise RequestError(f"{name}: expected text, got {shown(value)}")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise RequestError(f"{name}: expected text, got half of a surrogate pair in it")
    tools = row.get("tools") or []
    names = [tool.name for tool in read_tools(tools)]
    read = read_messages(row.get("messages"), tool_format)
    for index, message in enumerate(read):
        for call_index, call in enumerate(message.calls):
            if call.name not in names:
                raise RequestError(
                    f"messages[{index}].tool_calls[{call_index}].function.name: expected the name"
                    f" of one of tools ({', '.join(names) or 'there are none'}), got"
                    f" {shown(call.name)}"
                )
    is_open = read[-1].role in ("user", "tool")
    if not is_open and not any(message.role == "assistant" for message in read):
        raise RequestError(
            "messages: expected an assistant message, or a last message to reply to, got only"
            f" {shown(read[-1].role)} messages at the end"
        )
    return TrainingTrace(trace_id, source, tools, row["messages"], licence)


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line) of all lines that are not empty."""
    try:
        with _open(path) as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError) as error:
        raise ConfigError(f"--traces: cannot read {path}: {error}") from None


def _open(path: str) -> BinaryIO:
    if path.endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return Path(path).open("rb")


def split(
    traces: Sequence[TrainingTrace], holdout: float
) -> tuple[list[TrainingTrace], list[TrainingTrace]]:
    """Which traces are trained on and which are held out; no tool list is on both sides.

    Hashes of the tool lists give the order in which they are held out, so file order does not
    matter. A list with more than a quarter of the share is left to training. With fewer than three
    tool lists there is nothing to tell apart by them, and single traces are held out.

    Args:
        traces: all of them.
        holdout: share to hold out, 0 <= holdout < 1; 0 holds out none, any other at least one
            trace, provided that another remains.

    Returns:
        (train, held), each in file order.
    """
    groups: dict[str, list[TrainingTrace]] = defaultdict(list)
    for trace in traces:
        groups[trace.tools_key].append(trace)
    if len(groups) < 3:
        groups = {trace.trace_id: [trace] for trace in traces}
    wanted = round(holdout * len(traces))
    held: set[str] = set()
    for group in sorted(groups.items(), key=lambda item: _digest(item[0])):
        if len(held) + len(group[1]) <= wanted and 4 * len(group[1]) <= max(wanted, 4):
            held.update(trace.trace_id for trace in group[1])
    if holdout > 0 and not held and len(groups) > 1:
        smallest = min(groups, key=lambda key: (len(groups[key]), _digest(key)))
        held.update(trace.trace_id for trace in groups[smallest])
    return (
        [trace for trace in traces if trace.trace_id not in held],
        [trace for trace in traces if trace.trace_id in held],
    )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
