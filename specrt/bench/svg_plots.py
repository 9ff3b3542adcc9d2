"""Plots as inline SVG: lines, bars and reliability diagrams; each mark carries its numbers.

A mark has what it shows as `data-x`, `data-y` or `data-count`, in full, and as a tooltip. Colours
are variables of the page (`--s0` to `--s7`), so that one drawing is readable in light and dark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

NUM_COLOURS = 8
_WIDTH, _HEIGHT = 640.0, 280.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 14.0, 10.0, 40.0
_BAR, _GROUP_GAP, _LABEL_WIDTH = 13.0, 9.0, 150.0
_DOT = 2.2


class Axis(NamedTuple):
    """One direction of a plot.

    Attributes:
        label: what is measured, with its unit.
        low: where it begins; None = at the smallest value.
        high: where it ends; None = at the largest value.
        is_whole: there is nothing between whole numbers.
    """

    label: str
    low: float | None = None
    high: float | None = None
    is_whole: bool = False

    def over(self, values: Sequence[float]) -> Axis:
        """The same with both ends known, and apart."""
        low = min(values) if self.low is None else self.low
        high = max(values) if self.high is None else self.high
        is_wide = high - low > 1e-9 * max(1.0, abs(low))
        return self._replace(low=low, high=high if is_wide else low + 1.0)


SHARE = Axis("", 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a reliability diagram.

    Attributes:
        estimated: mean probability.
        observed: share that came true.
        count: cases.
    """

    estimated: float
    observed: float
    count: int


def lines(
    name: str,
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    x: Axis,
    y: Axis,
    *,
    dotted: Sequence[str] = (),
) -> str:
    """Lines through points, in the order given.

    Args:
        name: id of the figure.
        title: what is shown.
        series: name -> (x, y) points; empty ones are left out.
        x: across.
        y: upwards.
        dotted: series whose points are drawn without a line.
    """
    series = {label: points for label, points in series.items() if points}
    if not series:
        return _figure(name, title, (), "")
    across = x.over([point[0] for points in series.values() for point in points])
    upwards = y.over([point[1] for points in series.values() for point in points])
    frame = _Frame(across, upwards)
    parts = [frame.grid()]
    for index, (label, points) in enumerate(series.items()):
        places = [frame.place(*point) for point in points]
        path = ""
        if label not in dotted:
            path = "M" + "L".join(f"{left:.1f} {top:.1f}" for left, top in places)
            path = f'<path class="line" d="{path}"/>'
        radius = 2 * _DOT if label in dotted else _DOT
        dots = [
            f'<circle cx="{left:.1f}" cy="{top:.1f}" r="{radius}" data-x="{_exact(point[0])}"'
            f' data-y="{_exact(point[1])}">{_tip(label, point[0], point[1])}</circle>'
            for point, (left, top) in zip(points, places, strict=True)
        ]
        parts.append(f'<g class="s{index % NUM_COLOURS}">{path}{"".join(dots)}</g>')
    return _figure(name, title, list(series), _svg(title, _HEIGHT, parts))


def bars(
    name: str, title: str, groups: Mapping[str, Mapping[str, float | None]], value: Axis
) -> str:
    """Bars to the right, in groups below each other.

    Args:
        name: id of the figure.
        title: what is shown.
        groups: group -> series -> value, at least 0; None = not measured, no bar.
        value: across; begins at 0.
    """
    known = [v for group in groups.values() for v in group.values() if v is not None]
    if not known:
        return _figure(name, title, (), "")
    series = list(dict.fromkeys(label for group in groups.values() for label in group))
    high = value.over([0.0, *known]).high
    assert high is not None
    room = _WIDTH - _LABEL_WIDTH - 56
    parts, top = [], _TOP
    for group, values in groups.items():
        middle = top + len(values) * _BAR / 2 + 4
        parts.append(
            f'<text class="end" x="{_LABEL_WIDTH - 8}" y="{middle:.1f}">{escape(group)}</text>'
        )
        for label, number in values.items():
            if number is not None:
                width = number / high * room
                parts.append(
                    f'<rect class="s{series.index(label) % NUM_COLOURS}" x="{_LABEL_WIDTH}"'
                    f' y="{top:.1f}" width="{width:.1f}" height="{_BAR - 2}"'
                    f' data-y="{_exact(number)}">{_tip(f"{group}, {label}", number)}</rect>'
                    f'<text class="small" x="{_LABEL_WIDTH + width + 4:.1f}"'
                    f' y="{top + _BAR - 4:.1f}">{_short(number)}</text>'
                )
            top += _BAR
        top += _GROUP_GAP
    parts.append(
        f'<text class="middle" x="{(_WIDTH + _LABEL_WIDTH) / 2}" y="{top + 8:.1f}">'
        f"{escape(value.label)}</text>"
    )
    legend = series if len(series) > 1 else ()
    return _figure(name, title, legend, _svg(title, top + 16, parts))


