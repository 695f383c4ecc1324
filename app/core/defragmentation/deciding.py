"""A defragmentation as it is told to people, and carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from app.core.defragmentation.gang_room import GangRoom
from app.core.defragmentation.model import Defragmentation, NodeRelease, SearchBounds
from app.core.defragmentation.packed_fleet import PackedFleet
from app.core.defragmentation.packing import Packing, own_cut_fits, pack
from app.core.defragmentation.packing_bound import least_nodes
from app.core.defragmentation.planning import cheaper_rent, rooms_for_gangs, whole_nodes
from app.core.defragmentation.repair_rooms import room_for_one
from app.core.defragmentation.repairs import Repairs, SwitchRepair, is_worth, plan_repairs
from app.core.defragmentation.seen_fleet import Goal, SeenFleet
from app.core.defragmentation.staying import Stays
from app.core.defragmentation.waiting_gangs import waiting_gangs
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.snapshot import JobView

_MOVES_PER_RELEASE = 16
_MOST_CLASSES_OF_STAYS = 20
_Rooms = list[tuple[GangRoom, tuple[NodeRelease, ...]]]


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
    `begun_ms`: when one began last. `for_job_id`: of a job on several machines that waits for this node and others."""

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
    for_job_id: str | None = None

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
    `left_alone`: how many jobs stay, by why. `settled`: there is nothing more to find, as far as the search looks.
    `held`: by job on several machines, the nodes that have room for it as they are, beside those that are vacated.
    `repairs`: jobs on several machines that come together under fewer switches."""

    goal: Goal
    releases: tuple[PlannedRelease, ...]
    nodes: int
    occupied: int
    least: int
    settled: bool
    left_alone: tuple[tuple[str, int], ...]
    names: tuple[tuple[str, str], ...]  # of the nodes that the releases touch
    held: tuple[tuple[str, tuple[str, ...]], ...] = ()
    repairs: tuple[SwitchRepair, ...] = ()

    @property
    def moves(self) -> int:
        return sum(len(release.steps) for release in self.releases) + sum(len(one.places) for one in self.repairs)

    @property
    def is_empty(self) -> bool:
        return not self.releases and not self.repairs


def plan_for(
    seen: SeenFleet, goal: Goal, pool: str | None, most_moves: int, *, by_schedule: bool = False
) -> DefragPlan:
    """What would be vacated now, and who comes together, by at most so many moves. Where jobs on several machines wait
    that it would let begin, nothing but that. `by_schedule`: hosts of pools only while a job waits for them, and who
    comes together only where that is known to be worth it."""
    packing = pack(seen, goal, pool)
    least = _least(packing)
    bounds = SearchBounds(max_moves=most_moves, moves_per_release=min(_MOVES_PER_RELEASE, most_moves))
    rooms = _rooms(seen, packing, bounds) if goal is Goal.POOLS else []
    repairs: tuple[SwitchRepair, ...] = ()
    spread: Counter[Stays] = Counter()
    if goal is Goal.POOLS and not rooms:
        repairs, spread, rooms = _together(seen, packing, pool, bounds, worth_only=by_schedule)
    if rooms:
        found = Defragmentation(tuple(one for _, releases in rooms for one in releases), settled=False)
    elif goal is Goal.POOLS:
        vacates = not by_schedule or is_wanted(seen)
        found = _beside(repairs, packing, bounds) if vacates else Defragmentation(settled=False)
    else:
        now_s = seen.snapshot.now_ms // 1000
        found = cheaper_rent(packing.nodes, packing.tasks, now_s, bounds=bounds, least=least)
    for_whom = {one.node_id: room.wish.job_id for room, releases in rooms for one in releases}
    releases = tuple(
        _release(number, one, packing, seen, for_whom.get(one.node_id)) for number, one in enumerate(found.releases)
    )
    held = tuple((room.wish.job_id, tuple(packing.nodes[node].id for node in room.held)) for room, _ in rooms)
    touched = {node for release in releases for node in release.touched} | {one for _, its in held for one in its}
    touched |= {place for one in repairs for place in one.places}
    stays = Counter(map(str, [*packing.stays.values(), *spread.elements()])).most_common(_MOST_CLASSES_OF_STAYS)
    return DefragPlan(
        goal=goal,
        releases=releases,
        nodes=len(packing.nodes),
        occupied=len({task.node_id for task in packing.tasks}),
        least=least,
        settled=found.settled,
        left_alone=tuple(stays),
        names=tuple((node, packing.names.get(node, node)) for node in sorted(touched)),
        held=held,
        repairs=repairs,
    )


def _together(
    seen: SeenFleet, packing: Packing, pool: str | None, bounds: SearchBounds, *, worth_only: bool
) -> tuple[tuple[SwitchRepair, ...], Counter[Stays], _Rooms]:
    """Who comes together; and what is vacated for one for which nothing is free that would do, while no job waits for
    whole hosts anywhere."""
    repairs = Repairs(seen)
    planned = plan_repairs(repairs, pool, bounds.max_moves, worth_only=worth_only)
    taken = {place for one in planned.found for place in one.places}
    rest = _rest(bounds, planned.found)
    blocked = () if planned.blocked and is_wanted(seen) else planned.blocked
    found = room_for_one(repairs, blocked, packing, rest, taken)
    if found is None or (worth_only and not is_worth(found[0])):
        return planned.found, planned.stays, []
    repair, room, releases = found
    stays = planned.stays - Counter([Stays.NOTHING_CLOSER])
    return (*planned.found, repair), stays, [(room, releases)]


def _rest(bounds: SearchBounds, repairs: Sequence[SwitchRepair]) -> SearchBounds:
    """What these leave of the moves."""
    moves = max(0, bounds.max_moves - sum(len(one.places) for one in repairs))
    return replace(bounds, max_moves=moves, moves_per_release=min(bounds.moves_per_release, moves))


def _beside(repairs: Sequence[SwitchRepair], packing: Packing, bounds: SearchBounds) -> Defragmentation:
    """Whole nodes, as if those that jobs come together on were not there."""
    taken = {place for one in repairs for place in one.places}
    nodes = [node for node in packing.nodes if node.id not in taken]
    tasks = [task for task in packing.tasks if task.node_id not in taken]
    found = whole_nodes(nodes, tasks, _rest(bounds, repairs))
    return replace(found, settled=found.settled and not repairs)


def _rooms(seen: SeenFleet, packing: Packing, bounds: SearchBounds) -> _Rooms:
    waiting = [wishes for wishes in waiting_gangs(seen, packing) if wishes]
    return rooms_for_gangs(PackedFleet(packing.nodes, packing.tasks), waiting, bounds) if waiting else []


def _least(packing: Packing) -> int:
    """The packing bound, of nodes that make sense. What each takes in particular is not looked at."""
    sizes: dict[str, int] = Counter()
    for task in packing.tasks:
        sizes[task.node_id] += task.gpus
    sound = {node.id for node in packing.nodes if 0 <= sizes[node.id] <= node.gpus}
    nodes = [replace(node, labels=frozenset({packing.groups[node.id]})) for node in packing.nodes if node.id in sound]
    return least_nodes(nodes, [task for task in packing.tasks if task.node_id in sound])


def _release(
    position: int, found: NodeRelease, packing: Packing, seen: SeenFleet, for_job_id: str | None
) -> PlannedRelease:
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
        for_job_id=for_job_id,
    )


def is_wanted(seen: SeenFleet) -> bool:
    """Whether a job waits that needs more GPUs of one host, or more such hosts, than any pool has free together, and
    for which there are enough in all: whole hosts would let it begin. Or one on several machines, which has enough
    such hosts, and may not have them together."""
    packing = pack(seen, Goal.POOLS)
    free = {node.id: node.gpus for node in packing.nodes}
    for task in packing.tasks:
        free[task.node_id] -= task.gpus
    waiting = [job for job in seen.snapshot.jobs if job.state in PLACEABLE_JOB_STATES and not job.leaving]
    if any(_is_blocked(job, seen, packing, free) for job in waiting):
        return True
    return bool(_rooms(seen, packing, SearchBounds(moves_per_release=_MOVES_PER_RELEASE)))


def _is_blocked(job: JobView, seen: SeenFleet, packing: Packing, free: dict[str, int]) -> bool:
    gpus, machines = job.resources.gpus_min, job.resources.nodes
    if gpus * machines < 2 or job.job_id in seen.provided:
        return False
    pools: dict[tuple[str, str], list[str]] = {}
    for place_id, place in packing.places.items():
        if own_cut_fits(place, job, gpus) and seen.kept_for(place_id) in (None, job.job_id):
            pools.setdefault((place.pool.name, place.kind), []).append(place_id)
    for place_ids in pools.values():
        together = sum(free[one] >= gpus for one in place_ids)
        if together < machines <= len(place_ids) and sum(free[one] for one in place_ids) >= gpus * machines:
            return True
    return False
