"""How long a job has still to run, by what is known of it."""

from __future__ import annotations

from app.core.model.snapshot import JobView, RunView

LEAST_MS = 1_000


def ran_ms(job: JobView, run: RunView | None, now_ms: int) -> int:
    """How long its code has run so far; what was lost with a machine counts as not run."""
    if run is None or run.trains_since_ms is None:
        return job.done_ms
    return job.done_ms + max(0, now_ms - run.trains_since_ms)


def remaining_ms(job: JobView, run: RunView | None, now_ms: int) -> int:
    """Time of code left, at least a second: a job that outlives its prediction may end at any moment.

    Without a prediction, what is left is as much as has been: the median of the residual life where run times have
    the tail that Unix processes and training jobs show, P(life > t) ~ 1/t (Harchol-Balter and Downey, "Exploiting
    Process Lifetime Distributions for Dynamic Load Balancing", 1997).
    """
    ran = ran_ms(job, run, now_ms)
    left = ran if job.total_run_ms is None else job.total_run_ms - ran
    return max(LEAST_MS, left)
