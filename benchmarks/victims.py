"""G22: whom to end for a guaranteed job (SpotGPU): the cover, the index, and what rules do to both classes of jobs.

    python -m benchmarks.victims [--trace FILE [--start-s 1690000]] [--jobs 1500] [--seeds 5] [--load 1.0]...
        [--saving 0.5]... [--histories N] [--parts covers,index,rules] [--processes 2]

`rules`: a pool of eight-GPU nodes in the simulator (`app.simulator.classes`), 30 % of the jobs spot, checkpoints every
10 minutes; 0, 50 and 95 % of the spot jobs save within the grace; 70, 85 and 100 % of the pool asked for; the trace as
it is, and with sizes 1, 2, 4 and 8 in equal GPU time. The trace is a file that `allpass simulate` reads, or is drawn
from Philly's published distributions (`app.simulator.traces.figures`). A row is the mean over the seeds: `completion`
of spot jobs as a ratio to the rule `random` of the same seed, `wasted` GPU time as a part of what the spot jobs need,
also as a ratio to `random`, `waiting_s` of guaranteed jobs. After the rules comes `nothing-lost`: random victims who
lose nothing, and save and restore at once. No choice by lost work can do better, but for whose turn it is in the queue
then: `lost_work_bound` is its completion in the setting of `value`, which is the completion by `lost-work` at 50 %
saving and 100 % load with the trace's own sizes.

`covers`: the cover of 10,000 small cases against trying every set; gangs against the same, as a ratio of costs.
`index`: the best of 100,000 nodes after another node has changed. `--histories`: as many of
`app.simulator.classes.quota_histories`. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from app.core.eviction import (
    EvictionRule,
    GrowingCost,
    GuaranteedNeed,
    NodeRoom,
    SpotJob,
    VictimIndex,
    Victims,
    choose_victims,
)
from app.core.eviction.cover import GiveUp, cheapest_cover
from app.simulator.classes.figures import figures_of
from app.simulator.classes.jobs import equal_sizes, nodes_for, two_classes
from app.simulator.classes.playing import TwoClassSetting, play_two_classes
from app.simulator.classes.quota_histories import play_quota_history
from app.simulator.classes.running import SavingTimes
from app.simulator.process_pool import answer_all, usual_processes
from app.simulator.traces.generating import generate
from app.simulator.traces.job import TraceJob
from app.simulator.traces.reading import read_trace
from tests.core.eviction.makers import cheapest_ending, cheapest_subset

GOAL, GOAL_INDEX_US = 0.70, 100
SPOT_SHARE = 0.3
LOADS, SAVING = (0.7, 0.85, 1.0), (0.0, 0.5, 0.95)
NOTHING_LOST = "nothing-lost"
NO_LOSS = SavingTimes(save_ms=0, restore_ms=0)
CASES, GANG_CASES, NODES, QUESTIONS = 10_000, 300, 100_000, 2_000


@dataclass(frozen=True, slots=True)
class Played:
    """One seed of one setting: by rule, what came out."""

    sizes: str
    load: float
    saving: float
    seed: int
    by_rule: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Setting:
    """What to play in a process of its own."""

    jobs: tuple[TraceJob, ...]
    sizes: str
    load: float
    saving: float
    seed: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--start-s", type=float, default=0.0)
    parser.add_argument("--jobs", type=int, default=1_500)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--load", type=float, action="append", choices=LOADS, help="only these")
    parser.add_argument("--saving", type=float, action="append", choices=SAVING, help="only these")
    parser.add_argument("--histories", type=int, default=0)
    parser.add_argument("--parts", default="covers,index,rules")
    parser.add_argument("--processes", type=int, default=usual_processes())
    options = parser.parse_args()
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "covers": covers,
        "index": index,
        "rules": lambda: rules(options),
    }
    detail: dict[str, Any] = {name: measures[name]() for name in options.parts.split(",")}
    if options.histories:
        detail["histories"] = histories(options.histories)
    value = detail.get("rules", {}).get("value")
    print(json.dumps({"name": "victims", "value": value, "goal": GOAL, "unit": "x of random", "detail": detail}))


def covers() -> dict[str, Any]:
    """Exact on one node; how much dearer than the best a greedy set for a gang is."""
    chance = random.Random(1)
    wrong = sum(_differs(chance) for _ in range(CASES))
    ratios = [one for one in (_gang_ratio(chance) for _ in range(GANG_CASES)) if one is not None]
    return {
        "cases": CASES,
        "not_the_cheapest": wrong,
        "gangs": len(ratios),
        "gangs_not_the_cheapest": sum(one > 1 for one in ratios),
        "gang_cost_mean": round(statistics.mean(ratios), 4),
        "gang_cost_worst": round(max(ratios), 3),
    }


def _differs(chance: random.Random) -> bool:
    options = {
        f"j{number}": ((chance.randint(1, 4), chance.randint(0, 9)), chance.randrange(100_000))
        for number in range(chance.randint(0, 7))
    }
    missing = chance.randint(0, 8), chance.choice((0, 0, 12))
    found = cheapest_cover((GiveUp(name, frees, cost) for name, (frees, cost) in options.items()), missing)
    return (None if found is None else found.cost_gpu_us) != cheapest_subset(options, missing)


def _gang_ratio(chance: random.Random) -> float | None:
    """None where nothing has to end, or nothing helps."""
    jobs, rooms = [], []
    for node in range(3):
        free = 8
        while free > 0 and len(jobs) < 12:
            gpus = min(chance.choice((1, 2, 2, 4, 4, 8)), free)
            free -= gpus
            cost = GrowingCost(round(gpus * chance.expovariate(1 / 900) * 1e6))
            jobs.append(SpotJob(f"j{len(jobs)}", {f"n{node}": (gpus,)}, gpus, 0, 0, cost))
        rooms.append(NodeRoom(f"n{node}", (free,)))
    need = GuaranteedNeed("g", (chance.choice((1, 2, 4, 8)),), chance.randint(2, 3))
    chosen, best = choose_victims(need, rooms, jobs, EvictionRule.LOST_WORK, 0), cheapest_ending(need, rooms, jobs)
    return chosen.cost_gpu_us / best if isinstance(chosen, Victims) and best else None


def index() -> dict[str, Any]:
    """Every question comes 50 ms after the one before, after one node's job has saved."""
    chance = random.Random(2)
    victims, now_ms = VictimIndex(), 0
    nodes = {f"n{number:06d}": _full_node(chance, f"n{number:06d}", 0) for number in range(NODES)}
    for node_id, jobs in nodes.items():
        victims.put(node_id, (0,), jobs, now_ms)
    parts = [(gpus,) for gpus in (1, 2, 4, 8)]
    began = time.perf_counter()
    for part in parts:
        victims.best(part, now_ms)
    first_s = time.perf_counter() - began
    puts, bests = [], []
    for _ in range(QUESTIONS):
        now_ms += 50
        node_id, part = f"n{chance.randrange(NODES):06d}", chance.choice(parts)
        jobs = _full_node(chance, node_id, now_ms)
        times = [time.perf_counter()]
        victims.put(node_id, (0,), jobs, now_ms)
        times.append(time.perf_counter())
        victims.best(part, now_ms)
        times.append(time.perf_counter())
        puts.append(times[1] - times[0])
        bests.append(times[2] - times[1])
    return {
        "nodes": NODES,
        "first_question_of_four_shapes_s": round(first_s, 1),
        "best_us": round(statistics.median(bests) * 1e6, 1),
        "best_p99_us": round(sorted(bests)[len(bests) * 99 // 100] * 1e6, 1),
        "put_us": round(statistics.median(puts) * 1e6, 1),
        "goal_us": GOAL_INDEX_US,
    }


def _full_node(chance: random.Random, node_id: str, now_ms: int) -> list[SpotJob]:
    jobs: list[SpotJob] = []
    free = 8
    while free > 0:
        gpus = min(chance.choice((1, 1, 2, 4, 8)), free)
        free -= gpus
        saved_ms = now_ms - chance.randrange(600_000)
        cost = GrowingCost(43_000_000 * gpus, round(1000 * gpus * chance.random()), saved_ms)
        jobs.append(SpotJob(f"{node_id}-{len(jobs)}", {node_id: (gpus,)}, gpus, saved_ms, saved_ms, cost))
    return jobs


def rules(options: argparse.Namespace) -> dict[str, Any]:
    """All rules in all settings."""
    if options.trace is None:
        trace = generate("philly", options.jobs, 1)
    else:
        trace = read_trace(options.trace, start_s=options.start_s, most_jobs=options.jobs)
    own = tuple(job for job in trace.jobs if job.duration_s > 0)
    rows = []
    for sizes, load, saving in product(("own", "equal"), options.load or LOADS, options.saving or SAVING):
        settings = [
            Setting(own if sizes == "own" else tuple(equal_sizes(own, seed)), sizes, load, saving, seed)
            for seed in range(1, options.seeds + 1)
        ]
        played: list[Played] = answer_all(play, settings, options.processes, lambda _place, _share: None)
        for rule in (*(one.value for one in EvictionRule), NOTHING_LOST):
            rows.append(row_of(played, rule))
            print(json.dumps(rows[-1]), flush=True)
    found = {tuple(list(row.values())[:4]): row["completion"] for row in rows}
    value, bound = (found.get(("own", 1.0, 0.5, rule)) for rule in (EvictionRule.LOST_WORK.value, NOTHING_LOST))
    told = {"trace": trace.name, "jobs": len(own), "seeds": options.seeds, "value": value, "lost_work_bound": bound}
    return told | {"rows": rows}


def play(setting: Setting, _tell: Callable[[float], None]) -> Played:
    """All rules on the same jobs, in a process of its own."""
    jobs = two_classes(setting.jobs, SPOT_SHARE, setting.saving, setting.seed)
    nodes = nodes_for(setting.jobs, setting.load)
    by_rule = {}
    for rule in EvictionRule:
        runs = play_two_classes(jobs, TwoClassSetting(nodes, rule, setting.seed))
        by_rule[rule.value] = asdict(figures_of(runs))
    savers = two_classes(setting.jobs, SPOT_SHARE, 1.0, setting.seed)
    free = play_two_classes(savers, TwoClassSetting(nodes, EvictionRule.RANDOM, setting.seed, NO_LOSS))
    by_rule[NOTHING_LOST] = asdict(figures_of(free))
    return Played(setting.sizes, setting.load, setting.saving, setting.seed, by_rule)


def row_of(played: Sequence[Played], rule: str) -> dict[str, Any]:
    mine = [one.by_rule[rule] for one in played]
    ratios = [one.by_rule[rule]["completion_s"] / one.by_rule["random"]["completion_s"] for one in played]
    of_random = statistics.mean(one.by_rule["random"]["wasted"] for one in played)
    wasted = statistics.mean(one["wasted"] for one in mine)
    return {
        "sizes": played[0].sizes,
        "load": played[0].load,
        "saving": played[0].saving,
        "rule": rule,
        "completion": round(statistics.mean(ratios), 3),
        "completion_by_seed": [round(one, 3) for one in ratios],
        "evictions": round(statistics.mean(one["evictions"] for one in mine)),
        "wasted": round(wasted, 4),
        "wasted_of_random": round(wasted / of_random, 3) if of_random else None,
        "waiting_s": round(statistics.mean(one["waiting_s"] for one in mine), 1),
    }


def histories(count: int) -> dict[str, Any]:
    """HiveD's promise, watched in so many histories."""
    broken, granted, longest_ms = [], 0, 0
    for seed in range(count):
        one = play_quota_history(seed)
        granted += one.granted
        longest_ms = max(longest_ms, one.longest_ms)
        if one.breaches:
            broken.append({"seed": seed, "breaches": one.breaches[:3]})
    return {"histories": count, "granted": granted, "longest_ms": longest_ms, "broken": broken[:20]}


if __name__ == "__main__":
    main()
