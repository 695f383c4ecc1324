"""The figures of simulations as a table for people, and in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from allpass.cli.screen import Column
from app.simulator.bound import CLAIRVOYANT

Figures = Mapping[str, Any]
_CHANCE = 0.05
COLUMNS = tuple(
    Column(heading, right=True)
    for heading in ("COST", "MEAN", "MEDIAN", "P90", "WAIT", "MOVING", "LATE", "STAYED", "NODES")
)
LEGEND = """\
COST     of all {jobs} jobs, in dollars     MEAN, MEDIAN, P90   from submission to end
WAIT     not training, on average; MOVING of it: saving and loading on another machine
LATE     ended after its deadline          STAYED   ended without ever leaving serverless
NODES    rented at once, at most; serverless machines are not counted"""
MERGE_COLUMNS = (Column("FAIR", right=True), Column("MERGED", right=True))
MERGE_LEGEND = """\
FAIR     completion over the run time alone, mean   MERGED  jobs that ended merged with another"""
AGAINST_COLUMNS = tuple(Column(heading, right=True) for heading in ("COST", "MEAN", "WAIT", "LATE"))
AGAINST_LEGEND = """\
{first} less each other one, seed by seed: the mean over {seeds} seeds, +- half of its 95 % interval.
~ may be chance: p is above 0.05 in a paired t-test"""
REPLAY_COLUMNS = tuple(
    Column(heading, right=True)
    for heading in ("MEAN", "MEDIAN", "P90", "P99", "IN 10 MIN", "QUEUED", "PREEMPTIONS", "NEVER END")
)


def cells_of(figures: Figures) -> list[str]:
    """One policy's, under COLUMNS."""
    return [
        money(figures["cost_usd"]),
        time(figures["mean_jct_s"]),
        time(figures["p50_jct_s"]),
        time(figures["p90_jct_s"]),
        time(figures["mean_wait_s"]),
        time(figures["mean_move_s"]),
        share(figures["deadline_miss_share"]),
        share(figures["share_serverless"]),
        f"{figures['peak_nodes']:.0f}",
    ]


def merge_cells_of(figures: Figures) -> list[str]:
    """One policy's, under MERGE_COLUMNS."""
    return [f"{figures['mean_fairness']:.2f}", f"{figures['merged']:.0f}"]


def against_cells_of(compared: Mapping[str, Mapping[str, float]]) -> list[str]:
    """How the first policy differs from one, under AGAINST_COLUMNS."""
    return [
        _difference(compared["cost_usd"], money),
        _difference(compared["mean_jct_s"], time),
        _difference(compared["mean_wait_s"], time),
        _difference(compared["deadline_miss_share"], share),
    ]


def _difference(one: Mapping[str, float], words: Callable[[float], str]) -> str:
    if one["low"] == one["high"] == 0:
        return "the same"
    sign = "-" if one["mean"] < 0 else "+"
    sure = "" if one["p_value"] <= _CHANCE else " ~"
    return f"{sign}{words(abs(one['mean']))} +-{words((one['high'] - one['low']) / 2)}{sure}"


def replay_cells_of(figures: Figures) -> list[str]:
    """One schedule's, under REPLAY_COLUMNS."""
    times = [figures[name] for name in ("mean_jct_s", "p50_jct_s", "p90_jct_s", "p99_jct_s")]
    within = figures["share_within_10_min"]
    return [
        *(_or_dash(one) for one in times),
        "-" if within is None else share(within),
        _or_dash(figures["mean_queue_s"]),
        f"{figures['preemptions']:,}",
        f"{figures['unfinished']:,}",
    ]


def sentence(policies: Mapping[str, Figures], jobs: int) -> str:
    """The first policy against the others, in words."""
    (name, first), *others = policies.items()
    moves = round(first.get("moves", 0))
    moved = f" ({moves:,} move{'' if moves == 1 else 's'})" if moves else ""
    cost = f"{name} costs {money(first['cost_usd'])} for all {jobs:,} jobs{moved}"
    if not others:
        return f"{cost}; they take {time(first['mean_jct_s'])} on average, {time(first['mean_wait_s'])} of it waiting."
    told = ", ".join(_against(other, first, figures, "cost_usd", ("less", "more")) for other, figures in others)
    ends = ", ".join(
        _against(other, first, figures, "mean_jct_s", ("sooner", "later"))
        for other, figures in others
        if other != CLAIRVOYANT
    )
    mean = f"its jobs end after {time(first['mean_jct_s'])} on average"
    return f"{cost}: {told}; {mean}{': ' + ends if ends else ''}."


def _against(other: str, first: Figures, figures: Figures, key: str, words: tuple[str, str]) -> str:
    mine, theirs = first[key], figures[key]
    name = f"the bound {other}" if other == CLAIRVOYANT else other
    if not theirs or abs(mine / theirs - 1) < 0.0005:
        return f"the same as {name}"
    ratio = mine / theirs
    by = f"{ratio:.1f} times" if ratio >= 2 else f"{abs(ratio - 1):.1%}"
    return f"{by} that of {name}" if ratio >= 2 else f"{by} {words[ratio > 1]} than {name}"


def money(usd: float) -> str:
    """With cents below $10,000."""
    return f"${usd:,.2f}" if usd < 10_000 else f"${usd:,.0f}"


def time(seconds: float) -> str:
    """Two units at most: 3.9s, 46s, 3m 20s, 1h 21m, 2d 4h."""
    if seconds < 9.95:
        return f"{seconds:.1f}s" if seconds else "0s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 172_800:
        return f"{whole // 3600}h {whole // 60 % 60:02d}m"
    return f"{whole // 86_400}d {whole // 3600 % 24:02d}h"


def share(value: float) -> str:
    return f"{value:.1%}"


def _or_dash(seconds: float | None) -> str:
    return "-" if seconds is None else time(seconds)


def heading(policy_columns: Sequence[Column]) -> list[Column]:
    """The columns of a table, the policy's first."""
    return [Column("POLICY", flexible=True), *policy_columns]
