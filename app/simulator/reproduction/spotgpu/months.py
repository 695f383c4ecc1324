"""Two months of a pool whose hosts are vacated as they are live, and of the same pool without that."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from app.simulator.classes.jobs import nodes_for
from app.simulator.defragmenting.figures import PoolFigures
from app.simulator.defragmenting.jobs import pool_jobs
from app.simulator.defragmenting.playing import PoolSetting, play_pool
from app.simulator.defragmenting.vacating import Looks, Schedule
from app.simulator.traces.figures import CLUSTERS, DAY_S
from app.simulator.traces.generating import generate

POOL_SHARE = 0.5  # of the submissions that Philly had in as many days: half its pool, and half the time to play
POOL_LOAD, POOL_LOCKED = 0.68, 0.4  # of its GPUs are asked for, and of its jobs are never moved: the paper's
_NOT_COUNTED = 8  # the first of so many parts of the time: the pool is empty when it begins


@dataclass(frozen=True, slots=True)
class MonthsQuestion:
    """Jobs by Philly's published distributions, in a pool that is looked at so."""

    days: int
    looks: Looks
    seed: int

    def answer(self) -> PoolFigures:
        drawn = generate("philly", round(self.days * DAY_S / CLUSTERS["philly"].mean_gap_s), self.seed)
        chance = Random(self.seed)  # noqa: S311 - a simulation
        jobs = [job for job in drawn.jobs if chance.random() < POOL_SHARE and job.duration_s > 0]
        setting = PoolSetting(
            hosts=nodes_for(jobs, POOL_LOAD),
            schedule=Schedule(self.looks),
            counts_from_ms=self.days * DAY_S * 1000 // _NOT_COUNTED,
        )
        return play_pool(pool_jobs(jobs, POOL_LOCKED, self.seed), setting)
