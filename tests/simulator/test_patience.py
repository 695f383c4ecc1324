"""Waiting for a cheaper place costs no deadline that a start on serverless would have kept."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from app.simulator.scenario import Task
from tests.simulator.scenarios import Seen, simulate
from tests.simulator.workloads import workload


def late(seen: Seen) -> set[str]:
    return {one.job_id for one in seen.result.outcomes if one.missed}


def waited(seen: Seen) -> set[str]:
    """Late jobs that began where they ended: what they lost, they lost before their start."""
    return {one.job_id for one in seen.result.outcomes if one.missed and not one.moves}


def tight(seed: int, *, error: float) -> tuple[Task, ...]:
    """Jobs of one GPU that are due soon after they could be done: from just so to twice their run time."""
    chance = random.Random(f"{seed} tight")
    return tuple(
        replace(
            one,
            gpus=1,
            predicted_ms=max(1, round(one.work_ms * chance.uniform(1 - error, 1 + error))),
            known_after_ms=0,
            deadline_ms=one.submit_ms
            + round(one.work_ms * chance.uniform(1.0, 2.0))
            + chance.choice((0, 4_001, 90_000)),
        )
        for one in workload(seed)
    )


@pytest.mark.parametrize("error", [0.0, 0.2])
def test_nobody_is_late_because_we_were_patient(error: float) -> None:
    """Whoever is late without a move would have been late on serverless as well: over forty workloads, with predictions
    that are right, and with those that are wrong by up to a fifth."""
    patient = 0
    for seed in range(40):
        tasks = tight(seed, error=error)
        ours, serverless = simulate("allpass", *tasks), simulate("modal-only", *tasks)
        assert waited(ours) <= late(serverless), f"workload {seed}"
        patient += sum("s" not in one.tiers for one in ours.result.outcomes)
    assert patient > 10, "nobody waited: the test says nothing"


def test_with_right_predictions_nobody_is_late_who_would_not_be_on_serverless() -> None:
    """Moves included."""
    for seed in range(40):
        tasks = tight(seed, error=0.0)
        assert late(simulate("allpass", *tasks)) <= late(simulate("modal-only", *tasks)), f"workload {seed}"
