"""A report as one HTML file that needs nothing else: no network, no script; light and dark.

The text is well-formed XML too, so that anything can read it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from specrt.bench.svg_plots import NUM_COLOURS
from specrt.errors import ConfigError

# Okabe and Ito's colours, which the colour-blind tell apart; lighter ones on dark ground.
_LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#3aa3dc", "#7a4fa3", "#555555")
_DARK = ("#56b4e9", "#f0843c", "#2fc79a", "#e19ac0", "#e6c84f", "#9ad5f7", "#b99be0", "#bbbbbb")
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --ground: #ffffff; --rule: #d8d8d8; %(light)s }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --ground: #161616; --rule: #3c3c3c; %(dark)s }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.figures { display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%%), 1fr)); }
figure { margin: 0; } figcaption { font-weight: 600; margin-bottom: .3rem; }
.key { font-weight: 400; white-space: nowrap; margin-left: .6rem; }
.key::before { content: ""; display: inline-block; width: .7em; height: .7em; margin-right: .3em;
  background: var(--s); border-radius: 2px; }
svg { width: 100%%; height: auto; font-size: 11px; fill: var(--ink); }
svg .small { font-size: 9.5px; } svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
svg .grid { stroke: var(--rule); stroke-width: .6; }
svg .diagonal { stroke: var(--ink); stroke-dasharray: 4 4; stroke-width: .8; }
svg .line { fill: none; stroke: var(--s); stroke-width: 1.4; }
svg circle, svg rect { fill: var(--s); } svg .area { fill-opacity: .55; stroke: var(--s); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem; border-bottom: 1px solid var(--rule); text-align: right; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
"""
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]")


def page(title: str, *sections: str) -> str:
    """The whole document.

    Args:
        title: text.
        sections: HTML, from `section`.
    """
    colours = {
        name: " ".join(f"--s{index}: {colour};" for index, colour in enumerate(palette))
        for name, palette in (("light", _LIGHT), ("dark", _DARK))
    }
    classes = "".join(f".s{index} {{ --s: var(--s{index}); }}\n" for index in range(NUM_COLOURS))
    return _NOT_XML.sub(
        "\ufffd",
        "<!DOCTYPE html>\n"
        '<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{escape(title)}</title><style>{_STYLE % colours}{classes}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n" + "\n".join(sections) + "\n</body></html>\n",
    )


def section(heading: str, *parts: str) -> str:
    """A heading and what is under it, as HTML."""
    return f"<section><h2>{escape(heading)}</h2>\n" + "\n".join(parts) + "\n</section>"


def figures(*drawings: str) -> str:
    """Figures side by side where there is room."""
    return f'<div class="figures">{"".join(drawings)}</div>'


def paragraph(text: str) -> str:
    """Plain text as HTML."""
    return f"<p>{escape(text)}</p>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        "</div>"
    )


def write_page(path: Path, text: str, flag: str) -> None:
    """Write a page.

    Args:
        path: where to.
        text: from `page`.
        flag: what named the path, for the error.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{flag}: cannot write {path}: {error}") from None
