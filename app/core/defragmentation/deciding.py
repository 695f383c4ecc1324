"""A defragmentation as it is told to people, and carried out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum

from app.core.defragmentation.model import NodeRelease, SearchBounds
from app.core.defragmentation.packing import Packing, own_cut_fits, pack
from app.core.defragmentation.packing_bound import least_nodes
from app.core.defragmentation.planning import cheaper_rent, whole_nodes
from app.core.defragmentation.seen_fleet import Goal, SeenFleet
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.snapshot import JobView

_MOVES_PER_RELEASE = 16
_MOST_CLASSES_OF_STAYS = 20


class StepState(StrEnum):
    WAITING = "waiting"
    MOVING = "moving"
    DONE = "done"  # its job is not there any more: it has moved, or has ended or left by itself
    FAILED = "failed"


class ReleaseState(StrEnum):
    WAITING = "waiting"
    MOVING = "moving"
    FREED = "freed"
    DROPPED = "dropped"


RELEASES_OVER = frozenset({ReleaseState.FREED, ReleaseState.DROPPED})


@dataclass(frozen=True, slots=True)
class ReleaseStep:
    """One job from one node to another. `why`: it failed. `tries`: how often its beginning was dropped."""

    job_id: str
    source: str
    target: str
    gpus: int
    state: StepState = StepState.WAITING
    move_id: str | None = None
    tries: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class PlannedRelease:
    """A node that is to be vacated, with its steps in their order. `settled_ms`: when a step of it ended last.
    `begun_ms`: when one began last."""

    position: int
    node_id: str
    name: str
    gpus: int
    reason: str
    saved_micros: int
    cost_micros: int
    pause_ms: int  # expected, of its moves, each times its GPUs
    steps: tuple[ReleaseStep, ...]
    state: ReleaseState = ReleaseState.WAITING
    settled_ms: int | None = None
    begun_ms: int | None = None

    @property
    def touched(self) -> frozenset[str]:
        """All nodes that it needs as they are."""
        return frozenset({self.node_id, *(end for step in self.steps for end in (step.source, step.target))})

    @property
    def is_over(self) -> bool:
        return self.state in RELEASES_OVER


@dataclass(frozen=True, slots=True)
class DefragPlan:
    """`occupied`: nodes on which something is. `least`: no packing that leaves who stays where they are occupies fewer.
    `left_alone`: how many jobs stay, by why. `settled`: there is nothing more to find, as far as the search looks."""

    goal: Goal
    releases: tuple[PlannedRelease, ...]
    nodes: int
    occupied: int
    least: int
    settled: bool
    left_alone: tuple[tuple[str, int], ...]
    names: tuple[tuple[str, str], ...]  # of the nodes that the releases touch

    @property
    def moves(self) -> int:
        return sum(len(release.steps) for release in self.releases)


def plan_for(seen: SeenFleet, goal: Goal, pool: str | None, most_moves: int) -> DefragPlan:
    """What would be vacated now, by at most so many moves."""
    packing = pack(seen, goal, pool)
    least = _least(packing)
    bounds = SearchBounds(max_moves=most_moves, moves_per_release=min(_MOVES_PER_RELEASE, most_moves))
    if goal is Goal.POOLS:
        found = whole_nodes(packing.nodes, packing.tasks, bounds)
    else:
        now_s = seen.snapshot.now_ms // 1000
        found = cheaper_rent(packing.nodes, packing.tasks, now_s, bounds=bounds, least=least)
    releases = tuple(_release(number, one, packing, seen) for number, one in enumerate(found.releases))
    touched = sorted({node for release in releases for node in release.touched})
    stays = Counter(str(why) for why in packing.stays.values()).most_common(_MOST_CLASSES_OF_STAYS)
    return DefragPlan(
        goal=goal,
        releases=releases,
        nodes=len(packing.nodes),
        occupied=len({task.node_id for task in packing.tasks}),
        least=least,
        settled=found.settled,
        left_alone=tuple(stays),
        names=tuple((node, packing.names.get(node, node)) for node in touched),
    )


def _least(packing: Packing) -> int:
    """The packing bound, of nodes that make sense. What each takes in particular is not looked at."""
    sizes: dict[str, int] = Counter()
    for task in packing.tasks:
        sizes[task.node_id] += task.gpus
    sound = {node.id for node in packing.nodes if 0 <= sizes[node.id] <= node.gpus}
    nodes = [replace(node, labels=frozenset({packing.groups[node.id]})) for node in packing.nodes if node.id in sound]
    return least_nodes(nodes, [task for task in packing.tasks if task.node_id in sound])


def _release(position: int, found: NodeRelease, packing: Packing, seen: SeenFleet) -> PlannedRelease:
    gpus = {task.id: task.gpus for task in packing.tasks}
    steps = tuple(ReleaseStep(move.task_id, move.source_id, move.target_id, gpus[move.task_id]) for move in found.moves)
    return PlannedRelease(
        position=position,
        node_id=found.node_id,
        name=packing.names.get(found.node_id, found.node_id),
        gpus=next(node.gpus for node in packing.nodes if node.id == found.node_id),
        reason=packing.named(found.reason),
        saved_micros=found.saved_micros,
        cost_micros=found.cost_micros,
        pause_ms=sum(step.gpus for step in steps) * seen.habits.cost_ms,
        steps=steps,
    )


def is_wanted(seen: SeenFleet) -> bool:
    """Whether a job waits that needs more GPUs of one host, or more such hosts, than any pool has free together, and
    for which there are enough in all: whole hosts would let it begin."""
    packing = pack(seen, Goal.POOLS)
    free = {node.id: node.gpus for node in packing.nodes}
    for task in packing.tasks:
        free[task.node_id] -= task.gpus
    waiting = [job for job in seen.snapshot.jobs if job.state in PLACEABLE_JOB_STATES and not job.leaving]
    return any(_is_blocked(job, packing, free) for job in waiting)


def _is_blocked(job: JobView, packing: Packing, free: dict[str, int]) -> bool:
    gpus, machines = job.resources.gpus_min, job.resources.nodes
    if gpus * machines < 2:
        return False
    pools: dict[tuple[str, str], list[str]] = {}
    for place_id, place in packing.places.items():
        if own_cut_fits(place, job, job.resources.gpus_min):
            pools.setdefault((place.pool.name, place.kind), []).append(place_id)
    for place_ids in pools.values():
        together = sum(free[one] // gpus for one in place_ids)
        if together < machines <= len(place_ids) and sum(free[one] for one in place_ids) >= gpus * machines:
            return True
    return False
