"""Jobs of a pool: of a trace, some of them locked to where they begin."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from app.simulator.traces.job import TraceJob

HOST_GPUS = 8


@dataclass(frozen=True, slots=True)
class PoolJob:
    """A job of `parts` machines, each with `part_gpus` GPUs of a host of its own. `locked`: it is never moved."""

    job_id: str
    submit_ms: int
    work_ms: int
    part_gpus: int
    parts: int = 1
    locked: bool = False

    @property
    def gpus(self) -> int:
        return self.part_gpus * self.parts


def pool_jobs(jobs: Iterable[TraceJob], locked_share: float, seed: int) -> list[PoolJob]:
    """Each job that runs at all is locked with this probability. One of more GPUs than a host has is as many whole
    hosts as it takes."""
    chance = Random(seed)  # noqa: S311 - a simulation
    made = []
    for job in jobs:
        locked = chance.random() < locked_share
        parts = -(-job.gpus // HOST_GPUS)
        part_gpus = job.gpus if parts == 1 else HOST_GPUS
        if job.duration_s > 0:
            submit_ms, work_ms = round(job.submit_s * 1000), max(1, round(job.duration_s * 1000))
            made.append(PoolJob(job.job_id, submit_ms, work_ms, part_gpus, parts, locked))
    return made
