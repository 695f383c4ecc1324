"""How long a job has still to run, by what is known of it."""

from __future__ import annotations

from app.core.model.snapshot import JobView, RunView

LEAST_MS = 1_000
OUTLIVED_NUMERATOR, OUTLIVED_DENOMINATOR = 5, 4  # of its prediction: a job that ran for longer outlives it


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


def outlived_at_ms(job: JobView, run: RunView | None, now_ms: int) -> int | None:
    """From when on the prediction of a job that trains no longer counts; None where there is none, or time alone does
    not bring it about."""
    if job.total_run_ms is None or run is None or run.trains_since_ms is None:
        return None
    counts_ms = job.total_run_ms * OUTLIVED_NUMERATOR // OUTLIVED_DENOMINATOR
    return now_ms + counts_ms + 1 - ran_ms(job, run, now_ms)


def predicted_ms(job: JobView, run: RunView | None, now_ms: int) -> int | None:
    """The predicted time of its code from first step to last, while that counts; None: nobody knows.

    A job that has run for a quarter longer than it was to run in all has shown that its prediction was about something
    else: an app's usual run is a minute of debugging, and this one is the night's. From then on as much is known of it
    as of a job without one, so that a wrong prediction costs no more than none.
    """
    total_ms = job.total_run_ms
    if total_ms is None or OUTLIVED_DENOMINATOR * ran_ms(job, run, now_ms) > OUTLIVED_NUMERATOR * total_ms:
        return None
    return total_ms


def remaining_ms(job: JobView, run: RunView | None, now_ms: int) -> int:
    """Time of code left, at least a second: a job that outlives its prediction by a little may end at any moment.

    Without a prediction, what is left is as much as has been: the median of the residual life where run times have
    the tail that Unix processes and training jobs show, P(life > t) ~ 1/t (Harchol-Balter and Downey, "Exploiting
    Process Lifetime Distributions for Dynamic Load Balancing", 1997).
    """
    ran, total_ms = ran_ms(job, run, now_ms), predicted_ms(job, run, now_ms)
    return max(LEAST_MS, ran if total_ms is None else total_ms - ran)
