"""What a notebook shows of jobs, sweeps and curves: escaped, without scripts, and without IPython or pandas here."""

from __future__ import annotations

import sys
import types
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any

import pytest

from allpass import errors, notebook
from allpass.client import Client
from allpass.points import Points
from allpass.sweep import SweepRow
from allpass.wire.jobs import Job, MetricPoint
from tests.sdk.fake_service import FakeService

HOSTILE = "<script>alert(1)</script>' onmouseover='x"
_ALLOWED = {"table", "thead", "tbody", "tr", "th", "td", "p", "figure", "figcaption", "svg", "polyline"}


class Checked(HTMLParser):
    """Collects the text; fails at whatever is not plain."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _ALLOWED
        assert not any(name.startswith("on") or name in ("href", "src") for name, _ in attrs), attrs

    def handle_data(self, data: str) -> None:
        self.text += data + "|"


def point(step: int, **values: float) -> MetricPoint:
    return MetricPoint(step=step, at=datetime(2026, 1, 1, tzinfo=UTC), values=values)


def test_a_job_shows_its_facts_and_its_curve(service: FakeService, client: Client) -> None:
    """The handle asks; what the service told shows itself without asking again."""
    told = service.add_job(status="running", step=7, total_steps=9, cost=12_300)
    service.metrics[told["id"]] = [point(step, loss=1 / step).model_dump(mode="json") for step in (1, 2, 4)]
    shown = client.job(told["id"])._repr_html_()
    text = Checked(shown).text
    assert "7 of 9" in text and "$0.0123" in text and "loss, steps 1 to 4: from 1 to 0.25" in text
    assert "<polyline" in shown and "color:green" in shown
    assert "<polyline" not in Job.model_validate(told)._repr_html_()


def test_names_of_others_are_words_and_nothing_else(service: FakeService) -> None:
    """Of jobs, parameters, metrics, messages."""
    info = Job.model_validate(service.add_job(name=HOSTILE, status="failed", message=HOSTILE))
    row = SweepRow(HOSTILE, {HOSTILE: HOSTILE}, "failed", 1, None, 0, {HOSTILE: 1.0})
    other = SweepRow("job_2", {HOSTILE: 2}, "failed", 1, None, 0, {})
    pages = [
        notebook.job(info),
        notebook.sweep(HOSTILE, [row, other]),
        notebook.points([point(1, **{HOSTILE: 1.0}), point(2, **{HOSTILE: 2.0})]),
        notebook.curve([point(1, **{HOSTILE: 1.0}), point(2, **{HOSTILE: 2.0})], HOSTILE),
    ]
    assert all(HOSTILE in Checked(page).text for page in pages)


def test_a_curve_of_anything_is_drawn_within_its_bounds() -> None:
    """No numbers, one, equal ones, huge ones, and more than a drawing can hold."""
    assert notebook.curve([]) == notebook.curve([point(1, loss=1.0)]) == notebook.curve([point(1), point(2)]) == ""
    infinite = [point(1, loss=float("nan")), point(2, loss=float("inf")), point(3, loss=1.0)]
    assert notebook.curve(infinite) == ""
    many = [point(step, loss=float(step % 7)) for step in range(50_000)]
    for found in ([point(1, loss=2.0), point(2, loss=2.0)], [point(1, loss=-1.7e308), point(2, loss=1.7e308)], many):
        drawn = notebook.curve(found)
        corners = [one.split(",") for one in drawn.partition("points='")[2].partition("'")[0].split()]
        assert 2 <= len(corners) <= 1002
        assert all(0 <= float(x) <= 480 and 0 <= float(y) <= 120 for x, y in corners)


def test_points_are_read_once_and_looked_at_often() -> None:
    """As the iterator that it always was; a second loop begins with the first point and asks nobody."""
    asked: list[int] = []

    def source() -> Any:
        for step in (1, 2, 3):
            asked.append(step)
            yield point(step, loss=1.0)

    found = Points(source())
    assert next(found).step == 1
    assert asked == [1]
    assert [one.step for one in found] == [1, 2, 3]
    assert [one.step for one in found] == [1, 2, 3]
    assert [one.step for one in (next(found), next(found))] == [2, 3]
    with pytest.raises(StopIteration):
        next(found)
    assert asked == [1, 2, 3]
    assert "<table>" in found._repr_html_()


def test_a_frame_is_made_by_pandas_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets a row for each step and the steps as its index; without pandas it is said what to install."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(errors.ConfigurationError, match="pandas is not installed"):
        Points(iter([point(1, loss=0.5)])).frame()
    made = types.SimpleNamespace(Index=lambda values, name: (name, values), DataFrame=lambda rows, index: (rows, index))
    monkeypatch.setitem(sys.modules, "pandas", made)
    frame = Points(iter([point(1, loss=0.5), point(3, loss=0.25, lr=0.1)])).frame()
    assert frame == ([{"loss": 0.5}, {"loss": 0.25, "lr": 0.1}], ("step", [1, 3]))


def test_waiting_tells_how_it_stands(service: FakeService, client: Client) -> None:
    """Whoever gives a function is told at each look and at the end; outside a notebook nobody else is."""
    seen: list[str] = []
    job = client.job(service.add_job(status="succeeded")["id"])
    assert notebook.live() is None
    assert job.wait(progress=lambda info: seen.append(info.status)).status == "succeeded"
    assert seen == ["succeeded"]


def test_a_cell_shows_one_job_in_one_place(
    service: FakeService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook the first look makes a display, and each later one changes it; a plain IPython shell shows none."""
    shown: list[str] = []
    place = types.SimpleNamespace(update=lambda drawn: shown.append(f"again {drawn}"))
    display = types.ModuleType("IPython.display")
    display.HTML = lambda text: Checked(text).text  # type: ignore[attr-defined]  # made up here
    display.display = lambda drawn, display_id: shown.append(drawn) or place  # type: ignore[attr-defined, func-returns-value]
    shell = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    job = client.job(service.add_job(status="succeeded")["id"])
    job.wait()
    assert shown == []
    shell.kernel = object()
    job.wait()
    job_again = client.job(job.id)
    assert job_again.wait().status == "succeeded"
    assert len(shown) == 2 and all(job.id in one for one in shown)
    told = notebook.live()
    assert told is not None
    told(job.info())
    told(job.info())
    assert shown[-1].startswith("again ")
