"""Plots hold every number that they were given, whatever it is, inside the drawing."""

from __future__ import annotations

from dataclasses import astuple
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import Page

from specrt.bench.html_page import figures, page, paragraph, section, table
from specrt.bench.svg_plots import SHARE, Axis, Dot, bars, lines, reliability, ticks

VALUES = st.floats(-1e9, 1e9)
SHARES = st.floats(0, 1)
NAMES = st.text(max_size=8)


def shown(drawing: str) -> Page:
    return Page(page("t", section("s", figures(drawing))))


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(NAMES, st.lists(st.tuples(VALUES, VALUES), max_size=5), max_size=10))
def test_lines_hold_their_points(series: dict[str, list[tuple[float, float]]]) -> None:
    found = shown(lines("f", "title", series, Axis("x"), Axis("y")))
    assert found.marks("f") == [point for points in series.values() for point in points]
    if not any(series.values()):
        assert "Not measured" in found.text
    for dot in found.figures["f"].iter("{http://www.w3.org/2000/svg}circle"):
        assert 0 <= float(dot.attrib["cx"]) <= 640 and 0 <= float(dot.attrib["cy"]) <= 280


GROUPS = st.dictionaries(NAMES, st.dictionaries(NAMES, st.none() | st.floats(0, 1e9), max_size=4))


@settings(max_examples=50, deadline=None)
@given(GROUPS)
def test_bars_hold_what_was_measured(groups: dict[str, dict[str, float | None]]) -> None:
    found = shown(bars("f", "title", groups, Axis("x")))
    known = [v for group in groups.values() for v in group.values() if v is not None]
    assert found.marks("f") == [(value,) for value in known]
    for bar in found.figures["f"].iter("{http://www.w3.org/2000/svg}rect"):
        assert 0 <= float(bar.attrib["width"]) <= 640


@settings(max_examples=50, deadline=None)
@given(st.lists(st.builds(Dot, SHARES, SHARES, st.integers(1, 10**6)), max_size=10))
def test_reliability_holds_its_dots(dots: list[Dot]) -> None:
    found = shown(reliability("f", "title", {"head": dots}))
    assert found.marks("f") == [astuple(dot) for dot in dots]
    assert found.is_drawn("f") == bool(dots)


@settings(max_examples=50, deadline=None)
@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_and_inside(low: float, span: float) -> None:
    high = low + span
    if not high > low:
        return
    found = ticks(low, high)
    assert 1 <= len(found) <= 8
    slack = 1e-6 * max(abs(low), abs(high), span)
    assert all(low - slack <= tick <= high + slack for tick in found)


def test_shares_are_cut_in_fifths() -> None:
    assert ticks(0.0, 1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(7.0, 7.4)[0] == pytest.approx(7.0)


@settings(max_examples=50, deadline=None)
@given(st.text(), st.text())
def test_any_text_is_shown_as_text(title: str, cell: str) -> None:
    text = page(title, section(cell, paragraph(cell), table((cell,), [(cell,)])))
    found = Page(text)
    assert found.needs_nothing()
    assert len(list(found.root.iter("td"))) == 1


def test_a_page_is_readable_in_light_and_dark() -> None:
    text = page("t", section("s", lines("f", "t", {"a": [(0, 1)]}, Axis("x"), SHARE)))
    style = ElementTree.fromstring(text).find("head/style")
    assert style is not None and style.text is not None
    assert "prefers-color-scheme: dark" in style.text
    # A colour for every class that marks have.
    assert all(style.text.count(f"--s{index}:") == 2 for index in range(8))
