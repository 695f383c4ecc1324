"""Who is stopped for whom, where a policy has an order of jobs: runs of rented nodes that save and wait again.

Nobody is stopped in vain, and nobody for ever: the one that waits fits once they have left, is allowed there and would
take it; what is lost by it is little; and no spot job has a guaranteed one stopped, which would be placed before it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from app.core import queue
from app.core.model.job import JobState, Resources
from app.core.model.node import SERVERFUL_TIERS, NodeState
from app.core.model.snapshot import JobView, NodeView, RunView
from app.core.policies.placement import Place
from app.core.policies.plan_builder import PlanBuilder
from app.core.remaining import unkept_ms

# Of training since its last checkpoint, that a run may lose: one that saves by itself is stopped soon after it has, by
# the next decision at the latest.
UNKEPT_MOST_MS = 120_000
REST_MS = 600_000  # for which a run trains before it is stopped, where its policy has it rest
Rank: TypeAlias = tuple[int, int, str]
_Size: TypeAlias = tuple[int, int, int]  # GPUs, CPUs, bytes of memory


class Order(Protocol):
    """What a policy says of it."""

    def rank(self, job: JobView, run: RunView | None, now_ms: int) -> Rank:
        """Lowest first."""
        ...

    def comes_before(self, waiting: Rank, running: Rank) -> bool:
        """Whether a run is stopped for a job that waits. If it is, then also for whoever comes before that job, and so
        is whatever comes behind that run."""
        ...

    def rests_until_ms(self, job: JobView, run: RunView) -> int:
        """Until when it is stopped for nobody."""
        ...


@dataclass(frozen=True, slots=True)
class Rider:
    """A run that could be stopped. `job`: its first one."""

    rank: Rank
    run: RunView
    job: JobView
    size: _Size
    is_spot: bool


@dataclass(slots=True)
class RiddenNode:
    """A rented node: what is free there or about to be, and the runs that could be stopped, in their order."""

    place: Place
    number: int
    free: _Size
    riders: list[Rider]

    @property
    def sort_key(self) -> tuple[bool, Rank, int]:
        """Ascending: the last ones are looked at first, those with something free, then those whose last run comes last
        of all."""
        return self.free[0] > 0, self.riders[-1].rank if self.riders else (0, 0, ""), -self.number


class Stopping:
    """One decision's. Jobs ask in their order."""

    def __init__(self, order: Order, desk: PlanBuilder) -> None:
        self._order, self._desk = order, desk
        self._nodes: dict[str, list[RiddenNode]] = {}  # by project, in the order of their keys
        self._in_vain: dict[str, Rank] = {}  # by project: the first of those for whom nobody can be stopped
        for number, node in enumerate(desk.board.nodes.values()):
            if node.tier in SERVERFUL_TIERS and node.state == NodeState.READY:
                self._nodes.setdefault(node.project_id, []).append(self._ridden(node, number))
        for nodes in self._nodes.values():
            nodes.sort(key=lambda one: one.sort_key)

    def make_room(self, job: JobView) -> bool:
        """Runs that come after the job leave one node for it, the last ones first, or none does."""
        rank = self._order.rank(job, None, self._desk.now_ms)
        nodes = self._nodes.get(job.project_id, [])
        chosen = self._choose(nodes, job, rank)
        if chosen is None:
            self._in_vain[job.project_id] = min(rank, self._in_vain.get(job.project_id, rank))
            return False
        found, victims = chosen
        for one in victims:
            self._desk.preempt(one.run, one.job, f"{job.job_id} comes before it and has no place")
        node = nodes.pop(found)
        node.riders = [one for one in node.riders if one not in victims]
        node.free = _less(_sum([node.free, *(one.size for one in victims)]), _size(job.resources))
        insort(nodes, node, key=lambda one: one.sort_key)
        return True

    def left_in_vain(self) -> Iterable[tuple[Rank, Rider]]:
        """Runs that may come behind a job that waits by time alone, each with the first such job of its project."""
        for project_id, rank in self._in_vain.items():
            for node in self._nodes.get(project_id, ()):
                yield from ((rank, one) for one in node.riders)

    def _choose(self, nodes: list[RiddenNode], job: JobView, rank: Rank) -> tuple[int, list[Rider]] | None:
        """The number of the node and who has to leave it: where the first of these comes latest."""
        hosts = self._desk.fleet.hosts(job)
        best: tuple[int, list[Rider]] | None = None
        for number in range(len(nodes) - 1, -1, -1):
            node = nodes[number]
            has_free, last, _ = node.sort_key
            if not has_free and not (node.riders and self._order.comes_before(rank, last)):
                return best
            if best is not None and not has_free and last <= best[1][-1].rank:
                return best  # nor does any of the others have later ones
            if hosts and node.place.place_id not in hosts:
                continue
            victims = self._victims(node, job, rank)
            if victims == []:
                return number, []
            if victims is not None and (best is None or victims[-1].rank > best[1][-1].rank):
                best = number, victims
        return best

    def _victims(self, node: RiddenNode, job: JobView, rank: Rank) -> list[Rider] | None:
        """Who has to leave the node, the last one first; None if that would not be enough, or it takes no such job."""
        need, free = _size(job.resources), node.free
        if not (node.place.could_fit(job.resources) and self._desk.suits(node.place, job)):
            return None
        victims: list[Rider] = []
        for rider in reversed(node.riders):
            if _covers(free, need) or not self._order.comes_before(rank, rider.rank):
                break
            if rider.is_spot or not queue.is_spot(job):
                victims.append(rider)
                free = _sum([free, rider.size])
        return victims if _covers(free, need) else None

    def _ridden(self, node: NodeView, number: int) -> RiddenNode:
        desk, riders = self._desk, []
        place = desk.fleet.place_on(node)
        free = desk.free_gpus(node), place.free_cpus, place.free_memory_bytes
        for run in desk.board.runs_on(node.node_id):
            jobs = [job for job in map(desk.board.jobs.get, run.job_ids) if job is not None]
            if not jobs:
                continue
            size = _size(jobs[0].resources)  # of a pair that trains as one, those of both
            if any(job.state == JobState.CHECKPOINTING for job in jobs):
                free = _sum([free, size])
            elif all(self._may_be_stopped(job, run) for job in jobs):
                rank = min(self._order.rank(job, run, desk.now_ms) for job in jobs)
                riders.append(Rider(rank, run, jobs[0], size, all(map(queue.is_spot, jobs))))
        return RiddenNode(place, number, free, sorted(riders, key=lambda one: one.rank))

    def _may_be_stopped(self, job: JobView, run: RunView) -> bool:
        desk = self._desk
        if job.state != JobState.RUNNING or not queue.is_running(run) or job.leaving or job.stays:
            return False
        if desk.board.is_moving(job.job_id):
            return False
        rests_until_ms = self._order.rests_until_ms(job, run)
        if rests_until_ms > desk.now_ms:
            desk.wake(rests_until_ms)
            return False
        return unkept_ms(job, run, desk.now_ms) <= max(UNKEPT_MOST_MS, 2 * desk.config.tick_ms)


def _size(resources: Resources) -> _Size:
    return resources.gpus_min, resources.cpus_min, resources.memory_bytes_min


def _sum(sizes: Iterable[_Size]) -> _Size:
    gpus, cpus, memory_bytes = zip(*sizes, strict=True)
    return sum(gpus), sum(cpus), sum(memory_bytes)


def _less(one: _Size, other: _Size) -> _Size:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2]


def _covers(free: _Size, need: _Size) -> bool:
    return free[0] >= need[0] and free[1] >= need[1] and free[2] >= need[2]
