"""G7: one placement decision (HAS), with nodes from a hundred to a hundred thousand.

    python -m benchmarks.placement [--json]

A decision is `find` for the plans of one job, and `take` of what it found; it is given back outside the measured time
so that every decision sees the same cluster. `value` is the median of the `literal` ranker at 100,000 nodes in
microseconds; `growth` is that time over the time at 100 nodes, the median of ratios that were measured in turn. Beside
both rankers: the algorithm transcribed over lists (`tests/core/placement/transcription.py`), whose allocations the
literal ranker has to equal on every cluster and job here, node by node. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from app.core.placement import Cluster, ClusterNode, GpuNeed, Ranker
from tests.core.placement.transcription import literal

SIZES_GB = (16, 24, 32, 40, 48, 80, 141)
IDLE = (0, 0, 0, 1, 2, 3, 4, 6, 8)
NODES = (100, 1_000, 10_000, 100_000)
JOBS = 200
ROUNDS = 7
GOAL_US, GOAL_GROWTH = 10.0, 2.0
LITERAL_WORK = 200_000  # nodes that the transcription may look at per size of cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="nothing but the JSON object")
    options = parser.parse_args()
    told = measured()
    if not options.json:
        for row in told["detail"]["by_nodes"]:
            print(json.dumps(row))
    print(json.dumps(told))


def measured() -> dict[str, Any]:
    """Every ranker at every size, in turn."""
    jobs = _jobs()
    worlds = {nodes: _machines(nodes) for nodes in NODES}
    clusters = {(nodes, ranker): Cluster(worlds[nodes], ranker) for nodes in NODES for ranker in Ranker}
    times: dict[tuple[int, Ranker], list[float]] = {key: [] for key in clusters}
    for _ in range(ROUNDS):
        for key, cluster in clusters.items():
            times[key].append(_decision_us(cluster, jobs))
    rows = [_row(nodes, worlds[nodes], clusters, times, jobs) for nodes in NODES]
    growth = {ranker: _growth(times[NODES[-1], ranker], times[NODES[0], ranker]) for ranker in Ranker}
    value = rows[-1]["literal_us"]
    return {
        "name": "placement",
        "value": value,
        "goal": GOAL_US,
        "unit": "us per decision at 100,000 nodes",
        "detail": {
            "growth": {ranker.value: round(ratio, 2) for ranker, ratio in growth.items()},
            "growth_goal": GOAL_GROWTH,
            "same_allocation": all(row["same_allocation"] for row in rows),
            "by_nodes": rows,
        },
    }


def _row(
    nodes: int,
    machines: Sequence[ClusterNode],
    clusters: dict[tuple[int, Ranker], Cluster],
    times: dict[tuple[int, Ranker], list[float]],
    jobs: Sequence[Sequence[GpuNeed]],
) -> dict[str, Any]:
    some = jobs[: max(3, min(JOBS, LITERAL_WORK // nodes))]
    cluster = clusters[nodes, Ranker.LITERAL]
    same = True
    for plans in some:
        found, expected = cluster.find(plans), literal(machines, plans)
        same &= (None if found is None else (found.need, found.shares)) == expected
    return {
        "nodes": nodes,
        "literal_us": round(statistics.median(times[nodes, Ranker.LITERAL]), 2),
        "ours_us": round(statistics.median(times[nodes, Ranker.OURS]), 2),
        "transcription_us": round(_literal_us(machines, some)),
        "compared_jobs": len(some),
        "same_allocation": same,
    }


def _decision_us(cluster: Cluster, jobs: Sequence[Sequence[GpuNeed]]) -> float:
    """The median decision."""
    spent = []
    for plans in jobs:
        started = time.perf_counter()
        found = cluster.find(plans)
        if found is not None:
            cluster.take(found.shares)
        spent.append(time.perf_counter() - started)
        if found is not None:
            cluster.give(found.shares)
    return statistics.median(spent) * 1e6


def _literal_us(machines: Sequence[ClusterNode], jobs: Sequence[Sequence[GpuNeed]]) -> float:
    spent = []
    for plans in jobs:
        started = time.perf_counter()
        literal(machines, plans)
        spent.append(time.perf_counter() - started)
    return statistics.median(spent) * 1e6


def _growth(large: Sequence[float], small: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(large, small, strict=True))


def _machines(nodes: int) -> list[ClusterNode]:
    chance = random.Random(1)
    return [
        ClusterNode(
            f"node_{number:06d}",
            chance.choice(SIZES_GB),
            chance.choice(IDLE),
            price_micros=chance.randrange(200_000, 4_000_000, 100),
            place=chance.choice((None, None, "cloud/east", "cloud/west")),
        )
        for number in range(nodes)
    ]


def _jobs() -> list[list[GpuNeed]]:
    chance = random.Random(2)
    counts, sizes = (1, 2, 4, 8, 16), (12, 20, 30, 38, 44, 70)
    return [[GpuNeed(chance.choice(counts), chance.choice(sizes)) for _ in range(4)] for _ in range(JOBS)]


if __name__ == "__main__":
    main()
