"""Workloads drawn from a seed: bursts and gaps, short and long jobs, some of several GPUs, some of unknown length."""

from __future__ import annotations

import random

from app.core.model.node import Tier
from app.simulator.scenario import SimulatedMarket, Task
from tests.simulator.scenarios import market

_WORK_S = (5, 30, 120, 400, 1_200, 5_000)


def workload(seed: int, jobs: int = 14, *, gpus: tuple[int, ...] = (1, 1, 1, 2)) -> tuple[Task, ...]:
    """Jobs of about an hour: only whole numbers are drawn, so that every machine draws the same."""
    chance = random.Random(f"{seed} workload")
    submit_ms, tasks = 0, []
    for index in range(jobs):
        submit_ms += chance.choice((0, 5_000, 60_000, 600_000))
        work_ms = chance.choice(_WORK_S) * 1_000 + chance.randrange(1_000)
        predicted_ms = max(1, work_ms * chance.randrange(80, 121) // 100)
        tasks.append(
            Task(
                job_id=f"job_{index:02d}",
                submit_ms=submit_ms,
                work_ms=work_ms,
                gpus=chance.choice(gpus),
                deadline_ms=submit_ms + work_ms * chance.randrange(1, 10),
                predicted_ms=chance.choice((predicted_ms, predicted_ms, None)),
                known_after_ms=chance.choice((0, 0, 60_000)),
                kind=chance.choice(("batch", "batch", "interactive")),
            )
        )
    return tuple(tasks)


def workload_for(name: str, seed: int) -> tuple[Task, ...]:
    """For the literal algorithms, whose nodes are all alike, no job of several GPUs: one might wait for ever."""
    return workload(seed, gpus=(1,)) if name == "allpass-paper" else workload(seed)


def markets(seed: int) -> SimulatedMarket:
    """By turns: all of it; machines that start at random and fail; few machines."""
    kinds = (
        market(),
        market(random_startups=True, mean_life_s={Tier.MARKETPLACE: 4_000.0, Tier.SERVERLESS: 8_000.0}),
        market(limits={Tier.MARKETPLACE: 2, Tier.SERVERLESS: 3}),
    )
    return kinds[seed % len(kinds)]
