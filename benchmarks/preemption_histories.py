"""Evictions and quotas through drawn histories: a hundred thousand of them, by hand.

    python -m benchmarks.preemption_histories [--histories 100000] [--first 0] [--kind evictions]... [--processes 2]

Of `evictions` (`app.simulator.classes.eviction_histories`) each is sixty decisions under a drawn policy: guaranteed and
spot jobs on nodes and on hosts of a pool, with quotas or without, by our rule or the paper's and by each ranker of
hosts; no GPU is two runs', only those leave who may, after their first minute, and for a job that then begins. Of
`quotas` (`app.simulator.classes.quota_histories`) each is
thirty submissions and ends: whatever fits a project's private cluster has its place in the pool within the grace. A
history that does not keep all of it is told with its number, which plays it again:

    python -m benchmarks.preemption_histories --kind evictions --first 17 --histories 1

The value is how many did not; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.eviction import EvictionRule
from app.core.host_ranking import HostRanker
from app.simulator.classes.eviction_histories import play_eviction_history
from app.simulator.classes.quota_histories import play_quota_history
from app.simulator.process_pool import answer_all, usual_processes

GOAL = 0
AT_ONCE = 50  # histories that a process is given together
_MOST_TOLD = 20


@dataclass(frozen=True, slots=True)
class Batch:
    """So many histories of a kind from the first on."""

    kind: str
    seeds: range


@dataclass(frozen=True, slots=True)
class Played:
    """What a batch came to: sums by name, and what was not kept, by seed."""

    kind: str
    sums: Mapping[str, int]
    broken: Mapping[int, Sequence[str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=sorted(_PLAYS), default=[])
    parser.add_argument("--processes", type=int, default=usual_processes())
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.histories)
    batches = [
        Batch(kind, seeds[place : place + AT_ONCE])
        for kind in options.kind or sorted(_PLAYS)
        for place in range(0, len(seeds), AT_ONCE)
    ]
    began = time.perf_counter()
    played = answer_all(play, batches, options.processes, lambda _place, _share: None)
    print(json.dumps(result_of(played, time.perf_counter() - began)))


def play(batch: Batch, _tell: Callable[[float], None]) -> Played:
    """In a process of its own. What a history raises is its breach, and does not end the others."""
    sums: Counter[str] = Counter()
    broken: dict[int, Sequence[str]] = {}
    for seed in batch.seeds:
        sums["histories"] += 1
        try:
            found, breaches = _PLAYS[batch.kind](seed)
        except Exception as error:
            found, breaches = {}, [f"{type(error).__name__}: {error}"]
        sums.update(found)
        if breaches:
            broken[seed] = breaches
    return Played(batch.kind, sums, broken)


def result_of(played: Sequence[Played], took_s: float) -> dict[str, Any]:
    """The result line; those that were not kept are printed before it."""
    kinds: dict[str, Counter[str]] = {}
    broken: list[str] = []
    for one in played:
        kinds.setdefault(one.kind, Counter()).update(one.sums)
        for seed, breaches in one.broken.items():
            broken.append(f"{one.kind} --first {seed} --histories 1: {breaches[0]}")
    for line in broken[:_MOST_TOLD]:
        print(f"not kept: --kind {line}")
    return {
        "benchmark": "preemption_histories",
        "value": len(broken),
        "goal": GOAL,
        "unit": "histories that were not kept",
        "kinds": {kind: dict(sorted(sums.items())) for kind, sums in sorted(kinds.items())},
        "took_s": round(took_s, 1),
    }


def _evictions(seed: int) -> tuple[dict[str, int], Sequence[str]]:
    """Each rule and ranker in turn."""
    rules, rankers = (EvictionRule.LOST_WORK, EvictionRule.LITERAL), list(HostRanker)
    one = play_eviction_history(seed, rule=rules[seed % 2], ranker=rankers[seed // 2 % len(rankers)])
    return {"begun": one.begun, "evicted": one.evicted, "served": one.served}, one.breaches


def _quotas(seed: int) -> tuple[dict[str, int], Sequence[str]]:
    one = play_quota_history(seed)
    return {"granted": one.granted, "refused": one.refused, "ended": one.ended}, one.breaches


_PLAYS: Mapping[str, Callable[[int], tuple[dict[str, int], Sequence[str]]]] = {
    "evictions": _evictions,
    "quotas": _quotas,
}

if __name__ == "__main__":
    main()
