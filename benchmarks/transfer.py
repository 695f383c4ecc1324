"""Does training two jobs as one save steps, and is that known before? Real trainings, on this machine's processor.

    python -m benchmarks.transfer [--family 2] [--tasks 6] [--seeds 2]

A small model is pretrained on the spot (`transfer_family`) and fine-tuned on each task by the built-in recipe: alone,
in turn and side by side with every other, all with the same hyper-parameters, until one held-out loss. Gain: steps
alone over steps merged, less one; between two evaluations steps are interpolated. The score is `transfer.alignment`
of the tasks' embeddings (`workers.trainer.fisher`, 64 rows each). A gain is predicted by `transfer.GainLine`, learned
from the merges of all other pairs. Steps alone are predicted from the held-out losses of the first 20 steps by
`convergence.fit_curve`. The merger (`objective`, `fast`) then chooses, with half as many GPUs as there are tasks,
from predictions alone.

Everything that was chosen by trying was chosen on family 1; family 2 was looked at only for the figures that are
reported. `value` is the share of gains outside two seeds' noise whose sign was predicted. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from allpass.recipe.settings import Recipe
from app.core.merging.convergence import fit_curve
from app.core.merging.fast import solve
from app.core.merging.objective import Workload, problem_of
from app.core.merging.problem import Group, Mode
from app.core.merging.transfer import GainLine, alignment, score
from benchmarks import transfer_family
from benchmarks.transfer_runs import Course, Ground

GOAL = 97.0
TARGET = 0.15
FIRST_STEPS = 20
WAIT_COST = 6.0
LEAST_BAND = 0.01  # of held-out accuracy


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


def main() -> None:
    """Measure, and print the result last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", type=int, default=2, help="seed of the base model and its tasks")
    parser.add_argument("--tasks", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=160, help="of a training that does not reach its target")
    parser.add_argument("--rows", type=int, default=512, help="training rows of a task")
    parser.add_argument("--pretraining", type=int, default=600, help="steps of the base model")
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        measured = _measured(options, Path(folder))
    detail = {**_detail(measured), "seconds": round(time.monotonic() - begun, 1), **vars(options)}
    print(
        json.dumps(
            {"name": "transfer", "value": detail["sign_accuracy"], "goal": GOAL, "unit": "% of signs", "detail": detail}
        )
    )


def _measured(options: argparse.Namespace, folder: Path) -> Measured:
    torch.set_num_threads(1)
    own = transfer_family.family(options.family, options.tasks)
    loss = transfer_family.pretrain(folder / "base", own, steps=options.pretraining, seed=options.family)
    print(f"base model: loss {loss:.3f}", flush=True)
    data = {
        name: transfer_family.write_rows(folder / name, own, name, options.rows, 32, options.family)
        for name in own.tasks
    }
    ground = Ground(_recipe(folder / "base", options.steps), data)
    names, seeds = tuple(own.tasks), tuple(range(options.seeds))
    embeddings = {name: ground.embedding(name, 0) for name in names}
    alone, after, together = {}, {}, {}
    for seed in seeds:
        alone |= {(name, seed): ground.alone(name, seed) for name in names}
        after |= {(*pair, seed): ground.after(*pair, seed) for pair in permutations(names, 2)}
        print(f"seed {seed}: alone and in turn", flush=True)
        pairs = [pair for pair in permutations(names, 2) if pair[0] < pair[1]]
        together |= {(*pair, seed): ground.together(*pair, seed) for pair in pairs}
        print(f"seed {seed}: side by side", flush=True)
    merges = []
    for one, other in permutations(names, 2):
        seen = {
            "score": alignment(np.array(embeddings[one].pull), np.array(embeddings[other].pull)),
            "fisher": score(np.array(embeddings[one].fisher), np.array(embeddings[other].fisher)),
        }
        apart = [(alone[one, seed].steps, alone[other, seed].steps) for seed in seeds]
        gains = tuple(apart[seed][1] / after[one, other, seed].steps - 1 for seed in seeds)
        merges.append(Merge(Mode.FIRST_BEFORE_SECOND, one, other, gains=gains, **seen))
        if one < other:
            gains = tuple(sum(apart[seed]) / _steps(together[one, other, seed], apart[seed]) - 1 for seed in seeds)
            merges.append(Merge(Mode.TOGETHER, one, other, gains=gains, **seen))
    return Measured(names, seeds, alone, after, together, tuple(merges))


def _recipe(base: Path, steps: int) -> Recipe:
    return Recipe(
        model=str(base), steps=steps, batch_size=16, micro_batch=16, learning_rate=1e-3, schedule="constant",
        warmup=0.05, precision="fp32", lora_rank=8, lora_dropout=0.0, evaluate_every=2, target={"eval_loss": TARGET},
        sequence_length=64,
    )  # fmt: skip


