"""Reading how many GPUs a job has had, and who wanted that. Callers check the project."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, literal, select, true, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import LateralFromClause

from app.core.model.money import Money
from app.core.size_history import HeldSize, SizeReason, Wish
from app.db.arrays import is_one_of
from app.db.tables import allocations, job_events, nodes, run_jobs, runs

MACHINES_CHANGED = "machines_changed"
_MOST_WISHES = 50_000  # of the runs of one page; each run is heard 2,000 times
_REASONS = {
    "resize_asked": SizeReason.ASKED,
    "gpus_lent": SizeReason.LENT,
    "gpus_given_back": SizeReason.RETURNED,
    "gpus_no_faster": SizeReason.NO_FASTER,
    "gpus_refused": SizeReason.REFUSED,
    MACHINES_CHANGED: SizeReason.ASKED,
}


async def sizes_after(
    connection: AsyncConnection, job_id: str, after: tuple[int, str] | None, *, limit: int
) -> list[HeldSize]:
    """What runs of the job have held of machines, oldest first: of those that come after a (from_ms, id). Of a job on
    several machines that is what all of them had, as of the run that leads."""
    of = allocations.c
    gpus = func.cardinality(of.gpu_indices)
    held = (
        select(of.id, of.run_id, of.node_id, of.from_ms, of.to_ms, gpus.label("gpus"))
        .add_columns(func.lag(gpus).over(partition_by=of.run_id, order_by=[of.from_ms, of.id]).label("before"))
        .join(run_jobs, run_jobs.c.run_id == of.run_id)
        .join(runs, runs.c.id == of.run_id)
        .where(run_jobs.c.job_id == job_id, runs.c.member_of.is_(None))
        .subquery("held")
    )
    others = _others_of(held.c.run_id)
    statement = (
        select(held, nodes.c.gpu_type, nodes.c.gpu_count, nodes.c.price_micros_per_hour, others)
        .join(nodes, nodes.c.id == held.c.node_id)
        .join(others, true())
    )
    if after is not None:
        statement = statement.where(tuple_(held.c.from_ms, held.c.id) > tuple_(*map(literal, after)))
    rows = await connection.execute(statement.order_by(held.c.from_ms, held.c.id).limit(limit))
    return [
        HeldSize(
            size_id=row.id,
            run_id=row.run_id,
            node_id=row.node_id,
            gpu_type=row.gpu_type,
            gpus=row.gpus + row.other_gpus,
            before=row.before,
            price_per_hour=Money(row.price_micros_per_hour * row.gpus // max(1, row.gpu_count) + int(row.other_micros)),
            from_ms=row.from_ms,
            to_ms=row.to_ms,
            machines=1 + row.other_machines,
        )
        for row in rows
    ]


def _others_of(run_id: ColumnElement[str]) -> LateralFromClause:
    """The further machines of a run that leads: each keeps the GPUs that it began with."""
    of, member, machine = allocations.alias(), runs.alias(), nodes.alias()
    gpus = func.cardinality(of.c.gpu_indices)
    micros = machine.c.price_micros_per_hour * gpus / func.greatest(1, machine.c.gpu_count)
    return (
        select(
            func.count().label("other_machines"),
            func.coalesce(func.sum(gpus), 0).label("other_gpus"),
            func.coalesce(func.sum(micros), 0).label("other_micros"),
        )
        .join(member, member.c.id == of.c.run_id)
        .join(machine, machine.c.id == of.c.node_id)
        .where(member.c.member_of == run_id)
        .lateral("others")
    )


async def wishes_of(connection: AsyncConnection, job_id: str, run_ids: Sequence[str]) -> list[Wish]:
    """What these runs of the job were to have, in the order in which it was written."""
    event = job_events.c
    run_id = event.data["run_id"].astext
    rows = await connection.execute(
        select(run_id.label("run_id"), event.at_ms, event.kind, event.message, event.data)
        .where(event.job_id == job_id, is_one_of(event.kind, list(_REASONS)), is_one_of(run_id, list(run_ids)))
        .order_by(event.position)
        .limit(_MOST_WISHES)
    )
    return [
        Wish(
            *(row.run_id, row.at_ms, _REASONS[row.kind], row.message, _job_of(row.data)),
            _machines_of(row.data) if row.kind == MACHINES_CHANGED else None,
        )
        for row in rows
    ]


def _machines_of(data: object) -> tuple[int, int] | None:
    found = data if isinstance(data, dict) else {}
    now, before = found.get("nodes"), found.get("nodes_before")
    return (now, before) if type(now) is int and type(before) is int and min(now, before) > 0 else None


def _job_of(data: object) -> str | None:
    found = data.get("to_job_id") if isinstance(data, dict) else None
    return found if isinstance(found, str) else None
