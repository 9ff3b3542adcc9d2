"""Finished rows on disk, so that a run that was killed goes on: one JSON object a line."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import IO

import specrt.grammars.base
from specrt import __version__
from specrt.errors import ConfigError
from specrt.grammar_check.row_check import SPECRT, CheckSettings, Miss, RowResult
from specrt.grammar_check.rows import SchemaRow

_FILE = "finished_rows.jsonl"


def row_key(row: SchemaRow, engine: str, settings: CheckSettings, fingerprint: str) -> str:
    """What a result depends on: the row, the settings, and the code that made it.

    Args:
        row: all of it counts.
        engine: SPECRT or BASELINE.
        settings: of the run.
        fingerprint: of the engine, see `engine_fingerprint`.
    """
    settled = asdict(settings) if engine == SPECRT else settings.model_path
    text = json.dumps([asdict(row), engine, settled, fingerprint])
    return hashlib.sha256(text.encode()).hexdigest()


def engine_fingerprint(engine: str) -> str:
    """Changes whenever an engine may judge otherwise: with its version, and here with its code."""
    versions = [__version__, metadata.version("llguidance"), metadata.version("outlines-core")]
    digest = hashlib.sha256(" ".join(versions).encode())
    if engine == SPECRT:
        folder = Path(specrt.grammars.base.__file__).parent
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


class FinishedRows:
    """Results by key. Without a folder nothing is kept."""

    def __init__(self, folder: str | None) -> None:
        """Read what earlier runs finished; a line that was being written is left out.

        Raises:
            ConfigError: the folder cannot be used.
        """
        self._results: dict[str, RowResult] = {}
        self._file: IO[str] | None = None
        if folder is None:
            return
        path = Path(folder) / _FILE
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+", encoding="utf-8")
            self._file.seek(0)
            text = self._file.read()
            if text and not text.endswith("\n"):  # the last run died in the middle of a line
                self._file.write("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--work: cannot use {path}: {error}") from None
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                self._results[entry["key"]] = _result(entry["result"])
            except (ValueError, KeyError, TypeError):
                continue

    def get(self, key: str) -> RowResult | None:
        """The result of an earlier run."""
        return self._results.get(key)

    def put(self, key: str, result: RowResult) -> None:
        """Keep a result; it is on disk when this returns.

        Raises:
            ConfigError: it cannot be written.
        """
        if self._file is None:
            return
        try:
            self._file.write(json.dumps({"key": key, "result": asdict(result)}) + "\n")
            self._file.flush()
        except OSError as error:
            raise ConfigError(f"--work: cannot write {self._file.name}: {error}") from None

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


def _result(raw: dict[str, object]) -> RowResult:
    result = RowResult(**raw)  # type: ignore[arg-type]
    for name in ("valid_rejected", "invalid_accepted"):
        setattr(result, name, [Miss(**miss) for miss in raw[name]])  # type: ignore[attr-defined]
    return result
