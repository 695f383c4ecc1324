"""One HTML file with everything in it: no script, no network, light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from app.errors import InvalidInput
from app.simulator.report import charts
from app.simulator.report.series import patterns
from app.simulator.report.style import STYLE
from app.simulator.running import Played

FILE = "report.html"
COLUMNS = 8  # of policies beside each other: more would be too narrow at the width of a laptop
ROWS: tuple[tuple[str, str, str], ...] = (
    ("cost_usd", "cost of all jobs", "${:,.2f}"),
    ("mean_jct_s", "completion time, mean", "{:,.1f} s"),
    ("p50_jct_s", "completion time, median", "{:,.1f} s"),
    ("p90_jct_s", "completion time, 90th percentile", "{:,.1f} s"),
    ("p99_jct_s", "completion time, 99th percentile", "{:,.1f} s"),
    ("share_within_10_min", "done within 10 minutes", "{:.1%}"),
    ("mean_wait_s", "waiting, mean", "{:,.1f} s"),
    ("mean_queue_s", "of it queued and starting", "{:,.1f} s"),
    ("mean_move_s", "of it moving", "{:,.1f} s"),
    ("moves", "moves", "{:,.0f}"),
    ("share_serverless", "ended without leaving serverless", "{:.1%}"),
    ("deadline_misses", "deadlines missed", "{:,.1f}"),
    ("deadline_miss_share", "share of jobs that missed theirs", "{:.1%}"),
    ("mean_tardiness_s", "lateness, mean over all jobs", "{:,.1f} s"),
    ("peak_nodes", "most rented nodes at once", "{:,.0f}"),
    ("peak_gpus", "most rented GPUs at once", "{:,.0f}"),
)


def write_report(folder: Path, found: Mapping[str, Any], played: Sequence[Played], told: Mapping[str, str]) -> Path:
    """Writes `report.html` into the folder, which is made if it is not there; returns its path.

    `found` are the means over seeds, `played` the first seed of each policy with its jobs and its course.
    """
    path = make_folder(folder) / FILE
    path.write_text(page(found, played, told), encoding="utf-8")
    return path


def make_folder(folder: Path) -> Path:
    """Makes it if it is not there. Raises InvalidInput: better before a long simulation than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"--report {folder}: cannot be made ({error.strerror}); name another folder", param="report"
        ) from None
    return folder


def page(found: Mapping[str, Any], played: Sequence[Played], told: Mapping[str, str]) -> str:
    """The HTML text."""
    title = f"Simulation of {found['trace']}"
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>"
    )
    intro = f"{found['jobs']:,} jobs. Bars and tables are means over the seeds ({told['seeds']}), curves the first one."
    sections = [_section(*one) for one in _pictures(found, played)]
    return "".join(
        [
            head,
            patterns(),
            f"<h1>{escape(title)}</h1><p>{escape(intro)}</p>",
            f"<main>{''.join(sections)}</main>",
            f"<h2>Figures</h2>{_figures(found['policies'])}",
            f"<h2>Options</h2>{_options(told)}",
            "</body></html>\n",
        ]
    )


def _pictures(found: Mapping[str, Any], played: Sequence[Played]) -> list[tuple[str, str, str]]:
    """Title, what it shows, and the picture."""
    policies = found["policies"]
    courses = {one.name: one.course for one in played if one.course is not None}
    pictures = [
        ("Completion times", "The share of jobs that have ended so long after their submission.",
         charts.completion_times(played)),
        ("Waiting", "Seconds in which a job does not train, mean per job.", charts.waiting(policies)),
        ("Cost", "Dollars for all jobs, by provider.", charts.costs(policies)),
        ("Moves", "Where jobs began, and how many moved to a rented node; of the first seed.", charts.moves(played)),
    ]  # fmt: skip
    if not courses:
        return pictures
    pictures.append(("Queue", "Jobs without a place, over time.", charts.queue_over_time(courses)))
    budget = charts.budget_over_time(courses)
    if budget:
        pictures.append(("F", "How long jobs may stay on serverless, over time.", budget))
    for name, course in courses.items():
        pictures.append((f"Machines: {name}", "Rented at once, over time.", charts.machines_over_time(name, course)))
    pictures.append(
        (
            "Prices paid",
            "Per GPU-hour, when each machine was rented; policies that paid the same stand above each other.",
            charts.prices_paid(courses),
        )
    )
    return pictures


def _section(title: str, about: str, picture: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(about)}</p>{picture}</section>"


def _figures(policies: Mapping[str, Mapping[str, Any]]) -> str:
    """One table, or several where there are many policies."""
    names = list(policies)
    tables = -(-len(names) // COLUMNS)
    each = -(-len(names) // tables)
    return "".join(_table(policies, names[first : first + each]) for first in range(0, len(names), each))


def _table(policies: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> str:
    """The cells name their policy, too: on a phone they stand below each other, and the head is not shown."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    shown = [(label, [form.format(policies[name][key]) for name in names]) for key, label, form in ROWS]
    for provider in _providers(policies):
        shown.append((f"of the cost, {provider}", [_provider_cost(policies[name], provider) for name in names]))
        shown.append((f"a GPU-hour at {provider}", [_hour_price(policies[name], provider) for name in names]))
    rows = "".join(f"<tr><th>{escape(label)}</th>{_cells(names, texts)}</tr>" for label, texts in shown)
    return f'<table class="figures"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _cells(names: Sequence[str], texts: Sequence[str]) -> str:
    return "".join(f'<td data-policy="{escape(name)}">{text}</td>' for name, text in zip(names, texts, strict=True))


def _providers(policies: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return sorted({name for one in policies.values() for name in one["cost_by_provider_usd"]})


def _provider_cost(one: Mapping[str, Any], provider: str) -> str:
    return f"${one['cost_by_provider_usd'].get(provider, 0.0):,.2f}"


def _hour_price(one: Mapping[str, Any], provider: str) -> str:
    """What a billed GPU-hour cost on average."""
    usd, hours = one["cost_by_provider_usd"].get(provider, 0.0), one["gpu_hours_by_provider"].get(provider, 0.0)
    return f"${usd / hours:.2f}" if hours else "-"


def _options(told: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in told.items())
    return f'<table class="options"><tbody>{rows}</tbody></table>'
