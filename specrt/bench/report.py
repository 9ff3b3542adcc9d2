"""Turns to figures, figures to a table and a file."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specrt.errors import ConfigError
from specrt.request import by_source

if TYPE_CHECKING:
    from specrt.bench.replay import Turn


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def acceptance(reports: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Add up what speculation did.

    Args:
        reports: `drafted`, `accepted` (source -> region -> tokens), `passes`, `tokens` of single
            requests.

    Returns:
        passes, tokens per pass, and per source drafted, accepted and the rate.
    """
    drafted: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    passes = tokens = 0
    for report in reports:
        drafted.update(by_source(report["drafted"]))
        accepted.update(by_source(report["accepted"]))
        passes += report["passes"]
        tokens += report["tokens"]
    return {
        "passes": passes,
        "acceptance_length": tokens / passes if passes else None,
        "sources": {
            source: {
                "drafted": drafted[source],
                "accepted": accepted[source],
                "rate": accepted[source] / drafted[source] if drafted[source] else None,
            }
            for source in sorted(drafted)
        },
    }


def summarise(turns: list[Turn], wall_s: float) -> dict[str, Any]:
    """The figures of one mode, as plain JSON; None where nothing was measured."""
    whole = [t for t in turns if t.reply.error is None]
    verdicts = Counter(check.verdict for t in turns for check in t.checks)
    broken = sum(verdicts[v] for v in ("not_json", "unknown_tool", "invalid"))
    prompt = sum(t.reply.prompt_tokens for t in whole)
    completion = sum(t.reply.completion_tokens for t in whole)
    ttft = [t.reply.ttft_s for t in whole if t.reply.ttft_s is not None]
    itl = [t.reply.itl_ms for t in whole if t.reply.itl_ms is not None]
    reports = [
        {
            "drafted": t.reply.specrt.get("drafted") or {},
            "accepted": t.reply.specrt.get("accepted") or {},
            "passes": t.reply.specrt.get("passes") or 0,
            "tokens": t.reply.completion_tokens,
        }
        for t in whole
        if t.reply.specrt is not None
    ]
    return {
        "requests": len(turns),
        "errors": len(turns) - len(whole),
        "error_kinds": dict(Counter((t.reply.error or "")[:120] for t in turns if t.reply.error)),
        "wall_s": wall_s,
        "ttft_s": {"p50": percentile(ttft, 0.5), "p95": percentile(ttft, 0.95)},
        "itl_ms": {"p50": percentile(itl, 0.5), "p95": percentile(itl, 0.95)},
        "tok_per_s": completion / wall_s if wall_s else None,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "calls": {"total": sum(verdicts.values()), "broken": broken, **verdicts},
        "broken_calls": [
            f"{t.trace_id} turn {t.index}: {check.verdict}: {check.reason}"
            for t in turns
            for check in t.checks
            if check.verdict in ("not_json", "unknown_tool", "invalid")
        ],
        "cache": _cache(whole, prompt),
        "speculation": acceptance(reports) if reports else None,
    }


def _cache(whole: list[Turn], prompt: int) -> dict[str, Any]:
    """Cached and reusable shares, and the turns whose cache fell short of the turn before."""
    later = [(t, t.reusable_tokens) for t in whole if t.reusable_tokens is not None]
    shortfalls = [max(0, reusable - t.reply.cached_tokens) for t, reusable in later]
    reusable_total = sum(reusable for _, reusable in later)
    later_prompt = sum(t.reply.prompt_tokens for t, _ in later)
    later_cached = sum(t.reply.cached_tokens for t, _ in later)
    return {
        "cached_share": sum(t.reply.cached_tokens for t in whole) / prompt if prompt else None,
        "later_turns": len(later),
        "reusable_share": reusable_total / later_prompt if later_prompt else None,
        "cached_per_reusable": later_cached / reusable_total if reusable_total else None,
        "fully_reused_turns": sum(s == 0 for s in shortfalls),
        "shortfall_tokens": sum(shortfalls),
        "worst": [
            {"trace_id": t.trace_id, "turn": t.index, "shortfall": reusable - t.reply.cached_tokens}
            for t, reusable in sorted(later, key=lambda p: p[0].reply.cached_tokens - p[1])[:5]
            if reusable > t.reply.cached_tokens
        ],
    }


def table(summaries: dict[str, dict[str, Any]]) -> str:
    """The figures side by side, one column per mode."""
    rows = [["", *summaries]]
    for label, cell in _ROWS:
        rows.append([label, *(cell(summary) for summary in summaries.values())])
    sources = sorted(
        {s for m in summaries.values() for s in (m["speculation"] or {}).get("sources", {})}
    )
    for source in sources:
        rows.append([f"accepted, {source}", *(_source(m, source) for m in summaries.values())])
    return columns(rows)


def write_json(path: str, document: dict[str, Any]) -> None:
    """Write a result file.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        Path(path).write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json: cannot write {path}: {error}") from None


def columns(rows: list[list[str]]) -> str:
    """Text in columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def number(value: float | None, digits: int = 2, unit: str = "") -> str:
    """A figure, or a dash where nothing was measured."""
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def share(value: float | None) -> str:
    """A share as per cent."""
    return number(None if value is None else 100 * value, 1, " %")


def _source(summary: dict[str, Any], source: str) -> str:
    counts = ((summary["speculation"] or {}).get("sources") or {}).get(source)
    if counts is None:
        return "-"
    return f"{counts['accepted']}/{counts['drafted']} ({share(counts['rate'])})"


def _verdicts(summary: dict[str, Any]) -> str:
    calls = summary["calls"]
    return f"{calls.get('valid', 0)}/{calls['total'] - calls.get('unfinished', 0)}"


_ROWS = (
    ("requests", lambda s: str(s["requests"])),
    ("errors", lambda s: str(s["errors"])),
    ("TTFT p50 / p95 (s)", lambda s: " / ".join(number(s["ttft_s"][p]) for p in ("p50", "p95"))),
    (
        "inter-token p50 / p95 (ms)",
        lambda s: " / ".join(number(s["itl_ms"][p], 1) for p in ("p50", "p95")),
    ),
    ("output tok/s, all requests", lambda s: number(s["tok_per_s"], 1)),
    ("finished calls valid", _verdicts),
    ("calls breaking their schema", lambda s: str(s["calls"]["broken"])),
    ("... only in keywords named unenforced", lambda s: str(s["calls"].get("unenforced", 0))),
    ("calls cut by max_tokens", lambda s: str(s["calls"].get("unfinished", 0))),
    ("prompt tokens cached", lambda s: share(s["cache"]["cached_share"])),
    ("later turns: reusable share", lambda s: share(s["cache"]["reusable_share"])),
    ("later turns: cached / reusable", lambda s: share(s["cache"]["cached_per_reusable"])),
    (
        "later turns that reuse everything",
        lambda s: f"{s['cache']['fully_reused_turns']}/{s['cache']['later_turns']}",
    ),
    ("tokens that fell short", lambda s: str(s["cache"]["shortfall_tokens"])),
    (
        "tokens per verify pass",
        lambda s: number((s["speculation"] or {}).get("acceptance_length")),
    ),
)
