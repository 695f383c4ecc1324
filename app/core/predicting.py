"""How long a job's code runs in all: from its own steps, else from what jobs of its app have taken, else from what
it states of its training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from app.core.gpu_speeds import SAME, GpuSpeeds, time_permille
from app.core.model.snapshot import JobView, RunView
from app.core.model.times import believable_ms, believable_step_ms


@dataclass(frozen=True, slots=True)
class StatedTimes:
    """What is known of how long a job takes on the type of GPU that `speeds` tells, and on others."""

    speeds: GpuSpeeds
    step_ms: float | None = None
    run_ms: float | None = None

    def on(self, gpu_type: str | None, gpus: int, *, trains_there: bool) -> StatedTimes:
        """As long as it takes on so many GPUs of this type; None: of the type that they are told of. Where nobody knows
        which that is, they are taken as they are."""
        speeds, share = _seen_from(self.speeds, gpu_type, gpus > 1, trains_there)
        step_ms = None if self.step_ms is None else self.step_ms * share
        return StatedTimes(speeds, step_ms, None if self.run_ms is None else self.run_ms * share)


@lru_cache(maxsize=16_384)
def _seen_from(speeds: GpuSpeeds, gpu_type: str | None, linked: bool, trains_there: bool) -> tuple[GpuSpeeds, float]:
    """Where there are several GPUs, they wait for each other."""
    among = speeds if linked == speeds.linked else replace(speeds, linked=linked)
    if gpu_type is None:
        return among, 1.0
    share = time_permille(among, gpu_type) / SAME if among.gpu_type else 1.0
    return among.seen_from(gpu_type, trains_there=trains_there), share


def with_prediction(
    job: JobView,
    run: RunView | None,
    now_ms: int,
    *,
    step_ms: float | None,
    usual_run_ms: float | None,
    speeds: GpuSpeeds | None = None,
) -> JobView:
    """The view with `total_run_ms` and `done_ms`, so that what is left is the steps left times the time of a step; and
    with that time in its recipe, if it has one. All of them are within what is believable.

    `step_ms`: measured by the present run, else usual for the app, else predicted for the training that the job
    states; `usual_run_ms`: of the app's jobs that said nothing about steps. `job.done_ms`: what its code ran so far in
    runs that are over. Without any of it, what is left is taken to be as much as has been. `speeds`: on which GPUs
    that is.
    """
    step_ms = None if step_ms is None else believable_step_ms(step_ms)
    if job.recipe is not None and step_ms is not None:
        job = replace(job, recipe=replace(job.recipe, step_ms=((job.resources.gpus_min, step_ms),)))
    if job.total_steps is None or step_ms is None:
        total_ms, done_ms = None if usual_run_ms is None else believable_ms(usual_run_ms), job.done_ms
    else:
        total_ms, running_ms = believable_ms(job.total_steps * step_ms), 0
        step = job.checkpoint_step or 0
        if run is not None and run.trains_since_ms is not None:
            step, running_ms = job.step, max(0, now_ms - run.trains_since_ms)
        done_ms = believable_ms(step * step_ms) - running_ms
    if total_ms is None and speeds == job.speeds:
        return job
    total_ms = job.total_run_ms if total_ms is None else total_ms
    return replace(job, total_run_ms=total_ms, done_ms=done_ms, speeds=speeds)
