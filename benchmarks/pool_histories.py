"""Pools of a team's own through drawn histories: hosts that join, drain, are unplugged and return, hours, walltimes.

    python -m benchmarks.pool_histories [--histories 1000] [--first 0] [--policy allpass]... [--processes 2]

Each history (`app.simulator.own.histories`) is played to its end in the simulator, by the policy that runs in
production, and watched at every decision (`app.simulator.own.watching`): every job ends, with each step counted once;
no GPU of a host is given out twice, nothing runs on a host that has left, after its pool's hours or its walltime, or
for a project that may not; nothing is rented while a GPU of one's own that fits and is allowed is free; and the
invariants of plans hold. A history that does not keep all of it is told with its number, which plays it again:

    python -m benchmarks.pool_histories --first 17 --histories 1

The value is how many did not; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.policies import policy_names
from app.simulator.own.histories import draw_history
from app.simulator.own.watching import WatchedHistory, watch_history
from app.simulator.process_pool import answer_all, usual_processes

GOAL = 0
AT_ONCE = 20  # histories that a process is given together
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Batch:
    """So many histories from the first on, under one policy."""

    policy: str
    seeds: range


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--policy", action="append", choices=policy_names(), default=[])
    parser.add_argument("--processes", type=int, default=usual_processes())
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.histories)
    batches = [
        Batch(policy, seeds[place : place + AT_ONCE])
        for policy in options.policy or ["allpass"]
        for place in range(0, len(seeds), AT_ONCE)
    ]
    began = time.perf_counter()
    told = answer_all(play, batches, options.processes, lambda _place, _share: None)
    print(json.dumps(result_of([one for batch in told for one in batch], time.perf_counter() - began)))


def play(batch: Batch, _tell: Callable[[float], None]) -> list[WatchedHistory]:
    """In a process of its own. What a history raises is its breach, and does not end the others."""
    return [watched(seed, batch.policy) for seed in batch.seeds]


def watched(seed: int, policy: str) -> WatchedHistory:
    try:
        return watch_history(draw_history(seed), policy)
    except Exception:
        last = traceback.format_exc().strip().splitlines()[-1]
        return WatchedHistory(seed, policy, breaches=[last], lost=1)


def result_of(played: Sequence[WatchedHistory], took_s: float) -> dict[str, Any]:
    broken = [one for one in played if one.breaches or one.lost]
    detail = {
        "histories": len(played),
        "jobs": sum(one.jobs for one in played),
        "lost_jobs": sum(one.lost for one in played),
        "moves": sum(one.moves for one in played),
        "faults": sum(one.faults for one in played),
        "left_in_time": sum(one.left_by_plan for one in played),
        "own_gpu_hours": round(sum(one.own_gpu_ms for one in played) / HOUR_MS, 1),
        "rented_gpu_hours": round(sum(one.rented_gpu_ms for one in played) / HOUR_MS, 1),
        "seconds": round(took_s, 1),
        "broken": [{"seed": one.seed, "policy": one.policy, "breaches": one.breaches[:3]} for one in broken[:20]],
    }
    return {"name": "pool histories", "value": len(broken), "goal": GOAL, "unit": "histories", "detail": detail}


if __name__ == "__main__":
    main()
