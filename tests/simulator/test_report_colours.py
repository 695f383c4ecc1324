"""The series of a report can be told apart: by everybody, on a light page and on a dark one, and without any colour."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from app.simulator.report import series
from app.simulator.report.style import STYLE

Vector = NDArray[np.float64]
# How colours are seen without one kind of cone, on linear RGB: Machado, Oliveira and Fernandes (2009), severity 1.
EYES = {
    "all cones": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])
APART = 20.0  # in CIELAB, where 2.3 is just noticeable
CONTRAST = 3.0  # of graphics, WCAG 2.1


def linear(colour: str) -> Vector:
    values = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def seen(colour: str, eyes: str) -> Vector:
    """Its place in CIELAB."""
    xyz = TO_XYZ @ np.clip(np.array(EYES[eyes]) @ linear(colour), 0, 1) / WHITE
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def palette(theme: str) -> dict[str, str]:
    """The named colours of a theme."""
    light, dark = re.findall(r":root\{([^}]*)\}", STYLE)
    return dict(re.findall(r"--(\w+):(#[0-9a-f]{3,6})", light if theme == "light" else dark))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["c", "t"])
@pytest.mark.parametrize("eyes", EYES)
def test_colours_stay_apart_in_all_eyes(theme: str, kind: str, eyes: str) -> None:
    """Any two lines, and any two fills. Two of the colours that were here before lay 3 apart for one man in fifty."""
    colours = {name: colour for name, colour in palette(theme).items() if re.fullmatch(rf"{kind}\d", name)}
    assert len(colours) == (series.COLOURS if kind == "c" else series.FILLS)
    near = {
        (one, other): round(distance, 1)
        for one, other in combinations(colours, 2)
        if (distance := float(np.linalg.norm(seen(colours[one], eyes) - seen(colours[other], eyes)))) < APART
    }
    assert near == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_they_stand_out_from_the_page(theme: str) -> None:
    """From the card that pictures are on; the soft ink of texts as text has to."""
    colours = palette(theme)
    faint = [name for name in colours if re.fullmatch(r"[ct]\d", name)]
    assert [name for name in faint if contrast(colours[name], colours["card"]) < CONTRAST] == []
    assert contrast(colours["soft"], colours["card"]) >= 4.5


def test_series_differ_without_their_colours_too() -> None:
    """More than there are policies: no two share dashes and mark, nor colour and dashes, nor colour and mark."""
    every = [series.series_at(number) for number in range(21)]
    assert len({(one.dash, one.mark) for one in every}) == 21
    assert len({(one.colour, one.dash) for one in every}) == 21
    assert len({(one.colour, one.mark) for one in every}) == 21


def test_each_fill_but_the_plain_one_has_a_pattern() -> None:
    """It is defined once, in the page, and no two are the same."""
    drawn = re.findall(r'<pattern id="(p\d)" class="(t\d)".*?<rect[^>]*/>(.*?)</pattern>', series.patterns())
    assert [(one, fill) for one, fill, _ in drawn] == [(f"p{n}", f"t{n}") for n in range(1, series.FILLS)]
    assert len({inside for _, _, inside in drawn}) == series.FILLS - 1
    for number in range(1, series.FILLS):
        assert f".t{number}.area,.t{number}.bar{{fill:url(#p{number})}}" in STYLE
