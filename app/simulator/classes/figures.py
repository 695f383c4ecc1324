"""What a play of two classes came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from app.simulator.classes.jobs import NODE_GPUS
from app.simulator.classes.running import TwoClassRun


@dataclass(frozen=True, slots=True)
class TwoClassFigures:
    """`completion_s`: of spot jobs, from submission to end, on average. `wasted`: of their GPU time, against what they
    need. Of guaranteed jobs: how long they wait for their first start on average, and the median and 90th percentile.
    """

    completion_s: float
    evictions: int
    wasted: float
    waiting_s: float
    waiting_median_s: float
    waiting_p90_s: float


def figures_of(runs: Sequence[TwoClassRun]) -> TwoClassFigures:
    """Of a play to the end with jobs of both classes."""
    spot = [run for run in runs if run.job.spot]
    waits = sorted(((run.first_start_ms or 0) - run.job.submit_ms) / 1000 for run in runs if not run.job.spot)
    return TwoClassFigures(
        completion_s=mean((run.end_ms or 0) - run.job.submit_ms for run in spot) / 1000,
        evictions=sum(run.evictions for run in spot),
        wasted=sum(run.wasted_gpu_ms for run in spot) / sum(run.job.gpus * run.job.work_ms for run in spot),
        waiting_s=mean(waits),
        waiting_median_s=median(waits),
        waiting_p90_s=waits[len(waits) * 9 // 10],
    )


def share_held(runs: Sequence[TwoClassRun], nodes: int) -> float:
    """Which part of the pool's GPUs jobs had, between the first and the last submission."""
    from_ms, until_ms = min(run.job.submit_ms for run in runs), max(run.job.submit_ms for run in runs)
    held = sum(
        run.job.gpus * max(0, min(one.until_ms, until_ms) - max(one.from_ms, from_ms))
        for run in runs
        for one in run.held
    )
    return held / max(1, nodes * NODE_GPUS * (until_ms - from_ms))
