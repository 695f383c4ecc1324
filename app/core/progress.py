"""How fast a job makes progress, and when it will so be done. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.core.merging.bounds import Bounds, around, foretold_end, span_of
from app.core.merging.estimates import SEEN_SHARE
from app.core.model.snapshot import JobView
from app.core.model.times import believable_ms, believable_step_ms


@dataclass(frozen=True, slots=True)
class ProgressRate:
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
    """The step with which a job is expected to end. `span`: between which it does; None: it was said, and is exact."""

    step: int
    by: EndBy
    span: Bounds | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """Steps that a job still has, and between which bounds; at the present speed it is done between `first_ms` and
    `last_ms`."""

    likely: int
    least: int
    most: int
    first_ms: int
    last_ms: int

    @property
    def exact(self) -> bool:
        return self.least == self.most


@dataclass(frozen=True, slots=True)
class Finish:
    """`at_ms`: when a job is expected to be done."""

    at_ms: int
    end: End
    left: Expected


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
    series, goal = _falling(seen, target)
    end = _by_curve(series, goal)
    if end is not None and (total_steps is None or (target is not None and end < total_steps)):
        by = EndBy.LOSS if target is None else EndBy.TARGET
        return End(end, by, around(end, series[-1][0]).within(total_steps))
    if total_steps is None:
        return None
    return End(total_steps, EndBy.STEPS, None if target is None else _sooner(series, goal, total_steps))


def stated_end(total_steps: int, *, has_target: bool) -> End:
    """The last step as it was said, where nobody looks at the losses: with a target it may be any before that."""
    return End(total_steps, EndBy.STEPS, Bounds(0.0, float(total_steps)) if has_target else None)


def estimate_finish(now_ms: int, step: int, end: End | None, pace: ProgressRate | None) -> Finish | None:
    """When the last step will be done: steps left times the measured time of a step, from now.

    None when the last step is not known, or the present run has not measured two of them yet.
    """
    step_ms = None if pace is None else pace.step_ms()
    if end is None or step_ms is None or pace is None:
        return None
    done = max(step, pace.last_step)
    likely = max(0, end.step - done)
    span = Bounds(float(end.step), float(end.step)) if end.span is None else end.span
    least, most = min(likely, math.floor(span.less(done).least)), max(likely, math.ceil(span.less(done).most))
    at_ms, first_ms, last_ms = (now_ms + believable_ms(left * step_ms) for left in (likely, least, most))
    return Finish(at_ms, end, Expected(likely, least, most, first_ms, last_ms))


def has_progress(job: JobView) -> bool:
    """Whether something that the job has learned is kept: it would be lost in training that begins anew."""
    return bool(job.done_ms) or job.checkpoint_step is not None


def _falling(
    seen: Sequence[tuple[float, float]], target: Target | None
) -> tuple[tuple[tuple[float, float], ...], float | None]:
    """The series and the target's value, upside down where it is to rise."""
    sign = -1.0 if target is not None and target.goal == "max" else 1.0
    return tuple((step, sign * value) for step, value in seen), None if target is None else sign * target.value


def _by_curve(series: tuple[tuple[float, float], ...], goal: float | None) -> int | None:
    end = foretold_end(series, goal) if series else None
    return end if end is not None and series[-1][0] < end <= series[-1][0] / SEEN_SHARE else None


def _sooner(series: tuple[tuple[float, float], ...], goal: float | None, total_steps: int) -> Bounds:
    """Between which a job with a target ends whose curve is not believed yet: it may be long before its last step."""
    span = span_of(series, goal)
    return Bounds(0.0 if span is None else min(span.least, float(total_steps)), float(total_steps))
