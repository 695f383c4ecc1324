"""The pictures of a report: each takes what was simulated and gives an SVG with its legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from app.core.model.node import Tier
from app.simulator.dynamics import Dynamics
from app.simulator.report.svg import Bar, Drawing, Point, bars, linear, log_time, root_time, thinned
from app.simulator.running import Played

COLOURS = 8
PROVIDER_COLOURS = {"modal": "t0", "vast": "t1", "lambda": "t2"}
TIER_COLOURS = {Tier.SERVERLESS: "t0", Tier.MARKETPLACE: "t1", Tier.CONVENTIONAL: "t2"}
UNITS = ((86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
Figures = Mapping[str, Any]


def colour_of(place: int) -> str:
    """Of the policy at this place."""
    return f"c{place % COLOURS}"


def completion_times(played: Sequence[Played]) -> str:
    """The share of jobs that have ended so long after their submission."""
    times = {one.name: sorted(outcome.jct_ms / 1000 for outcome in one.outcomes) for one in played}
    every = [at for one in times.values() for at in one]
    x = log_time(min(every), max(every), "from submission to end")
    frame = Drawing("completion times", x, linear(0, 100, "% of the jobs"))
    for place, (name, rising) in enumerate(times.items()):
        count = len(rising)
        points = [(max(at, x.low), 100 * (number + 1) / count) for number, at in enumerate(rising)]
        frame.line([(x.low, 0.0), *thinned(points)], colour_of(place), name)
    return _legend(list(times)) + frame.text()


def waiting(policies: Mapping[str, Figures]) -> str:
    """Mean seconds that a job did not train: in the queue or starting, and moving."""
    rows = [
        Bar(
            name,
            (
                (max(0.0, one["mean_queue_s"]), "t0", f"queued and starting {one['mean_queue_s']:.1f} s"),
                (one["mean_move_s"], "t1", f"moving {one['mean_move_s']:.1f} s"),
            ),
            f"{max(0.0, one['mean_queue_s']):,.1f} + {one['mean_move_s']:,.1f} s",
        )
        for name, one in policies.items()
    ]
    return _keys([("t0", "queued and starting"), ("t1", "moving")]) + bars("waiting, mean per job", rows)


def costs(policies: Mapping[str, Figures]) -> str:
    """Dollars for all jobs, by provider."""
    names = sorted({name for one in policies.values() for name in one["cost_by_provider_usd"]}, key=_provider_rank)
    rows = [
        Bar(
            name,
            tuple(
                (usd, PROVIDER_COLOURS.get(provider, "t3"), f"{provider} ${usd:,.2f}")
                for provider in names
                if (usd := one["cost_by_provider_usd"].get(provider, 0.0)) > 0
            ),
            f"${one['cost_usd']:,.2f}",
        )
        for name, one in policies.items()
    ]
    return _keys([(PROVIDER_COLOURS.get(one, "t3"), one) for one in names]) + bars("cost of all jobs", rows)


def queue_over_time(courses: Mapping[str, Dynamics]) -> str:
    """Jobs without a place."""
    most = max((max(one.queue, default=0) for one in courses.values()), default=0)
    frame = _over_time("jobs in the queue", courses, most, "jobs without a place")
    for place, (name, one) in enumerate(courses.items()):
        frame.steps([*zip(one.times_s, map(float, one.queue), strict=True)], colour_of(place), name)
    return _legend(list(courses)) + frame.text()


def budget_over_time(courses: Mapping[str, Dynamics]) -> str:
    """F, for the policies that have one; empty if none has."""
    lines = {
        name: [(at, budget) for at, budget in zip(one.times_s, one.budget_s, strict=True) if budget is not None]
        for name, one in courses.items()
    }
    most = max((budget for line in lines.values() for _, budget in line), default=0.0)
    if not most:
        return ""
    frame = _over_time("F, the budget on serverless", courses, most, "F in seconds")
    for place, (name, line) in enumerate(lines.items()):
        frame.steps(line, colour_of(place), name)
    return _keys([(colour_of(place), name) for place, name in enumerate(lines) if lines[name]]) + frame.text()


def machines_over_time(name: str, course: Dynamics) -> str:
    """One policy's machines, the tiers on top of each other."""
    totals = [sum(together) for together in zip(*course.machines.values(), strict=True)]
    frame = _over_time(f"machines of {name}", {name: course}, max(totals, default=0), "machines")
    lower = [(at, 0.0) for at in _twice(course.times_s)[1:]]
    for tier, counts in course.machines.items():
        if not any(counts):
            continue
        heights = _twice(counts)[:-1]
        upper = [(at, base + height) for (at, base), height in zip(lower, heights, strict=True)]
        frame.area(lower, upper, TIER_COLOURS[tier], tier.value)
        lower = upper
    tiers = [(TIER_COLOURS[tier], tier.value) for tier, counts in course.machines.items() if any(counts)]
    return _keys(tiers) + frame.text()


def prices_paid(courses: Mapping[str, Dynamics]) -> str:
    """What a GPU-hour cost at the moment of each rent."""
    rents = {name: one.rents for name, one in courses.items() if one.rents}
    most = max((usd for one in rents.values() for _, _, usd in one), default=0.0)
    frame = _over_time("prices paid", courses, most * 1.1, "$ per GPU-hour")
    names = list(courses)
    for name, one in rents.items():
        frame.dots(_distinct(frame, [(at, usd) for at, _, usd in one]), colour_of(names.index(name)), name)
    return _keys([(colour_of(names.index(name)), name) for name in rents]) + frame.text()


def _over_time(title: str, courses: Mapping[str, Dynamics], most: float, label: str) -> Drawing:
    last_s = max((one.times_s[-1] for one in courses.values() if one.times_s), default=1.0)
    if any(one.bunched for one in courses.values()):
        return Drawing(title, root_time(last_s, "from the start (square roots)"), linear(0, most, label))
    unit_s, unit = next(((size, name) for size, name in UNITS if last_s > 3 * size), UNITS[-1])
    units = linear(0, last_s / unit_s, f"{unit} from the start")
    ticks = tuple((value * unit_s, told) for value, told in units.ticks)
    return Drawing(title, replace(units, high=last_s, ticks=ticks), linear(0, most, label))


def _twice(values: Sequence[Any]) -> list[Any]:
    """Each value two times: the corners of steps."""
    return [one for value in values for one in (value, value)]


def _distinct(frame: Drawing, points: Sequence[Point]) -> list[Point]:
    """Points that would cover each other are drawn once."""
    found: dict[tuple[int, int], Point] = {}
    for point in points:
        x, y = frame.at(point)
        found.setdefault((round(x), round(y)), point)
    return list(found.values())


def _legend(names: Sequence[str]) -> str:
    return _keys([(colour_of(place), name) for place, name in enumerate(names)])


def _keys(pairs: Sequence[tuple[str, str]]) -> str:
    return '<p class="keys">' + "".join(f'<span class="{one}">{escape(name)}</span>' for one, name in pairs) + "</p>"


def _provider_rank(name: str) -> tuple[int, str]:
    return list(PROVIDER_COLOURS).index(name) if name in PROVIDER_COLOURS else len(PROVIDER_COLOURS), name
