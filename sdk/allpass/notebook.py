"""How jobs, sweeps and curves look in a notebook: tables and inline SVG, without scripts and without IPython.

Every word of it may come from somebody else (a name, a label, an error's message, a metric), so everything is escaped.
No colour is set but where it means something: what a notebook looks like, light or dark, is its own affair.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allpass.sweep import SweepRow
    from allpass.wire.jobs import Job, MetricPoint

_WIDTH, _HEIGHT, _PAD = 480, 120, 4
_MOST_ROWS = 20
_MOST_DRAWN = 1000
_COLOURS = {"running": "green", "succeeded": "green", "failed": "red", "cancelled": "red"}


def job(info: Job, points: Sequence[MetricPoint] = ()) -> str:
    """What it is and how it stands, with its loss if there are points."""
    facts = {
        "job": info.id,
        "name": info.name,
        "status": info.status + (f": {info.message}" if info.message else ""),
        "step": str(info.step) if info.total_steps is None else f"{info.step} of {info.total_steps}",
        "where": f"{info.where.provider} {info.where.gpu_type}" if info.where else "",
        "deadline": _moment(info.soft_deadline),
        "cost": f"${info.cost / 1e6:.4f}",
    }
    rows = [
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left{_colour(name, info.status)}'>{html.escape(text)}</td></tr>"
        for name, text in facts.items()
        if text
    ]
    return f"<table>{''.join(rows)}</table>{curve(points)}"


def points(found: Sequence[MetricPoint]) -> str:
    """The newest rows of what was measured, and the curve of the loss."""
    names = list(dict.fromkeys(name for one in found for name in one.values))
    shown = [
        [str(one.step), *(f"{one.values[name]:.6g}" if name in one.values else "" for name in names)]
        for one in found[-_MOST_ROWS:]
    ]
    before = len(found) - len(shown)
    above = f"<p>{before} points before these</p>" if before > 0 else ""
    return curve(found) + above + table(["step", *names], shown)


def sweep(sweep_id: str, rows: Sequence[SweepRow]) -> str:
    """A line for each job, with the parameters in which they differ and the last value of each metric."""
    differing = [name for name in _names(row.parameters for row in rows) if len({_text(row, name) for row in rows}) > 1]
    metrics = _names(row.metrics for row in rows)
    lines = [
        [
            row.job_id,
            row.status,
            *(_text(row, name) for name in differing),
            str(row.step),
            *(f"{row.metrics[name]:.6g}" if name in row.metrics else "" for name in metrics),
            f"${row.cost / 1e6:.4f}",
        ]
        for row in rows
    ]
    title = f"<p>{html.escape(sweep_id)}, {len(rows)} jobs</p>"
    return title + table(["job", "status", *differing, "step", *metrics, "cost"], lines)


def curve(found: Sequence[MetricPoint], name: str = "loss") -> str:
    """Its values by step as a drawing; nothing where there are fewer than two."""
    drawn = [(one.step, one.values[name]) for one in found if math.isfinite(one.values.get(name, math.nan))]
    if len(drawn) < 2:
        return ""
    stride = -(-len(drawn) // _MOST_DRAWN)
    drawn = [*drawn[:-1:stride], drawn[-1]]
    (first, last), low, high = (drawn[0][0], drawn[-1][0]), min(y for _, y in drawn), max(y for _, y in drawn)
    path = " ".join(
        f"{_place(step, first, last, _WIDTH):.1f},{_HEIGHT - _place(value, low, high, _HEIGHT):.1f}"
        for step, value in drawn
    )
    about = f"{name}, steps {first} to {last}: from {drawn[0][1]:.6g} to {drawn[-1][1]:.6g}, least {low:.6g}"
    return (
        f"<figure style='margin:0'><svg viewBox='0 0 {_WIDTH} {_HEIGHT}' width='{_WIDTH}' role='img' "
        f"aria-label='{html.escape(about)}'><polyline fill='none' stroke='currentColor' stroke-width='1.5' "
        f"points='{path}'/></svg><figcaption>{html.escape(about)}</figcaption></figure>"
    )


def live() -> Callable[[Job], None] | None:
    """In a notebook, what shows a job in the place where it showed it before; elsewhere None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import HTML, display

    shown: list[Any] = []

    def show(info: Job) -> None:
        drawn = HTML(job(info))
        if shown:
            shown[0].update(drawn)
        else:
            shown.append(display(drawn, display_id=True))

    return show


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(one)}</th>" for one in headings)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _place(value: float, low: float, high: float, room: int) -> float:
    """`high - low` may be too large for a number."""
    share = 0.5 if high <= low else (value / 2 - low / 2) / (high / 2 - low / 2)
    return _PAD + share * (room - 2 * _PAD)


def _names(found: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for one in found for name in one))


def _text(row: SweepRow, name: str) -> str:
    return str(row.parameters.get(name, ""))


def _colour(name: str, status: str) -> str:
    return f";color:{_COLOURS[status]}" if name == "status" and status in _COLOURS else ""


def _moment(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M}"
