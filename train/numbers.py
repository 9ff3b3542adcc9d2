"""training.json: all numbers of a run, from which its page is drawn."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specrt import __version__
from specrt.train.acceptance import Acceptance
from specrt.train.record import FitRecord, FitResult, curve_rows
from specrt.train.traces import TrainingTrace
from specrt.train.training_options import TrainDraftOptions
from specrt.train.turn_file import Turn, TurnCounts


@dataclass(frozen=True, slots=True)
class DataSource:
    """Where training data comes from.

    Attributes:
        name: of the data set.
        licence: as its publisher names it.
        turns: assistant turns taken from it.
        tokens: output tokens of them.
    """

    name: str
    licence: str
    turns: int
    tokens: int


def data_sources(traces: Sequence[TrainingTrace], turns: Sequence[Turn]) -> list[DataSource]:
    """Training turns and their tokens by data set; held-out ones are left out."""
    licences: dict[str, set[str]] = {}
    for trace in traces:
        named = licences.setdefault(_name(trace.source), set())
        named.add(trace.licence or "not stated")
    num_turns: Counter[str] = Counter()
    num_tokens: Counter[str] = Counter()
    for turn in turns:
        if not turn.is_held:
            name = _name(turn.source)
            num_turns[name] += 1
            num_tokens[name] += len(turn.output_ids)
    return [
        DataSource(name, ", ".join(sorted(licences[name])), count, num_tokens[name])
        for name, count in sorted(num_turns.items())
    ]


def training_numbers(
    record: FitRecord,
    options: TrainDraftOptions,
    *,
    target: str,
    counts: TurnCounts,
    sources: Sequence[DataSource],
) -> dict[str, Any]:
    """All that is known of a run, as plain JSON.

    Args:
        record: of a finished or stopped run; as a `FitResult`, with what was measured at its end.
        options: it was run with.
        target: name of the model that the head drafts for.
        counts: of all turns that were made.
        sources: of those that were learned from.
    """
    measured = record.measured if isinstance(record, FitResult) else None
    acceptance = {} if measured is None else {"all": measured.total, **measured.by_source}
    return {
        "target": target,
        "version": __version__,
        "command": command_line(options),
        "is_finished": isinstance(record, FitResult) and record.is_finished,
        "step": record.step,
        "total_steps": record.total_steps,
        "settings": {
            **_settings(options.turns, "model_path", "num_threads"),
            **_settings(options.training),
        },
        "turns": dataclasses.asdict(counts),
        "sources": [dataclasses.asdict(source) for source in sources],
        "supervised_tokens": sum(source.tokens for source in sources),
        "draft_vocabulary": record.draft_vocab_size,
        "coverage": record.coverage,
        "best_epoch": record.best_epoch,
        "history": record.history,
        "curve": curve_rows(record.curve),
        "acceptance": {name: _acceptance(found) for name, found in acceptance.items()},
        "walk": None
        if measured is None
        else {
            "passes": measured.walk.passes,
            "tokens": measured.walk.tokens,
            "decisions": measured.walk.decisions,
            "acceptance_length": measured.walk.acceptance_length,
        },
        "regions": {}
        if measured is None
        else {
            region: {
                "tried": sum(found.tried[1]),
                "share": {width: found.share(width) for width in found.tried},
            }
            for region, found in measured.by_region.items()
        },
        "calibration": None
        if measured is None
        else {
            "rows": measured.reliability.rows(),
            "expected_calibration_error": measured.reliability.error(),
        },
    }


def _name(source: str) -> str:
    return source.split("/")[0] or "own traces"


def _acceptance(found: Acceptance) -> dict[str, Any]:
    return {
        "rates": {width: found.rates(width) for width in found.tried},
        "tau_sim": {width: found.tau_sim(width) for width in found.tried},
        "tried": found.tried,
    }


def _settings(options: Any, *left_out: str) -> dict[str, Any]:
    """The fields of an options dataclass."""
    values: dict[str, Any] = dataclasses.asdict(options)
    return {name: value for name, value in values.items() if name not in left_out}


def command_line(options: TrainDraftOptions) -> str:
    """The command line without what is default; paths by their last part."""
    words = ["specrt train-draft"]
    for part in (options, options.turns, options.training):
        for spec in dataclasses.fields(part):
            value = getattr(part, spec.name)
            if dataclasses.is_dataclass(value) or value == spec.default:
                continue
            flag_name = "--" + spec.name.replace("_", "-")
            if value is True:
                words.append(flag_name)
            else:
                text = Path(value).name if isinstance(value, str) and "/" in value else str(value)
                words.append(f"{flag_name} {shlex.quote(text)}")
    return " ".join(words)
