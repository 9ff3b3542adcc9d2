"""The report says what was measured, and where the data comes from."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import Page, numbers_in
from train_fakes import DRAFT_IDS, tiny_head

from specrt.bench.reliability import Reliability
from specrt.train.acceptance import Acceptance, Measured, Walk
from specrt.train.numbers import DataSource, training_numbers
from specrt.train.record import FitRecord, FitResult, curve_rows, extend_curve
from specrt.train.report import model_card, summary
from specrt.train.training_options import TrainDraftOptions, TrainOptions
from specrt.train.training_page import training_page
from specrt.train.turn_file import TurnCounts

COUNTS = Acceptance({1: [8, 4], 4: [8, 6]}, {1: [4, 1], 4: [6, 3]})
MEASURED = Measured(
    COUNTS,
    {"set": COUNTS},
    {"value": COUNTS, "key": Acceptance({1: [3], 4: [3]}, {1: [2], 4: [3]})},
    Reliability.of([(0.15, False), (0.17, True), (0.93, True)]),
    Walk(passes=4, tokens=10, decisions=7),
)
CURVE: list[dict[str, Any]] = []
for step, losses in enumerate(([3.5], [2.5], [], [1.25, 1.0]), start=1):
    extend_curve(
        CURVE,
        step=step,
        total_steps=4,
        seconds=1.5 * step,
        losses=losses,
        tried=[4 * len(losses), 0],
        right=[len(losses), 0],
    )
RESULT = FitResult(
    head=tiny_head().checkpoint(torch.as_tensor(DRAFT_IDS)),
    coverage=0.987,
    draft_vocab_size=30,
    best_epoch=2,
    history=[
        {
            "epoch": 1,
            "step": 2,
            "seconds": 3.25,
            "loss": 2.5,
            "tau_sim": 1.4,
            "acceptance": [0.4, 0.1],
        },
        {
            "epoch": 2,
            "step": 4,
            "seconds": 6.5,
            "loss": 1.25,
            "tau_sim": 1.625,
            "acceptance": [0.5, 0.25],
        },
    ],
    curve=CURVE,
    step=4,
    total_steps=4,
    measured=MEASURED,
    is_finished=True,
)
STOPPED = FitRecord(
    coverage=0.9,
    draft_vocab_size=30,
    best_epoch=0,
    history=[],
    curve=CURVE[:1],
    step=1,
    total_steps=4,
)
SOURCES = [DataSource("set/part", "CC-BY-4.0", 12, 345)]


def numbers_of(record: FitRecord, **training: Any) -> dict[str, Any]:
    """training.json, written and read back."""
    options = TrainDraftOptions(
        traces="/secret/place/traces.jsonl", out="x", training=TrainOptions(steps=2, **training)
    )
    numbers = training_numbers(
        record, options, target="maker/model", counts=TurnCounts(turns=12), sources=SOURCES
    )
    found: dict[str, Any] = json.loads(json.dumps(numbers))
    return found


def test_summary_has_a_row_for_each_source_and_width() -> None:
    lines = summary(RESULT).splitlines()
    assert lines[0] == "best epoch 2 of 2" and "98.70%" in lines[1]
    assert [line.split() for line in lines[4:]] == [
        ["all", "1", "0.500", "0.250", "1.625", "8"],
        ["all", "4", "0.750", "0.500", "2.125", "8"],
        ["set", "1", "0.500", "0.250", "1.625", "8"],
        ["set", "4", "0.750", "0.500", "2.125", "8"],
    ]
    assert len({len(line) for line in lines[2:]}) == 1


def test_model_card_names_data_settings_and_command() -> None:
    card = model_card(
        RESULT,
        TrainOptions(epochs=2),
        target="maker/model",
        licence="apache-2.0",
        sources=SOURCES,
        command="specrt train-draft --epochs 2",
        numbers={"time": "12 min"},
    )
    for line in (
        "base_model: maker/model",
        "| set/part | CC-BY-4.0 | 12 | 345 |",
        "| all | 1 | 0.500 | 0.250 | 1.625 | 8 |",
        "| 2 | 1.250 | 1.625 |",
        "| epochs | `2` |",
        "| time | 12 min |",
        "specrt train-draft --epochs 2",
    ):
        assert line in card.splitlines(), line


def test_nothing_held_out_is_said() -> None:
    result = dataclasses.replace(RESULT, measured=None)
    assert "not measured" in summary(result)
    card = model_card(
        result, TrainOptions(), target="t", licence="mit", sources=[], command="train"
    )
    assert "Not measured" in card
    stopped = dataclasses.replace(result, is_finished=False, step=3)
    assert "stopped after step 3 of 4" in summary(stopped)


def test_the_page_shows_the_numbers_and_no_others() -> None:
    numbers = numbers_of(RESULT)
    page = Page(training_page(numbers))
    assert page.needs_nothing()
    assert set(page.plotted()) <= set(numbers_in(numbers))
    assert page.marks("loss") == [
        *((entry["seconds"], entry["loss"]) for entry in numbers["curve"] if entry["loss"]),
        (3.25, 2.5),
        (6.5, 1.25),
    ]
    assert page.marks("training-acceptance") == [(1.5, 0.25), (3.0, 0.25), (6.0, 0.25)]
    assert page.marks("held-out-acceptance") == [(3.25, 0.4), (6.5, 0.5), (3.25, 0.1), (6.5, 0.25)]
    assert page.marks("tau") == [(3.25, 1.4), (6.5, 1.625)]
    assert page.marks("depth") == [(1, 0.5), (2, 0.25), (1, 0.75), (2, 0.5)]
    assert page.marks("region") == [(5 / 12,), (9 / 14,), (2 / 3,), (1,)]
    assert page.marks("source") == [(1.625,), (2.125,)] * 2
    assert page.marks("calibration") == [
        tuple(row.values()) for row in numbers["calibration"]["rows"]
    ]
    for word in ("CC-BY-4.0", "learning_rate", "maker/model", "4 of 4, finished", "98.70%"):
        assert word in page.text
    assert "secret" not in page.text, "a path of this machine"


def test_a_run_that_stopped_early_has_a_page_too() -> None:
    numbers = numbers_of(STOPPED)
    assert not numbers["is_finished"] and numbers["calibration"] is None
    page = Page(training_page(numbers))
    assert page.marks("loss") == [(1.5, 3.5)]
    assert "1 of 4, stopped early" in page.text and "Not measured" in page.text
    assert not page.is_drawn("depth") and not page.is_drawn("calibration")


_STEPS = st.lists(
    st.tuples(
        st.lists(st.floats(0, 100), max_size=2), st.lists(st.integers(0, 9), min_size=2, max_size=2)
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=50, deadline=None)
@given(_STEPS, st.integers(1, 2000), st.integers(0, 30))
def test_a_curve_is_bounded_loses_nothing_and_survives_a_pause(
    steps: list[tuple[list[float], list[int]]], total: int, pause: int
) -> None:
    curves: list[list[dict[str, Any]]] = [[], []]
    for curve in curves:
        for step, (losses, counts) in enumerate(steps[:total], start=1):
            if curve is curves[1] and step == pause:
                curve[:] = json.loads(json.dumps(curve))
            extend_curve(
                curve,
                step=step,
                total_steps=total,
                seconds=float(step),
                losses=losses,
                tried=counts,
                right=[count // 2 for count in counts],
            )
    whole, paused = curves
    assert paused == whole and len(whole) <= 200
    done = steps[:total]
    assert sum(entry["visits"] for entry in whole) == sum(len(losses) for losses, _ in done)
    assert [sum(entry["tried"][depth] for entry in whole) for depth in (0, 1)] == [
        sum(counts[depth] for _, counts in done) for depth in (0, 1)
    ]
    assert [entry["step"] for entry in whole] == sorted({entry["step"] for entry in whole})
    assert whole[-1]["step"] == whole[-1]["seconds"] == len(done)
    for entry, row in zip(whole, curve_rows(whole), strict=True):
        assert (row["loss"] is None) == (entry["visits"] == 0)
