"""Jobs that ask for a range and would miss their deadline go on with more GPUs of another machine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from app.control.context import ControlContext
from app.control.each import each, each_by_itself
from app.control.looks import LookingLine
from app.core.board import Board
from app.core.elastic.profile import SpeedProfile
from app.core.elastic.range_moves import LOOK_MS, growth_of, may_leave
from app.core.elastic.runs import ElasticRun
from app.core.lending import remaining_of
from app.core.model.health import Chore
from app.core.model.plan import Plan
from app.core.model.snapshot import NodeView, Snapshot
from app.db.connection import Connection
from app.db.runs.grown import GrownJob, jobs_waiting_in_vain, last_changes
from app.services.sizes.grow_for_deadline import PlannedGrowth, begin_smaller, grow_by_moving

_MOST_S = 0.5  # that one look takes: the decision waits for it


class DeadlineGrower:
    """One per control loop."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._looked_ms: int | None = None
        self._gave_up_ms: int | None = None
        self._turns = LookingLine()

    async def give_up(self, snapshot: Snapshot, plan: Plan) -> None:
        """Of machines that do not come, for those that this decision has left waiting."""
        now_ms = self._context.clock.now_ms()
        if self._gave_up_ms is not None and 0 <= now_ms - self._gave_up_ms < LOOK_MS:
            return
        self._gave_up_ms = now_ms
        waits = {one.job_id for one in plan.waiting}
        asked = [job.job_id for job in snapshot.jobs if job.job_id in waits and job.resources.gpus_min > 1]
        if not asked:
            return
        async with self._context.database.statement() as connection:
            in_vain = await jobs_waiting_in_vain(connection, asked, now_ms=now_ms)

        async def act(connection: Connection, job: GrownJob) -> bool:
            return await begin_smaller(connection, job, now_ms=now_ms)

        await each(self._context, Chore.LEND, in_vain, act, named=lambda job: job.job_id)

    async def grow(
        self,
        board: Board,
        runs: Sequence[ElasticRun],
        profiles: Mapping[str, SpeedProfile],
        changing: Collection[str],
        idle: Sequence[NodeView],
    ) -> int | None:
        """`changing`: runs that have something else to do; `idle`: rented machines that nobody is on. Returns when to
        look again, if any run has a deadline."""
        now_ms = self._context.clock.now_ms()
        due = [run for run in runs if run.is_range and run.due_ms is not None and run.held.wanted < run.own]
        if not due:
            return None
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < LOOK_MS:
            self._looked_ms = now_ms
            still = [run for run in due if run.run_id not in changing and run.is_settled(now_ms)]
            await each_by_itself(
                self._context,
                Chore.LEND,
                [still],
                lambda some: self._grow(board, some, profiles, idle, now_ms),
                named=_all,
            )
        return self._looked_ms + LOOK_MS

    async def _grow(
        self, board: Board, runs: Sequence[ElasticRun], profiles: Mapping[str, SpeedProfile],
        idle: Sequence[NodeView], now_ms: int,
    ) -> None:  # fmt: skip
        left_s = remaining_of(board, runs)
        late = [
            run for run in runs if run.run_id in left_s and left_s[run.run_id] * 1000 > (run.due_ms or 0) - now_ms > 0
        ]
        if not late:
            return
        async with self._context.database.statement() as connection:
            changed_ms = await last_changes(connection, [run.job_id for run in late])
        may_go = {
            run.run_id: (job, run)
            for run in late
            if (job := board.jobs.get(run.job_id)) and may_leave(job, changed_ms.get(run.job_id), now_ms)
        }
        planned: list[PlannedGrowth] = []

        async def look(run_id: str) -> None:
            (job, run), profile = may_go[run_id], profiles.get(run_id)
            there = () if planned else idle  # two would count on one
            growth = await asyncio.to_thread(growth_of, board, job, run, profile, left_s[run_id], now_ms, there)
            planned.extend([] if growth is None else [PlannedGrowth(run, growth)])

        await each_by_itself(self._context, Chore.LEND, self._turns.of(may_go, _MOST_S), look)

        async def act(connection: Connection, one: PlannedGrowth) -> bool:
            return await grow_by_moving(connection, one, now_ms=now_ms)

        await each(self._context, Chore.LEND, planned, act, named=lambda one: one.run.run_id)


def _all(_: Sequence[ElasticRun]) -> str:
    return "jobs that grow for their deadlines"
