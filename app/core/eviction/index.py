"""The cheapest node for one part of a job, of a hundred thousand, without asking them all.

What is incremental: a node's exact covers are computed when the node changes (a job starts, ends or saves, something is
reserved) for each shape of part that has been asked for, and the node is then sorted by a line that its cost cannot
fall below while time goes by. A question computes again only the nodes whose lines are below the best answer.

The line: a cover costs sum(a) + sum(b) * t over its jobs, so a node's cheapest cover grows at least as fast as its
slowest-growing one. Nodes are sorted within steps of that growth, rounded down, by cost - growth * t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from app.core.eviction.amounts import Amounts, lacking
from app.core.eviction.cost import GrowingCost
from app.core.eviction.cover import GiveUp, cheapest_cover
from app.core.eviction.rules import NodeCover, NodeQuestion, by_lost_work
from app.core.eviction.spot_job import SpotJob
from app.core.placement.sorted_keys import SortedKeys

GROWTH_STEP = 250  # GPU-microseconds a millisecond: a quarter of a GPU
MOST_SHAPES = 32
_Step = tuple[bool, int]  # whether somebody ends, growth


@dataclass(frozen=True, slots=True)
class _Line:
    """Where a node stands: its step and key there, and its cover as of `at_ms`."""

    step: _Step
    key: int
    at_ms: int
    found: NodeCover


class _Shape:
    """Nodes sorted for one shape of part."""

    def __init__(self, part: Amounts) -> None:
        self.part = part
        self.steps: dict[_Step, SortedKeys] = {}
        self.lines: dict[str, _Line] = {}

    def put(self, node_id: str, free: Amounts, jobs: Sequence[SpotJob], now_ms: int) -> None:
        self.drop(node_id)
        able = tuple(job for job in jobs if job.protected_until_ms <= now_ms)
        found = by_lost_work(NodeQuestion(node_id, free, self.part, self.part, able, {}), now_ms)
        if found is None:
            return
        ends = found.cover.ended_gpu_us > 0
        growth = _least_growth(node_id, lacking(self.part, free), able, ends, now_ms)
        growth -= growth % GROWTH_STEP
        line = _Line((ends, growth), int(found.rank[1]) - growth * now_ms, now_ms, found)
        self.lines[node_id] = line
        self.steps.setdefault(line.step, SortedKeys()).add((line.key, node_id))

    def drop(self, node_id: str) -> None:
        line = self.lines.pop(node_id, None)
        if line is not None:
            keys = self.steps[line.step]
            keys.remove((line.key, node_id))
            if not keys:
                del self.steps[line.step]

    def lowest(self, now_ms: int) -> str | None:
        """The node whose line is lowest."""
        bounds = ((ends, keys.first[0] + growth * now_ms, keys.first[1]) for (ends, growth), keys in self.steps.items())
        return min(bounds, default=(False, 0, None))[2]


class VictimIndex:
    """Nodes with the spot jobs on them, kept up to date by `put` and `drop`; answers as `choose_victims` does for one
    part by `lost-work`. Instants never run back."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[Amounts, tuple[SpotJob, ...]]] = {}
        self._shapes: dict[Amounts, _Shape] = {}
        self._protected: list[tuple[int, str]] = []
        self._now_ms = 0

    def put(self, node_id: str, free: Amounts, jobs: Sequence[SpotJob], now_ms: int) -> None:
        """A node as it is from now on, new or changed; a job whose cost has another line is a change."""
        self._advance(now_ms)
        self._nodes[node_id] = free, tuple(jobs)
        for job in jobs:
            if now_ms < job.protected_until_ms:
                heappush(self._protected, (job.protected_until_ms, node_id))
        for shape in self._shapes.values():
            shape.put(node_id, free, jobs, now_ms)

    def drop(self, node_id: str) -> None:
        """A node has gone. Raises KeyError for one that is not there."""
        del self._nodes[node_id]
        for shape in self._shapes.values():
            shape.drop(node_id)

    def best(self, part: Amounts, now_ms: int) -> NodeCover | None:
        """The node of the lowest rank with its cheapest cover. The first question of a shape looks at all nodes, as
        does the first after MOST_SHAPES others."""
        self._advance(now_ms)
        shape = self._shapes.pop(part, None) or self._sorted(part)
        self._shapes[part] = shape
        while (node_id := shape.lowest(now_ms)) is not None:
            line = shape.lines[node_id]
            if line.at_ms == now_ms:
                return line.found
            shape.put(node_id, *self._nodes[node_id], now_ms)
        return None

    def _sorted(self, part: Amounts) -> _Shape:
        if len(self._shapes) >= MOST_SHAPES:
            del self._shapes[next(iter(self._shapes))]
        shape = _Shape(part)
        for node_id, (free, jobs) in self._nodes.items():
            shape.put(node_id, free, jobs, self._now_ms)
        return shape

    def _advance(self, now_ms: int) -> None:
        if now_ms < self._now_ms:
            raise ValueError(f"{now_ms} ms is before {self._now_ms} ms")
        self._now_ms = now_ms
        while self._protected and self._protected[0][0] <= now_ms:
            _, node_id = heappop(self._protected)
            for shape in self._shapes.values() if node_id in self._nodes else ():
                shape.put(node_id, *self._nodes[node_id], now_ms)


def _least_growth(node_id: str, missing: Amounts, jobs: Sequence[SpotJob], ends: bool, now_ms: int) -> int:
    """How slowly the cost of any cover on the node can grow: that of endings, or of shrinking where that is enough."""
    options = []
    for job in jobs:
        for option in job.options(node_id, now_ms):
            cost = job.cost if option.shrink is None else job.shrinks[option.shrink].cost
            counts = (option.shrink is None) is ends
            if ends or option.shrink is not None:
                options.append(GiveUp(job.job_id, option.frees, _growth(cost, now_ms) if counts else 0))
    cover = cheapest_cover(options, missing)
    return cover.cost_gpu_us if cover else 0


def _growth(cost: GrowingCost, now_ms: int) -> int:
    return cost.growth_gpu_us if cost.since_ms <= now_ms else 0
