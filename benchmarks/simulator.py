"""G8: simulated jobs per second, against a bare loop over a heap.

    python -m benchmarks.simulator [--rounds 3] [--jobs 100000]

Raw: first in, first out on a fixed number of GPUs with `heapq`, one GPU per job, and the mean completion time: what
any simulation has to do at least. Ours: the whole simulation of the default policy (`allpass simulate --policy
allpass`), with every decision made by the code that runs in production and all figures computed; and `--compat tiresias
--policy fifo`, a cluster of fixed size. All on the same generated trace, in turn in every round; the value is the
median of the rounds' ratios for the default policy. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import time
from collections.abc import Callable

from app.simulator.compat.tiresias import replay
from app.simulator.options import Options
from app.simulator.running import simulate
from app.simulator.traces.generating import generate
from app.simulator.traces.job import Trace

GOAL = 0.03
FIFO_GOAL = 0.15
GPUS = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=100_000)
    options = parser.parse_args()
    trace = generate("seren", options.jobs, seed=1)
    ways: dict[str, Callable[[], object]] = {
        "raw": lambda: bare_fifo(trace),
        "fifo": lambda: replay(trace, "fifo", GPUS),
        "allpass": lambda: simulate(trace, ["allpass"], Options()),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, play in ways.items():
            began = time.perf_counter()
            play()
            times[name].append(time.perf_counter() - began)
    detail = {
        "jobs": options.jobs,
        **{f"{name}_jobs_per_s": options.jobs / statistics.median(found) for name, found in times.items()},
        "fifo_ratio": ratio(times, "fifo"),
        "fifo_goal": FIFO_GOAL,
    }
    print(
        json.dumps({"name": "simulator", "value": ratio(times, "allpass"), "goal": GOAL, "unit": "x", "detail": detail})
    )


def ratio(times: dict[str, list[float]], name: str) -> float:
    return statistics.median(raw / ours for raw, ours in zip(times["raw"], times[name], strict=True))


def bare_fifo(trace: Trace) -> float:
    """Mean completion time, first in, first out."""
    free = [0.0] * GPUS
    total_s = 0.0
    for job in trace.jobs:
        end_s = max(heapq.heappop(free), job.submit_s) + job.duration_s
        heapq.heappush(free, end_s)
        total_s += end_s - job.submit_s
    return total_s / len(trace.jobs)


if __name__ == "__main__":
    main()
