"""Jobs that stand by: they and their machines are taken out of what is decided on, and are called back in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.control.context import ControlContext
from app.control.each import each, each_by_itself, in_batches
from app.control.enact import enact_apart
from app.control.failed_actions import due, note_outcomes
from app.control.observe import Observation
from app.core.model.health import Chore
from app.core.model.node import NodeState
from app.core.model.plan import Waiting
from app.core.model.snapshot import Snapshot
from app.core.standby import Holder, OverStandby, StandbyClaim, StandbyView, StoodBy, out_of_sight, stand_by
from app.db.connection import Connection
from app.db.decisions.enactment import set_wait_reasons
from app.db.standby.standbys import as_seen, open_standbys
from app.db.standby.windows import WindowRow, due_windows, next_try_ms
from app.services.standby.follow_standby import call_back, clear_holder, close_standby, give_up
from app.services.standby.repeat_standby import begin_window

_AT_ONCE = 100
_ENDS_BY_ITSELF = frozenset({NodeState.TERMINATING, NodeState.TERMINATED, NodeState.FAILED})


class StandbyKeeper:
    """One per control loop. All that it knows is in the rows: whoever leads next goes on."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self.wake_at_ms: int | None = None  # when the next window is over, or begins
        self._window_at_ms: int | None = None

    async def begin_windows(self) -> None:
        """Begin windows that come again and are due: each by itself, before the world is looked at."""
        context, now_ms = self._context, self._context.clock.now_ms()
        async with context.database.statement() as connection:
            due_now = await due_windows(connection, now_ms=now_ms)
            self._window_at_ms = await next_try_ms(connection, now_ms=now_ms)

        async def begin(connection: Connection, row: WindowRow) -> bool:
            return await begin_window(connection, context.ids, row, now_ms=now_ms)

        await each(context, Chore.STANDBY, due_now, begin, named=lambda row: row.window_id)

    async def keep(self, seen: Observation) -> Observation:
        """The world without the jobs that stand by, and without what is free on their machines. Where that cannot be
        read nothing is decided: their GPUs are others' now."""
        self.wake_at_ms = self._window_at_ms
        context, now_ms = self._context, seen.snapshot.now_ms
        async with context.database.statement() as connection:
            rows = await open_standbys(connection)
            standbys = await as_seen(connection, rows) if rows else []
        if not standbys:
            return seen
        found = self._look(seen.snapshot, standbys)
        wakes = (found.wake_at_ms, self._window_at_ms)
        self.wake_at_ms = min((at_ms for at_ms in wakes if at_ms is not None), default=None)
        await each_by_itself(context, Chore.STANDBY, [found], lambda it: self._follow(seen, it, now_ms), named=_all)
        return replace(seen, snapshot=found.snapshot)

    def _look(self, snapshot: Snapshot, standbys: Sequence[StandbyView]) -> StoodBy:
        """Of all, or of those alone over which it does not fail: the others stay where they are, out of sight."""
        try:
            return stand_by(snapshot, standbys)
        except Exception:
            failing = []
            for one in standbys:
                try:
                    stand_by(snapshot, [one])
                except Exception as error:
                    self._context.health.failed(Chore.STANDBY, one.job_id, error)
                    failing.append(one)
            if not failing:
                raise
            found = stand_by(snapshot, [one for one in standbys if one not in failing])
            return replace(found, snapshot=out_of_sight(found.snapshot, failing))

    async def _follow(self, seen: Observation, found: StoodBy, now_ms: int) -> None:
        """Each by itself: what fails of one is tried again with the next decision."""
        context = self._context

        async def call(connection: Connection, standby: StandbyView) -> bool:
            return await call_back(connection, standby, now_ms=now_ms)

        async def clear(connection: Connection, one: tuple[StandbyView, Holder]) -> None:
            await clear_holder(connection, context.ids, *one, now_ms=now_ms)

        async def give(connection: Connection, over: OverStandby) -> None:
            await give_up(connection, over, now_ms=now_ms)

        async def close(connection: Connection, over: OverStandby) -> None:
            await close_standby(connection, over, now_ms=now_ms)

        await each(context, Chore.STANDBY, found.calls, call, named=_job_of)
        held = [(standby, holder) for standby in found.clears for holder in standby.holders if _has_to_go(holder)]
        await each(context, Chore.STANDBY, held, clear, named=lambda it: it[1].node_id)
        await each(context, Chore.STANDBY, found.given_up, give, named=lambda it: it.standby.job_id)
        await each(context, Chore.STANDBY, found.over, close, named=lambda it: it.standby.job_id)
        await self._claim(seen, found.claims)
        told = [Waiting(job_id, why) for job_id, why in found.waits]
        await in_batches(context, Chore.STANDBY, told, set_wait_reasons, at_once=_AT_ONCE)

    async def _claim(self, seen: Observation, every: Sequence[StandbyClaim]) -> None:
        if not every:
            return
        context, now_ms = self._context, seen.snapshot.now_ms
        claims = due(every, seen.failures, now_ms)
        layouts = await context.layouts.of(seen.snapshot, claims)
        dropped = await enact_apart(context, claims, now_ms=now_ms, layouts=layouts, at_once=_AT_ONCE)
        await note_outcomes(context, claims, dropped, seen.failures)


def _has_to_go(holder: Holder) -> bool:
    """Whether there is something to do: not where all leave already, or the machine ends."""
    return bool(holder.to_ask) or (not holder.job_ids and holder.state not in _ENDS_BY_ITSELF)


def _job_of(standby: StandbyView) -> str:
    return standby.job_id


def _all(_: StoodBy) -> str:
    return "jobs that stand by"