def _steps(courses: tuple[Course, Course, bool], apart: tuple[float, float]) -> float:
    """Of two side by side. Those that were split have done theirs in vain, and train alone after it."""
    first, second, split = courses
    if split:
        return len(first.losses) + len(second.losses) + sum(apart)
    return first.steps + second.steps


def _detail(measured: Measured) -> dict[str, Any]:
    modes = {"in_turn": Mode.FIRST_BEFORE_SECOND, "together": Mode.TOGETHER}
    by_mode = {name: [one for one in measured.merges if one.mode == mode] for name, mode in modes.items()}
    signs = {name: _signs(merges) for name, merges in by_mode.items()}
    right, counted = (sum(one[place] for one in signs.values()) for place in (0, 1))
    errors = _iteration_errors(measured)
    return {
        "pearson_r": {name: _correlation([(one.score, one.gain) for one in all_]) for name, all_ in by_mode.items()},
        "pearson_r_fisher": {
            name: _correlation([(one.fisher, one.gain) for one in all_]) for name, all_ in by_mode.items()
        },
        "sign_accuracy": round(100 * right / counted, 1) if counted else None,
        "signs": {name: {"right": one[0], "outside_noise": one[1]} for name, one in signs.items()},
        "iteration_ape_mean": round(statistics.fmean(errors), 1) if errors else None,
        "iteration_ape_max": round(max(errors), 1) if errors else None,
        "iteration_predicted": [len(errors), len(measured.alone)],
        **_merged(measured),
        "steps_alone": [round(one.steps, 1) for one in measured.alone.values()],
        "gains": {
            name: [
                [one.first, one.second, round(one.score, 3), *(round(gain, 3) for gain in one.gains)] for one in all_
            ]
            for name, all_ in by_mode.items()
        },
    }


def _predicted(merge: Merge, merges: Sequence[Merge]) -> float:
    """By a line that has seen all merges of this mode but those of these two tasks."""
    line = GainLine()
    for one in merges:
        if one.mode == merge.mode and {one.first, one.second} != {merge.first, merge.second}:
            line = line.learned(one.score, one.gain)
    return line.gain(merge.score)


def _signs(merges: Sequence[Merge]) -> tuple[int, int]:
    """(right, of how many) among gains that are larger than their own noise and than the mean one."""
    usual = statistics.fmean(one.noise for one in merges)
    clear = [one for one in merges if abs(one.gain) > max(one.noise, usual)]
    return sum((_predicted(one, merges) > 0) == (one.gain > 0) for one in clear), len(clear)


def _correlation(points: Sequence[tuple[float, float]]) -> float | None:
    one, other = zip(*points, strict=True)
    if len(points) < 3 or len(set(one)) == 1 or len(set(other)) == 1:
        return None
    return round(statistics.correlation(one, other), 3)


def _foreseen(course: Course) -> int | None:
    """The step at which the target is reached, as the first steps tell it."""
    looks = [(step, loss) for step, loss, _ in course.looks if step <= FIRST_STEPS]
    curve = fit_curve(*zip(*looks, strict=True)) if looks else None
    return curve.step_at(TARGET) if curve else None


def _iteration_errors(measured: Measured) -> list[float]:
    """Percent, of every training alone that reached its target after the steps that are looked at."""
    found = []
    for course in measured.alone.values():
        foreseen = _foreseen(course)
        if foreseen is not None and course.reached and course.steps > FIRST_STEPS:
            found.append(100 * abs(foreseen - course.steps) / course.steps)
    return found


def _merged(measured: Measured) -> dict[str, Any]:
    """What the merger chooses from predictions, and how that ends against everybody alone."""
    groups = _chosen(measured)
    merged = apart = 0.0
    worse, drops = [], []
    for mode, group in groups:
        for place, name in enumerate(group):
            courses = _courses_in(measured, mode, group, place)
            before = [measured.alone[name, seed] for seed in measured.seeds]
            merged += statistics.fmean(one.steps for one in courses)
            apart += statistics.fmean(one.steps for one in before)
            finals = [one.final for one in before]
            drop = statistics.fmean(finals) - statistics.fmean(one.final for one in courses)
            drops.append(drop)
            fell_short = all(one.reached for one in before) and not all(one.reached for one in courses)
            if fell_short or drop > max(LEAST_BAND, max(finals) - min(finals)):
                worse.append(name)
    return {
        "steps_ratio": round(merged / apart, 3),
        "groups": [[mode.name.lower(), *group] for mode, group in groups],
        "worse_final": worse,
        "largest_drop": round(max(drops), 4),
    }


def _chosen(measured: Measured) -> list[tuple[Mode, tuple[str, ...]]]:
    """Groups of names, in the order in which they are trained."""
    names = measured.tasks
    gains = np.zeros((len(names), len(names)))
    for merge in measured.merges:
        if merge.mode == Mode.FIRST_BEFORE_SECOND:
            gains[names.index(merge.first), names.index(merge.second)] = _predicted(merge, measured.merges)
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


if __name__ == "__main__":
    main()
