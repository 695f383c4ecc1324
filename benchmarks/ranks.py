"""The built-in recipe with one process and with two, on a processor: the same bytes, and what sharing a step costs.

    .venv/bin/python -m benchmarks.ranks
    .venv/bin/python -m benchmarks.ranks --processes 3 --steps 40

`value`: whether the files that are left, and the losses, are the same bytes. `step_s`: seconds of a step by the number
of processes, the first two left out; `overhead`: what a step takes longer with several than its share of that with
one, as a share of the latter. Where there are fewer cores than processes it is their want, above all.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from allpass.recipe.settings import EDITION
from tests.training import tiny
from tests.training.gangs import OnGpus
from tests.training.recipes import StopsAt
from tests.training.scripts import files_of

ROWS = [{"prompt": f"{number}+1=" + number % 40 * " and", "completion": str(number + 1)} for number in range(200)]
SETTINGS: dict[str, Any] = {
    "batch_size": 16, "micro_batch": 2, "precision": "fp32", "lora_dropout": 0.1, "edition": EDITION,
}  # fmt: skip
_FIRST = 2  # steps that are not counted


class Timed(StopsAt):
    """A session that notes when each step was reported."""

    at_s: list[float]

    def report(self, step: int, **metrics: Any) -> None:
        super().report(step, **metrics)
        type(self).at_s.append(time.perf_counter())


@dataclass
class TimedCourse(OnGpus):
    session: type[StopsAt] = field(default_factory=lambda: type("Own", (Timed,), {"at_s": []}))

    def step_s(self) -> float:
        """Seconds of a step, in the middle."""
        at_s = self.session.at_s[_FIRST:]  # type: ignore[attr-defined]
        return median(later - earlier for earlier, later in pairwise(at_s))


def measure(processes: int, steps: int, folder: Path) -> dict[str, Any]:
    """One course with a single process, and one with several."""
    base, data = tiny.llama(folder / "llama"), tiny.write_rows(folder / "rows", "prompt", ROWS)
    parameters = {"model": base, "steps": steps, **SETTINGS}
    found = []
    for count in (1, processes):
        course = TimedCourse(folder / str(count), data, parameters, counts=(count,))
        with contextlib.redirect_stdout(io.StringIO()):
            course.run()
        found.append(course)
    alone, several = found
    is_same = alone.points() == several.points() and files_of(alone.output) == files_of(several.output)
    share_s = alone.step_s() / processes
    return {
        "value": is_same,
        "goal": True,
        "step_s": {"1": round(alone.step_s(), 4), str(processes): round(several.step_s(), 4)},
        "overhead": round(several.step_s() / share_s - 1, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(told.processes, told.steps, Path(folder))
    print(json.dumps(found))
    return 0 if found["value"] else 1


if __name__ == "__main__":
    sys.exit(main())
