"""The report says what was measured, and where the data comes from."""

from __future__ import annotations

import dataclasses

import torch
from train_fakes import DRAFT_IDS, tiny_head

from specrt.train.acceptance import Acceptance
from specrt.train.report import DataSource, model_card, summary
from specrt.train.trainer import FitResult
from specrt.train.training_options import TrainOptions

COUNTS = Acceptance({1: [8, 4], 4: [8, 6]}, {1: [4, 1], 4: [6, 3]})
RESULT = FitResult(
    head=tiny_head().checkpoint(torch.as_tensor(DRAFT_IDS)),
    coverage=0.987,
    best_epoch=2,
    history=[
        {"epoch": 1, "loss": 2.5, "tau_sim": 1.4, "acceptance": [0.4, 0.1]},
        {"epoch": 2, "loss": 1.25, "tau_sim": 1.625, "acceptance": [0.5, 0.25]},
    ],
    acceptance={"": COUNTS, "set/part": COUNTS},
    is_finished=True,
)


def test_summary_has_a_row_for_each_source_and_width() -> None:
    lines = summary(RESULT).splitlines()
    assert lines[0] == "best epoch 2 of 2" and "98.70%" in lines[1]
    assert [line.split() for line in lines[4:]] == [
        ["all", "1", "0.500", "0.250", "1.625", "8"],
        ["all", "4", "0.750", "0.500", "2.125", "8"],
        ["set/part", "1", "0.500", "0.250", "1.625", "8"],
        ["set/part", "4", "0.750", "0.500", "2.125", "8"],
    ]
    assert len({len(line) for line in lines[2:]}) == 1


def test_model_card_names_data_settings_and_command() -> None:
    card = model_card(
        RESULT,
        TrainOptions(epochs=2),
        target="maker/model",
        licence="apache-2.0",
        sources=[DataSource("set/part", "CC-BY-4.0", 12, 345)],
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
    result = dataclasses.replace(RESULT, acceptance={})
    assert "not measured" in summary(result)
    card = model_card(
        result, TrainOptions(), target="t", licence="mit", sources=[], command="train"
    )
    assert "Not measured" in card
