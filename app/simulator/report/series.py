"""How series are told apart: each has a colour, a dash pattern and a mark, so that colour alone is never needed.

There are seven colours, five dash patterns and six marks. No two of these numbers have a common divisor, so any two of
the first thirty series differ without their colours, and of the first 210 with them. The colours are in the style
sheet; people with any of the three kinds of colour blindness can tell all of them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = 7
DASHES = ("", "7 4", "2 3", "10 3 2 3", "15 5")
# Around the place, about seven units wide.
MARKS = (
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0-7 0",
    "m-3.2-3.2h6.4v6.4h-6.4z",
    "m0-4l4 7h-8z",
    "m0-4.5l4.5 4.5l-4.5 4.5l-4.5-4.5z",
    "m-1.3-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
    "m0 4l4-7h-8z",
)
FILLS = 5
Place = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one kind of dots: `colour` is a class of the style sheet."""

    colour: str
    dash: str
    mark: str

    def dashed(self) -> str:
        """As an attribute of a path; empty for a solid line."""
        return f' stroke-dasharray="{self.dash}"' if self.dash else ""

    def marks(self, places: Iterable[Place]) -> str:
        """The data of a path with a mark at each place."""
        return "".join(f"M{x:.1f} {y:.1f}{self.mark}" for x, y in places)


def series_at(number: int) -> Series:
    """That of the policy at this place."""
    return Series(f"c{number % COLOURS}", DASHES[number % len(DASHES)], MARKS[number % len(MARKS)])


def fill_at(number: int) -> str:
    """The class of the parts of bars, and of areas: a colour with a pattern of its own."""
    return f"t{min(number, FILLS - 1)}"


def line_keys(named: Sequence[tuple[Series, str]]) -> str:
    """A legend of lines: each as it is drawn."""
    return _keys(
        (f'<path class="line {one.colour}"{one.dashed()} d="M1 7H33"/>{_mark(one)}', name) for one, name in named
    )


def mark_keys(named: Sequence[tuple[Series, str]]) -> str:
    """A legend of dots."""
    return _keys((_mark(one), name) for one, name in named)


def fill_keys(named: Sequence[tuple[str, str]]) -> str:
    """A legend of areas and parts of bars."""
    return _keys((f'<rect class="bar {fill}" x="1" y="1" width="32" height="12"/>', name) for fill, name in named)


def patterns() -> str:
    """What the fills refer to: stripes one way, dots, stripes the other way, squares. The first fill is plain."""
    insides = (
        '<path d="M0 6L6 0M-1 1L1-1M5 7L7 5"/>',
        '<path d="M3 2v2M2 3h2"/>',
        '<path d="M0 0L6 6M-1 5L1 7M5-1L7 1"/>',
        '<path d="M0 0H6M0 0V6"/>',
    )
    drawn = "".join(
        f'<pattern id="p{number}" class="t{number}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6"/>{inside}</pattern>'
        for number, inside in enumerate(insides, start=1)
    )
    return f'<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>{drawn}</defs></svg>'


def _mark(one: Series) -> str:
    return f'<path class="mark {one.colour}" d="{one.marks([(17, 7)])}"/>'


def _keys(drawn: Iterable[tuple[str, str]]) -> str:
    keys = (
        f'<span><svg class="key" viewBox="0 0 34 14" aria-hidden="true">{picture}</svg>{escape(name)}</span>'
        for picture, name in drawn
    )
    return f'<p class="keys">{"".join(keys)}</p>'
