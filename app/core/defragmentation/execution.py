"""What a defragmentation does next: which moves begin, which releases are dropped, and which nodes are free. Pure.

The plan was made on rows that have moved on since. So each round looks at the fleet as it is now, and goes through what
is left of each release, move by move, in the order of the plan: what is not so any more drops the whole release. A
move that has begun is not called off for that: its job trains on, here or there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.core.defragmentation.deciding import PlannedRelease, ReleaseState, ReleaseStep, StepState
from app.core.defragmentation.model import PackedTask
from app.core.defragmentation.packed_fleet import PackedFleet
from app.core.defragmentation.packing import Packing
from app.core.defragmentation.rent import Rent
from app.core.defragmentation.seen_fleet import Goal
from app.core.model.move import MoveState
from app.core.policies.reasons import duration

STALE_MS = 1_800_000  # what has not begun by then was planned on another fleet
SETTLES_MS = 120_000  # what a job leaves is given back, and free, by then
MOST_TRIES = 3
LEAST_RETURN = 2.0


@dataclass(frozen=True, slots=True)
class Deciding:
    """`at_once`: how many of its moves may be under way. `cancelled`: nothing more begins. `waiting`: jobs
    on several machines that wait, to begin or to come together."""

    goal: Goal
    planned_ms: int
    now_ms: int
    at_once: int
    cancelled: bool = False
    waiting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class NextSteps:
    """`begin`: releases and the indices of their steps. `drop`: why, by position. `emptied`: positions of releases
    whose node nobody is on. `left`: of those that are for a job on several machines, where parts of the host that were
    left have not been given back yet."""

    begin: tuple[tuple[PlannedRelease, int], ...] = ()
    drop: Mapping[int, str] = field(default_factory=dict)
    emptied: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MoveNow:
    """`why`: it was called off."""

    state: MoveState
    why: str = ""


def caught_up(release: PlannedRelease, packing: Packing, moves: Mapping[str, MoveNow], now_ms: int) -> PlannedRelease:
    """The release with what has become of its steps. A job that is not where it was to leave needs no move any more,
    whatever took it away; one whose move was called off fails its step while it is still there."""
    if release.is_over:
        return release
    where = {task.id: task.node_id for task in packing.tasks}
    steps: list[ReleaseStep] = []
    before: dict[str, bool] = {}  # of jobs that move more than once: whether an earlier step of theirs is open
    for step in release.steps:
        is_open = before.get(step.job_id, False)
        after = step if is_open else _caught_up(step, where.get(step.job_id) == step.source, moves)
        before[step.job_id] = is_open or after.state in (StepState.WAITING, StepState.MOVING)
        steps.append(after)
    ended = any(a.state != b.state for a, b in zip(steps, release.steps, strict=True))
    return replace(release, steps=tuple(steps), settled_ms=now_ms if ended else release.settled_ms)


def _caught_up(step: ReleaseStep, is_there: bool, moves: Mapping[str, MoveNow]) -> ReleaseStep:
    if step.state is StepState.WAITING:
        return step if is_there else replace(step, state=StepState.DONE)
    if step.state is not StepState.MOVING:
        return step
    move = moves.get(step.move_id or "")
    if move is not None and move.state not in (MoveState.DONE, MoveState.ABANDONED):
        return step
    if not is_there:
        return replace(step, state=StepState.DONE)
    if move is not None and move.state is MoveState.DONE:
        return step  # it is not seen to have left yet
    return replace(step, state=StepState.FAILED, why="its move is not on record" if move is None else move.why)


def next_steps(releases: Sequence[PlannedRelease], packing: Packing, deciding: Deciding) -> NextSteps:
    """Of releases that are caught up. Those that touch the same nodes follow one another; others go side by side. Where
    one of those for a job on several machines is dropped, the others would be vacated in vain, and are dropped too."""
    look = _Look(packing, deciding)
    under_way = sum(step.state is StepState.MOVING for release in releases for step in release.steps)
    begin: list[tuple[PlannedRelease, int]] = []
    drop: dict[int, str] = {}
    emptied: list[int] = []
    left: list[int] = []
    blocked: set[str] = set()
    in_vain = {one.for_job_id for one in releases if one.state is ReleaseState.DROPPED} - {None}
    for release in sorted(releases, key=lambda one: one.position):
        if release.is_over:
            continue
        if release.touched & blocked and not _has_begun(release) and not deciding.cancelled:
            blocked |= release.touched
            continue
        found = look.at(release, in_vain=release.for_job_id in in_vain)
        if found.why is not None:
            drop[release.position] = found.why
            in_vain |= {release.for_job_id} - {None}
            continue
        blocked |= release.touched
        if found.is_empty:
            emptied.append(release.position)
        if found.is_left:
            left.append(release.position)
        room = max(0, deciding.at_once - under_way)
        begin += [(release, index) for index in found.begin[:room]]
        under_way += len(found.begin[:room])
    return NextSteps(tuple(begin), drop, tuple(emptied), tuple(left))


def _has_begun(release: PlannedRelease) -> bool:
    return any(step.state is not StepState.WAITING for step in release.steps)


@dataclass(frozen=True, slots=True)
class _Found:
    begin: tuple[int, ...] = ()
    why: str | None = None
    is_empty: bool = False
    is_left: bool = False


class _Look:
    """Tries what is left of releases on the fleet as it is, and takes it back."""

    def __init__(self, packing: Packing, deciding: Deciding) -> None:
        self._packing, self._deciding = packing, deciding
        self._fleet = PackedFleet(packing.nodes, packing.tasks)
        self._wrong = set(self._fleet.left_out)
        self._node = {node.id: index for index, node in enumerate(packing.nodes)}
        self._task = {task.id: index for index, task in enumerate(packing.tasks) if task.id not in self._wrong}

    def at(self, release: PlannedRelease, *, in_vain: bool = False) -> _Found:
        moving = [step for step in release.steps if step.state is StepState.MOVING]
        failed = next((step for step in release.steps if step.state is StepState.FAILED), None)
        why = self._given_up(release, failed) or self._not_for_anybody(release, in_vain=in_vain)
        if why is not None:
            return _Found() if moving else _Found(why=why)
        try:
            begin = self._try(release)
            others = self._left_on(release, {step.job_id for step in moving})
        finally:
            self._fleet.undo(0)
        if isinstance(begin, _Refusal):
            waits = begin.may_pass and (moving or self._settles(release))
            return _Found() if moving or waits else _Found(why=begin.why)
        if others is not None:
            return _Found() if moving else _Found(why=others)
        is_done = not moving and all(step.state is StepState.DONE for step in release.steps)
        is_left = is_done and self._is_given_back_soon(release)
        return _Found(begin, is_empty=is_done and not is_left, is_left=is_left)

    def _given_up(self, release: PlannedRelease, failed: ReleaseStep | None) -> str | None:
        if failed is not None:
            return f"the move of {failed.job_id} failed: {failed.why}"
        if self._deciding.cancelled:
            return "it was called off"
        old_ms = self._deciding.now_ms - self._deciding.planned_ms
        if not _has_begun(release) and old_ms > STALE_MS:
            return f"its plan is {duration(old_ms)} old"
        return None

    def _is_given_back_soon(self, release: PlannedRelease) -> bool:
        """Of a node for a job on several machines: whether a part that was left is not free yet. If it opened before,
        a small job could have the rest of it."""
        node = self._node.get(release.node_id)
        if release.for_job_id is None or node is None or not self._settles(release):
            return False
        return self._fleet.nodes[node].gpus < release.gpus

    def _not_for_anybody(self, release: PlannedRelease, *, in_vain: bool) -> str | None:
        """The job on several machines that it is for begins elsewhere, or could not begin here any more."""
        if release.for_job_id is None:
            return None
        if release.for_job_id not in self._deciding.waiting:
            return f"{release.for_job_id} does not wait any more"
        return f"not all that {release.for_job_id} needs could be vacated" if in_vain else None

    def _settles(self, release: PlannedRelease) -> bool:
        """Whether something of it has ended so lately that what it left may not be given back yet."""
        return release.settled_ms is not None and self._deciding.now_ms - release.settled_ms < SETTLES_MS

    def _try(self, release: PlannedRelease) -> tuple[int, ...] | _Refusal:
        """The steps that could begin at once; all that wait are done on the fleet then."""
        fleet, begin = self._fleet, []
        rent = Rent(fleet, self._deciding.now_ms // 1000, LEAST_RETURN)
        taken: dict[int, list[PackedTask]] = defaultdict(list)
        free = [(fleet.free_gpus[n], fleet.free_cpus[n], fleet.free_memory[n]) for n in range(len(fleet.nodes))]
        under_way = {step.job_id for step in release.steps if step.state is StepState.MOVING}
        seen: set[str] = set()
        for index, step in enumerate(release.steps):
            if step.state is not StepState.WAITING:
                continue
            if step.job_id in under_way:
                return _Refusal("an earlier move of the same job is under way", may_pass=True)
            task, target, refusal = self._ends_of(step)
            if refusal is not None:
                return refusal
            if not fleet.fits(task, target):
                return _Refusal(f"{self._name(target)} has no room for {step.job_id} any more", may_pass=True)
            need = fleet.tasks[task]
            if step.job_id not in seen and _have_room(free[target], taken[target], need):
                begin.append(index)
            taken[target].append(need)
            seen.add(step.job_id)
            fleet.move(task, target)
        node = self._node.get(release.node_id)
        if self._deciding.goal is not Goal.RENT or under_way or node is None or not fleet.log:
            return tuple(begin)
        if rent.judge(fleet, node, 0) is None:
            return _Refusal("at present prices, and with what is left of its jobs, it does not pay any more")
        return tuple(begin)

    def _ends_of(self, step: ReleaseStep) -> tuple[int, int, _Refusal | None]:
        fleet, task, target = self._fleet, self._task.get(step.job_id), self._node.get(step.target)
        if task is None or fleet.nodes[fleet.where[task]].id != step.source:
            return -1, -1, _Refusal(f"{step.job_id} is not where it was to leave any more")
        if fleet.tasks[task].locked:
            stays = self._packing.stays.get(step.job_id)
            return -1, -1, _Refusal(f"{step.job_id} has to stay: it {stays or 'is locked'}")
        if target is None or step.target in self._wrong or fleet.kind[target] not in fleet.kinds[task]:
            name = self._packing.names.get(step.target, step.target)
            return -1, -1, _Refusal(f"{name} does not take {step.job_id} any more")
        if not fleet.on[target]:
            return -1, -1, _Refusal(f"{self._name(target)} has fallen free: another node would be vacated in vain")
        return task, target, None

    def _left_on(self, release: PlannedRelease, moving: set[str]) -> str | None:
        node = self._node.get(release.node_id)
        if node is None:
            if self._deciding.goal is Goal.RENT and all(step.state is StepState.DONE for step in release.steps):
                return None  # its rent has been ended already, for nobody was on it
            return f"{release.name} is there no more, or takes nothing"
        there = (self._fleet.tasks[task].id for task in self._fleet.on[node])
        left = next((one for one in there if one not in moving), None)
        return None if left is None else f"{left} has come to {release.name} meanwhile, or stays there"

    def _name(self, node: int) -> str:
        node_id = self._fleet.nodes[node].id
        return self._packing.names.get(node_id, node_id)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """`may_pass`: what was left is not given back yet, maybe."""

    why: str
    may_pass: bool = False


def _have_room(free: tuple[int, int, int], taken: Sequence[PackedTask], need: PackedTask) -> bool:
    """Whether there is room now, before anybody has left."""
    every = [*taken, need]
    return (
        sum(one.gpus for one in every) <= free[0]
        and sum(one.cpus_milli for one in every) <= free[1]
        and sum(one.memory_bytes for one in every) <= free[2]
    )
