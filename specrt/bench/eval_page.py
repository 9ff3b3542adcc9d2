"""The page of `specrt eval-draft`: plots and tables of its JSON, and nothing that is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specrt.bench.environment import describe
from specrt.bench.html_page import figures, page, paragraph, section, table
from specrt.bench.report import number
from specrt.bench.svg_plots import SHARE, Axis, Dot, bars, lines, reliability

_LENGTH = Axis("tokens a pass")


def eval_page(document: Mapping[str, Any]) -> str:
    """One HTML document.

    Args:
        document: the JSON, read back: keys are text.
    """
    settings = [[name, str(value)] for name, value in document["options"].items()]
    heads = [_head(head, f"-{index}") for index, head in enumerate(document["heads"])]
    return page(
        "Draft heads on tool calls",
        section("Run", paragraph(describe(document["environment"]))),
        *heads,
        section("Settings", table(("setting", "value"), settings)),
    )


def _head(report: Mapping[str, Any], suffix: str) -> str:
    """One head: its figures by row of the ladder, and the last row in full."""
    rows = report["rows"]
    last, full = list(rows.items())[-1]
    header = ["", "tokens a pass", "without forced", "draft rows a pass", "tokens", "passes"]
    counts = [
        [
            name,
            number(row["acceptance_length"]),
            number(row["acceptance_length_unforced"]),
            number(row["rows_per_pass"], 1),
            str(row["tokens"]),
            str(row["passes"]),
        ]
        for name, row in rows.items()
    ]
    calls = (
        f"{report['num_requests']} calls, {report['num_left_out']} left out (not in the grammar, or"
        f" too long), {report['num_differing']} with outputs that differ between rows."
    )
    data_sets = {
        name: {row: found["by_data_set"][name]["acceptance_length"] for row, found in rows.items()}
        for name in full["by_data_set"]
    }
    ladder = {
        name: {
            "all": row["acceptance_length"],
            "without forced": row["acceptance_length_unforced"],
        }
        for name, row in rows.items()
    }
    regions = {
        region: {row: found["by_region"][region]["drafted_share"] for row, found in rows.items()}
        for region in full["by_region"]
    }
    depths = {
        name: [
            (float(depth), entry["rate"])
            for depth, entry in enumerate(row["by_depth"], start=1)
            if entry["rate"] is not None
        ]
        for name, row in rows.items()
    }
    histogram = {size: {"passes": float(count)} for size, count in full["tokens_of_a_pass"].items()}
    calibration = {
        source: [Dot(**row) for row in found] for source, found in full["calibration"].items()
    }
    accepted = SHARE._replace(label="share drafted right")
    kept = SHARE._replace(label="kept, of passes that kept all above")
    return section(
        str(report["head"]),
        table(header, counts),
        paragraph(calls),
        figures(
            bars(f"ladder{suffix}", "Tokens a pass", ladder, _LENGTH),
            bars(f"source{suffix}", "Tokens a pass by data set", data_sets, _LENGTH),
            lines(
                f"depth{suffix}",
                "By depth of the draft",
                depths,
                Axis("depth", 1.0, is_whole=True),
                kept,
            ),
            bars(f"region{suffix}", "Tokens by region", regions, accepted),
            reliability(
                f"calibration{suffix}",
                f"{last}: estimated against real acceptance, by draft source",
                calibration,
            ),
            bars(f"lengths{suffix}", f"{last}: tokens of a pass", histogram, Axis("passes")),
        ),
    )
