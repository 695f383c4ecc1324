"""The figures of `benchmarks.transfer`: what follows from trainings that were measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.core.merging.bounds import foretold_end, span_of
from app.core.merging.fast import solve
from app.core.merging.objective import Workload, problem_of
from app.core.merging.problem import Group, Mode
from app.core.merging.transfer import IN_TURN, TOGETHER
from benchmarks.transfer_runs import Course

TARGET = 0.15
FIRST_STEPS = 20
LATE_SHARE = 0.75  # of a training: how much of it the later bounds have seen
WAIT_COST = 6.0
LEAST_BAND = 0.01  # of held-out accuracy
_MODES = {"in_turn": Mode.FIRST_BEFORE_SECOND, "together": Mode.TOGETHER}


@dataclass(frozen=True)
class Merge:
    """Two tasks in one mode: what was predicted of it, and what came of it with each seed."""

    mode: Mode
    first: str
    second: str
    score: float
    fisher: float
    gains: tuple[float, ...]

    @property
    def gain(self) -> float:
        return statistics.fmean(self.gains)

    @property
    def noise(self) -> float:
        """Half of what the seeds differ."""
        return (max(self.gains) - min(self.gains)) / 2


@dataclass(frozen=True)
class Measured:
    """Courses by (task, seed), (first, second, seed) and again; `merges` are what follows from them."""

    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    alone: dict[tuple[str, int], Course]
    after: dict[tuple[str, str, int], Course]
    together: dict[tuple[str, str, int], tuple[Course, Course, bool]]
    merges: tuple[Merge, ...]


@dataclass(frozen=True)
class Signs:
    """Of gains outside the noise: how many there are, how many are positive, and of how many the sign was foretold."""

    counted: int
    positive: int
    right: int

    @property
    def accuracy(self) -> float | None:
        """Percent."""
        return round(100 * self.right / self.counted, 1) if self.counted else None

    @property
    def majority(self) -> float | None:
        """Percent: what always guessing the more frequent sign would have reached."""
        return round(100 * max(self.positive, self.counted - self.positive) / self.counted, 1) if self.counted else None


def added(signs: Sequence[Signs]) -> Signs:
    """All of them together."""
    return Signs(*(sum(getattr(one, name) for one in signs) for name in ("counted", "positive", "right")))


def row_of(measured: Measured, merges: Sequence[Merge]) -> dict[str, Any]:
    """The figures of one family; `merges` are those of all families, from which gains are foretold."""
    by_mode = {name: [one for one in measured.merges if one.mode == mode] for name, mode in _MODES.items()}
    signs = signs_of(measured, merges)
    errors = _iteration_errors(measured)
    return {
        "pearson_r": {name: _correlation([(one.score, one.gain) for one in all_]) for name, all_ in by_mode.items()},
        "pearson_r_fisher": {
            name: _correlation([(one.fisher, one.gain) for one in all_]) for name, all_ in by_mode.items()
        },
        "sign_accuracy": signs.accuracy,
        "majority_guess": signs.majority,
        "signs": [signs.right, signs.counted],
        "iteration_ape_mean": round(statistics.fmean(errors), 1) if errors else None,
        "iteration_ape_max": round(max(errors), 1) if errors else None,
        "iteration_predicted": [len(errors), len(measured.alone)],
        "bounds_held": {
            f"first {FIRST_STEPS} steps": _held(measured, lambda course: FIRST_STEPS),
            f"{LATE_SHARE:.0%} of the steps": _held(measured, lambda course: LATE_SHARE * course.steps),
        },
        **_merged(measured, merges),
        "worse_of_all": _worse_of_all(measured),
        "steps_alone": [round(one.steps, 1) for one in measured.alone.values()],
        "gains": {
            name: [
                [one.first, one.second, round(one.score, 3), *(round(gain, 3) for gain in one.gains)] for one in all_
            ]
            for name, all_ in by_mode.items()
        },
    }


def _predicted(merge: Merge, merges: Sequence[Merge]) -> float:
    """By the line that a service begins with, once it has seen all merges of this mode but those of these two tasks."""
    line = TOGETHER if merge.mode == Mode.TOGETHER else IN_TURN
    for one in merges:
        if one.mode == merge.mode and {one.first, one.second} != {merge.first, merge.second}:
            line = line.learned(one.score, one.gain)
    return line.gain(merge.score)


def signs_of(measured: Measured, merges: Sequence[Merge]) -> Signs:
    """Both ways of merging; each has noise of its own."""
    modes = [[one for one in measured.merges if one.mode == mode] for mode in _MODES.values()]
    return added([_signs(own, merges) for own in modes if own])


def _signs(own: Sequence[Merge], merges: Sequence[Merge]) -> Signs:
    """Among gains that are larger than their own noise and than the mean one."""
    usual = statistics.fmean(one.noise for one in own)
    clear = [one for one in own if abs(one.gain) > max(one.noise, usual)]
    right = sum((_predicted(one, merges) > 0) == (one.gain > 0) for one in clear)
    return Signs(len(clear), sum(one.gain > 0 for one in clear), right)


def _correlation(points: Sequence[tuple[float, float]]) -> float | None:
    one, other = zip(*points, strict=True)
    if len(points) < 3 or len(set(one)) == 1 or len(set(other)) == 1:
        return None
    return round(statistics.correlation(one, other), 3)


def _foreseen(course: Course) -> int | None:
    """The step at which the target is reached, as the first steps tell it."""
    return foretold_end(_seen(course, FIRST_STEPS), TARGET)


def _seen(course: Course, until: float) -> tuple[tuple[float, float], ...]:
    return tuple((float(step), loss) for step, loss, _ in course.looks if step <= until)


def _held(measured: Measured, until: Callable[[Course], float]) -> list[int]:
    """[how many, of how many] trainings alone ended between the bounds that their first steps gave."""
    ended = [one for one in measured.alone.values() if one.reached and one.steps > until(one)]
    spans = [(one, span_of(_seen(one, until(one)), TARGET)) for one in ended]
    return [sum(span is not None and span.least <= one.steps <= span.most for one, span in spans), len(ended)]


def _iteration_errors(measured: Measured) -> list[float]:
    """Percent, of every training alone that reached its target after the steps that are looked at."""
    found = []
    for course in measured.alone.values():
        foreseen = _foreseen(course)
        if foreseen is not None and course.reached and course.steps > FIRST_STEPS:
            found.append(100 * abs(foreseen - course.steps) / course.steps)
    return found


def _merged(measured: Measured, merges: Sequence[Merge]) -> dict[str, Any]:
    """What the merger chooses from predictions, and how that ends against everybody alone."""
    groups = _chosen(measured, merges)
    merged = apart = 0.0
    worse, drops = [], []
    for mode, group in groups:
        for place, name in enumerate(group):
            courses = _courses_in(measured, mode, group, place)
            before = [measured.alone[name, seed] for seed in measured.seeds]
            merged += statistics.fmean(one.steps for one in courses)
            apart += statistics.fmean(one.steps for one in before)
            drops.append(_drop(before, courses))
            if _is_worse(before, courses):
                worse.append(name)
    return {
        "steps_ratio": round(merged / apart, 3),
        "groups": [[mode.name.lower(), *group] for mode, group in groups],
        "worse_final": worse,
        "largest_drop": round(max(drops), 4),
    }


def _drop(before: Sequence[Course], courses: Sequence[Course]) -> float:
    """Of held-out accuracy."""
    return statistics.fmean(one.final for one in before) - statistics.fmean(one.final for one in courses)


def _is_worse(before: Sequence[Course], courses: Sequence[Course]) -> bool:
    """Whether the target is missed that was reached alone, or accuracy drops by more than seeds differ."""
    finals = [one.final for one in before]
    fell_short = all(one.reached for one in before) and not all(one.reached for one in courses)
    return fell_short or _drop(before, courses) > max(LEAST_BAND, max(finals) - min(finals))


def _worse_of_all(measured: Measured) -> dict[str, list[int]]:
    """[how many tasks end worse, of how many] over all merges that were tried, whether or not the merger would make
    them: in turn the second, side by side both."""
    found = {}
    for name, mode in _MODES.items():
        groups = [(one.first, one.second) for one in measured.merges if one.mode == mode]
        places = (1,) if mode == Mode.FIRST_BEFORE_SECOND else (0, 1)
        ends = [
            _is_worse(
                [measured.alone[group[place], seed] for seed in measured.seeds],
                _courses_in(measured, mode, group, place),
            )
            for group in groups
            for place in places
        ]
        found[name] = [sum(ends), len(ends)]
    return found


def _chosen(measured: Measured, merges: Sequence[Merge]) -> list[tuple[Mode, tuple[str, ...]]]:
    """Groups of names, in the order in which they are trained."""
    names = measured.tasks
    gains = np.zeros((len(names), len(names)))
    for merge in measured.merges:
        if merge.mode == Mode.FIRST_BEFORE_SECOND:
            gains[names.index(merge.first), names.index(merge.second)] = _predicted(merge, merges)
    foreseen = [_foreseen(measured.alone[name, measured.seeds[0]]) for name in names]
    known = [one for one in foreseen if one]
    usual = statistics.fmean(known) if known else 1.0
    times = np.array([float(one or usual) for one in foreseen])
    everybody = np.ones(len(names), dtype=bool)
    workload = Workload(times[:, None], times, times, np.zeros(len(names), dtype=np.int64), gains, everybody, everybody)
    gpus = max(1, len(names) // 2)
    groups = solve(problem_of(workload, np.array([1]), gpus, wait_cost=WAIT_COST)).groups
    return [_named(group, names) for group in groups]


def _named(group: Group, names: Sequence[str]) -> tuple[Mode, tuple[str, ...]]:
    own = tuple(names[job] for job in group.jobs)
    if group.mode == Mode.SECOND_BEFORE_FIRST:
        return Mode.FIRST_BEFORE_SECOND, own[::-1]
    return group.mode, tuple(sorted(own)) if group.mode == Mode.TOGETHER else own


def _courses_in(measured: Measured, mode: Mode, group: tuple[str, ...], place: int) -> list[Course]:
    """Of one member of a group, with each seed."""
    name = group[place]
    if mode == Mode.TOGETHER:
        return [measured.together[group[0], group[1], seed][place] for seed in measured.seeds]
    if mode == Mode.FIRST_BEFORE_SECOND and place == 1:
        return [measured.after[group[0], name, seed] for seed in measured.seeds]
    return [measured.alone[name, seed] for seed in measured.seeds]
