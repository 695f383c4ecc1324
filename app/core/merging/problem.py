"""The choice to be made: every job alone, waiting, or in one pair; every group on an allowed number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Mode(IntEnum):
    """How a group of jobs is trained."""

    ALONE = 0
    FIRST_BEFORE_SECOND = 1  # the second starts from what the first has learned
    SECOND_BEFORE_FIRST = 2
    TOGETHER = 3  # side by side, in one process


@dataclass(frozen=True, slots=True)
class Problem:
    """Equations 7-13, as an assignment of groups to sizes.

    `sizes`: (A,) allowed numbers of GPUs, rising. `alone`: (N, A) cost of each job alone on each size. `waiting`: (N,)
    cost of getting none now. `first`, `second`: (P,) the jobs of each pair that may be merged. `merged`: (P, A) cost of
    the pair in its best mode, infinite where merging is not allowed; `modes`: (P, A) that mode. `gpus`: how many there
    are.
    """

    sizes: Ints
    alone: Floats
    waiting: Floats
    first: Ints
    second: Ints
    merged: Floats
    modes: Ints
    gpus: int

    def __post_init__(self) -> None:
        jobs, sizes, pairs = len(self.waiting), len(self.sizes), len(self.first)
        if self.alone.shape != (jobs, sizes) or self.merged.shape != (pairs, sizes):
            raise ValueError(
                f"costs are given as {self.alone.shape} and {self.merged.shape}; {jobs} jobs, {pairs} pairs and"
                f" {sizes} sizes need {(jobs, sizes)} and {(pairs, sizes)}"
            )
        if sizes == 0 or int(self.sizes[0]) < 1 or bool((np.diff(self.sizes) <= 0).any()):
            raise ValueError(f"sizes are {self.sizes.tolist()}; they must rise from 1 or more")

    @property
    def jobs(self) -> int:
        return len(self.waiting)


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that are trained as one, on so many GPUs; none: the job waits. The jobs are places in the problem."""

    jobs: tuple[int, ...]
    gpus: int
    mode: Mode = Mode.ALONE


@dataclass(frozen=True, slots=True)
class Merging:
    """A choice for every job. No choice costs less than `bound`: so this one is at most `gap` above the best."""

    groups: tuple[Group, ...]
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """Share by which a better choice could undercut this one at most."""
        return max(0.0, (self.cost - self.bound) / abs(self.cost)) if self.cost else 0.0


def cost_of(problem: Problem, groups: Sequence[Group]) -> float:
    """What the choice costs, added up anew. Raises ValueError for a choice that breaks a rule (equations 8-13)."""
    place = {(int(i), int(k)): number for number, (i, k) in enumerate(zip(problem.first, problem.second, strict=True))}
    column = {int(size): number for number, size in enumerate(problem.sizes)}
    total, seen, used = 0.0, set[int](), 0
    for group in groups:
        if seen & set(group.jobs):
            raise ValueError(f"jobs {group.jobs} are chosen twice")
        seen |= set(group.jobs)
        used += group.gpus
        if len(group.jobs) == 2:
            pair, size = place[group.jobs[0], group.jobs[1]], column[group.gpus]
            if int(problem.modes[pair, size]) != group.mode:
                raise ValueError(f"jobs {group.jobs} are merged in a mode that is not their best")
            total += float(problem.merged[pair, size])
        elif group.gpus:
            total += float(problem.alone[group.jobs[0], column[group.gpus]])
        else:
            total += float(problem.waiting[group.jobs[0]])
    if len(seen) != problem.jobs or used > problem.gpus:
        raise ValueError(f"{len(seen)} of {problem.jobs} jobs are chosen, on {used} of {problem.gpus} GPUs")
    return total
