"""The ledger: who pays for which stretch of which node. Lines are only ever added."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.billing import WHOLE_SHARE_PPM, Meter, Occupancy, Reading, split
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, NodeState
from app.db.enactment import lock_versions
from app.db.tables import allocations, jobs, ledger, node_heartbeats, nodes, run_jobs
from app.db.transitions import Event, add_node_event


async def unmetered_nodes(connection: AsyncConnection) -> list[str]:
    """Nodes whose bill is still open, by id."""
    rows = await connection.execute(select(nodes.c.id).where(~nodes.c.meter_closed).order_by(nodes.c.id))
    return list(rows.scalars())


async def read_meter(
    connection: AsyncConnection, node_id: str, *, now_ms: int, billed: Money | None = None
) -> Reading | None:
    """Bring the ledger of one node up to the last moment it is known to have run; close it when the node is over.

    `billed` is the provider's own total, for the last reading. None when there was nothing to read. Repeating it is
    harmless: the node's row lock makes readings follow each other, and each goes on where the last one ended.
    """
    job_ids = await connection.execute(
        select(run_jobs.c.job_id)
        .join(allocations, allocations.c.run_id == run_jobs.c.run_id)
        .where(allocations.c.node_id == node_id)
    )
    rented_for = await connection.execute(select(nodes.c.rented_for_job_id).where(nodes.c.id == node_id))
    await lock_versions(connection, {node_id, *job_ids.scalars(), *filter(None, rented_for.scalars())})
    row = (
        await connection.execute(
            select(nodes, node_heartbeats.c.at_ms.label("heartbeat_ms"))
            .outerjoin(node_heartbeats, node_heartbeats.c.node_id == nodes.c.id)
            .where(nodes.c.id == node_id)
        )
    ).one_or_none()
    if row is None or row.meter_closed:
        return None
    over = row.state in (NodeState.TERMINATED, NodeState.FAILED)
    if row.billed_from_ms is None:
        if over:
            await _close(connection, node_id)
        return None
    until_ms = _known_until_ms(row, now_ms, over=over)
    if until_ms is None:
        return None
    occupancies = await _occupancies(connection, node_id)
    reading = split(_meter(row), occupancies, until_ms=until_ms, final=over, billed=billed)
    await _write(connection, row, reading, final=over, now_ms=now_ms)
    return reading


def _known_until_ms(row: Row[Any], now_ms: int, *, over: bool) -> int | None:
    """Up to when the machine is known to have run, by the provider's end time or its newest heartbeat."""
    if over:
        end_ms: int = now_ms if row.billed_to_ms is None else row.billed_to_ms
        return max(end_ms, int(row.billed_from_ms))
    if row.heartbeat_ms is None:
        return None
    moments = (row.heartbeat_ms, now_ms, row.billed_to_ms)
    return min(int(moment) for moment in moments if moment is not None)


def _meter(row: Row[Any]) -> Meter:
    return Meter(
        rule=BillingRule(row.billing_unit_ms, BillingStart(row.billing_starts), row.billing_minimum_ms),
        price_per_hour=Money(row.price_micros_per_hour),
        gpu_count=row.gpu_count,
        billed_from_ms=row.billed_from_ms,
        ready_ms=row.ready_ms,
        rented_for_job_id=row.rented_for_job_id,
        metered_until_ms=row.metered_until_ms,
        metered=Money(row.metered_micros),
    )


async def _occupancies(connection: AsyncConnection, node_id: str) -> list[Occupancy]:
    rows = await connection.execute(
        select(allocations, run_jobs.c.job_id, run_jobs.c.share)
        .join(run_jobs, run_jobs.c.run_id == allocations.c.run_id)
        .where(allocations.c.node_id == node_id)
        .order_by(allocations.c.id, run_jobs.c.job_id)
    )
    return [
        Occupancy(
            run_id=row.run_id,
            job_id=row.job_id,
            gpus=len(row.gpu_indices),
            from_ms=row.from_ms,
            to_ms=row.to_ms,
            share_ppm=int(row.share * WHOLE_SHARE_PPM),
        )
        for row in rows
    ]


async def _write(connection: AsyncConnection, row: Row[Any], reading: Reading, *, final: bool, now_ms: int) -> None:
    if reading.lines:
        lines = [
            {
                "project_id": row.project_id,
                "node_id": row.id,
                "run_id": line.run_id,
                "job_id": line.job_id,
                "payer": line.payer,
                "from_ms": line.from_ms,
                "to_ms": line.to_ms,
                "amount_micros": line.amount.micros,
            }
            for line in reading.lines
        ]
        await connection.execute(ledger.insert(), lines)
        await _add_to_jobs(connection, reading)
    columns: dict[str, Any] = {"metered_until_ms": reading.metered_until_ms, "metered_micros": reading.metered.micros}
    if final:
        columns["meter_closed"] = True
    await connection.execute(update(nodes).where(nodes.c.id == row.id).values(**columns))
    if reading.overmetered.micros:
        told = f"the provider asks {reading.overmetered} less than had been metered"
        data = {"overmetered_micros": reading.overmetered.micros}
        await add_node_event(connection, row.id, Event("overmetered", told, data), now_ms=now_ms)


async def _add_to_jobs(connection: AsyncConnection, reading: Reading) -> None:
    """What jobs have cost. Their row version stays: spending must not make a planned action stale."""
    spent: dict[str, int] = {}
    for line in reading.lines:
        if line.job_id is not None:
            spent[line.job_id] = spent.get(line.job_id, 0) + line.amount.micros
    for job_id in sorted(spent):
        await connection.execute(
            update(jobs).where(jobs.c.id == job_id).values(spent_micros=jobs.c.spent_micros + spent[job_id])
        )


async def _close(connection: AsyncConnection, node_id: str) -> None:
    await connection.execute(update(nodes).where(nodes.c.id == node_id).values(meter_closed=True))


async def ledger_total(connection: AsyncConnection, node_id: str) -> Money:
    """The sum of all lines of a node."""
    micros: int = (
        await connection.execute(
            select(func.coalesce(func.sum(ledger.c.amount_micros), 0)).where(ledger.c.node_id == node_id)
        )
    ).scalar_one()
    return Money(int(micros))
