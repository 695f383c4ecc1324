"""Jobs that take a range of GPUs: how fast each is with how many, and what is known of that.

A trace tells how long a job runs on the GPUs that it asks for. How it would do on others is drawn: a part of each step
is done by all GPUs at once, and the rest as slowly as by one [assumed].
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from app.core.resizing import MOST_GPUS

if TYPE_CHECKING:
    from app.simulator.scenario import Task

SAME = 1000  # permille of a speed
_PARALLEL = (0.8, 1.0)  # [assumed] the part of a step that more GPUs make shorter: between these
_STATED_SHARE = 0.5  # [assumed] of the jobs state their training, so that their speeds are predicted
_ERROR = 0.03  # [assumed] of the part that is predicted
_SIZES = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class TaskRange:
    """From `least` to `most` GPUs of one machine. `speeds`: with 1, 2, ... GPUs, in permille of that with the GPUs that
    the job's work is told of. `predicted`: what is thought of them before it has had them; empty: nothing."""

    least: int
    most: int
    speeds: tuple[int, ...]
    predicted: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= MOST_GPUS:
            raise ValueError(f"a range is within 1 to {MOST_GPUS} GPUs, not {self.least} to {self.most}")
        for speeds in (self.speeds, self.predicted):
            if (speeds or speeds is self.speeds) and (len(speeds) < self.most or min(speeds) < 1):
                raise ValueError(f"a range to {self.most} GPUs has a speed above 0 with each number up to that")

    def speed(self, gpus: int) -> int:
        """Its true speed, in permille; with more than it may have, that with the most."""
        return self.speeds[min(gpus, self.most) - 1]

    def slowest(self) -> int:
        """How many times as long it may take, rounded up."""
        return -(-SAME // min(self.speeds[self.least - 1 : self.most]))

    def sizes(self) -> set[int]:
        """Machines that it may go to: as they are rented, and its own least and most."""
        return {self.least, self.most, *(size for size in _SIZES if self.least < size < self.most)}


def parallel_speeds(fraction: float, gpus: int, most: int) -> tuple[int, ...]:
    """By Amdahl's law, where such a part of a step is shared by all GPUs: with 1 to `most`, of that with `gpus`."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"a part of a step is within 0 and 1, not {fraction}")
    step = [1 - fraction + fraction / number for number in range(1, max(gpus, most) + 1)]
    return tuple(max(1, round(SAME * step[gpus - 1] / one)) for one in step[:most])


def with_ranges(tasks: Iterable[Task], share: float, seed: int) -> tuple[Task, ...]:
    """Such a share of the jobs take ranges: of two shares, whoever does with the smaller does with the larger. From
    half of what the trace asks for to twice as much, or four or eight times. One that never saves, asks for more
    GPUs than a training may change, or states a range itself, keeps what it asks for."""
    chance = random.Random(f"{seed} ranges")  # noqa: S311 - a simulation
    return tuple(_ranged(task, chance, share) for task in tasks)


def _ranged(task: Task, chance: random.Random, share: float) -> Task:
    is_range = chance.random() < share
    fraction, times = chance.uniform(*_PARALLEL), chance.choice(_SIZES)
    stated, error = chance.random() < _STATED_SHARE, chance.gauss(0, _ERROR)
    if not is_range or not task.saves or task.gpus > MOST_GPUS or task.elastic is not None:
        return task
    least, most = max(1, task.gpus // 2), min(MOST_GPUS, times * task.gpus)
    thought = min(1.0, max(0.0, fraction + error))
    predicted = parallel_speeds(thought, task.gpus, most) if stated else ()
    return replace(task, elastic=TaskRange(least, most, parallel_speeds(fraction, task.gpus, most), predicted))
