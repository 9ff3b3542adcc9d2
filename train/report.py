"""The report on a trained head: a table for the console, and the model card beside the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from specrt.draft_heads.config import VARIANTS
from specrt.train.acceptance import WIDTHS, Measured, Walk
from specrt.train.numbers import DataSource
from specrt.train.record import FitResult
from specrt.train.training_options import TrainOptions

_OWN = "the target wrote {} that the head learned from, under the grammar it is served with"
_LEARNED_FROM = {
    "regenerated": f"The recorded conversations give the prompts; {_OWN.format('every turn')}.",
    "recorded": "The head learned from recorded turns, in the style and tokens of serving.",
    "both": f"The recorded conversations give the prompts; {_OWN.format('half of the turns')}, the"
    " other half are the recorded ones, in the style and tokens of serving.",
}


def summary(result: FitResult) -> str:
    """What came out, as plain text."""
    lines = [f"best epoch {result.best_epoch} of {len(result.history)}"]
    lines += [
        f"draft vocabulary {len(result.head.draft_token_ids)},"
        f" {result.coverage:.2%} of the generated tokens"
    ]
    if not result.is_finished:
        lines += [f"stopped after step {result.step} of {result.total_steps}"]
    if result.measured is not None:
        table = _table(_acceptance_rows(result.measured))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines += [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in table
        ]
    elif result.is_finished:
        lines += ["no held-out turns: acceptance was not measured"]
    return "\n".join(lines)


def model_card(
    result: FitResult,
    options: TrainOptions,
    *,
    target: str,
    licence: str | None,
    sources: Sequence[DataSource],
    command: str,
    continuations: str = "regenerated",
    numbers: Mapping[str, str] | None = None,
) -> str:
    """README.md of the checkpoint's folder.

    Args:
        result: of the training.
        options: it was run with.
        target: name of the model that the head drafts for.
        licence: SPDX identifier of the checkpoint's licence; None = not stated.
        sources: of the training data.
        command: line that makes this head again.
        continuations: which turns the head learned from; see TurnOptions.
        numbers: further facts, name -> value (times, hardware, versions).
    """
    config = result.head.config
    variants = [name for name in VARIANTS if getattr(config, name)]
    facts = {
        "kind": ", ".join(["EAGLE-3, one decoder layer", *variants]),
        "target": target,
        "hidden size": str(config.hidden_size),
        "captured layers": ", ".join(map(str, config.capture_layers)),
        "draft vocabulary": f"{config.draft_vocab_size} of {config.vocab_size} tokens,"
        f" {result.coverage:.2%} of those generated",
        "best epoch": f"{result.best_epoch} of {len(result.history)}",
        **(numbers or {}),
    }
    data = [["source", "licence", "turns", "supervised tokens"]]
    data += [[one.name, one.licence, str(one.turns), str(one.tokens)] for one in sources]
    epochs = [["epoch", "loss (nats)", "tau_sim"]]
    epochs += [
        [
            str(entry["epoch"]),
            f"{entry['loss']:.3f}",
            "" if entry["tau_sim"] is None else f"{entry['tau_sim']:.3f}",
        ]
        for entry in result.history
    ]
    settings = [["setting", "value"]]
    settings += [[name, f"`{value}`"] for name, value in dataclasses.asdict(options).items()]
    parts = [
        "\n".join(
            ["---", *([f"license: {licence}"] if licence else []), f"base_model: {target}", "---"]
        ),
        f"# EAGLE-3 draft head for {target}",
        _markdown([["", ""], *([name, value] for name, value in facts.items())]),
        "## Data\n\n" + _LEARNED_FROM[continuations],
        _markdown(data),
        "## Held-out acceptance\n\nShare of the target's first choices that the head's first choice"
        " (or one of its first four) named, at each decision, given that all earlier ones of the"
        " chain were right. Forced tokens are no decisions. tau_sim is the number of decided tokens"
        " per pass of the target, its own included, that this comes to.",
        _markdown(_acceptance_rows(result.measured)) + "\n\n" + _walked(result.measured.walk)
        if result.measured is not None
        else "Not measured: no turn was held out."
        if result.is_finished
        else f"Not measured: training was stopped after step {result.step} of"
        f" {result.total_steps}.",
        "## Training",
        _markdown(epochs),
        _markdown(settings),
        f"Made with:\n\n```\n{command}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _walked(walk: Walk) -> str:
    return (
        f"Decoded from end to end with chains of the head and forced text alone, these turns take"
        f" {walk.passes} passes for {walk.tokens} tokens: {walk.acceptance_length or 0:.2f} tokens"
        " a pass."
    )


def _acceptance_rows(measured: Measured) -> list[list[str]]:
    """A header, then a row for each source and width, the total first."""
    depth = len(measured.total.rates())
    rows = [["source", "first", *(f"c_{step + 1}" for step in range(depth)), "tau_sim", "chains"]]
    for name, counts in [("all", measured.total), *sorted(measured.by_source.items())]:
        for width in WIDTHS:
            rates = [f"{rate:.3f}" for rate in counts.rates(width)]
            tau, chains = f"{counts.tau_sim(width):.3f}", str(sum(counts.tried.get(width, [])[:1]))
            rows.append([name, str(width), *rates, tau, chains])
    return rows


def _table(rows: list[list[str]]) -> list[list[str]]:
    """Rows with a rule under the header."""
    return [rows[0], ["-" * len(cell) for cell in rows[0]], *rows[1:]]


def _markdown(rows: list[list[str]]) -> str:
    ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in ruled]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
