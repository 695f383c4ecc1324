"""How long a job's code runs in all: from its own steps, else from what jobs of its app have taken, else from what
it states of its training."""

from __future__ import annotations

from dataclasses import replace

from app.core.model.snapshot import JobView, RunView


def with_prediction(
    job: JobView, run: RunView | None, now_ms: int, *, step_ms: float | None, usual_run_ms: float | None
) -> JobView:
    """The view with `total_run_ms` and `done_ms`, so that what is left is the steps left times the time of a step.

    `step_ms`: measured by the present run, else usual for the app, else predicted for the training that the job
    states; `usual_run_ms`: of the app's jobs that said
    nothing about steps. `job.done_ms`: what its code ran so far in runs that are over. Without any of it, the view
    is left as it is: what is left is then as much as has been.
    """
    if job.total_steps is None or step_ms is None:
        return job if usual_run_ms is None else replace(job, total_run_ms=round(usual_run_ms))
    total_ms, running_ms = round(job.total_steps * step_ms), 0
    step = job.checkpoint_step or 0
    if run is not None and run.trains_since_ms is not None:
        step, running_ms = job.step, max(0, now_ms - run.trains_since_ms)
    return replace(job, total_run_ms=total_ms, done_ms=round(step * step_ms) - running_ms)
