"""G6: demand bound pressure over many jobs, against NumPy's own cumulative sum and division.

    python -m benchmarks.pressure [--rounds 15] [--jobs 100000]

Ours: `app.core.demand.pressure_of_sorted`, which every decision calls, with all jobs due within the horizon. Raw:
`(numpy.cumsum(work) / window).max()` on the same presorted arrays with the windows already computed. Both are measured
in turn in every round; the value is the median of the rounds' ratios. Beside it: ten times as many jobs; the same from
the columns of a board, where the work left is computed first; and one job that changes there. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from app.core.columns import JobColumns
from app.core.demand import Pressure, pressure_of_sorted
from app.core.model.job import JobState, Resources
from app.core.model.snapshot import JobView

GOAL = 1.5
HORIZON_MS = 86_400_000
WINDOWS: dict[str, Any] = {"capacity": 1000.0, "horizon_ms": HORIZON_MS, "least_window_ms": 60_000}
NOW_MS = 1_800_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=100_000)
    options = parser.parse_args()
    ours_s, raw_s = sorted_times(options.jobs, options.rounds)
    many_s, many_raw_s = sorted_times(10 * options.jobs, max(3, options.rounds // 3))
    detail = {
        "jobs": options.jobs,
        "ours_us": 1e6 * statistics.median(ours_s),
        "raw_us": 1e6 * statistics.median(raw_s),
        "ten_times_as_many_ms": 1e3 * statistics.median(many_s),
        "ten_times_as_many_raw_ms": 1e3 * statistics.median(many_raw_s),
        **board_times(options.jobs, options.rounds),
    }
    value = statistics.median(one / other for one, other in zip(ours_s, raw_s, strict=True))
    print(json.dumps({"name": "pressure", "value": value, "goal": GOAL, "unit": "x NumPy", "detail": detail}))


def sorted_times(count: int, rounds: int) -> tuple[list[float], list[float]]:
    chance = np.random.default_rng(1)
    deadlines = np.sort(NOW_MS + chance.integers(60_000, HORIZON_MS, count))
    work = (chance.exponential(600_000, count) * chance.choice([1, 2, 4, 8], count)).astype(np.int64)
    windows = deadlines - NOW_MS

    def ours() -> Pressure:
        return pressure_of_sorted(deadlines, work, NOW_MS, **WINDOWS)

    def raw() -> float:
        return float((np.cumsum(work) / windows).max())

    assert abs(ours().p - raw() / WINDOWS["capacity"]) < 1e-9 * raw()
    return in_turn(ours, raw, rounds)


def board_times(count: int, rounds: int) -> dict[str, float]:
    """From the columns, where jobs are in any order: all of it, and with one job put before."""
    chance = np.random.default_rng(2)
    columns = JobColumns()
    jobs = [job(number, int(chance.integers(60_000, HORIZON_MS))) for number in range(count)]
    for one in jobs:
        columns.put_job(one)

    def read() -> None:
        deadlines, work = columns.demand(NOW_MS, NOW_MS + HORIZON_MS)
        pressure_of_sorted(deadlines, work, NOW_MS, **WINDOWS)

    def change() -> None:
        columns.put_job(jobs[count // 2])
        read()

    read_s, change_s = in_turn(read, change, rounds)
    return {"from_columns_ms": 1e3 * statistics.median(read_s), "one_job_changed_ms": 1e3 * statistics.median(change_s)}


def job(number: int, due_in_ms: int) -> JobView:
    return JobView(
        job_id=f"job_{number}",
        project_id="project",
        state=JobState.RUNNING,
        row_version=1,
        submitted_ms=NOW_MS,
        deadline_ms=NOW_MS + due_in_ms,
        resources=Resources(),
        total_run_ms=600_000,
    )


def in_turn(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each, measured one after the other in every round, after one that does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for place, call in enumerate((one, other)):
            began = time.perf_counter()
            call()
            if number:
                times[place].append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    main()
