"""Elastic jobs whose code does not follow which GPUs it is to use: looked for now and then, beside lending."""

from __future__ import annotations

from app.control.context import ControlContext
from app.control.each import each
from app.core.keeping_gpus import KeepsGpus, WatchedRun, kept
from app.core.model.health import Chore
from app.db.connection import Connection
from app.db.runs.kept_gpus import watched_runs
from app.services.sizes.tell_kept import tell_kept

_EVERY_MS = 30_000


class KeepingWatch:
    """One per control loop. It costs a query every half minute."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._looked_ms: int | None = None

    async def look(self) -> None:
        """Tell of those that keep their GPUs. What fails of one is tried again with the next look."""
        now_ms = self._context.clock.now_ms()
        if self._looked_ms is not None and 0 <= now_ms - self._looked_ms < _EVERY_MS:
            return
        self._looked_ms = now_ms
        async with self._context.database.statement() as connection:
            watched = await watched_runs(connection)
        found = [(run, why) for run in watched if (why := kept(run, now_ms)) is not None]

        async def act(connection: Connection, one: tuple[WatchedRun, KeepsGpus]) -> bool:
            return await tell_kept(connection, self._context.ids, *one, now_ms=now_ms)

        await each(self._context, Chore.LEND, found, act, named=lambda one: one[0].run_id)
