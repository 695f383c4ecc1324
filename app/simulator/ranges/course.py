"""How far a training has come whose speed changes as it is given other numbers of GPUs. Whole numbers, so that nothing
of its work is lost or made up where one speed ends and the next begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from app.simulator.ranges.drawing import SAME


class _Stretch(NamedTuple):
    from_ms: int  # of training
    done: int  # by then, in milliseconds at the usual speed, times a thousand
    speed: int  # permille; 0 while it stands still


@dataclass(slots=True)
class SpeedCourse:
    """Of one run, from its first moment of training on. All times are of training."""

    speed: int  # permille, now
    _stretches: list[_Stretch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stretches.append(_Stretch(0, 0, self.speed))

    @property
    def since_ms(self) -> int:
        """Since when it has this speed."""
        return self._stretches[-1].from_ms

    @property
    def before_ms(self) -> int:
        """What it had done by then, in time at the usual speed."""
        return self._stretches[-1].done // SAME

    def change(self, at_ms: int, pause_ms: int, speed: int) -> None:
        """It stands still for so long, and goes on at another speed. Raises ValueError within a pause."""
        if at_ms < self.since_ms:
            raise ValueError(f"it stands still until {self.since_ms} ms, and is to change at {at_ms}")
        done = self._done(at_ms)
        if pause_ms:
            self._stretches.append(_Stretch(at_ms, done, 0))
        self._stretches.append(_Stretch(at_ms + pause_ms, done, speed))
        self.speed = speed

    def done_ms(self, trained_ms: int) -> int:
        """What it has done after so long, in time at the usual speed."""
        return self._done(trained_ms) // SAME

    def lasts_ms(self, usual_ms: int) -> int:
        """The least time in which it does what takes so long at the usual speed, as things stand."""
        wanted = usual_ms * SAME
        for one in reversed(self._stretches):
            if one.done < wanted and one.speed:
                return one.from_ms - (one.done - wanted) // one.speed
        return 0

    def stood_ms(self, trained_ms: int) -> int:
        """How much of so long it stood still."""
        ends = [one.from_ms for one in self._stretches[1:]] + [trained_ms]
        return sum(
            max(0, min(end, trained_ms) - one.from_ms)
            for one, end in zip(self._stretches, ends, strict=True)
            if not one.speed
        )

    def _done(self, trained_ms: int) -> int:
        one = next(one for one in reversed(self._stretches) if one.from_ms <= trained_ms or not one.from_ms)
        return one.done + max(0, trained_ms - one.from_ms) * one.speed
