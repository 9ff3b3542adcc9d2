"""The figures of `specrt eval-draft` as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specrt.bench.report import columns, number, share


def render(head: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """One table of all rows, and the last row in full.

    Args:
        head: its name.
        rows: row of the ladder -> figures.
    """
    last, full = list(rows.items())[-1]
    data_sets = list(full["by_data_set"])
    table = [["tokens a pass", "all", "unforced", "draft rows", *data_sets]]
    for name, row in rows.items():
        parts = [number(row["by_data_set"][d]["acceptance_length"]) for d in data_sets]
        lengths = [number(row[f"acceptance_length{part}"]) for part in ("", "_unforced")]
        table.append([name, *lengths, number(row["rows_per_pass"], 1), *parts])
    requests = ["requests", str(full["requests"]), "", ""]
    table.append([*requests, *(str(full["by_data_set"][d]["requests"]) for d in data_sets)])
    regions = [[f"{last}: region", "tokens", "drafted right", "tokens a draw"]]
    for region, part in full["by_region"].items():
        cells = [share(part["drafted_share"]), number(part["acceptance_length"])]
        regions.append([region, str(part["tokens"]), *cells])
    sources = [[f"{last}: source", "decided", "kept", ""]]
    for source, counts in full["by_source"].items():
        rate = counts["kept"] / counts["judged"] if counts["judged"] else None
        sources.append([source, str(counts["judged"]), str(counts["kept"]), share(rate)])
    depths = [f"{last}: kept by depth"]
    depths += [number(row["rate"]) for row in full["by_depth"][:8]]
    parts = [columns(table), columns(regions), columns(sources), "  ".join(depths)]
    return "\n\n".join([f"{head}", *parts])
