"""A small trace from a large one: so many jobs, made shorter and moved closer together."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from app.errors import InvalidInput
from app.simulator.traces.job import Trace, TraceJob

Mode = Literal["contiguous", "random"]
MODES: tuple[Mode, ...] = ("contiguous", "random")


@dataclass(frozen=True, slots=True)
class SampleScaling:
    """How many jobs, and what durations and gaps between submissions are divided by."""

    jobs: int
    durations_by: float
    gaps_by: float


RECIPES = {"section-5.1": SampleScaling(jobs=200, durations_by=5, gaps_by=15)}  # of the Allpass paper
DEFAULT_SEED = 20230301


def sample(
    trace: Trace, recipe: SampleScaling, *, mode: Mode = "contiguous", seed: int = DEFAULT_SEED, start_s: float = 0.0
) -> Trace:
    """Takes `recipe.jobs` jobs that run for any time at all, and scales them.

    `contiguous` takes the first ones that are submitted at `start_s` or later. `random` draws them from all of the
    trace: the same seed draws the same jobs. The first submission is at 0; deadlines are scaled like durations; times
    are rounded to milliseconds.
    """
    if recipe.jobs < 1:
        raise InvalidInput(f"jobs: {recipe.jobs} is below 1; give how many jobs to take", param="jobs")
    for name, value in (("durations_by", recipe.durations_by), ("gaps_by", recipe.gaps_by)):
        if not value > 0:
            raise InvalidInput(f"{name}: {value:g} is not above 0; give what to divide by", param=name)
    usable = [job for job in trace.jobs if job.duration_s > 0]
    if mode == "contiguous":
        usable = [job for job in usable if job.submit_s >= start_s]
    if len(usable) < recipe.jobs:
        after = f" from {start_s:g} s on" if mode == "contiguous" and start_s else ""
        raise InvalidInput(
            f"jobs: {trace.name} has {len(usable)} jobs that run for any time{after}, fewer than {recipe.jobs}; "
            "take fewer, or a larger trace",
            param="jobs",
        )
    if mode == "random":
        places = sorted(random.Random(seed).sample(range(len(usable)), recipe.jobs))  # noqa: S311 - not for secrets
        chosen = [usable[place] for place in places]
    else:
        chosen = usable[: recipe.jobs]
    first_s = chosen[0].submit_s
    return Trace.of(f"{trace.name}-{mode}", [_scaled(job, first_s, recipe) for job in chosen])


def _scaled(job: TraceJob, first_s: float, recipe: SampleScaling) -> TraceJob:
    return replace(
        job,
        submit_s=round((job.submit_s - first_s) / recipe.gaps_by, 3),
        duration_s=round(job.duration_s / recipe.durations_by, 3),
        deadline_s=None if job.deadline_s is None else round(job.deadline_s / recipe.durations_by, 3),
    )
