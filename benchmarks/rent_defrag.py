"""Dollars that defragmentation saves on rented nodes, as a share of what the best packing would save.

    python -m benchmarks.rent_defrag [--days 4] [--seeds 5] [--arrivals-per-hour 12]

The world: whole nodes of 4 and of 8 GPUs can be rented at any time, at $1.00 per GPU and hour, an hour at least.
Jobs take 1, 2 or 4 GPUs (60, 25, 15 %), arrive at random, and last 4 hours on average (exponential; the lengths are
known). Each goes to the node where the fewest GPUs stay free. Where none has room a node is rented: for less than 4
GPUs one of 4 and one of 8 in turn, else one of the job's size. An empty node is given back when it is paid no longer.
Every ten minutes `cheaper_rent` is asked, with at most `--moves-per-release` moves for a node; a move costs $0.10 for
each GPU; a third of the jobs have never saved and are locked. The bound is what the taken GPUs alone cost, at each time
by whole groups of four: no packing is cheaper. In `whole` all jobs take a node of 8 GPUs: there is no gap to close, and
nothing may move. The value is the share of the gap that is closed; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

from app.core.defragmentation import PackedNode, PackedTask, SearchBounds, cheaper_rent

GOAL, GOAL_MOVES = 0.5, 1.5
# Two moves for a node and a return of two were chosen on seeds 0 to 2.
_FIRST_SEED = 100
_TICK_S, _HOUR_S = 600, 3_600
_GPU_HOUR_MICROS, _MOVE_MICROS = 1_000_000, 100_000
_SHAPES = {"parts": ((1, 0.6), (2, 0.25), (4, 0.15)), "whole": ((8, 1.0),)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--arrivals-per-hour", type=int, default=12)
    parser.add_argument("--moves-per-release", type=int, default=2)
    options = parser.parse_args()
    rows = [
        row(shapes, options, seed) for shapes in _SHAPES for seed in range(_FIRST_SEED, _FIRST_SEED + options.seeds)
    ]
    for one in rows:
        print(one, flush=True)
    parts = [one for one in rows if one["shapes"] == "parts"]
    moves, released = (sum(one[name] for one in parts) for name in ("moves", "released"))
    detail = {
        "least": min(one["closed"] for one in parts),
        "moves_per_release": moves / max(1, released),
        "goal_moves_per_release": GOAL_MOVES,
        "whole_moves": sum(one["moves"] for one in rows if one["shapes"] == "whole"),
        "rows": rows,
    }
    value = mean(one["closed"] for one in parts)
    print(json.dumps({"name": "rent_defrag", "value": value, "goal": GOAL, "unit": "of the gap", "detail": detail}))


def row(shapes: str, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    jobs = arrivals(shapes, options.days, options.arrivals_per_hour, seed)
    still, moving = World(jobs), World(jobs, moves_per_release=options.moves_per_release)
    still.play()
    moving.play()
    gap_micros = still.rent_micros - still.bound_micros
    saved_micros = still.rent_micros - moving.rent_micros - moving.moved_micros
    return {
        "shapes": shapes,
        "seed": seed,
        "still_usd": still.rent_micros / 1e6,
        "bound_usd": still.bound_micros / 1e6,
        "saved_usd": saved_micros / 1e6,
        "closed": saved_micros / gap_micros if gap_micros > 0 else 0.0,
        "moves": moving.moves,
        "released": moving.released,
    }


def arrivals(shapes: str, days: int, per_hour: int, seed: int) -> dict[int, list[PackedTask]]:
    """By tick, the jobs that arrive then, on no node yet."""
    chance = random.Random(seed)
    sizes, weights = zip(*_SHAPES[shapes], strict=True)
    found: dict[int, list[PackedTask]] = {}
    at_s = 0.0
    while (at_s := at_s + chance.expovariate(per_hour / _HOUR_S)) < days * 24 * _HOUR_S:
        (gpus,) = chance.choices(sizes, weights)
        tick = int(at_s // _TICK_S)
        ends_s = tick * _TICK_S + _TICK_S * max(1, round(chance.expovariate(1 / (4 * _HOUR_S)) / _TICK_S))
        locked = chance.random() < 1 / 3
        job = PackedTask(f"j{at_s:.3f}", "", gpus, 0, 0, ends_s=ends_s, locked=locked)
        found.setdefault(tick, []).append(replace(job, move_cost_micros=gpus * _MOVE_MICROS))
    return found


@dataclass
class World:
    """Nodes that are rented and the jobs on them, tick by tick."""

    arrivals: dict[int, list[PackedTask]]
    moves_per_release: int = 0
    nodes: dict[str, PackedNode] = field(default_factory=dict)
    tasks: dict[str, PackedTask] = field(default_factory=dict)
    rent_micros: int = 0
    bound_micros: int = 0
    moved_micros: int = 0
    moves: int = 0
    released: int = 0
    _rented: int = 0

    def play(self) -> None:
        tick, last = 0, max(self.arrivals)
        while tick <= last or self.tasks:
            self._step(tick)
            tick += 1

    def _step(self, tick: int) -> None:
        now_s = tick * _TICK_S
        self.tasks = {name: task for name, task in self.tasks.items() if task.ends_s > now_s}
        for job in self.arrivals.get(tick, ()):
            self.tasks[job.id] = replace(job, node_id=self._place(job.gpus, now_s))
        if self.moves_per_release:
            self._defragment(now_s)
        taken = {task.node_id for task in self.tasks.values()}
        self.nodes = {name: n for name, n in self.nodes.items() if name in taken or n.paid_until_s > now_s}
        tick_micros = _GPU_HOUR_MICROS * _TICK_S // _HOUR_S
        self.rent_micros += tick_micros * sum(node.gpus for node in self.nodes.values())
        self.bound_micros += tick_micros * 4 * -(-sum(task.gpus for task in self.tasks.values()) // 4)

    def _place(self, gpus: int, now_s: int) -> str:
        free = {name: node.gpus for name, node in self.nodes.items()}
        for task in self.tasks.values():
            free[task.node_id] -= task.gpus
        fitting = [(left, name) for name, left in free.items() if left >= gpus]
        if fitting:
            return min(fitting)[1]
        size = 8 if gpus > 4 or (gpus < 4 and self._rented % 2) else 4
        node = PackedNode(f"n{self._rented}", size, 0, 0)
        self._rented += 1
        price_micros = size * _GPU_HOUR_MICROS
        self.nodes[node.id] = replace(node, price_micros_per_hour=price_micros, paid_until_s=now_s + _HOUR_S)
        return node.id

    def _defragment(self, now_s: int) -> None:
        bounds = SearchBounds(moves_per_release=self.moves_per_release)
        plan = cheaper_rent(list(self.nodes.values()), list(self.tasks.values()), now_s, bounds=bounds)
        for move in plan.moves:
            task = self.tasks[move.task_id]
            self.tasks[task.id] = replace(task, node_id=move.target_id)
            self.moved_micros += task.move_cost_micros
        self.moves += len(plan.moves)
        self.released += len(plan.releases)


if __name__ == "__main__":
    main()
