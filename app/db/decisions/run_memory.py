"""The live runs of one reader: read once, and again when something of them has changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.node import Tier
from app.core.model.run import RunPurpose, RunState
from app.core.model.snapshot import RunView
from app.db.arrays import is_one_of
from app.db.moves.planned_moves import outlives_its_target
from app.db.tables import allocations, run_jobs, runs
from app.db.unreadable import RowReading

_SEEN = (
    runs.c.id,
    runs.c.tier,
    runs.c.state,
    runs.c.row_version,
    runs.c.created_ms,
    runs.c.running_ms,
    runs.c.purpose,
)
_LIVE = runs.c.state != RunState.ENDED


class RunMemory:
    """Used by one reader, one reading after the other."""

    def __init__(self) -> None:
        self._rows: dict[str, Row[Any]] = {}
        self._views: dict[str, RunView] = {}

    async def read(
        self, connection: AsyncConnection, changed: Collection[str] | None, reading: RowReading
    ) -> tuple[RunView, ...]:
        """All that can be read, by id. `changed` is None where any may have changed."""
        if changed is not None:  # whether one that leaves is still its job's depends on the run that goes on with it
            leaving = {run_id for run_id, row in self._rows.items() if row.state == RunState.STOPPING}
            changed = leaving | set(changed)
        if changed is None or changed:
            await self._refresh(connection, changed)
        for run_id, row in self._rows.items():
            if run_id not in self._views:
                self._view(row, reading)
        if len(self._views) > 1:
            self._views = dict(sorted(self._views.items()))
        return tuple(self._still_held(self._views.values()))

    async def _refresh(self, connection: AsyncConnection, changed: Collection[str] | None) -> None:
        rows: dict[str, Row[Any]] = {}
        for row in await connection.execute(_live_runs(changed)):
            rows.setdefault(row.id, row)
        for run_id in self._rows.keys() if changed is None else changed:
            if run_id not in rows or self._rows.get(run_id) != rows[run_id]:
                self._views.pop(run_id, None)
        kept = {} if changed is None else {key: row for key, row in self._rows.items() if key not in changed}
        self._rows = dict(sorted({**kept, **rows}.items()))

    def _view(self, row: Row[Any], reading: RowReading) -> None:
        view = reading.of(runs.name, row.id, partial(run_view, row))
        if view is None:
            reading.job_ids |= set(row.job_ids)  # they would look as if they had no run
        else:
            self._views[row.id] = view

    def _still_held(self, views: Iterable[RunView]) -> Iterable[RunView]:
        """Of a job that has no other run, a run that outlives its target is none of its runs any more. Its GPUs stay
        taken."""
        alone = {run_id for run_id, row in self._rows.items() if row.outlives}
        if not alone:
            return views
        held = {job_id for view in views if view.run_id not in alone for job_id in view.job_ids}
        return [view for view in views if view.run_id not in alone or not held.isdisjoint(view.job_ids)]


def _live_runs(ids: Collection[str] | None) -> Any:
    live = _LIVE if ids is None else _LIVE & is_one_of(runs.c.id, sorted(ids))
    held_jobs = (
        select(run_jobs.c.run_id, func.array_agg(run_jobs.c.job_id).label("job_ids"))
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .where(live)
        .group_by(run_jobs.c.run_id)
        .subquery()
    )
    return (
        select(*_SEEN, held_jobs.c.job_ids, allocations.c.node_id, outlives_its_target().label("outlives"))
        .join(held_jobs, held_jobs.c.run_id == runs.c.id)
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .where(live)
        .order_by(runs.c.id, allocations.c.node_id)
    )


def run_view(row: Row[Any]) -> RunView:
    """A live run's row, with its `job_ids` and `node_id`, as a decision sees it."""
    return RunView(
        run_id=row.id,
        job_ids=tuple(sorted(row.job_ids)),
        node_id=row.node_id,
        tier=read_as(Tier, row.tier),
        state=read_as(RunState, row.state),
        row_version=row.row_version,
        created_ms=row.created_ms,
        running_since_ms=row.running_ms,
        purpose=read_as(RunPurpose, row.purpose),
    )
