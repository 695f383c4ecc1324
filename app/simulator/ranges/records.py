"""What a simulation keeps of runs and jobs that take ranges of GPUs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from app.core.elastic.profile import MeasuredSpeed
from app.simulator.ranges.course import SpeedCourse


@dataclass(slots=True)
class RangeStay:
    """A run of a range, once its code runs. `uses`: GPUs that its training uses, the first ones of the run's; `wanted`:
    those that it is to use. `changed_ms`: since when it holds what it holds; `turned_ms`: of running, when its present
    speed began; `used_from_ms`: since when it uses what it uses."""

    course: SpeedCourse
    uses: int
    wanted: int
    changed_ms: int
    used_from_ms: int
    turned_ms: int = 0


@dataclass(slots=True)
class RangeKnown:
    """Of a job that takes a range: its speeds as far as it has had them, and when it last went to a machine of another
    size, or began on a larger one than it needs (0: never)."""

    measured: dict[int, MeasuredSpeed] = field(default_factory=dict)
    changed_ms: int = 0


@dataclass(slots=True)
class RangeFigures:
    """What ranges did. `held_ms`: by job and number of GPUs, for how long it had these while they were paid."""

    resizes: int = 0
    lent: int = 0
    grown: int = 0
    sized: int = 0
    smaller: int = 0
    larger: int = 0
    held_ms: Counter[tuple[str, int]] = field(default_factory=Counter)

    def told(self) -> dict[str, float]:
        """By name."""
        gpu_ms = sum(long_ms * gpus for (_, gpus), long_ms in self.held_ms.items())
        return {
            "range_gpu_hours": gpu_ms / 3.6e6,
            "resizes": self.resizes,
            "lent_gpus": self.lent,
            "grown_for_deadlines": self.grown,
            "begun_larger": self.sized,
            "moved_smaller": self.smaller,
            "moved_larger": self.larger,
        }
