"""How fast a job makes progress, and when it will so be done. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from app.core.merging.convergence import fit_curve, steps_left
from app.core.merging.estimates import SEEN_SHARE
from app.core.model.snapshot import JobView
from app.core.model.times import believable_ms, believable_step_ms


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
        return believable_step_ms(elapsed_ms / steps) if steps > 0 else None


class EndBy(StrEnum):
    """What tells a job's last step."""

    STEPS = "steps"  # it was said
    TARGET = "target"  # the curve of the target's metric gets there
    LOSS = "loss"  # the loss is flat from there on


@dataclass(frozen=True, slots=True)
class End:
    """The step with which a job is expected to end."""

    step: int
    by: EndBy


@dataclass(frozen=True, slots=True)
class Finish:
    """`at_ms`: when a job is expected to be done."""

    at_ms: int
    end: End


@dataclass(frozen=True, slots=True)
class Target:
    """The value of a metric with which a job ends."""

    value: float
    goal: str  # min or max


def believed_total(stated: int | None, told: int | None, step: int) -> int | None:
    """The number of steps of a job that has done `step`, of what its template states and what its code tells.

    The template's word counts until a step beyond it shows that it is wrong; of the code's, one that is passed counts
    for nothing. Where nothing else is known a template's stays.
    """
    if stated is not None and (stated >= step or told is None or told < step):
        return stated
    return told if told is not None and told >= step else None


def expected_end(
    total_steps: int | None, seen: Sequence[tuple[float, float]], target: Target | None = None
) -> End | None:
    """The last step: as it was said, or sooner by the target; else where the loss is flat (Ymir, section 4.2).

    `seen`: steps with the target's metric, or without a target with the loss, in order. What its curve says is believed
    once half of that has been seen, as for merges, and not any more when it is past. None: nobody knows.
    """
    end = _by_curve(tuple(seen), target)
    if end is not None and (total_steps is None or (target is not None and end < total_steps)):
        return End(end, EndBy.LOSS if target is None else EndBy.TARGET)
    return None if total_steps is None else End(total_steps, EndBy.STEPS)


def estimate_finish(now_ms: int, step: int, end: End | None, pace: Pace | None) -> Finish | None:
    """When the last step will be done: steps left times the measured time of a step, from now.

    None when the last step is not known, or the present run has not measured two of them yet.
    """
    step_ms = None if pace is None else pace.step_ms()
    if end is None or step_ms is None or pace is None:
        return None
    left = max(0, end.step - max(step, pace.last_step))
    return Finish(now_ms + believable_ms(left * step_ms), end)


def has_progress(job: JobView) -> bool:
    """Whether something that the job has learned is kept: it would be lost in training that begins anew."""
    return bool(job.done_ms) or job.checkpoint_step is not None


@lru_cache(maxsize=1024)  # a fit takes tens of milliseconds, and one is asked for again until the next point
def _by_curve(seen: tuple[tuple[float, float], ...], target: Target | None) -> int | None:
    sign = -1.0 if target is not None and target.goal == "max" else 1.0
    curve = fit_curve([step for step, _ in seen], [sign * value for _, value in seen])
    if curve is None:
        return None
    end = steps_left(curve, 0, target=None if target is None else sign * target.value)
    newest = seen[-1][0]
    return end if end is not None and newest < end <= newest / SEEN_SHARE else None
