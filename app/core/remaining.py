"""How long a job has still to run, by what is known of it."""

from __future__ import annotations

from app.core.model.snapshot import JobView, RunView

LEAST_MS = 1_000


def ran_ms(job: JobView, run: RunView | None, now_ms: int) -> int:
    """How long its code has run so far; what was lost with a machine counts as not run."""
    if run is None or run.trains_since_ms is None:
        return job.done_ms
    return job.done_ms + max(0, now_ms - run.trains_since_ms)


def unkept_ms(job: JobView, run: RunView | None, now_ms: int) -> int:
    """How much of what its code has run is lost when it leaves now: of a job that does not say that it saves when it is
    asked to, the steps since its newest checkpoint, in its time per step so far."""
    if job.saves or run is None or run.trains_since_ms is None:
        return 0
    ran = max(0, ran_ms(job, run, now_ms))
    kept = job.checkpoint_step or 0
    return ran * max(0, job.step - kept) // job.step if job.step else ran


def remaining_ms(job: JobView, run: RunView | None, now_ms: int) -> int:
    """Time of code left, at least a second: a job that outlives its prediction may end at any moment.

    Without a prediction, what is left is as much as has been: the median of the residual life where run times have
    the tail that Unix processes and training jobs show, P(life > t) ~ 1/t (Harchol-Balter and Downey, "Exploiting
    Process Lifetime Distributions for Dynamic Load Balancing", 1997).
    """
    ran = ran_ms(job, run, now_ms)
    left = ran if job.total_run_ms is None else job.total_run_ms - ran
    return max(LEAST_MS, left)
