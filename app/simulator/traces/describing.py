"""What a trace holds, in a few figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from app.simulator.traces.job import Trace


@dataclass(frozen=True, slots=True)
class Figures:
    """`load_gpus` is how many GPUs the jobs would keep busy on average from the first submission to the last."""

    name: str
    jobs: int
    left_out: int
    span_s: float
    mean_gap_s: float
    mean_duration_s: float
    p50_duration_s: float
    p90_duration_s: float
    p99_duration_s: float
    longest_duration_s: float
    share_within_10_min: float
    jobs_by_gpus: dict[int, int]
    gpu_hours: float
    load_gpus: float | None
    with_deadline: int
    users: int


def describe(trace: Trace) -> Figures:
    """The figures of a trace with at least one job. Quantiles are linear between the two nearest jobs."""
    durations = sorted(job.duration_s for job in trace.jobs)
    count = len(durations)
    gpu_seconds = sum(job.gpu_seconds for job in trace.jobs)
    span_s = trace.span_s
    return Figures(
        name=trace.name,
        jobs=count,
        left_out=trace.left_out,
        span_s=span_s,
        mean_gap_s=span_s / max(count - 1, 1),
        mean_duration_s=sum(durations) / count,
        p50_duration_s=quantile(durations, 0.5),
        p90_duration_s=quantile(durations, 0.9),
        p99_duration_s=quantile(durations, 0.99),
        longest_duration_s=durations[-1],
        share_within_10_min=sum(one <= 600 for one in durations) / count,
        jobs_by_gpus=dict(sorted(Counter(job.gpus for job in trace.jobs).items())),
        gpu_hours=gpu_seconds / 3600,
        load_gpus=gpu_seconds / span_s if span_s > 0 else None,
        with_deadline=sum(job.deadline_s is not None for job in trace.jobs),
        users=len({job.user for job in trace.jobs if job.user}),
    )


def quantile(rising: list[float], share: float) -> float:
    """Of numbers in rising order, linear between neighbours."""
    place = (len(rising) - 1) * share
    below = int(place)
    above = min(below + 1, len(rising) - 1)
    return rising[below] + (rising[above] - rising[below]) * (place - below)
