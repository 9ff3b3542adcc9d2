"""The page of a training run: plots and tables of training.json, and nothing that is not in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specrt.bench.html_page import figures, page, paragraph, section, table
from specrt.bench.svg_plots import SHARE, Axis, Dot, bars, lines, reliability

_WIDTH_NAMES = {"1": "first choice", "4": "one of the first four"}
_TIME = Axis("seconds of training", 0.0)


def training_page(numbers: Mapping[str, Any]) -> str:
    """One HTML document.

    Args:
        numbers: training.json, read back: keys are text.
    """
    state = "finished" if numbers["is_finished"] else "stopped early"
    facts = [
        ("target", str(numbers["target"])),
        ("steps", f"{numbers['step']} of {numbers['total_steps']}, {state}"),
        ("best epoch", f"{numbers['best_epoch']} of {len(numbers['history'])}"),
        ("supervised tokens", str(numbers["supervised_tokens"])),
        (
            "draft vocabulary",
            f"{numbers['draft_vocabulary']} tokens, {numbers['coverage']:.2%} of those generated",
        ),
        ("specrt", str(numbers["version"])),
    ]
    sources = [
        [one["name"], one["licence"], str(one["turns"]), str(one["tokens"])]
        for one in numbers["sources"]
    ]
    settings = [[name, str(value)] for name, value in numbers["settings"].items()]
    return page(
        f"Draft head for {numbers['target']}",
        section("Run", table(("", ""), facts), paragraph(numbers["command"])),
        section("Over time", figures(*_over_time(numbers))),
        section(
            "Held-out acceptance",
            paragraph(
                "Of the target's first choices in held-out turns, how many the head named, given"
                " that it had named all earlier ones of the chain. Forced tokens are no decisions."
            ),
            figures(*_acceptance(numbers)),
        ),
        section(
            "Data",
            table(("source", "licence", "turns", "tokens"), sources),
            table(("turns", ""), [[key, str(value)] for key, value in numbers["turns"].items()]),
        ),
        section("Settings", table(("setting", "value"), settings)),
    )


def _over_time(numbers: Mapping[str, Any]) -> list[str]:
    curve, history = numbers["curve"], numbers["history"]
    timed = [entry for entry in history if "seconds" in entry]
    losses = {
        "window of steps": [(e["seconds"], e["loss"]) for e in curve if e["loss"] is not None],
        "epoch": [(e["seconds"], e["loss"]) for e in timed],
    }
    in_training, held_out = _rates_over_time(curve), _rates_over_time(timed)
    tau = {"tau_sim": [(e["seconds"], e["tau_sim"]) for e in timed if e["tau_sim"] is not None]}
    share = SHARE._replace(label="conditional acceptance")
    return [
        lines("loss", "Loss (nats, weighted)", losses, _TIME, Axis("nats", 0.0), dotted=["epoch"]),
        lines(
            "training-acceptance",
            "Acceptance by depth, on what is about to be learned",
            in_training,
            _TIME,
            share,
        ),
        lines(
            "held-out-acceptance",
            "Acceptance by depth, held-out turns, after each epoch",
            held_out,
            _TIME,
            share,
        ),
        lines(
            "tau",
            "tau_sim, held-out turns, after each epoch",
            tau,
            _TIME,
            Axis("decided tokens a pass", 1.0),
        ),
    ]


def _rates_over_time(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """`c_s` -> (seconds, conditional acceptance) of the entries that have one."""
    series: dict[str, list[tuple[float, float]]] = {}
    for entry in entries:
        for depth, rate in enumerate(entry["acceptance"] or (), start=1):
            if rate is not None:
                series.setdefault(f"c_{depth}", []).append((entry["seconds"], rate))
    return series


def _acceptance(numbers: Mapping[str, Any]) -> list[str]:
    acceptance = numbers["acceptance"]
    total = acceptance.get("all", {"rates": {}, "tried": {}})
    depths = {
        _WIDTH_NAMES[width]: [
            (float(depth), rate)
            for depth, (rate, tried) in enumerate(
                zip(rates, total["tried"][width], strict=True), start=1
            )
            if tried
        ]
        for width, rates in total["rates"].items()
    }
    regions = {
        region: {_WIDTH_NAMES[width]: share for width, share in found["share"].items()}
        for region, found in numbers["regions"].items()
    }
    sources = {
        name: {_WIDTH_NAMES[width]: tau for width, tau in found["tau_sim"].items()}
        for name, found in acceptance.items()
    }
    calibration = numbers["calibration"] or {"rows": []}
    dots = {"head": [Dot(**row) for row in calibration["rows"]]}
    share = SHARE._replace(label="acceptance")
    return [
        lines(
            "depth", "By depth", depths, Axis("decision of the chain", 1.0, is_whole=True), share
        ),
        bars("region", "By region of the decided token", regions, share),
        bars("source", "By data set: tau_sim", sources, Axis("decided tokens a pass")),
        reliability("calibration", "The head's probability against the target's choice", dots),
    ]
