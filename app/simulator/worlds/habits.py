"""What jobs are like in a world, beside what a trace tells of them: whether they save, and which model they fetch."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from app.simulator.scenario import Task
from app.simulator.worlds.world import World

_POPULAR = (0.5, 0.3, 0.2)  # shares of the base models, as for merging


def with_habits(tasks: Iterable[Task], world: World, seed: int) -> tuple[Task, ...]:
    """The same seed draws the same for each job in every world: who never saves where few do, does not where many do.

    Jobs of the built-in recipe, which may be merged, save when they are asked to; what a trace says of saving holds.
    """
    chance = random.Random(f"{seed} habits")  # noqa: S311 - a simulation
    return tuple(
        _with_habits(task, world, saves=chance.random(), known=chance.random(), model=chance.random()) for task in tasks
    )


def _with_habits(task: Task, world: World, *, saves: float, known: float, model: float) -> Task:
    task = replace(task, model=_model(model, world.models))
    if task.trainee is not None or not task.saves:
        return task
    never_saves = saves < world.never_saves_share
    if never_saves and task.work_ms <= world.never_saves_most_s * 1000:
        return replace(task, saves=False, known=known < world.known_share)
    if saves < world.never_saves_share + world.own_saves_share:
        return replace(task, saves=False, own_saves_ms=max(1, round(world.own_saves_every_s * 1000)))
    return task


def _model(drawn: float, models: int) -> int:
    """Which one: the popular ones first, and of those beyond the third each as often."""
    if models > len(_POPULAR):
        return int(drawn * models)
    whole = sum(_POPULAR[:models])
    reached = 0.0
    for place, share in enumerate(_POPULAR[:models]):
        reached += share / whole
        if drawn < reached:
            return place
    return models - 1
