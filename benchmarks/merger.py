"""G4: the merge decision, against the exact integer program.

    python -m benchmarks.merger [--jobs 20 50 100 200 500] [--seeds 3] [--limit 120]

Instances: N jobs of three base models on 240 GPUs, sizes 1 to 32; serial work lognormal (median 1,808 s, sigma 1.2)
with a parallel overhead of 1-25 % per GPU; gains from tasks in six clusters per base model. Ours: `fast.solve`. HiGHS:
the same problem through `exact.solve_exactly` (one thread, gap 1e-4). `value` is the worst cost above HiGHS' proven
lower bound, in percent. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from typing import Any

import numpy as np

from app.core.merging.exact import solve_exactly
from app.core.merging.fast import solve
from app.core.merging.objective import Workload, problem_of
from app.core.merging.problem import Problem, cost_of

GOAL = 0.5
GPUS = 240
SIZES = np.array([1, 2, 3, 4, 8, 12, 16, 24, 32])
WAIT_COST = 6.0
SETUP_S = 30.0


def main() -> None:
    """Solve all instances both ways, print a line for each, and the result last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=[20, 50, 100, 200, 500])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for HiGHS on one instance")
    options = parser.parse_args()
    rows = [_compared(jobs, seed, options.limit) for jobs in options.jobs for seed in range(options.seeds)]
    worst = max(row["above_bound_percent"] for row in rows)
    detail = {"rows": rows, "by_jobs": {jobs: _summary(rows, jobs) for jobs in options.jobs}}
    result = {"name": "merger", "value": worst, "goal": GOAL, "unit": "% above the proven bound", "detail": detail}
    print(json.dumps(result))


def instance(jobs: int, seed: int) -> Problem:
    """A workload as the module says. The same seed, the same instance."""
    random = np.random.default_rng(seed)
    work_s = np.exp(random.normal(7.5, 1.2, jobs))
    bases = random.choice(3, jobs, p=[0.5, 0.3, 0.2])
    overhead = random.uniform(0.01, 0.25, jobs)
    gains = _gains(random, jobs, bases)

    def run_s(gpus: Any) -> Any:
        return work_s[:, None] * (1 + overhead[:, None] * (gpus - 1)) / gpus + SETUP_S

    share = math.ceil(GPUS / jobs)
    everybody = np.ones(jobs, dtype=bool)
    fair_s, fair_pair_s = (run_s(np.array([size]))[:, 0] for size in (share, 2 * share))
    workload = Workload(run_s(SIZES), fair_s, fair_pair_s, bases, gains, everybody, everybody)
    return problem_of(workload, SIZES, GPUS, wait_cost=WAIT_COST)


def _gains(random: np.random.Generator, jobs: int, bases: Any) -> Any:
    clusters = random.normal(size=(18, 8))
    tasks = random.normal(size=(jobs, 8)) + 1.2 * clusters[bases * 6 + random.integers(0, 6, jobs)]
    tasks /= np.linalg.norm(tasks, axis=1, keepdims=True)
    gains = 0.8 * (tasks @ tasks.T) + 0.3 * random.normal(size=(jobs, jobs)) + 0.15
    np.fill_diagonal(gains, 0)
    return np.clip(gains, -0.6, 3)


def _compared(jobs: int, seed: int, limit_s: float) -> dict[str, Any]:
    problem = instance(jobs, seed)
    begun = time.perf_counter()
    ours = solve(problem)
    ours_s = time.perf_counter() - begun
    assert abs(cost_of(problem, ours.groups) - ours.cost) < 1e-6 * ours.cost
    begun = time.perf_counter()
    exact = solve_exactly(problem, time_limit_s=limit_s)
    exact_s = time.perf_counter() - begun
    bound = -math.inf if exact is None else exact.bound
    row = {
        "jobs": jobs,
        "seed": seed,
        "above_bound_percent": round(100 * (ours.cost / max(bound, ours.bound) - 1), 4),
        "above_highs_percent": None if exact is None else round(100 * (ours.cost / exact.cost - 1), 4),
        "certificate_percent": round(100 * ours.gap, 4),
        "ours_s": round(ours_s, 4),
        "highs_s": round(exact_s, 3),
        "times_faster": round(exact_s / ours_s, 1),
    }
    words = f"{row['above_bound_percent']} % above the bound, certificate {row['certificate_percent']} %"
    print(f"{jobs} jobs, seed {seed}: {words}, {ours_s:.3f} s against {exact_s:.2f} s", flush=True)
    return row


def _summary(rows: list[dict[str, Any]], jobs: int) -> dict[str, float]:
    mine = [row for row in rows if row["jobs"] == jobs]
    return {
        "worst_above_bound_percent": max(row["above_bound_percent"] for row in mine),
        "worst_certificate_percent": max(row["certificate_percent"] for row in mine),
        "median_s": statistics.median(row["ours_s"] for row in mine),
        "median_times_faster": statistics.median(row["times_faster"] for row in mine),
    }


if __name__ == "__main__":
    main()
