"""Nodes are vacated by moves, as owners ask or by schedule (`app.core.defragmentation`).

The plan is kept in rows, and so is each step, in the transaction that begins its move: whoever leads next goes on from
there. A round looks at the fleet anew, begins a few moves, drops what is not so any more, and releases what is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from app.control.bring_together import bring_together
from app.control.context import ControlContext, as_ms
from app.control.dropping import Dropped
from app.control.each import each, each_by_itself
from app.control.enact import enact
from app.control.failed_actions import note_outcomes
from app.core.defragmentation import (
    Deciding,
    DefragPlan,
    Goal,
    NextSteps,
    Packing,
    PlannedRelease,
    ReleaseState,
    RepairState,
    SeenFleet,
    StepState,
    SwitchRepair,
    caught_up,
    move_of,
    next_steps,
    pack,
    plan_for,
)
from app.core.defragmentation.execution import MOST_TRIES
from app.core.gang_wishes import is_gang
from app.core.layout import Layout
from app.core.model.health import Chore
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.plan import Migrate, MoveOut
from app.core.model.snapshot import NodeView, Snapshot
from app.db.connection import Connection
from app.db.decisions.snapshots import Memory
from app.db.defragmentation.defragmentations import (
    DefragRow,
    add_defragmentation,
    end_defragmentation,
    open_defragmentations,
    releases_of,
    repairs_of,
    set_planned,
    set_release,
)
from app.db.defragmentation.fleet import moves_now
from app.db.moves.planned_moves import open_move_of_job
from app.errors import Fenced, Unavailable
from app.services.defragmentation.give_back import give_back, idle_parts
from app.services.defragmentation.release_emptied import release_emptied
from app.services.defragmentation.see_fleet import see_fleet
from app.services.defragmentation.show import found_of

_BY_SCHEDULE = "schedule"
_MOST_FAILURES = 10  # in a row, before it is given up


@dataclass(slots=True)
class _Round:
    """One look at one defragmentation. `releases` by position, as they are written."""

    row: DefragRow
    seen: SeenFleet
    packing: Packing
    releases: dict[int, PlannedRelease]
    now_ms: int


class Defragmenter:
    """One per control process. `kept_hosts`: those that are kept for jobs on several machines, by whose they are."""

    def __init__(self, context: ControlContext, kept_hosts: Callable[[], Mapping[str, str]]) -> None:
        self._context, self._kept_hosts = context, kept_hosts
        self._next_ms: dict[Goal, int] = {}
        self._failures: dict[str, int] = {}
        self._memory = Memory()  # of the rounds before, while any is open

    async def look(self) -> None:
        """One round of all that are open, and of the schedule."""
        if self._context.settings.moves != "make_before_break":
            return
        async with self._context.database.statement() as connection:
            rows = await open_defragmentations(connection)
        if not rows:
            self._memory = Memory()
        due = [goal for goal in Goal if self._is_due(goal, rows)]
        await each_by_itself(self._context, Chore.DEFRAG, due, self._begin_by_schedule)
        await each_by_itself(self._context, Chore.DEFRAG, rows, self._go_on_or_give_up, named=lambda row: row.id)

    def _is_due(self, goal: Goal, rows: Sequence[DefragRow]) -> bool:
        every_ms, now_ms = as_ms(self._context.settings.defrag_every_s), self._context.clock.now_ms()
        if not every_ms:
            return False
        if now_ms < self._next_ms.setdefault(goal, now_ms + every_ms):
            return False
        self._next_ms[goal] = now_ms + every_ms
        return all(row.goal is not goal for row in rows)

    async def _see(self) -> SeenFleet:
        context = self._context
        return await see_fleet(
            context.database,
            context.settings,
            now_ms=context.clock.now_ms(),
            traits=context.traits(),
            kept_hosts=self._kept_hosts(),
            memory=self._memory,
        )

    async def _begin_by_schedule(self, goal: Goal) -> None:
        """Nothing is written where there is nothing to gain."""
        context, most = self._context, self._context.settings.defrag_moves
        seen = await self._see()
        plan = await asyncio.to_thread(plan_for, seen, goal, None, most, by_schedule=True)
        if plan.is_empty:
            return
        now_ms = context.clock.now_ms()
        row = DefragRow(context.ids.new("dfrg"), goal, None, _BY_SCHEDULE, most, "asked", now_ms)
        async with context.led() as connection:
            if await add_defragmentation(connection, row):
                await set_planned(connection, row.id, found_of(plan), plan.releases, now_ms=now_ms)

    async def _go_on_or_give_up(self, row: DefragRow) -> None:
        """One that fails as a whole, again and again, does not keep others of its goal from their turn."""
        try:
            await self._go_on(row)
        except (Fenced, Unavailable):
            raise
        except Exception:
            self._failures[row.id] = self._failures.get(row.id, 0) + 1
            if self._failures[row.id] >= _MOST_FAILURES:
                del self._failures[row.id]
                await self._end(row, "failed", "it failed again and again: an error of the service")
            raise
        self._failures.pop(row.id, None)

    async def _go_on(self, row: DefragRow) -> None:
        if row.state == "asked":
            await self._plan(row)
            return
        async with self._context.database.statement() as connection:
            known = (await releases_of(connection, [row.id])).get(row.id, [])
        releases = {one.release.position: one.release for one in known}
        if any(not one.is_over for one in releases.values()):
            await self._step(row, releases)
        repairs = repairs_of(row.found)
        if any(not one.is_over for one in repairs):
            seen = await self._see()
            under_way = sum(step.state is StepState.MOVING for one in releases.values() for step in one.steps)
            deciding = self._deciding(row, seen.snapshot)
            deciding = replace(deciding, at_once=deciding.at_once - under_way)
            repairs = await bring_together(self._context, row, repairs, [*releases.values()], seen, deciding)
        if all(one.is_over for one in releases.values()) and all(one.is_over for one in repairs):
            await self._close(row, list(releases.values()), repairs)

    async def _plan(self, row: DefragRow) -> None:
        if row.cancelled_ms is not None:
            await self._end(row, "cancelled", "it was called off before it was planned")
            return
        seen = await self._see()
        plan = await asyncio.to_thread(plan_for, seen, row.goal, row.pool, row.most_moves)
        await self._keep(row, plan)

    async def _keep(self, row: DefragRow, plan: DefragPlan) -> None:
        async with self._context.led() as connection:
            now_ms = self._context.clock.now_ms()
            await set_planned(connection, row.id, found_of(plan), plan.releases, now_ms=now_ms)

    async def _step(self, row: DefragRow, releases: dict[int, PlannedRelease]) -> None:
        now = await self._look_at(row, releases)
        changed = [one for position, one in now.releases.items() if one != releases[position]]

        async def note(connection: Connection, release: PlannedRelease) -> None:
            await set_release(connection, row.id, release)

        await self._each(now, changed, note)
        releases.update(now.releases)
        todo = await asyncio.to_thread(
            next_steps, list(releases.values()), now.packing, self._deciding(row, now.seen.snapshot)
        )
        await self._drop(now, todo)
        await self._give_back(now, todo)
        await self._release(now, todo)
        await self._begin(now, todo)
        releases.update(now.releases)

    async def _look_at(self, row: DefragRow, releases: Mapping[int, PlannedRelease]) -> _Round:
        moves = {step.move_id for one in releases.values() for step in one.steps if step.move_id is not None}
        async with self._context.database.statement() as connection:
            known = await moves_now(connection, moves)
        seen = await self._see()  # after the moves: what has ended by then has left its machine here
        packing = await asyncio.to_thread(pack, seen, row.goal, row.pool)
        now_ms = seen.snapshot.now_ms
        caught = {position: caught_up(one, packing, known, now_ms) for position, one in releases.items()}
        return _Round(row, seen, packing, caught, now_ms)

    def _deciding(self, row: DefragRow, seen: Snapshot) -> Deciding:
        at_once = self._context.settings.defrag_moves_at_once
        planned_ms = row.asked_ms if row.planned_ms is None else row.planned_ms
        waiting = {job.job_id for job in seen.jobs if is_gang(job) and job.state in PLACEABLE_JOB_STATES}
        waiting |= {one.job_id for one in repairs_of(row.found) if one.state is RepairState.WAITING}
        return Deciding(row.goal, planned_ms, seen.now_ms, at_once, row.cancelled_ms is not None, frozenset(waiting))

    async def _drop(self, now: _Round, todo: NextSteps) -> None:
        async def drop(connection: Connection, release: PlannedRelease) -> None:
            over = replace(release, state=ReleaseState.DROPPED)
            await set_release(connection, now.row.id, over, ended_ms=now.now_ms, why=todo.drop[release.position])
            now.releases[release.position] = over

        await self._each(now, [now.releases[position] for position in todo.drop], drop)

    async def _release(self, now: _Round, todo: NextSteps) -> None:
        """What nobody is on is free; where it is rented, its rent ends."""
        versions = {node.node_id: node.row_version for node in now.seen.snapshot.nodes}

        async def release(connection: Connection, emptied: PlannedRelease) -> None:
            version = versions.get(emptied.node_id) if now.row.goal is Goal.RENT else None
            over = await release_emptied(
                connection, self._context.ids, now.row, emptied, version=version, now_ms=now.now_ms
            )
            if over is not None:
                now.releases[over.position] = over

        await self._each(now, [now.releases[position] for position in todo.emptied], release)

    async def _give_back(self, now: _Round, todo: NextSteps) -> None:
        left = [now.releases[position] for position in todo.left]
        parts = [(node, release) for release in left for node in idle_parts(now.seen, release)]

        async def act(connection: Connection, part: tuple[NodeView, PlannedRelease]) -> None:
            node, release = part
            why = f"{release.name} is vacated for {release.for_job_id}"
            await give_back(connection, self._context.ids, node, why, now_ms=now.now_ms)

        await each(self._context, Chore.DEFRAG, parts, act, named=lambda part: part[0].node_id)

    async def _begin(self, now: _Round, todo: NextSteps) -> None:
        told = f"defragmentation {now.row.id}"
        moves: list[tuple[PlannedRelease, int, Migrate | MoveOut | None]] = [
            (release, index, move_of(now.seen, now.packing, release, release.steps[index], told))
            for release, index in todo.begin
        ]
        actions = [action for _, _, action in moves if action is not None]
        layouts = await self._context.layouts.of(now.seen.snapshot, actions) if actions else {}
        dropped: list[Dropped] = []

        async def begin(connection: Connection, move: tuple[PlannedRelease, int, Migrate | MoveOut | None]) -> None:
            dropped.extend(await self._begin_one(connection, now, move, layouts))

        await each(self._context, Chore.DEFRAG, moves, begin, named=lambda move: move[0].steps[move[1]].job_id)
        if actions:
            await note_outcomes(self._context, actions, dropped, {})

    async def _begin_one(
        self,
        connection: Connection,
        now: _Round,
        move: tuple[PlannedRelease, int, Migrate | MoveOut | None],
        layouts: Mapping[str, Layout],
    ) -> Sequence[Dropped]:
        """The step is kept in the transaction that begins its move. Dropped: it is tried again, a few times."""
        planned, index, action = move
        release = now.releases[planned.position]
        step = release.steps[index]
        dropped: tuple[Dropped, ...] = ()
        if action is not None:
            dropped = await enact(connection, self._context, (action,), now_ms=now.now_ms, layouts=layouts)
        begun = None if action is None or dropped else await open_move_of_job(connection, step.job_id)
        if begun is not None:
            step = replace(step, state=StepState.MOVING, move_id=begun.move_id)
        else:
            why = dropped[0].why if dropped else "there was no room for it"
            tries = step.tries + 1
            step = replace(step, tries=tries, why=why, state=StepState.FAILED if tries >= MOST_TRIES else step.state)
        steps = (*release.steps[:index], step, *release.steps[index + 1 :])
        begun_ms = release.begun_ms if begun is None else now.now_ms
        after = replace(release, steps=steps, state=ReleaseState.MOVING, begun_ms=begun_ms)
        await set_release(connection, now.row.id, after)
        now.releases[after.position] = after
        return dropped

    async def _each(
        self,
        now: _Round,
        releases: Sequence[PlannedRelease],
        act: Callable[[Connection, PlannedRelease], Awaitable[None]],
    ) -> None:
        def named(release: PlannedRelease) -> str:
            return f"{now.row.id}, {release.name}"

        await each(self._context, Chore.DEFRAG, releases, act, named=named)

    async def _close(self, row: DefragRow, releases: Sequence[PlannedRelease], repairs: Sequence[SwitchRepair]) -> None:
        told = []
        if releases:
            freed = sum(one.state is ReleaseState.FREED for one in releases)
            told.append(f"{freed} of {len(releases)} node{'s' * (len(releases) != 1)} vacated")
        if repairs:
            done = sum(one.state is RepairState.DONE for one in repairs)
            told.append(f"{done} of {len(repairs)} job{'s' * (len(repairs) != 1)} came together")
        message = ", ".join(told) or "there was nothing to vacate"
        await self._end(row, "done" if row.cancelled_ms is None else "cancelled", message)

    async def _end(self, row: DefragRow, state: str, message: str) -> None:
        async with self._context.led() as connection:
            await end_defragmentation(connection, row.id, state, message, now_ms=self._context.clock.now_ms())
