"""How fast a job makes progress, and when it will so be done. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.model.snapshot import JobView


@dataclass(frozen=True, slots=True)
class Pace:
    """The first and the last of the points that a run measured lately. Times are of one clock, the machine's."""

    first_step: int
    first_ms: int
    last_step: int
    last_ms: int

    def step_ms(self) -> float | None:
        """Milliseconds per step; None when the points do not tell."""
        steps, elapsed_ms = self.last_step - self.first_step, self.last_ms - self.first_ms
        return elapsed_ms / steps if steps > 0 and elapsed_ms > 0 else None


def estimate_finish_ms(now_ms: int, step: int, total_steps: int | None, pace: Pace | None) -> int | None:
    """When the last step will be done: steps left times the measured time of a step, from now.

    None when the number of steps is not known, or the present run has not measured two of them yet.
    """
    step_ms = None if pace is None else pace.step_ms()
    if total_steps is None or step_ms is None or pace is None:
        return None
    left = max(0, total_steps - max(step, pace.last_step))
    return now_ms + round(left * step_ms)


def has_progress(job: JobView) -> bool:
    """Whether something that the job has learned is kept: it would be lost in training that begins anew."""
    return bool(job.done_ms) or job.checkpoint_step is not None
