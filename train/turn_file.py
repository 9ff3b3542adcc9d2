"""turns.jsonl: regenerated turns on disk, written in blocks, resumable after a kill at any time.

    {"made_with": {...}}                        what decides the content: model, traces, options
    {"id": ..., "prompt_ids": ...}              one line a turn
    {"block_end": {"too_long": 1, "failed": 0}} the turns above are a whole block

A block is made from nothing but the header and its number. What stands behind the last block end
is dropped and made again, so the file is the same however often its making was interrupted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specrt.errors import ConfigError

TURNS_NAME = "turns.jsonl"


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant turn to train on.

    Attributes:
        id: `<trace id>[<message index>]`, and `:recorded` if the target did not write it.
        source: of the trace.
        is_held: not to be trained on.
        prompt_ids: as the server would build the prompt.
        output_ids: the turn, the end-of-turn token included when it stopped.
        forced: for each output token, whether the grammar left no other.
        finish_reason: "stop" or "length".
    """

    id: str
    source: str
    is_held: bool
    prompt_ids: list[int]
    output_ids: list[int]
    forced: list[bool]
    finish_reason: str


@dataclass(slots=True)
class TurnCounts:
    """What whole blocks hold, and what they left out.

    Attributes:
        turns: number of turns.
        held: those of them that are held out.
        tokens: output tokens.
        forced: output tokens that the grammar forced.
        too_long: turns left out for the length of their prompt.
        failed: turns left out because the request was refused or ended in an error.
    """

    turns: int = 0
    held: int = 0
    tokens: int = 0
    forced: int = 0
    too_long: int = 0
    failed: int = 0

    def add(self, turn: Turn) -> None:
        """Count a turn."""
        self.turns += 1
        self.held += turn.is_held
        self.tokens += len(turn.output_ids)
        self.forced += sum(turn.forced)


@dataclass(slots=True)
class _Content:
    """The whole blocks of a file: how many, what they hold, where they end (bytes)."""

    num_blocks: int = 0
    num_bytes: int = 0
    counts: TurnCounts = field(default_factory=TurnCounts)


class TurnFile:
    """turns.jsonl, open for appending blocks.

    Attributes:
        num_blocks: whole blocks in the file.
        counts: what they hold.
    """

    def __init__(self, work_dir: Path, made_with: Mapping[str, Any]) -> None:
        """Open the file of an earlier run, or start one.

        Args:
            work_dir: its folder; made if absent.
            made_with: what decides the content, as JSON values.

        Raises:
            ConfigError: the file was made with something else, or is broken in the middle.
        """
        try:
            work_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out: cannot write to {work_dir}: {error}") from error
        path = work_dir / TURNS_NAME
        header = json.dumps({"made_with": made_with}) + "\n"
        content = _Content()
        if path.exists():
            _check_header(path, json.loads(header)["made_with"])
            for block in _blocks(path):
                content = block.after
        self.num_blocks, self.counts = content.num_blocks, content.counts
        self._file = path.open("ab")
        self._file.truncate(content.num_bytes)
        if not content.num_bytes:
            self._write(header)

    def append(self, turns: list[Turn], *, too_long: int, failed: int) -> None:
        """Write one block, each line at once, and wait until it is on the disk."""
        for turn in turns:
            self._write(json.dumps(asdict(turn), ensure_ascii=False) + "\n")
            self.counts.add(turn)
        self._write(json.dumps({"block_end": {"too_long": too_long, "failed": failed}}) + "\n")
        os.fsync(self._file.fileno())
        self.counts.too_long += too_long
        self.counts.failed += failed
        self.num_blocks += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: str) -> None:
        self._file.write(line.encode("utf-8", "surrogatepass"))
        self._file.flush()


def load_turns(work_dir: Path, max_tokens: int | None = None) -> list[Turn]:
    """The turns of all whole blocks, in file order.

    Args:
        work_dir: folder of the file.
        max_tokens: no further block once the ones before hold this many output tokens, as
            `regenerate` would have stopped.

    Raises:
        ConfigError: the file is not there or broken.
    """
    turns: list[Turn] = []
    for block in _blocks(work_dir / TURNS_NAME):
        turns += block.turns
        if max_tokens is not None and block.after.counts.tokens >= max_tokens:
            break
    return turns


@dataclass(frozen=True, slots=True)
class _Block:
    turns: list[Turn]
    after: _Content


def _blocks(path: Path) -> Iterator[_Block]:
    """The whole blocks of a file, each with what the file holds up to its end.

    The header counts as a block without turns, so that a file of a header alone is resumed.
    """
    after = _Content(num_blocks=-1)
    turns: list[Turn] = []
    position = 0
    for number, line in _whole_lines(path):
        position += len(line)
        try:
            row = json.loads(line)
            if number == 1 or "block_end" in row:
                left_out = {} if number == 1 else row["block_end"]
                for turn in turns:
                    after.counts.add(turn)
                after.counts.too_long += left_out.get("too_long", 0)
                after.counts.failed += left_out.get("failed", 0)
                after.num_blocks += 1
                after.num_bytes = position
                yield _Block(turns, after)
                turns = []
            else:
                turns.append(Turn(**row))
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path}, line {number}: expected a turn, got {error}; delete the file or use"
                " another --out"
            ) from None


def _whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(line number from 1, line) without a last line that was torn."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield number, line
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def _check_header(path: Path, made_with: dict[str, Any]) -> None:
    """Refuse a file that other settings made; a torn header is none."""
    for _, line in _whole_lines(path):
        try:
            found = json.loads(line)["made_with"]
            differing = [
                f"{key}: {found.get(key)!r} there, {made_with.get(key)!r} now"
                for key in sorted(found.keys() | made_with.keys())
                if found.get(key) != made_with.get(key)
            ]
        except (ValueError, TypeError, KeyError, AttributeError):
            differing = ["it is no file of turns"]
        if differing:
            raise ConfigError(
                f"--out: {path} was made with something else ({'; '.join(differing)}); use another"
                " --out, or delete the file to start over"
            )
        break
