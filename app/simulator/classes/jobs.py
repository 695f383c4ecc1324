"""Jobs of a trace in two classes, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from app.simulator.traces.job import TraceJob

NODE_GPUS = 8
EQUAL_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class TwoClassJob:
    """A job of `parts` parts, each with `part_gpus` GPUs of one node. `saves`: a save that is asked for is complete
    within the grace."""

    job_id: str
    submit_ms: int
    work_ms: int
    part_gpus: int
    parts: int
    spot: bool
    saves: bool

    @property
    def gpus(self) -> int:
        return self.part_gpus * self.parts


def two_classes(jobs: Iterable[TraceJob], spot_share: float, saving_share: float, seed: int) -> list[TwoClassJob]:
    """Each job is spot, and saves within the grace, with these probabilities. The same seed makes the same jobs spot
    whatever the share that saves, and whoever saves at a smaller share does at a larger one.

    A job of more GPUs than a node has is as many whole nodes as it takes.
    """
    chance = Random(seed)  # noqa: S311 - a simulation
    made = []
    for job in jobs:
        spot, saves = chance.random() < spot_share, chance.random() < saving_share
        parts = -(-job.gpus // NODE_GPUS)
        part_gpus = job.gpus if parts == 1 else NODE_GPUS
        submit_ms, work_ms = round(job.submit_s * 1000), max(1, round(job.duration_s * 1000))
        made.append(TwoClassJob(job.job_id, submit_ms, work_ms, part_gpus, parts, spot, saves))
    return made


def equal_sizes(jobs: Iterable[TraceJob], seed: int) -> list[TraceJob]:
    """The same jobs with 1, 2, 4 or 8 GPUs, each size with about a quarter of the GPU time."""
    chance = Random(seed)  # noqa: S311 - a simulation
    weights = [1 / size for size in EQUAL_SIZES]
    return [replace(job, gpus=chance.choices(EQUAL_SIZES, weights)[0]) for job in jobs]


def nodes_for(jobs: Iterable[TraceJob], load: float) -> int:
    """How many nodes make the demand so large a part of the pool. The demand: GPUs that are busy on average between the
    first and the last submission where every job starts at once; what runs on after that does not count. At least as
    many as the largest job takes."""
    known = list(jobs)
    first_s, last_s = min(job.submit_s for job in known), max(job.submit_s for job in known)
    within = sum(job.gpus * min(job.duration_s, last_s - job.submit_s) for job in known)
    busy = within / max(last_s - first_s, 1.0)
    largest = max(-(-job.gpus // NODE_GPUS) for job in known)
    return max(round(busy / load / NODE_GPUS), largest, 1)
