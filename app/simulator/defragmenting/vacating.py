"""What the control loop does about defragmentation, on a virtual clock (`app.control.defragment`).

Planned, and gone through round by round, by the functions that it calls: `is_wanted`, `plan_for`, `pack`, `caught_up`
and `next_steps`. What is a row there is an object here; no move fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from app.core.defragmentation import (
    Deciding,
    Goal,
    MoveNow,
    PlannedRelease,
    ReleaseState,
    ReleaseStep,
    SeenFleet,
    StepState,
    caught_up,
    is_wanted,
    next_steps,
    pack,
    plan_for,
)
from app.core.defragmentation.execution import MOST_TRIES
from app.core.gang_wishes import is_gang
from app.core.model.job import PLACEABLE_JOB_STATES


class Looks(StrEnum):
    """When the pool is looked at for hosts to vacate."""

    NEVER = "never"
    WANTED = "wanted"  # on schedule, while a job waits that whole hosts would let begin: as the control loop does
    ALWAYS = "always"  # on schedule, whoever waits: as somebody who asks for it each time


@dataclass(frozen=True, slots=True)
class Schedule:
    """As the settings of the service are named; the defaults are theirs, and those of the guide."""

    looks: Looks = Looks.NEVER
    every_ms: int = 3_600_000
    moves: int = 20
    moves_at_once: int = 2
    tick_ms: int = 60_000


class Vacating:
    """One defragmentation after the other. `begin`: begins the move of a job to a place, and names it; None where that
    cannot be. `move_of`: what has become of one. `vacated`: so many hosts were, in all."""

    def __init__(
        self, schedule: Schedule, begin: Callable[[str, str], str | None], move_of: Callable[[str], MoveNow | None]
    ) -> None:
        self._schedule, self._begin, self._move_of = schedule, begin, move_of
        self._releases: dict[int, PlannedRelease] = {}
        self._held: Mapping[str, tuple[str, ...]] = {}
        self._planned_ms = 0
        self.vacated = self.dropped = 0

    @property
    def is_open(self) -> bool:
        return bool(self._releases)

    @property
    def may_look(self) -> bool:
        """Nothing begins while one goes on."""
        return not self.is_open and self._schedule.looks is not Looks.NEVER

    def closed(self) -> set[str]:
        """Places where nobody new begins now, as `vacated_nodes` has it for every decision."""
        its = self._releases.values()
        closed = {one.node_id for one in its if one.for_job_id is None and one.state is ReleaseState.MOVING}
        for job_id in {one.for_job_id for one in its} - {None}:
            together = [one for one in its if one.for_job_id == job_id and one.state is not ReleaseState.DROPPED]
            is_begun = any(one.begun_ms is not None for one in together)
            if is_begun and any(one.state is not ReleaseState.FREED for one in together):
                closed |= {one.node_id for one in together} | set(self._held.get(str(job_id), ()))
        return closed

    def look(self, seen: SeenFleet) -> None:
        """By schedule, where it may."""
        if self._schedule.looks is Looks.WANTED and not is_wanted(seen):
            return
        plan = plan_for(seen, Goal.POOLS, None, self._schedule.moves)
        self._releases = {one.position: one for one in plan.releases}
        self._held, self._planned_ms = dict(plan.held), seen.snapshot.now_ms

    def go_on(self, seen: SeenFleet) -> None:
        """One round."""
        packing, now_ms = pack(seen, Goal.POOLS), seen.snapshot.now_ms
        named = {step.move_id for one in self._releases.values() for step in one.steps if step.move_id is not None}
        moves = {move_id: move for move_id in named if (move := self._move_of(move_id)) is not None}
        self._releases = {at: caught_up(one, packing, moves, now_ms) for at, one in self._releases.items()}
        jobs = seen.snapshot.jobs
        waiting = frozenset(job.job_id for job in jobs if is_gang(job) and job.state in PLACEABLE_JOB_STATES)
        at_once = self._schedule.moves_at_once
        deciding = Deciding(Goal.POOLS, self._planned_ms, now_ms, at_once, waiting=waiting)
        todo = next_steps(list(self._releases.values()), packing, deciding)
        for position in todo.drop:
            self._end(position, ReleaseState.DROPPED)
            self.dropped += 1
        for position in todo.emptied:
            self._end(position, ReleaseState.FREED)
            self.vacated += 1
        for release, index in todo.begin:
            self._begin_step(release.position, index, now_ms)
        if all(one.is_over for one in self._releases.values()):
            self._releases = {}

    def _end(self, position: int, state: ReleaseState) -> None:
        self._releases[position] = replace(self._releases[position], state=state)

    def _begin_step(self, position: int, index: int, now_ms: int) -> None:
        release = self._releases[position]
        step = release.steps[index]
        move_id = self._begin(step.job_id, step.target)
        after = _tried_in_vain(step) if move_id is None else replace(step, state=StepState.MOVING, move_id=move_id)
        self._releases[position] = replace(
            release,
            steps=(*release.steps[:index], after, *release.steps[index + 1 :]),
            state=ReleaseState.MOVING,
            begun_ms=release.begun_ms if move_id is None else now_ms,
        )


def _tried_in_vain(step: ReleaseStep) -> ReleaseStep:
    tries = step.tries + 1
    state = StepState.FAILED if tries >= MOST_TRIES else step.state
    return replace(step, tries=tries, why="there was no room for it", state=state)
