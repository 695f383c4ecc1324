"""Ranges that go on on a machine of another size though no deadline asks for it: cheaper, or sooner on idle GPUs.

The next machine is prepared while they train on, as with every planned move; what `app.core.elastic.range_moves`
decides is enacted as any move to a machine of one's own is (`MoveOut`), under the limits, budgets and locks of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from app.control.context import ControlContext
from app.control.each import each, each_by_itself
from app.control.enact import enact
from app.control.looks import LookingLine
from app.core.board import Board
from app.core.elastic.profile import SpeedProfile
from app.core.elastic.range_moves import (
    LOOK_MS,
    PlannedChange,
    SeenRanges,
    change_of,
    may_leave,
    rents_less_than,
    without_rivals,
)
from app.core.elastic.runs import ElasticRun
from app.core.layout import Layout
from app.core.lending import remaining_of
from app.core.model.health import Chore
from app.core.model.plan import ActionKind, Plan
from app.core.model.snapshot import NodeView, Snapshot
from app.db.connection import Connection
from app.db.runs.grown import last_changes
from app.services.decisions.policy_settings import policy_config
from app.services.sizes.change_machine import is_as_decided, tell_changed_machine

_MOST_S = 0.5  # that one look takes: the decision waits for it


class MachineChanger:
    """One per control loop."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._looked_ms: int | None = None
        self._turns = LookingLine()

    async def look(
        self, snapshot: Snapshot, plan: Plan, board: Board, runs: Sequence[ElasticRun],
        profiles: Mapping[str, SpeedProfile], changing: Collection[str], idle: Sequence[NodeView],
    ) -> int | None:  # fmt: skip
        """`changing`: runs that have something else to do; `idle`: rented machines that nobody is on. Returns when to
        look again, if there is a range."""
        now_ms = self._context.clock.now_ms()
        config = policy_config(self._context.settings)
        ranges = [run for run in runs if run.is_range]
        if not ranges or ActionKind.MIGRATE not in config.capabilities:
            return None
        if self._looked_ms is None or not 0 <= now_ms - self._looked_ms < LOOK_MS:
            self._looked_ms = now_ms
            still = [run for run in ranges if run.run_id not in changing and run.is_settled(now_ms)]
            crowded = bool(plan.waiting or plan.actions)
            may_rent = rents_less_than(config.serverful_limit, snapshot.nodes)
            seen = SeenRanges(board, profiles, config, is_crowded=crowded, may_rent=may_rent, idle=idle)
            await each_by_itself(
                self._context, Chore.LEND, [still], lambda some: self._change(snapshot, seen, some, now_ms), named=_all
            )
        return self._looked_ms + LOOK_MS

    async def _change(self, snapshot: Snapshot, seen: SeenRanges, runs: Sequence[ElasticRun], now_ms: int) -> None:
        left_s = remaining_of(seen.board, runs)
        known = [run for run in runs if run.run_id in left_s]
        if not known:
            return
        async with self._context.database.statement() as connection:
            changed_ms = await last_changes(connection, [run.job_id for run in known])
        may_go = {
            run.run_id: (job, run)
            for run in known
            if (job := seen.board.jobs.get(run.job_id)) and may_leave(job, changed_ms.get(run.job_id), now_ms)
        }

        async def look(run_id: str) -> PlannedChange | None:
            return await asyncio.to_thread(change_of, seen, *may_go[run_id], left_s[run_id], now_ms)

        found = await each_by_itself(self._context, Chore.LEND, self._turns.of(may_go, _MOST_S), look)
        changes = without_rivals([one for one in found if one is not None])
        layouts = await self._context.layouts.of(snapshot, [one.move for one in changes]) if changes else {}

        async def act(connection: Connection, one: PlannedChange) -> bool:
            return await self._enact(connection, one, layouts, now_ms)

        await each(self._context, Chore.LEND, changes, act, named=lambda one: one.run.run_id)

    async def _enact(
        self, connection: Connection, one: PlannedChange, layouts: Mapping[str, Layout], now_ms: int
    ) -> bool:
        """Whether it moves. False, with no machine rented, where it is not what was decided on any more."""
        if not await is_as_decided(connection, one.run):
            return False
        if await enact(connection, self._context, (one.move,), now_ms=now_ms, layouts=layouts):
            return False
        await tell_changed_machine(connection, one.run, one.kind, one.gpus, one.move.reason, now_ms=now_ms)
        return True


def _all(_: Sequence[ElasticRun]) -> str:
    return "ranges that change their machine"
