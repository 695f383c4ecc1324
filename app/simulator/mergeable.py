"""Jobs that could be merged: a documented generator over the arrivals of any trace.

A share of a trace's jobs becomes jobs of the built-in recipe. What is drawn, and where it is from:

- Three base models, with half, three tenths and a fifth of the jobs; six kinds of task for each. A task is a point
  around its kind's; the true gain of training on one before another is 0.8 cos(angle) + 0.15 + a hidden part with a
  deviation of 0.3, from -0.6 to 3 (the instances of `benchmarks.merger`).
- What policies see of a task is a noisy sketch of its first step. The alignment of two then has a correlation with the
  true gain of 0.5 to 0.7, as Ymir measures of its score (Table 2: 0.44 to 0.79).
- Losses fall as 1 / (b2 k + b1) + b0 (Ymir, section 4.2) with a noise of 5 % of their whole fall, and are told
  as 40 means; a job ends at the loss that its curve has after its run time. A step takes a second alone.
- More GPUs cost 1 to 25 % of the time for each further one (`benchmarks.merger`).
- 8 to 20 epochs. Merged jobs whose true gain is below zero, as the monitor sees it within 0.05, show no better
  validation in the first two.
- To profile a job takes 20 s on a GPU, and its start. Whether it is profiled, and when, the policy decides.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from app.core.model.merge import Recipe

PROFILE_MS = 20_000
STEP_MS = 1_000.0
SEEN_SHARES = (0.1, 0.25, 0.5)  # of a job's steps: when its losses are told anew
_BASES = ("base-a", "base-b", "base-c")
_BASE_SHARES = (0.5, 0.3, 0.2)
_KINDS = 6
_DIMENSIONS = 8
_WEIGHTS = 24  # of the sketch
_POINTS = 40
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
AnyTask = TypeVar("AnyTask", bound=Any)


@dataclass(frozen=True, slots=True)
class Trainee:
    """A job as it really is. `task`: a unit vector. `overhead`: share of the time that each further GPU costs."""

    seed: str
    base: str
    task: tuple[float, ...]
    pull: tuple[float, ...]
    overhead: float
    epochs: int
    steps: int
    gpus: int
    top: float  # the loss falls by so much in all
    left_share: float  # and has this share of it left to fall when the job ends
    floor: float

    def recipe(self, *, profiled: bool, step: int = 0) -> Recipe:
        """What policies may see after so many steps."""
        sizes = {*_SIZES, self.gpus, 2 * self.gpus}
        return Recipe(
            base=self.base,
            pull=self.pull if profiled else (),
            losses=self._losses(step),
            target_loss=self._loss(self.steps),
            step_ms=tuple((size, STEP_MS * self.times(size)) for size in sorted(sizes)),
        )

    def times(self, gpus: int) -> float:
        """Its run time on so many GPUs, in times that on its own."""
        return self._time(gpus) / self._time(self.gpus)

    def _time(self, gpus: int) -> float:
        return (1 + self.overhead * (gpus - 1)) / gpus

    def _loss(self, step: float) -> float:
        return self.floor + self.top / (1 + (1 / self.left_share - 1) * step / self.steps)

    def _losses(self, last: int) -> tuple[tuple[int, float], ...]:
        chance = random.Random(f"{self.seed} losses")  # noqa: S311 - a simulation
        last = min(last, self.steps)
        steps = sorted({last * (one + 1) // _POINTS for one in range(_POINTS)} - {0})
        noise = 0.05 * self.top / math.sqrt(max(1.0, last / _POINTS))
        return tuple((step, self._loss(step) + chance.gauss(0, noise)) for step in steps)


def true_gain(source: Trainee, target: Trainee) -> float:
    """By how much training on the source's data shortens the target: 0.5 means steps / 1.5."""
    cosine = sum(one * other for one, other in zip(source.task, target.task, strict=True))
    hidden = random.Random(f"{source.seed} {target.seed}").gauss(0, 1)  # noqa: S311 - a simulation
    return min(3.0, max(-0.6, 0.8 * cosine + 0.15 + 0.3 * hidden))


def looks_fruitless(gain: float, source: Trainee, target: Trainee) -> bool:
    """Whether the monitor sees no better validation in the first two epochs."""
    seen = random.Random(f"{source.seed} {target.seed} seen").gauss(0, 0.05)  # noqa: S311 - a simulation
    return gain + seen < 0


def with_trainees(tasks: tuple[AnyTask, ...], share: float, seed: int) -> tuple[AnyTask, ...]:
    """This share of the tasks can be merged. The same seed draws the same ones, and a larger share keeps them."""
    return tuple(_with_trainee(task, share, seed) for task in tasks)


def _with_trainee(task: AnyTask, share: float, seed: int) -> AnyTask:
    name = f"{seed} {task.job_id}"
    chance = random.Random(f"{name} trainee")  # noqa: S311 - a simulation
    if chance.random() >= share:
        return task
    base = chance.choices(_BASES, _BASE_SHARES)[0]
    center = random.Random(f"{seed} {base} {chance.randrange(_KINDS)}")  # noqa: S311 - a simulation
    point = [chance.gauss(0, 1) + 1.2 * center.gauss(0, 1) for _ in range(_DIMENSIONS)]
    length = math.sqrt(sum(value * value for value in point))
    vector = tuple(value / length for value in point)
    trainee = Trainee(
        seed=name,
        base=base,
        task=vector,
        pull=_pull(vector, base, seed, chance),
        overhead=chance.uniform(0.01, 0.25),
        epochs=chance.randint(8, 20),
        steps=max(1, round(task.work_ms / STEP_MS)),
        gpus=task.gpus,
        top=chance.uniform(1.5, 3.5),
        left_share=chance.uniform(0.05, 0.2),
        floor=chance.uniform(0.3, 1.0),
    )
    return replace(task, trainee=trainee)


def _pull(vector: tuple[float, ...], base: str, seed: int, chance: random.Random) -> tuple[float, ...]:
    """The task's first step: the weights look at the task from fixed sides, and not exactly."""
    sides = random.Random(f"{seed} {base} weights")  # noqa: S311 - a simulation
    return tuple(sum(value * sides.gauss(0, 1) for value in vector) + chance.gauss(0, 0.2) for _ in range(_WEIGHTS))
