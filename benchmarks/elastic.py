"""Trainings of the built-in recipe whose GPUs change while they run, at random, on a processor: the same bytes.

    .venv/bin/python -m benchmarks.elastic
    .venv/bin/python -m benchmarks.elastic --plans 6 --steps 40

Each plan is drawn from its seed: a training begins on 1 to 4 GPUs, each of which is a process, and is given others at
random steps, also before it has those of the time before. In every fifth plan processes are killed as well.

`value`: the share of plans after which the files that are left are those of a training on one GPU, bit for bit, and
each step was told once with the same loss: so each row was learned once. `pause_s`: what a step took longer than the
median of its plan, where processes joined, left, or were lost before it: the median, and the longest (goals: 0.3 to
join, 0.5 to leave, 5 after a loss). `step_ratio`: what a step takes with two processes, of what it takes where each
adds up its own gradients and these are summed in any order, as DDP does (goal 1.10). Where there are fewer cores than
processes all times are those of their want. Processes are forked from one that has loaded the libraries, which is in
none of these times: whoever comes has loaded before anybody stops.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from allpass.recipe.settings import EDITION
from allpass.training.elastic.wanted_gpus import FILE
from tests.training import tiny
from tests.training.forking import forks
from tests.training.gangs import template_of
from tests.training.scripts import REPOSITORY, Host, HostedProcess, Machine, files_of

ROWS = [{"prompt": f"{number}+1=" + number % 40 * " and", "completion": str(number + 1)} for number in range(200)]
SETTINGS: dict[str, Any] = {
    "batch_size": 16, "micro_batch": 2, "precision": "fp32", "lora_dropout": 0.1, "edition": EDITION,
}  # fmt: skip
GOALS_S = {"join": 0.3, "leave": 0.5, "loss": 5.0}
STEP_GOAL = 1.10
_NAMES = "0123"
_EACH_WITH_KILLS = 5
_CHANGE = re.compile(r"^training: goes on with step (\d+) on (\d+) GPUs?, after (\d+)$", re.MULTILINE)
_LOSS = re.compile(r"^training: rank \d+ of \d+ was killed", re.MULTILINE)


@dataclass
class Ground:
    """What all trainings here have in common."""

    folder: Path
    host: Host
    forks: str
    steps: int
    model: str = field(init=False)
    rows: Path = field(init=False)

    def __post_init__(self) -> None:
        self.model = tiny.llama(self.folder / "llama")
        self.rows = tiny.write_rows(self.folder / "rows", "prompt", ROWS)

    def machine(self, name: str, count: int, **more: str) -> Machine:
        """A job on so many GPUs, which may become others."""
        found = Machine(self.folder / name, {"model": self.model, "steps": self.steps, **SETTINGS})
        found.environment |= {
            **template_of(found.folder, count),
            FILE: str(found.folder / "gpus.json"),
            "CUDA_VISIBLE_DEVICES": ",".join(_NAMES[:count]),
            "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "sdk"))),
            "ROWS": str(self.rows),
            "FORKS": self.forks,
            **more,
        }
        return found

    def start(self, machine: Machine) -> HostedProcess:
        return self.host.start("../tests/training/gang_script.py", machine)


@dataclass
class Course:
    """A training that was watched: when each step was told, on this clock, and what it said."""

    machine: Machine
    at_s: dict[int, float] = field(default_factory=dict)
    output: str = ""
    lost: list[int] = field(default_factory=list)  # steps after which a process was killed

    def look(self) -> int:
        """The newest step that was told."""
        for line in self.machine.lines():
            if "loss" in line and "checkpoint" not in line:
                self.at_s.setdefault(line["step"], time.perf_counter())
        return max(self.at_s, default=0)

    def step_s(self, step: int) -> float | None:
        """From the step before until this one was told."""
        if step not in self.at_s or step - 1 not in self.at_s:
            return None
        return self.at_s[step] - self.at_s[step - 1]

    def median_s(self) -> float:
        return median(later - earlier for earlier, later in pairwise(sorted(self.at_s.values())))

    def changes(self) -> Iterator[tuple[str, int]]:
        """What happened to its processes, and the step before which it did."""
        for told in _CHANGE.finditer(self.output):
            step, now, before = map(int, told.groups())
            if any(step - 2 <= lost <= step for lost in self.lost):
                yield "loss", step
            elif now != before:
                yield ("join" if now > before else "leave"), step

    def result(self) -> str:
        """A hash of all that it left, and of each line about a step."""
        told = [json.dumps(line) for line in self.machine.lines() if "loss" in line and "checkpoint" not in line]
        files = sorted((name, hashlib.sha256(data).hexdigest()) for name, data in self._files())
        return hashlib.sha256(json.dumps([told, files]).encode()).hexdigest()

    def _files(self) -> Iterator[tuple[str, bytes]]:
        yield from files_of(self.machine.folder / "output").items()


def play(ground: Ground, number: int) -> Course:
    """The plan of this number."""
    draw = random.Random(number)
    names = list(_NAMES[: draw.randint(1, len(_NAMES))])
    machine = ground.machine(f"plan-{number}", len(names))
    kills = number % _EACH_WITH_KILLS == 0
    moments = sorted(draw.sample(range(1, ground.steps - 1), draw.randint(2, 5)))
    course, process = Course(machine), ground.start(machine)
    while (step := course.look()) < ground.steps:
        if is_over(process.pid):
            break
        if moments and step >= moments[0]:
            moments.pop(0)
            if kills and draw.random() < 0.6:
                if kill_one(process.pid, draw):
                    course.lost.append(step)
            else:
                others = draw.sample(_NAMES[1:], draw.randint(0, len(_NAMES) - 1))
                give(machine, [_NAMES[0], *others])
        time.sleep(0.001)
    code = process.exit_code()
    course.look()
    course.output = process.output
    if code != 0:
        print(f"plan {number} ended with code {code}:\n{process.output}", file=sys.stderr)
    return course


def give(machine: Machine, names: list[str]) -> None:
    file = Path(machine.environment[FILE])
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(names))
    draft.replace(file)


def kill_one(first: int, draw: random.Random) -> bool:
    """One of the other processes, if there is any."""
    names = (entry.name for entry in Path("/proc").iterdir())
    found = sorted(pid for pid in map(int, filter(str.isdigit, names)) if parent_of(pid) == first)
    if not found:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(draw.choice(found), signal.SIGKILL)
    return True


def parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def is_over(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def step_ratio(ground: Ground) -> float:
    """Of a step with two processes, and with two whose gradients are summed in any order."""
    found = []
    for name, more in (("gathered", {}), ("reduced", {"REDUCES": "1"})):
        machine = ground.machine(name, 2, **more)
        course, process = Course(machine), ground.start(machine)
        while course.look() < ground.steps and not is_over(process.pid):
            time.sleep(0.001)
        if process.exit_code() != 0:
            raise SystemExit(f"a training with two processes has failed:\n{process.output}")
        found.append(course.median_s())
    return found[0] / found[1]


def measure(plans: int, steps: int, folder: Path) -> dict[str, Any]:
    host = Host(0)
    try:
        with forks("tests.training.followers", folder) as forked:
            ground = Ground(folder, host, forked, steps)
            machine = ground.machine("alone", 1)
            alone, process = Course(machine), ground.start(machine)
            if process.exit_code() != 0:
                raise SystemExit(f"the training on one GPU has failed:\n{process.output}")
            right = alone.result()
            courses = [play(ground, number) for number in range(plans)]
            ratio = step_ratio(ground)
    finally:
        host.close()
    same = sum(course.result() == right for course in courses)
    return {
        "value": same / plans,
        "goal": 1.0,
        "plans": plans,
        "changes": {kind: len(pauses) for kind, pauses in pauses_s(courses).items()},
        "killed": sum(len(_LOSS.findall(course.output)) for course in courses),
        "pause_s": {
            kind: {"median": round(median(found), 3), "longest": round(max(found), 3), "goal": GOALS_S[kind]}
            for kind, found in pauses_s(courses).items()
        },
        "step_ratio": round(ratio, 3),
        "step_ratio_goal": STEP_GOAL,
        "cores": len(os.sched_getaffinity(0)),
    }


def pauses_s(courses: list[Course]) -> dict[str, list[float]]:
    found = defaultdict(list)
    for course in courses:
        for kind, step in course.changes():
            took_s = course.step_s(step)
            if took_s is not None:
                found[kind].append(max(0.0, took_s - course.median_s()))
    return dict(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=50)
    parser.add_argument("--steps", type=int, default=60)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(told.plans, told.steps, Path(folder))
    print(json.dumps(found))
    return 0 if found["value"] == 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
