"""A small part of SVG: a frame with axes, and lines, steps, areas, dots and bars in it.

Colours and fonts come from the page's style sheet through classes, so that a picture follows its light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise

from app.simulator.report.series import Series

WIDTH, HEIGHT = 480, 280
LEFT, RIGHT, TOP, BOTTOM = 60, 14, 10, 48
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """From data to a share of the way along. `ticks`: where there are lines, with their texts.

    `power` stretches the low end when it is below 1: at one half, places are square roots.
    """

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    label: str
    is_log: bool = False
    power: float = 1.0

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high end; what lies beyond is put there."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return ((at - low) / (high - low)) ** self.power if high > low else 0.0


def linear(low: float, high: float, label: str, told: Callable[[float], str] = "{:g}".format) -> Axis:
    """With about five ticks at round numbers."""
    high = high if high > low else low + 1
    step = _round_step((high - low) / 5)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    ticks = tuple((one * step, told(one * step)) for one in range(first, last + 1))
    return Axis(low, high, ticks, label)


def _round_step(about: float) -> float:
    power = 10.0 ** math.floor(math.log10(about))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= about * 0.999)


TIMES_S = (
    (1, "1 s"),
    (10, "10 s"),
    (60, "1 min"),
    (600, "10 min"),
    (3600, "1 h"),
    (14_400, "4 h"),
    (36_000, "10 h"),
    (86_400, "1 d"),
    (345_600, "4 d"),
    (864_000, "10 d"),
    (3_456_000, "40 d"),
)
FIGURES_PX = 160  # for what is written behind a bar
MARKS_ACROSS = 6  # on a line
TICKS_APART = 0.12  # of the way along


def log_time(low_s: float, high_s: float, label: str) -> Axis:
    """Seconds on a logarithmic scale, with ticks that people use."""
    low_s = max(1.0, low_s)
    return _with_times(Axis(low_s, max(high_s, low_s * 10), (), label, is_log=True))


def root_time(high_s: float, label: str) -> Axis:
    """Seconds from 0, at the places of their square roots."""
    return _with_times(Axis(0.0, max(high_s, 10.0), (), label, power=0.5))


def _with_times(axis: Axis) -> Axis:
    """Ticks at times that people use, the late ones first, none too near to another."""
    ticks: list[tuple[float, str]] = [(0.0, "0")] if axis.low == 0 else []
    for at, text in reversed(TIMES_S):
        if axis.low <= at <= axis.high and all(
            abs(axis.share(at) - axis.share(other)) >= TICKS_APART for other, _ in ticks
        ):
            ticks.append((float(at), text))
    return replace(axis, ticks=tuple(sorted(ticks)))


class Drawing:
    """A picture that is drawn piece by piece; `text` is the SVG."""

    def __init__(self, title: str, x: Axis, y: Axis) -> None:
        self._title, self.x, self.y = title, x, y
        self._parts: list[str] = []

    def at(self, point: Point) -> Point:
        """From data to the picture."""
        across = LEFT + self.x.share(point[0]) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - self.y.share(point[1]) * (HEIGHT - TOP - BOTTOM)

    def line(self, points: Iterable[Point], series: Series, told: str, number: int = 0) -> None:
        """With marks along it; those of lines with other numbers stand elsewhere, so that none hides another's."""
        places = [self.at(one) for one in points]
        data = _joined(places)
        if data:
            self._parts.append(f'<path class="line {series.colour}"{series.dashed()} d="{data}">{_title(told)}</path>')
            self._path(series.marks(_along(places, number)), f"mark {series.colour}", told)

    def steps(self, points: Sequence[Point], series: Series, told: str, number: int = 0) -> None:
        """Each value holds until the next point."""
        corners = [points[0]] if points else []
        for before, after in pairwise(points):
            corners += [(after[0], before[1]), after]
        self.line(corners, series, told, number)

    def area(self, lower: Sequence[Point], upper: Sequence[Point], fill: str, told: str) -> None:
        """Between two curves with the same x."""
        outline = [self.at(one) for one in (*upper, *reversed(lower))]
        self._path(_joined(outline) + "Z", f"area {fill}", told)

    def dots(self, points: Iterable[Point], series: Series, told: str, up_px: float = 0.0) -> None:
        """A mark at each. `up_px`: moved up by so much, where several series have the same values."""
        places = ((x, y - up_px) for x, y in map(self.at, points))
        self._path(series.marks(places), f"dots {series.colour}", told)

    def text(self) -> str:
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self._title)}">'
            f"{_title(self._title)}{self._axes()}{''.join(self._parts)}</svg>"
        )

    def _path(self, data: str, classes: str, told: str) -> None:
        if data not in ("", "Z"):
            self._parts.append(f'<path class="{classes}" d="{data}">{_title(told)}</path>')

    def _axes(self) -> str:
        parts = []
        for value, told in self.x.ticks:
            across, bottom = self.at((value, self.y.low))
            parts.append(f'<path class="grid" d="M{across:.1f} {TOP}V{bottom:.1f}"/>')
            at_end = across > WIDTH - RIGHT - 24  # a text around its middle would be cut there
            parts.append(
                _label(WIDTH - 1 if at_end else across, HEIGHT - BOTTOM + 21, told, "end" if at_end else "middle")
            )
        for value, told in self.y.ticks:
            left, down = self.at((self.x.low, value))
            parts.append(f'<path class="grid" d="M{left:.1f} {down:.1f}H{WIDTH - RIGHT}"/>')
            parts.append(_label(LEFT - 6, down + 4, told, "end"))
        parts.append(_label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, self.x.label, "middle"))
        if self.y.label:
            parts.append(f'<text transform="translate(16 {(HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">')
            parts.append(f"{escape(self.y.label)}</text>")
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar chart: its parts from the left, each with its fill and what it is."""

    name: str
    parts: tuple[tuple[float, str, str], ...]
    told: str


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars with their names above them and their figures at the end."""
    row_px, most = 40, max((sum(part[0] for part in row.parts) for row in rows), default=0) or 1.0
    height = row_px * len(rows) + 8
    wide = WIDTH - 4 - FIGURES_PX
    parts = []
    for place, row in enumerate(rows):
        top, across = place * row_px + 16, 2.0
        parts.append(_label(2, top - 2, row.name, "start"))
        for value, fill, told in row.parts:
            length = wide * value / most
            parts.append(
                f'<rect class="bar {fill}" x="{across:.1f}" y="{top + 3}" width="{length:.1f}" height="14">'
                f"{_title(told)}</rect>"
            )
            across += length
        parts.append(_label(across + 6, top + 14, row.told, "start"))
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{_title(title)}{''.join(parts)}</svg>"
    )


def thinned(points: Sequence[Point], most: int = 400) -> list[Point]:
    """Not more points than a screen can show; the first and the last stay."""
    if len(points) <= most:
        return list(points)
    stride = (len(points) - 1) / (most - 1)
    return [points[round(place * stride)] for place in range(most)]


def _along(places: Sequence[Point], number: int) -> list[Point]:
    """Points of the line at even distances across the picture, a little further for each number."""
    apart = (WIDTH - LEFT - RIGHT) / MARKS_ACROSS
    found, next_x = [], LEFT + apart * ((0.5 + number * 0.382) % 1)
    for (x, y), (after_x, after_y) in pairwise(places):
        while x <= next_x < after_x:
            found.append((next_x, y + (after_y - y) * (next_x - x) / (after_x - x)))
            next_x += apart
    return found


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _joined(places: Iterable[Point]) -> str:
    return "".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(places))


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
