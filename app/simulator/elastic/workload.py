"""The jobs of section 5: a trace with kinds, labels, speeds, and jobs that are not elastic, all drawn by seed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.core.elastic.kinds import ElasticKind
from app.core.elastic.profile import SpeedProfile
from app.simulator.traces.job import Trace, TraceJob

INTERACTIVE_JOBS, INTERACTIVE_TIME = 0.2207, 0.0082  # shares of jobs and of GPU time (the paper's Philly window)
NOT_LINEAR = 176 / 20_940  # of the jobs (table 1)
SIZE_CLASSES = ((2, 4), (5, 8), (9, math.inf))  # of which 5 or 10 % are not elastic in the paper's experiment
SERIAL = 0.05  # the part of such a job's step that more GPUs do not shorten; ours, the paper has no figure


@dataclass(frozen=True, slots=True)
class MixedJob:
    """`duration_s` is at `request` GPUs. `is_interactive` is the truth, `label` what the scheduler is told."""

    submit_s: float
    duration_s: float
    request: int
    is_interactive: bool
    label: ElasticKind
    is_elastic: bool = True
    is_linear: bool = True
    shards: int | None = None

    def profile(self) -> SpeedProfile:
        """As it is before anything was measured."""
        return SpeedProfile(self.request, shards=self.shards, elastic=self.is_elastic)

    def rate(self, profile: SpeedProfile, gpus: int) -> float:
        """Its true speed, 1 at the request."""
        return self._step(profile, self.request) / self._step(profile, gpus) if gpus else 0.0

    def _step(self, profile: SpeedProfile, gpus: int) -> float:
        serial = 0.0 if self.is_linear else SERIAL
        return serial + (1 - serial) * profile.rounds(gpus)


@dataclass(frozen=True, slots=True)
class MixedOptions:
    """`mislabelled`: the share of batch jobs that are labelled interactive; `inelastic`: the share of each class of
    sizes; `shards_per_gpu`: logical shards for each requested GPU, None where any size splits the batch evenly."""

    seed: int = 0
    mislabelled: float = 0.0
    inelastic: float = 0.0
    shards_per_gpu: int | None = None


def mixed_jobs(trace: Trace, options: MixedOptions) -> list[MixedJob]:
    """In order of submission."""
    chance = random.Random(options.seed)  # noqa: S311 - a simulation
    short = _interactive(trace.jobs, chance)
    jobs = [
        MixedJob(
            one.submit_s,
            one.duration_s,
            one.gpus,
            place in short,
            ElasticKind.INTERACTIVE if place in short else ElasticKind.BATCH,
            is_linear=chance.random() >= NOT_LINEAR,
            shards=one.gpus * options.shards_per_gpu if options.shards_per_gpu else None,
        )
        for place, one in enumerate(trace.jobs)
    ]
    batch = [place for place, one in enumerate(jobs) if not one.is_interactive]
    for place in chance.sample(batch, round(options.mislabelled * len(batch))):
        jobs[place] = replace(jobs[place], label=ElasticKind.INTERACTIVE)
    for places in _by_size_class(jobs):
        for place in chance.sample(places, round(options.inelastic * len(places))):
            jobs[place] = replace(jobs[place], is_elastic=False)
    return jobs


def _interactive(jobs: Sequence[TraceJob], chance: random.Random) -> frozenset[int]:
    """A draw without replacement in which short jobs are likelier, as much so as gives the published share of GPU time;
    where even the shortest have more than that, these."""
    count = round(INTERACTIVE_JOBS * len(jobs))
    total = sum(one.gpu_seconds for one in jobs) * INTERACTIVE_TIME
    draws = [chance.expovariate(1.0) for _ in jobs]
    low, high = 0.0, 20.0
    for _ in range(40):
        slope = (low + high) / 2
        keys = [draw * one.gpu_seconds**slope for draw, one in zip(draws, jobs, strict=True)]
        chosen = sorted(range(len(jobs)), key=keys.__getitem__)[:count]
        if sum(jobs[place].gpu_seconds for place in chosen) > total:
            low = slope
        else:
            high = slope
    return frozenset(chosen)


def _by_size_class(jobs: Sequence[MixedJob]) -> list[list[int]]:
    """Places of the jobs in each class. A job on one GPU is in none: the paper makes none of them inelastic."""
    classes: list[list[int]] = [[] for _ in SIZE_CLASSES]
    for place, one in enumerate(jobs):
        for members, (least, most) in zip(classes, SIZE_CLASSES, strict=True):
            if least <= one.request <= most:
                members.append(place)
    return classes
