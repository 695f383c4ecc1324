"""How long a job's code runs in all: from its own steps, else from what jobs of its app have taken, else from what
it states of its training."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.core.gpu_speeds import SAME, GpuSpeeds, time_permille
from app.core.model.snapshot import JobView, RunView
from app.core.model.times import believable_ms, believable_step_ms


@dataclass(frozen=True, slots=True)
class StatedTimes:
    """What is known of how long a job takes on the type of GPU that `speeds` tells, and on others."""

    speeds: GpuSpeeds
    step_ms: float | None = None
    run_ms: float | None = None

    def among(self, gpus: int) -> StatedTimes:
        """Of a job on so many GPUs: where there are several, they wait for each other."""
        linked = gpus > 1
        return self if linked == self.speeds.linked else replace(self, speeds=replace(self.speeds, linked=linked))

    def on(self, gpu_type: str, *, trains_there: bool) -> StatedTimes:
        """As long as it takes on GPUs of this type. Where nobody knows of which the times are, they are taken as they
        are."""
        share = time_permille(self.speeds, gpu_type) / SAME if self.speeds.gpu_type else 1.0
        return StatedTimes(
            self.speeds.seen_from(gpu_type, trains_there=trains_there),
            None if self.step_ms is None else self.step_ms * share,
            None if self.run_ms is None else self.run_ms * share,
        )


def with_prediction(
    job: JobView, run: RunView | None, now_ms: int, *, step_ms: float | None, usual_run_ms: float | None
) -> JobView:
    """The view with `total_run_ms` and `done_ms`, so that what is left is the steps left times the time of a step; and
    with that time in its recipe, if it has one. All of them are within what is believable.

    `step_ms`: measured by the present run, else usual for the app, else predicted for the training that the job
    states; `usual_run_ms`: of the app's jobs that said
    nothing about steps. `job.done_ms`: what its code ran so far in runs that are over. Without any of it, the view
    is left as it is: what is left is then as much as has been.
    """
    step_ms = None if step_ms is None else believable_step_ms(step_ms)
    if job.recipe is not None and step_ms is not None:
        job = replace(job, recipe=replace(job.recipe, step_ms=((job.resources.gpus_min, step_ms),)))
    if job.total_steps is None or step_ms is None:
        return job if usual_run_ms is None else replace(job, total_run_ms=believable_ms(usual_run_ms))
    total_ms, running_ms = believable_ms(job.total_steps * step_ms), 0
    step = job.checkpoint_step or 0
    if run is not None and run.trains_since_ms is not None:
        step, running_ms = job.step, max(0, now_ms - run.trains_since_ms)
    return replace(job, total_run_ms=total_ms, done_ms=believable_ms(step * step_ms) - running_ms)
