"""A reproduction as an object for programs, and as rows for tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from app.simulator.reproduction.claims import ORDERS, READINGS, Compared, PolicyRanking, compare
from app.simulator.reproduction.experiments import LIMITED, STAND_INS, UNLIMITED, Reproduced

TITLES = {LIMITED: "At most 30 rented A100s", UNLIMITED: "As many A100s as wanted"}
READINGS_TITLE = "What the abstract may mean, with as many A100s as wanted"
HEADINGS = ("CLAIM", "PAPER", *(name.upper() for name in STAND_INS))
BASELINE_HEADINGS = ("CLAIM", "PAPER", "HERE")
_FORMS = {"%": "{:.1f}%", "x": "{:.2f} x", "min": "{:.2f} min", "nodes": "{:.0f}", "$/h": "${:.2f}/h"}


def as_object(found: Reproduced) -> dict[str, Any]:
    """All of it, with stable names."""
    return {
        "trace": found.trace.name,
        "jobs": len(found.trace.jobs),
        "seeds": list(found.seeds),
        "claims": [_as_words(one) for one in compare(found)],
        "abstract": [_as_words(one) for one in compare(found, READINGS)],
        "orders": [
            {
                "about": order.about,
                "setting": order.setting,
                "paper": list(order.paper),
                "ours": list(order.ours(found.figures[order.setting])),
                "differs": {name: order.differs(found.figures[order.setting], name) for name in STAND_INS},
            }
            for order in ORDERS
        ],
        "settings": {setting: dict(figures) for setting, figures in found.figures.items()},
    }


def _as_words(one: Compared) -> dict[str, Any]:
    claim = one.claim
    paper = None if claim.paper is None else round(claim.paper, 4)
    return {
        "about": claim.about,
        "setting": claim.setting,
        "unit": claim.unit,
        "paper": paper,
        "ours": dict(one.ours),
    }


def reading_rows_of(found: Reproduced) -> list[list[str]]:
    """What the abstract may mean, under HEADINGS."""
    return [_row(one) for one in compare(found, READINGS)]


def rows_of(found: Reproduced, setting: str) -> list[list[str]]:
    """The claims of a setting that speak of Allpass, under HEADINGS."""
    return [_row(one) for one in compare(found) if one.claim.setting == setting and not one.claim.baseline]


def baseline_rows_of(found: Reproduced, setting: str) -> list[list[str]]:
    """Those that speak of another policy alone, under BASELINE_HEADINGS."""
    return [_row(one) for one in compare(found) if one.claim.setting == setting and one.claim.baseline]


def _row(one: Compared) -> list[str]:
    form = _FORMS[one.claim.unit]
    paper = "-" if one.claim.paper is None else form.format(one.claim.paper)
    return [one.claim.about, paper, *(form.format(value) for value in one.ours.values())]


def order_lines(found: Reproduced) -> Iterator[str]:
    """Each order in the paper and here, and whose place differs."""
    for order in ORDERS:
        figures = found.figures[order.setting]
        yield f"{order.about}, {_within(order.setting)}, best first"
        yield f"  paper   {', '.join(order.paper)}"
        yield f"  here    {_with_ties(order, figures)}"


def _within(setting: str) -> str:
    return TITLES[setting][0].lower() + TITLES[setting][1:]


def _with_ties(order: PolicyRanking, figures: Any) -> str:
    names = order.ours(figures)
    told = names[0]
    for before, name in pairwise(names):
        same = figures[before][order.key] == figures[name][order.key]
        told += f"{' =' if same else ','} {name}"
    return told


def markdown(found: Reproduced) -> str:
    """Tables and orders as Markdown."""
    parts = [f"### {found.trace.name}: {len(found.trace.jobs)} jobs, means of {len(found.seeds)} seeds\n"]
    for setting, title in TITLES.items():
        parts.append(f"{title}:\n\n{_table(HEADINGS, rows_of(found, setting))}")
        baselines = baseline_rows_of(found, setting)
        if baselines:
            parts.append(_table(BASELINE_HEADINGS, baselines))
    parts.append(f"{READINGS_TITLE}:\n\n{_table(HEADINGS, reading_rows_of(found))}")
    orders = "\n".join(order_lines(found))
    parts.append(f"Order of the policies:\n\n```\n{orders}\n```\n")
    return "\n".join(parts)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = [one.lower() for one in headings]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