def reliability(name: str, title: str, series: Mapping[str, Sequence[Dot]]) -> str:
    """Estimated against observed shares; on the diagonal they agree.

    Args:
        name: id of the figure.
        title: what is shown.
        series: name -> dots, whose area grows with their count; empty ones are left out.
    """
    series = {label: dots for label, dots in series.items() if dots}
    if not series:
        return _figure(name, title, (), "")
    frame = _Frame(
        SHARE._replace(label="estimated probability"), SHARE._replace(label="observed share")
    )
    (left, bottom), (right, top) = frame.place(0.0, 0.0), frame.place(1.0, 1.0)
    parts = [
        frame.grid(),
        f'<path class="diagonal" d="M{left:.1f} {bottom:.1f}L{right:.1f} {top:.1f}"/>',
    ]
    for index, (label, dots) in enumerate(series.items()):
        most = max(dot.count for dot in dots)
        marks = []
        for dot in dots:
            x, y = frame.place(dot.estimated, dot.observed)
            radius = _DOT + 7 * math.sqrt(dot.count / most)
            marks.append(
                f'<circle class="area" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
                f' data-x="{_exact(dot.estimated)}" data-y="{_exact(dot.observed)}"'
                f' data-count="{dot.count}">'
                f"{_tip(f'{label}, {dot.count} cases', dot.estimated, dot.observed)}</circle>"
            )
        parts.append(f'<g class="s{index % NUM_COLOURS}">{"".join(marks)}</g>')
    return _figure(name, title, list(series), _svg(title, _HEIGHT, parts))


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers between two ends, about `count` of them.

    Source: Heckbert, Nice Numbers for Graph Labels (Graphics Gems, 1990).
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


class _Frame:
    """Axes of known ends, and where a point lies between them."""

    def __init__(self, x: Axis, y: Axis) -> None:
        self._x, self._y = x, y

    def place(self, x: float, y: float) -> tuple[float, float]:
        """(from the left, from the top)."""
        return (
            _LEFT + _part(self._x, x) * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - _part(self._y, y) * (_HEIGHT - _TOP - _BOTTOM),
        )

    def grid(self) -> str:
        """Grid lines, their numbers, and the labels."""
        bottom = _HEIGHT - _BOTTOM
        parts = []
        for tick in ticks(*_ends(self._y)):
            _, top = self.place(0.0, tick)
            parts.append(
                f'<path class="grid" d="M{_LEFT} {top:.1f}H{_WIDTH - _RIGHT}"/>'
                f'<text class="end" x="{_LEFT - 6}" y="{top + 4:.1f}">{_short(tick)}</text>'
            )
        for tick in ticks(*_ends(self._x), 8):
            if self._x.is_whole and not tick.is_integer():
                continue
            left, _ = self.place(tick, 0.0)
            parts.append(
                f'<path class="grid" d="M{left:.1f} {_TOP}V{bottom}"/>'
                f'<text class="middle" x="{left:.1f}" y="{bottom + 15}">{_short(tick)}</text>'
            )
        middle = (_WIDTH + _LEFT) / 2
        parts.append(
            f'<text class="middle" x="{middle}" y="{_HEIGHT - 6}">{escape(self._x.label)}</text>'
            f'<text class="middle" transform="translate(13 {bottom / 2}) rotate(-90)">'
            f"{escape(self._y.label)}</text>"
        )
        return "".join(parts)


def _ends(axis: Axis) -> tuple[float, float]:
    assert axis.low is not None and axis.high is not None
    return axis.low, axis.high


def _part(axis: Axis, value: float) -> float:
    low, high = _ends(axis)
    return (value - low) / (high - low)


def _exact(value: float) -> str:
    return json.dumps(value)


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.6g}"


def _tip(label: str, *values: float) -> str:
    return f"<title>{escape(label)}: {', '.join(map(_short, values))}</title>"


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height:g}" role="img"'
        f' aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _figure(name: str, title: str, legend: Sequence[str], drawing: str) -> str:
    keys = "".join(
        f' <span class="key s{index % NUM_COLOURS}">{escape(label)}</span>'
        for index, label in enumerate(legend)
    )
    body = drawing or "<p>Not measured.</p>"
    return (
        f'<figure id="{escape(name)}"><figcaption>{escape(title)}{keys}</figcaption>{body}</figure>'
    )
