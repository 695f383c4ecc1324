"""Whose the time is in which a machine stood idle: that of the job after which it did.

A ledger line of idle time names no job, as nobody held the GPUs. It follows from one all the same: from the job that
left the machine last before, or, before any came, from the one that it was rented for. A machine that was rented ahead
and that nobody has used yet is nobody's. So each line has one owner at most, and what jobs cost, with what stood idle
around them and with what is nobody's, is the bill.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, ColumnElement, FromClause, and_, cast, func, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.billing import Payer
from app.db.tables import allocations, ledger, nodes, run_jobs


def idle_owner(line: FromClause) -> ColumnElement[str | None]:
    """The job that an idle line of the ledger follows from."""
    left = (
        select(run_jobs.c.job_id)
        .join(allocations, allocations.c.run_id == run_jobs.c.run_id)
        .where(allocations.c.node_id == line.c.node_id, allocations.c.to_ms <= line.c.from_ms)
        .order_by(allocations.c.to_ms.desc(), run_jobs.c.job_id)
        .limit(1)
        .correlate(line)
        .scalar_subquery()
    )
    rented_for = select(nodes.c.rented_for_job_id).where(nodes.c.id == line.c.node_id).correlate(line).scalar_subquery()
    return func.coalesce(left, rented_for)


async def idle_micros(connection: AsyncConnection, job_id: str) -> int:
    """What machines have cost that stood idle after this job had left them, or that were rented for it before any came.

    Looks at the time between the end of one stay and that of the next, however long a machine has lived. Whose it is,
    is asked once for each such time: of those that left at one moment, it is that of the first by id.
    """
    after, beside, theirs = allocations.alias("after"), allocations.alias("beside"), run_jobs.alias("theirs")
    nearest = func.min(after.c.to_ms)
    next_end = select(nearest).where(after.c.node_id == allocations.c.node_id, after.c.to_ms > allocations.c.to_ms)
    first_end = select(nearest).where(after.c.node_id == nodes.c.id)
    first_of_them = (
        select(func.min(theirs.c.job_id))
        .join(beside, beside.c.run_id == theirs.c.run_id)
        .where(beside.c.node_id == allocations.c.node_id, beside.c.to_ms == allocations.c.to_ms)
        .correlate(allocations)
        .scalar_subquery()
    )
    left = (
        select(
            allocations.c.node_id,
            allocations.c.to_ms.label("from_ms"),
            next_end.correlate(allocations).scalar_subquery().label("to_ms"),
        )
        .join(run_jobs, run_jobs.c.run_id == allocations.c.run_id)
        .where(run_jobs.c.job_id == job_id, allocations.c.to_ms.is_not(None), first_of_them == job_id)
    )
    rented = select(
        nodes.c.id, literal(0, BigInteger), first_end.correlate(nodes).scalar_subquery().label("to_ms")
    ).where(nodes.c.rented_for_job_id == job_id)
    windows = left.union(rented).subquery("windows")
    within = and_(
        ledger.c.from_ms >= windows.c.from_ms, or_(windows.c.to_ms.is_(None), ledger.c.from_ms < windows.c.to_ms)
    )
    total = cast(func.coalesce(func.sum(ledger.c.amount_micros), 0), BigInteger)
    found = await connection.execute(
        select(total)
        .select_from(ledger)
        .join(windows, and_(windows.c.node_id == ledger.c.node_id, within))
        .where(ledger.c.payer == Payer.IDLE)
    )
    return int(found.scalar_one())
