"""G25: how much of a cluster's GPUs is given out when pods come in random order and stay, by ranker.

    python -m benchmarks.pool_placement [--workload FILE [--nodes FILE]] [--ranker NAME]... [--seeds 10]
        [--first-seed 0] [--expected FILE] [--generated-nodes 300] [--processes 2]

`--workload` and `--nodes` are lists of pods and of nodes in the form of Alibaba's cluster-trace-gpu-v2023, csv or
csv.gz; `--workload` can be given several times. Without one, pods and nodes are drawn from published figures
(`app.simulator.placing.generating`). Pods come until they have asked for 130 % of the GPUs; a row has what is
given out when they have asked for 90, 100 and 130 %, in percent of all GPUs, means over the seeds, and the
microseconds of a processor that a decision takes, the search and the change of the node together.
`--expected` is a file with columns workload, policy, seed, allocation_percent_at_100: the published figure for the same
workload (its name is the file's without `openb_pod_list_`) by the policy FGD stands beside ours. `value` is what `ours`
gives out at 100 % of the first workload; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.core.ranking import RankerName
from app.simulator.placing import Filled, PlacementWorkload, arrivals, generate_workload, play, read_nodes, read_pods
from app.simulator.process_pool import answer_all, usual_processes

POINTS = (0.9, 1.0, 1.3)
GOALS = {"default": 95.5, "multigpu50": 97.2, "cpu200": 94.9, "gpuspec33": 88.0}
GOAL_US, PUBLISHED = 20, "FGD"


@dataclass(frozen=True, slots=True)
class Setting:
    """What to play in a process of its own."""

    workload: PlacementWorkload
    ranker: RankerName
    seed: int


@dataclass(frozen=True, slots=True)
class Timed:
    filled: Filled
    decision_us: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", type=Path, action="append")
    parser.add_argument("--nodes", type=Path)
    parser.add_argument("--ranker", action="append", choices=[one.value for one in RankerName], help="only these")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--expected", type=Path)
    parser.add_argument("--generated-nodes", type=int, default=300)
    parser.add_argument("--processes", type=int, default=usual_processes())
    options = parser.parse_args()
    names = [RankerName(one) for one in options.ranker or RankerName]
    published = {} if options.expected is None else published_means(options.expected)
    rows = []
    for workload in workloads(options):
        for name in names:
            settings = [Setting(workload, name, options.first_seed + number) for number in range(options.seeds)]
            played: list[Timed] = answer_all(timed, settings, options.processes, lambda _place, _share: None)
            rows.append(row_of(workload.name, name, played, published.get(workload.name)))
            print(json.dumps(rows[-1]), flush=True)
    mine = [row for row in rows if row["ranker"] == RankerName.OURS]
    told = {"name": "pool_placement", "value": mine[0]["at_100"] if mine else None, "unit": "% of the GPUs"}
    goal = GOALS.get(rows[0]["workload"])
    print(json.dumps({**told, "goal": goal, "detail": {"goals": GOALS, "goal_us": GOAL_US, "rows": rows}}))


def workloads(options: argparse.Namespace) -> list[PlacementWorkload]:
    if options.workload is None:
        return [generate_workload(options.generated_nodes, 1)]
    if options.nodes is None:
        raise SystemExit("--nodes: is missing; name the list of nodes that the pods of --workload come to")
    nodes = read_nodes(options.nodes)
    return [PlacementWorkload(_name_of(path), nodes, read_pods(path)) for path in options.workload]


def _name_of(path: Path) -> str:
    return path.name.split(".")[0].removeprefix("openb_pod_list_")


def timed(setting: Setting, _tell: Callable[[float], None]) -> Timed:
    """One seed, in a process of its own."""
    pods = arrivals(setting.workload, POINTS[-1], setting.seed)
    began = time.process_time()
    filled = play(setting.workload, setting.ranker, pods, POINTS)
    return Timed(filled, (time.process_time() - began) * 1e6 / filled.decisions)


def row_of(workload: str, name: RankerName, played: Sequence[Timed], published: float | None) -> dict[str, Any]:
    found = {f"at_{point * 100:.0f}": [100 * one.filled.allocated[point] for one in played] for point in POINTS}
    return {
        "workload": workload,
        "ranker": name.value,
        **{point: round(statistics.mean(values), 2) for point, values in found.items()},
        "deviation_at_100": round(statistics.stdev(found["at_100"]), 2) if len(played) > 1 else 0.0,
        "published_fgd_at_100": published,
        "decision_us": round(statistics.median(one.decision_us for one in played), 1),
    }


def published_means(path: Path) -> dict[str, float]:
    """By workload, the mean over the seeds of the published policy."""
    by_workload: dict[str, list[float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["policy"] == PUBLISHED:
                by_workload.setdefault(row["workload"], []).append(float(row["allocation_percent_at_100"]))
    return {name: round(statistics.mean(values), 2) for name, values in by_workload.items()}


if __name__ == "__main__":
    main()
