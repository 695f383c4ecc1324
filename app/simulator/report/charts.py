"""The pictures of a report: each takes what was simulated and gives an SVG with its legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from app.core.model.node import Tier
from app.simulator.dynamics import Dynamics
from app.simulator.outcomes import JobOutcome
from app.simulator.report.series import fill_at, fill_keys, line_keys, mark_keys, series_at
from app.simulator.report.svg import Bar, Drawing, Point, bars, linear, log_time, root_time, thinned
from app.simulator.running import Played
from app.simulator.scenario import PROVIDERS

TIER_FILLS = {
    Tier.SERVERLESS: fill_at(0),
    Tier.MARKETPLACE: fill_at(1),
    Tier.CONVENTIONAL: fill_at(2),
    Tier.OWN: fill_at(4),  # that of moving, which no picture has beside machines
}
PROVIDER_FILLS = {provider: TIER_FILLS[tier] for tier, provider in PROVIDERS.items()}
QUEUED, MOVING = fill_at(3), fill_at(4)
DOT_PX = 4  # nearer ones would cover each other
LANE_PX, LANES_PX = 7, 28  # between dots of several policies at one price; and of all of them together
UNITS = ((86_400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))
Figures = Mapping[str, Any]


def completion_times(played: Sequence[Played]) -> str:
    """The share of jobs that have ended so long after their submission."""
    times = {one.name: sorted(outcome.jct_ms / 1000 for outcome in one.outcomes) for one in played}
    every = [at for one in times.values() for at in one]
    x = log_time(min(every), max(every), "from submission to end")
    frame = Drawing("completion times", x, linear(0, 100, "% of the jobs"))
    for place, (name, rising) in enumerate(times.items()):
        count = len(rising)
        points = [(max(at, x.low), 100 * (number + 1) / count) for number, at in enumerate(rising)]
        frame.line([(x.low, 0.0), *thinned(points)], series_at(place), name, place)
    return _legend(list(times)) + frame.text()


def waiting(policies: Mapping[str, Figures]) -> str:
    """Mean seconds that a job did not train: in the queue or starting, and moving."""
    rows = [
        Bar(
            name,
            (
                (max(0.0, one["mean_queue_s"]), QUEUED, f"queued and starting {one['mean_queue_s']:.1f} s"),
                (one["mean_move_s"], MOVING, f"moving {one['mean_move_s']:.1f} s"),
            ),
            f"{max(0.0, one['mean_queue_s']):,.1f} + {one['mean_move_s']:,.1f} s",
        )
        for name, one in policies.items()
    ]
    return fill_keys([(QUEUED, "queued and starting"), (MOVING, "moving")]) + bars("waiting, mean per job", rows)


def costs(policies: Mapping[str, Figures]) -> str:
    """Dollars for all jobs, by provider."""
    names = sorted({name for one in policies.values() for name in one["cost_by_provider_usd"]}, key=_provider_rank)
    rows = [
        Bar(
            name,
            tuple(
                (usd, PROVIDER_FILLS.get(provider, fill_at(3)), f"{provider} ${usd:,.2f}")
                for provider in names
                if (usd := one["cost_by_provider_usd"].get(provider, 0.0)) > 0
            ),
            f"${one['cost_usd']:,.2f}",
        )
        for name, one in policies.items()
    ]
    return fill_keys([(PROVIDER_FILLS.get(one, fill_at(3)), one) for one in names]) + bars("cost of all jobs", rows)


WAYS = (
    (TIER_FILLS[Tier.SERVERLESS], "stayed on serverless"),
    (MOVING, "began there and moved"),
    (TIER_FILLS[Tier.MARKETPLACE], "began on a rented node"),
    (fill_at(3), "began on a machine of one's own"),
)


def moves(played: Sequence[Played]) -> str:
    """Where jobs began, and how many left serverless for a node."""
    rows = []
    has_own = any(outcome.tiers.startswith("o") for one in played for outcome in one.outcomes)
    ways = WAYS if has_own else WAYS[:-1]
    for one in played:
        counts = [0] * len(ways)
        for outcome in one.outcomes:
            counts[way_of(outcome)] += 1
        parts = tuple((count, fill, f"{told} {count}") for count, (fill, told) in zip(counts, ways, strict=True))
        total = sum(outcome.moves for outcome in one.outcomes)
        rows.append(Bar(one.name, parts, f"{total:,} move{'' if total == 1 else 's'}"))
    return fill_keys(ways) + bars("ways of the jobs", rows)


def way_of(outcome: JobOutcome) -> int:
    """The place of what became of it in WAYS."""
    if set(outcome.tiers) == {"s"}:
        return 0
    if outcome.tiers.startswith("o"):
        return 3
    return 1 if outcome.tiers.startswith("s") else 2


def queue_over_time(courses: Mapping[str, Dynamics]) -> str:
    """Jobs without a place."""
    most = max((max(one.queue, default=0) for one in courses.values()), default=0)
    frame = _over_time("jobs in the queue", courses, most, "jobs without a place")
    for place, (name, one) in enumerate(courses.items()):
        frame.steps([*zip(one.times_s, map(float, one.queue), strict=True)], series_at(place), name, place)
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
        frame.steps(line, series_at(place), name, place)
    return line_keys([(series_at(place), name) for place, name in enumerate(lines) if lines[name]]) + frame.text()


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
        frame.area(lower, upper, TIER_FILLS[tier], tier.value)
        lower = upper
    tiers = [(TIER_FILLS[tier], tier.value) for tier, counts in course.machines.items() if any(counts)]
    return fill_keys(tiers) + frame.text()


def prices_paid(courses: Mapping[str, Dynamics]) -> str:
    """What a GPU-hour cost at the moment of each rent. Policies that paid the same stand above each other."""
    rents = {name: one.rents for name, one in courses.items() if one.rents}
    most = max((usd for one in rents.values() for _, _, usd in one), default=0.0)
    frame = _over_time("prices paid", courses, most * 1.2, "$ per GPU-hour")
    series = {name: series_at(place) for place, name in enumerate(courses) if name in rents}
    apart_px = min(LANE_PX, LANES_PX / max(1, len(rents) - 1))
    for lane, (name, one) in enumerate(rents.items()):
        frame.dots(_distinct(frame, [(at, usd) for at, _, usd in one]), series[name], name, apart_px * lane)
    return mark_keys([(one, name) for name, one in series.items()]) + frame.text()


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
        found.setdefault((round(x / DOT_PX), round(y / DOT_PX)), point)
    return list(found.values())


def _legend(names: Sequence[str]) -> str:
    return line_keys([(series_at(place), name) for place, name in enumerate(names)])


def _provider_rank(name: str) -> tuple[int, str]:
    return list(PROVIDER_FILLS).index(name) if name in PROVIDER_FILLS else len(PROVIDER_FILLS), name
