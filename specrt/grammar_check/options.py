"""What `specrt grammar` takes on the command line: one frozen dataclass per sub-command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specrt.config import flag
from specrt.errors import ConfigError

Backend = Literal["auto", "outlines", "llguidance"]
_BACKEND_HELP = "engine: outlines (byte automata) or llguidance; auto = the first where it can"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """`specrt grammar check`: a file of labelled instances against the grammars of its schemas."""

    schemas: str | None = flag(
        None,
        "rows of schemas with labelled instances, .jsonl or .jsonl.gz (needed)",
        metavar="FILE",
    )
    json: str | None = flag(None, "write the table and every miss to this file", metavar="OUT")
    lenient: bool = flag(
        False, "enforce as far as possible, and check that what slips through is flagged"
    )
    model_path: str | None = flag(
        None, "model whose tokenizer is used (default: the embedded model)"
    )
    grammar_backend: Backend = flag("auto", _BACKEND_HELP)
    baseline: bool = flag(False, "the same for llguidance alone, side by side")
    limit: int | None = flag(None, "rows at most (default: all)")
    processes: int = flag(2, "rows that are checked at once")
    work: str | None = flag(
        None,
        "folder for finished rows: a run that was killed goes on there (default: none are kept)",
        metavar="DIR",
    )

    def __post_init__(self) -> None:
        if self.schemas is None:
            raise ConfigError("--schemas: expected a .jsonl or .jsonl.gz file, got nothing")
        for name, value in (("--limit", self.limit), ("--processes", self.processes)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}: expected an integer >= 1, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOptions:
    """`specrt grammar explain`: what one schema becomes."""

    strict: bool = flag(False, "enforce exactly, or say why not")
    instance: str | None = flag(
        None, "JSON file whose value is the sample (default: one made from the grammar)"
    )
    model_path: str | None = flag(
        None, "model whose tokenizer is used (default: the embedded model)"
    )
    grammar_backend: Backend = flag("auto", _BACKEND_HELP)
