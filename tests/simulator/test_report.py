"""The page of `--report`: whole in one file, readable everywhere, and true to what was simulated."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from app.simulator.options import Options
from app.simulator.report import charts, svg
from app.simulator.report.page import page, write_report
from app.simulator.report.series import series_at
from app.simulator.report.svg import Axis, Bar, Drawing, linear, log_time, root_time, thinned
from app.simulator.running import Played, Variant, play, summary
from app.simulator.traces.job import Trace, TraceJob
from tests.simulator.small import small_trace

POLICIES = ("allpass-drain", "modal-only", "clairvoyant")
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Tags with their attributes, and whether each that was opened was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def made(trace: Trace, *policies: str, options: Options | None = None) -> tuple[str, list[Played]]:
    chosen = options or Options()
    played = play(trace, [Variant.plain(one) for one in policies], chosen, (0, 1), keeps_jobs=True, keeps_course=True)
    first = [one for one in played if one.outcomes]
    return page(summary(trace, played), first, {**chosen.told(), "seeds": "0 to 1"}), first


@pytest.fixture(scope="module")
def text() -> str:
    return made(small_trace(), *POLICIES)[0]


def test_the_page_is_whole_in_itself(text: str) -> None:
    """No script, nothing loaded from anywhere; every tag is closed, every picture is valid XML."""
    seen = Page(text)
    assert seen.open == []
    assert {tag for tag, _ in seen.tags} & {"script", "link", "img", "iframe", "object"} == set()
    assert [attrs for _, attrs in seen.tags if attrs.keys() & {"src", "href", "xlink:href", "onload"}] == []
    assert re.findall(r"url\((?!#)|@import|https?:", text) == []
    pictures = re.findall(r'<svg [^>]*role="img".*?</svg>', text, re.DOTALL)
    assert len(pictures) == 4 + 2 + 2 + 1  # times, waiting, cost, moves; queue, F; machines of two policies; prices
    for one in pictures:
        ET.fromstring(one)
        assert 'aria-label="' in one
        assert "nan" not in one


def test_it_is_for_phones_and_for_the_dark(text: str) -> None:
    """The width of the device counts, pictures shrink with it; both themes have colours. On a phone, where cells stand
    below each other, each names its policy."""
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "@media(prefers-color-scheme:dark)" in text
    light, dark = re.findall(r":root\{([^}]*)\}", text)
    assert set(re.findall(r"--\w+", light)) == set(re.findall(r"--\w+", dark))
    assert "svg{display:block;width:100%" in text
    assert set(re.findall('<td data-policy="(.*?)">', text)) == set(POLICIES)


def test_many_policies_have_tables_of_eight_at_most(text: str) -> None:
    """Each policy once, in its order; with more columns a table would be too wide for a laptop."""
    _, first = made(small_trace(4), "modal-only")
    figures = summary(small_trace(4), first)["policies"]["modal-only"]
    names = [f"policy-{number}" for number in range(12)]
    found = {"trace": "small", "jobs": 4, "policies": dict.fromkeys(names, figures)}
    heads = re.findall("<thead>(.*?)</thead>", page(found, first, {"seeds": "0"}))
    assert [re.findall("<th>([^<]+)</th>", one) for one in heads] == [names[:6], names[6:]]
    assert len(re.findall("<thead>", text)) == 1


def test_every_figure_is_in_the_table(text: str) -> None:
    """The means over the seeds, to the digit that is shown, under each policy; the options that made them below."""
    played = play(small_trace(), [Variant.plain(one) for one in POLICIES], Options(), (0, 1))
    policies = summary(small_trace(), played)["policies"]
    row = re.search(r"<tr><th>completion time, mean</th>(.*?)</tr>", text)
    cost = re.search(r"<tr><th>cost of all jobs</th>(.*?)</tr>", text)
    assert row is not None
    assert cost is not None
    assert re.findall("<td.*?>(.*?)</td>", row[1]) == [f"{policies[one]['mean_jct_s']:,.1f} s" for one in POLICIES]
    assert re.findall("<td.*?>(.*?)</td>", cost[1]) == [f"${policies[one]['cost_usd']:,.2f}" for one in POLICIES]
    assert "<tr><th>a GPU-hour at modal</th>" in text
    assert '<td data-policy="modal-only">$2.10</td>' in text
    for name, value in Options().told().items():
        assert f"<tr><th>{name}</th><td>{value}</td></tr>" in text


def test_the_colour_of_a_policy_is_the_same_in_all_pictures(text: str) -> None:
    """Each line says whose it is, in the colour of the legend."""
    for place, name in enumerate(POLICIES):
        colours = set(re.findall(rf'<path class="(?:line|mark|dots) (c\d)" [^>]*><title>{name}</title>', text))
        assert colours == {f"c{place}"}


def test_names_from_other_people_are_text() -> None:
    """A trace that is named like a tag makes none."""
    trace = Trace("<script>alert(1)</script>", small_trace(4).jobs)
    text, _ = made(trace, "modal-only")
    assert "<script" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("seconds", [0.001, 1.0, 900_000.0])
def test_one_job_is_enough(seconds: float) -> None:
    """However short or long: no axis is empty."""
    text, _ = made(Trace.of("one", [TraceJob("a", 500.0, seconds, 1)]), "allpass", "cheapest-first")
    for one in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(one)
        assert "nan" not in one


def test_writing(tmp_path: Path) -> None:
    """The folder is made; the file is replaced."""
    text, first = made(small_trace(4), "modal-only")
    found = summary(small_trace(4), first)
    for _ in range(2):
        path = write_report(tmp_path / "a" / "b", found, first, {**Options().told(), "seeds": "0 to 1"})
    assert path == tmp_path / "a" / "b" / "report.html"
    assert path.read_text().startswith("<!doctype html>")
    assert text.startswith("<!doctype html>")


def test_the_curve_of_completion_times_ends_at_all_jobs() -> None:
    """It rises from none to 100 %, within the frame."""
    _, first = made(small_trace(), "modal-only")
    picture = charts.completion_times(first)
    (line,) = re.findall(r'<path class="line c0" d="([^"]*)"><title>', picture)
    points = [tuple(map(float, one.split())) for one in re.split("[ML]", line)[1:]]
    heights = [y for _, y in points]
    assert heights == sorted(heights, reverse=True)
    assert (heights[0], heights[-1]) == (svg.HEIGHT - svg.BOTTOM, svg.TOP)
    assert all(svg.LEFT <= x <= svg.WIDTH - svg.RIGHT for x, _ in points)


def test_where_jobs_began_and_how_many_moved() -> None:
    """Each bar has all jobs of its policy; those that moved are told with the number of moves."""
    _, first = made(small_trace(), "fixed-threshold", "modal-only", "cheapest-first")
    picture = charts.moves(first)
    counts = [int(told) for told in re.findall(r"<title>(?:stayed|began)[a-z ]* (\d+)</title>", picture)]
    assert [sum(counts[place : place + 3]) for place in (0, 3, 6)] == [20, 20, 20]
    assert counts[1] > 0
    assert counts[3:] == [20, 0, 0, 0, 0, 20]
    moved = sum(outcome.moves for outcome in first[0].outcomes)
    assert re.findall(r">([\d,]+ moves?)<", picture) == [f"{moved} moves", "0 moves", "0 moves"]


def test_marks_stand_along_a_line_and_not_on_each_others() -> None:
    """Six on each, at other places for each of its neighbours."""
    frame = Drawing("t", Axis(0, 10, (), "x"), Axis(0, 1, (), "y"))
    for number in range(3):
        frame.line([(0, 0.5), (10, 0.5)], series_at(number), "a", number)
    marks = re.findall(r'<path class="mark c\d" d="([^"]*)"', frame.text())
    places = [[float(x) for x in re.findall(r"M([\d.]+) ", one)] for one in marks]
    assert [len(one) for one in places] == [svg.MARKS_ACROSS] * 3
    every = sorted(x for one in places for x in one)
    assert min(after - before for before, after in pairwise(every)) > 8


def test_axes_place_and_mark() -> None:
    """Values land where the scale says, what lies beyond at its end; ticks are round, apart and within."""
    times = log_time(2, 100_000, "t")
    assert times.share(2) == 0
    assert times.share(100_000) == 1
    assert times.share(447.2) == pytest.approx(0.5, abs=0.001)
    assert [told for _, told in times.ticks] == ["10 s", "1 min", "10 min", "1 h", "4 h", "1 d"]
    roots = root_time(40_000, "t")
    assert roots.share(10_000) == 0.5
    assert roots.ticks[0] == (0.0, "0")
    plain = linear(0, 47, "n")
    assert [told for _, told in plain.ticks] == ["0", "10", "20", "30", "40"]
    assert plain.share(99) == 1
    assert linear(0, 0, "n").share(0) == 0
    for axis in (times, roots, plain):
        assert all(axis.low <= at <= axis.high for at, _ in axis.ticks)


def test_steps_hold_their_value_until_the_next() -> None:
    """Two points make three corners; no point makes nothing."""
    frame = Drawing("t", Axis(0, 10, (), "x"), Axis(0, 1, (), "y"))
    frame.steps([(0, 0), (10, 1)], series_at(0), "a")
    frame.steps([], series_at(1), "b")
    (data,) = re.findall(r'<path class="line[^"]*" d="([^"]*)"', frame.text())
    left, right = svg.LEFT, svg.WIDTH - svg.RIGHT
    low, high = svg.HEIGHT - svg.BOTTOM, svg.TOP
    assert data == f"M{left:.1f} {low:.1f}L{right:.1f} {low:.1f}L{right:.1f} {high:.1f}"


def test_bars_are_as_long_as_their_figures() -> None:
    """The longest fills its room; parts stand side by side."""
    picture = svg.bars("t", [Bar("a", ((3.0, "t0", "x"), (1.0, "t1", "y")), "4"), Bar("b", ((2.0, "t0", "x"),), "2")])
    found = [(float(x), float(width)) for x, width in re.findall(r'x="([\d.]+)" y="\d+" width="([\d.]+)"', picture)]
    (x1, w1), (x2, w2), (_, w3) = found
    assert x2 == pytest.approx(x1 + w1, abs=0.2)
    assert w1 == pytest.approx(3 * w2, abs=0.2)
    assert w3 == pytest.approx(2 * w2, abs=0.2)


def test_thinned_curves_keep_their_ends() -> None:
    """Short ones are left as they are."""
    points = [(float(n), float(n)) for n in range(1000)]
    few = thinned(points, 100)
    assert (len(few), few[0], few[-1]) == (100, points[0], points[-1])
    assert thinned(points[:100], 100) == points[:100]
