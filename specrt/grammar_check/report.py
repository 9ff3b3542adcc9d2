"""Results of rows to the coverage table and its JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from specrt.bench.report import columns, share
from specrt.grammar_check.row_check import SPECRT, Miss, RowResult

_TOP_KEYWORDS = 25
_MAX_LISTED = 200  # lines of a list in the terminal; the JSON has all
TOTAL = "total"


def counts(results: Iterable[RowResult]) -> dict[str, int]:
    """The figures of some rows. Instances count where the schema was compiled."""
    figures = dict.fromkeys(
        (
            "schemas",
            "refused",
            "valid",
            "valid_accepted",
            "invalid",
            "invalid_accepted",
            "timeouts",
            "unflagged",
        ),
        0,
    )
    for result in results:
        figures["schemas"] += 1
        figures["refused"] += result.outcome == "refused"
        figures["timeouts"] += result.outcome == "unfinished"
        figures["valid"] += result.valid
        figures["valid_accepted"] += result.valid - len(result.valid_rejected)
        figures["invalid"] += result.invalid
        figures["invalid_accepted"] += len(result.invalid_accepted)
        figures["unflagged"] += sum(not miss.is_flagged for miss in result.invalid_accepted)
    return figures


def by_source(results: list[RowResult]) -> dict[str, dict[str, int]]:
    """Figures of each source in alphabetical order, and of all rows last."""
    sources = sorted({result.source for result in results})
    figures = {name: counts(r for r in results if r.source == name) for name in sources}
    return {**figures, TOTAL: counts(results)}


def document(results: dict[str, list[RowResult]], *, is_lenient: bool) -> dict[str, Any]:
    """Everything as plain JSON; the other engine's stands under its name.

    Args:
        results: rows by engine.
        is_lenient: `unflagged` means something.
    """
    written = {engine: _document(rows, is_lenient) for engine, rows in results.items()}
    return {**written.pop(SPECRT), **written}


def _document(results: list[RowResult], is_lenient: bool) -> dict[str, Any]:
    figures = by_source(results)
    if not is_lenient:
        for entry in figures.values():
            del entry["unflagged"]
    return {
        "total": figures.pop(TOTAL),
        "sources": figures,
        "refusals": [
            {
                "id": r.row_id,
                "source": r.source,
                "pointer": r.pointer,
                "keyword": r.keyword,
                "reason": r.reason,
            }
            for r in results
            if r.outcome == "refused"
        ],
        "invalid_accepted": [
            {**_miss(r, miss), **({"is_flagged": miss.is_flagged} if is_lenient else {})}
            for r in results
            for miss in r.invalid_accepted
        ],
        "valid_rejected": [_miss(r, miss) for r in results for miss in r.valid_rejected],
        "unfinished": [
            {"id": r.row_id, "source": r.source, "reason": r.reason}
            for r in results
            if r.outcome == "unfinished"
        ],
    }


def _miss(result: RowResult, miss: Miss) -> dict[str, Any]:
    return {
        "id": result.row_id,
        "source": result.source,
        "instance": miss.instance,
        "description": miss.description,
    }


def render(results: dict[str, list[RowResult]], *, is_lenient: bool) -> str:
    """The coverage tables, refusals by keyword, and what went wrong, as text.

    Args:
        results: rows by engine.
        is_lenient: with a column for what was accepted, is invalid and would not be reported.
    """
    parts = [_table(results, is_lenient)]
    for engine, rows in results.items():
        keywords = Counter(r.keyword or r.reason[:60] for r in rows if r.outcome == "refused")
        if keywords:
            table = [[f"refused by {engine}", "schemas"]]
            table += [[key, str(number)] for key, number in keywords.most_common(_TOP_KEYWORDS)]
            parts.append(columns(table))
    own = results[SPECRT]
    unfinished = [f"{r.row_id}: {r.reason}" for r in own if r.outcome == "unfinished"]
    parts += _list("took too long or died", unfinished)
    parts += _list(
        "invalid instances that are accepted",
        [
            f"{r.row_id} [{miss.instance}] {miss.description}"
            + (" (flagged)" if miss.is_flagged else "")
            for r in own
            for miss in r.invalid_accepted
        ],
    )
    return "\n\n".join(parts)


def _table(results: dict[str, list[RowResult]], is_lenient: bool) -> str:
    """One line for each source; engines stand side by side."""
    figures = {engine: by_source(rows) for engine, rows in results.items()}
    head = [""]
    for engine in figures:
        prefix = f"{engine}: " if len(figures) > 1 else ""
        head += [prefix + "schemas", "refused", "", "valid", "accepted", ""]
        head += ["invalid", "accepted", "", *(["unflagged"] if is_lenient else []), "timeouts"]
    rows = [head]
    for source in figures[SPECRT]:
        row = [source]
        for by_name in figures.values():
            entry = by_name[source]
            row.append(str(entry["schemas"]))
            row += _part(entry["refused"], entry["schemas"])
            for kind in ("valid", "invalid"):
                row.append(str(entry[kind]))
                row += _part(entry[f"{kind}_accepted"], entry[kind])
            row += [str(entry["unflagged"])] if is_lenient else []
            row.append(str(entry["timeouts"]))
        rows.append(row)
    return columns(rows)


def _part(number: int, total: int) -> list[str]:
    return [str(number), share(number / total if total else None)]


def _list(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    more = len(lines) - _MAX_LISTED
    rest = [f"  ... and {more} more (--json has all)"] if more > 0 else []
    return ["\n".join([f"{title}: {len(lines)}", *(f"  {x}" for x in lines[:_MAX_LISTED]), *rest])]
