"""What the paper simulates: every policy with 30 rented A100s at most, and with as many as it wants.

Every job takes one A100, its deadline is drawn from 1 to 10 times its run time, step counts and profiled step times
predict run times to +-20 %, a move takes 84 s, prices are flat (2.10, 0.74 and 1.29 dollars per GPU-hour).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.simulator.options import Options
from app.simulator.running import OnProgress, Played, SimulationRequest, Variant, play_all, summary
from app.simulator.traces.generating import generate
from app.simulator.traces.job import Trace
from app.simulator.traces.sampling import RECIPES, sample
from app.simulator.tuning import Tuning

LIMITED, UNLIMITED = "limited", "unlimited"
SETTINGS: Mapping[str, str] = {LIMITED: "30", UNLIMITED: "none"}  # rented A100s at once
STAND_INS = ("allpass-paper", "allpass-drain", "allpass")  # for what the paper calls Allpass
# The last is not in the paper: the simplest broker, beside which all others have to show what they are good for.
BASELINES = ("tiresias-l-np", "tiresias-l", "sjf-np", "sjf", "hpa", "hpa-conventional", "modal-only", "cheapest-first")
FIXED_S = (60, 600)


def fixed(seconds: int) -> str:
    """The name of the fixed threshold of so many seconds."""
    return f"fixed-threshold-{seconds}s"


def variants() -> list[Variant]:
    """All that is compared."""
    plain = [Variant.plain(name) for name in (*STAND_INS, *BASELINES)]
    return plain + [
        Variant(fixed(one), "fixed-threshold", Tuning().having("serverless_budget_ms", one * 1000)) for one in FIXED_S
    ]


@dataclass(frozen=True, slots=True)
class Reproduced:
    """Figures by setting and policy, means over the seeds; and the first seed of each, where it was asked for."""

    trace: Trace
    seeds: tuple[int, ...]
    figures: Mapping[str, Mapping[str, Mapping[str, Any]]]
    played: Mapping[str, list[Played]]


def usual_trace() -> Trace:
    """As the paper makes its own from Seren's log, here from generated jobs: 200, durations / 5, gaps / 15."""
    recipe = RECIPES["section-5.1"]
    return sample(generate("seren", recipe.jobs, 0), recipe)


def reproduce(
    trace: Trace, seeds: Iterable[int], progress: OnProgress | None = None, *, keeps: bool = False
) -> Reproduced:
    """Plays everything. `keeps`: the jobs and the course of the first seed too."""
    numbers = tuple(seeds)
    questions = [
        SimulationRequest(
            trace,
            variant,
            options(setting),
            seed,
            keeps_jobs=keeps and place == 0,
            keeps_course=keeps and place == 0,
            tells=progress is not None,
        )
        for setting in SETTINGS
        for variant in variants()
        for place, seed in enumerate(numbers)
    ]
    played = play_all(questions, progress)
    each = len(questions) // len(SETTINGS)
    parts = {setting: played[place * each : (place + 1) * each] for place, setting in enumerate(SETTINGS)}
    return Reproduced(
        trace,
        numbers,
        {setting: summary(trace, part)["policies"] for setting, part in parts.items()},
        {setting: [one for one in part if one.outcomes] for setting, part in parts.items()},
    )


def options(setting: str) -> Options:
    """Those of a setting."""
    return replace(Options(), serverful_limit=30 if setting == LIMITED else None)
