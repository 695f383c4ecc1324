"""The ledger: who pays for which stretch of which node. Lines are only ever added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Subquery,
    case,
    func,
    literal,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.billing import Meter, MeterReading, Occupancy, StandbyTime, split
from app.core.foreign import read_as
from app.core.model.job import PriorityClass
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, NodeState
from app.core.spot_share import SpotShare
from app.db.arrays import as_rows, insert_rows, is_one_of
from app.db.lock_order import lock_nodes
from app.db.money.spot_shares import shares_of_nodes
from app.db.money.standby_times import standbys_of_nodes
from app.db.tables import allocations, jobs, ledger, node_heartbeats, nodes, run_jobs, runs
from app.db.transitions import Event, add_node_event

_OVER = (NodeState.TERMINATED, NodeState.FAILED)


async def unmetered_nodes(connection: AsyncConnection) -> list[str]:
    """Nodes whose bill is open and has begun, or that are over, by id."""
    begun = or_(nodes.c.billed_from_ms.is_not(None), nodes.c.state.in_(_OVER))
    rows = await connection.execute(select(nodes.c.id).where(~nodes.c.meter_closed, begun).order_by(nodes.c.id))
    return list(rows.scalars())


async def read_meter(
    connection: AsyncConnection, node_id: str, *, now_ms: int, billed: Money | None = None
) -> MeterReading | None:
    """`read_meters` of one node. `billed` is the provider's own total, for the last reading."""
    readings = await _read(connection, [node_id], {} if billed is None else {node_id: billed}, now_ms)
    return readings.get(node_id)


async def read_meters(connection: AsyncConnection, node_ids: Sequence[str], *, now_ms: int) -> dict[str, MeterReading]:
    """Bring the ledger of these nodes up to the last moment each is known to have run; close it when a node is over.

    A node without a reading had nothing to read. Repeating it is harmless: the rows' locks make readings follow each
    other, and each goes on where the last one ended.
    """
    return await _read(connection, node_ids, {}, now_ms)


async def _read(
    connection: AsyncConnection, node_ids: Sequence[str], billed: Mapping[str, Money], now_ms: int
) -> dict[str, MeterReading]:
    await lock_to_meter(connection, node_ids, until_ms=now_ms)
    rows = await connection.execute(
        select(nodes, node_heartbeats.c.at_ms.label("heartbeat_ms"))
        .outerjoin(node_heartbeats, node_heartbeats.c.node_id == nodes.c.id)
        .where(is_one_of(nodes.c.id, node_ids), ~nodes.c.meter_closed)
        .order_by(nodes.c.id)
    )
    occupancies = await _occupancies(connection, node_ids, now_ms)
    shares, standing = await shares_of_nodes(connection, node_ids), await standbys_of_nodes(connection, node_ids)
    read: list[tuple[Row[Any], MeterReading]] = []
    counted: list[Occupancy] = []
    for row in rows:
        if row.billed_from_ms is None:
            if _is_over(row):
                await _close(connection, row.id)
            continue
        until_ms = _known_until_ms(row, now_ms)
        if until_ms is not None:
            held, meter = occupancies.get(row.id, []), _meter(row, shares.get(row.id, ()), standing.get(row.id, ()))
            reading = split(meter, held, until_ms=until_ms, final=_is_over(row), billed=billed.get(row.id))
            read.append((row, reading))
            if reading.metered_until_ms != meter.metered_until_ms:
                counted += held
    await _write(connection, read, now_ms=now_ms)
    await _note_tokens(connection, counted)
    return {row.id: reading for row, reading in read}


async def lock_to_meter(connection: AsyncConnection, node_ids: Collection[str], *, until_ms: int) -> None:
    """Lock nodes, and before them the jobs that a reading of their meters may charge. `until_ms`: the earliest moment
    that may turn out to be the end of such a reading, where that is known better than by the nodes' rows."""
    await lock_nodes(connection, node_ids, partial(payers_of, until_ms=until_ms), reach=False)


async def payers_of(connection: AsyncConnection, node_ids: Collection[str], *, until_ms: int) -> set[str]:
    """The jobs that the next reading may charge: those that have held these nodes since the last one, and those that
    they boot for. Jobs that had left before are none of it, so that a node's past costs nothing."""
    began = _unread_from_ms(until_ms)
    held = _held(node_ids, until_ms)
    boots = func.coalesce(nodes.c.ready_ms, began) >= began
    found = await connection.execute(
        select(run_jobs.c.job_id)
        .join(held, held.c.run_id == run_jobs.c.run_id)
        .union(
            select(nodes.c.rented_for_job_id).where(
                is_one_of(nodes.c.id, node_ids), nodes.c.rented_for_job_id.is_not(None), boots
            )
        )
    )
    return set(found.scalars())


def _unread_from_ms(until_ms: int) -> ColumnElement[int]:
    """From when on a reading of a node that ends at `until_ms` at the earliest may charge. A last reading that ends
    where the one before did, or earlier, has something to charge as well: the rounding up."""
    earliest = func.least(nodes.c.metered_until_ms, nodes.c.billed_to_ms, literal(until_ms, BigInteger))
    return case((nodes.c.metered_until_ms.is_(None), literal(0, BigInteger)), else_=earliest)


def _held(node_ids: Collection[str], until_ms: int) -> Subquery:
    """The allocations that touch what is unread of these nodes: those that are open, and the last ones that ended.
    Two questions, so that an index answers each however many there were before."""
    ours = allocations.c.node_id == nodes.c.id
    still = select(allocations).where(ours, allocations.c.to_ms.is_(None)).correlate(nodes)
    lately = select(allocations).where(ours, allocations.c.to_ms >= _unread_from_ms(until_ms)).correlate(nodes)
    held = union_all(still, lately).lateral("held")
    found = select(held).select_from(nodes.join(held, true())).where(is_one_of(nodes.c.id, node_ids))
    return found.subquery("touching")


def _is_over(row: Row[Any]) -> bool:
    return row.state in _OVER


def _known_until_ms(row: Row[Any], now_ms: int) -> int | None:
    """Up to when the machine is known to have run, by the provider's end time or its newest heartbeat."""
    if _is_over(row):
        end_ms: int = now_ms if row.billed_to_ms is None else row.billed_to_ms
        return max(end_ms, int(row.billed_from_ms))
    if row.heartbeat_ms is None:
        return None
    moments = (row.heartbeat_ms, now_ms, row.billed_to_ms)
    return min(int(moment) for moment in moments if moment is not None)


def _meter(row: Row[Any], shares: tuple[SpotShare, ...], standing: tuple[StandbyTime, ...]) -> Meter:
    return Meter(
        rule=BillingRule(row.billing_unit_ms, read_as(BillingStart, row.billing_starts), row.billing_minimum_ms),
        price_per_hour=Money(row.price_micros_per_hour),
        gpu_count=row.gpu_count,
        billed_from_ms=row.billed_from_ms,
        ready_ms=row.ready_ms,
        rented_for_job_id=row.rented_for_job_id,
        metered_until_ms=row.metered_until_ms,
        metered=Money(row.metered_micros),
        orphan=row.orphan,
        spot_shares=shares,
        carried=row.spot_carried,
        standbys=standing,
    )


async def _occupancies(
    connection: AsyncConnection, node_ids: Collection[str], until_ms: int
) -> dict[str, list[Occupancy]]:
    """Who has held what of each node since its meter was read last."""
    touching = _held(node_ids, until_ms)
    rows = await connection.execute(
        select(
            *(touching, runs.c.companion_of, jobs.c.priority_class),
            *(run_jobs.c.job_id, run_jobs.c.tokens, run_jobs.c.metered_tokens),
        )
        .join(runs, runs.c.id == touching.c.run_id)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(jobs, jobs.c.id == run_jobs.c.job_id)
        .order_by(touching.c.id, run_jobs.c.job_id)
    )
    held: dict[str, list[Occupancy]] = {}
    for row in rows:
        occupancy = Occupancy(
            run_id=row.run_id,
            job_id=row.job_id,
            gpus=len(row.gpu_indices),
            from_ms=row.from_ms,
            to_ms=row.to_ms,
            companion_of=row.companion_of,
            tokens=row.tokens - row.metered_tokens,
            is_spot=row.priority_class == PriorityClass.SPOT,
        )
        held.setdefault(row.node_id, []).append(occupancy)
    return held


async def _write(connection: AsyncConnection, read: Sequence[tuple[Row[Any], MeterReading]], *, now_ms: int) -> None:
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
            "discount_micros": line.discount.micros,
        }
        for row, reading in read
        for line in reading.lines
    ]
    if lines:
        await connection.execute(insert_rows(ledger, lines))
        await _add_to_jobs(connection, [reading for _, reading in read])
    for row, reading in read:
        if reading.overmetered.micros:
            told = f"the provider asks {reading.overmetered} less than had been metered"
            data = {"overmetered_micros": reading.overmetered.micros}
            await add_node_event(connection, row.id, Event("overmetered", told, data), now_ms=now_ms)
    if not read:
        return
    of = nodes.c
    columns = (of.id, of.metered_until_ms, of.metered_micros, of.spot_carried, of.meter_closed)
    totals = [(row.id, it.metered_until_ms, it.metered.micros, it.carried, _is_over(row)) for row, it in read]
    new = as_rows("new", columns, totals)
    await connection.execute(
        update(nodes)
        .where(nodes.c.id == new.c.id)
        .values(
            metered_until_ms=new.c.metered_until_ms,
            metered_micros=new.c.metered_micros,
            spot_carried=new.c.spot_carried,
            meter_closed=new.c.meter_closed,
        )
    )


async def _add_to_jobs(connection: AsyncConnection, readings: Iterable[MeterReading]) -> None:
    """What jobs have cost. Their row version stays: spending must not make a planned action stale."""
    spent: Counter[str] = Counter()
    for reading in readings:
        for line in reading.lines:
            if line.job_id is not None:
                spent[line.job_id] += line.amount.micros
    if not spent:
        return
    new = as_rows("new", (jobs.c.id, jobs.c.spent_micros), sorted(spent.items()))
    await connection.execute(
        update(jobs).where(jobs.c.id == new.c.id).values(spent_micros=jobs.c.spent_micros + new.c.spent_micros)
    )


async def _note_tokens(connection: AsyncConnection, counted: Iterable[Occupancy]) -> None:
    """Up to where the tokens of these runs are in the ledger. More may have been reported since they were read."""
    fresh = [(one.run_id, one.job_id, one.tokens) for one in counted if one.tokens]
    if not fresh:
        return
    new = as_rows("new", (run_jobs.c.run_id, run_jobs.c.job_id, run_jobs.c.tokens), fresh)
    await connection.execute(
        update(run_jobs)
        .where(run_jobs.c.run_id == new.c.run_id, run_jobs.c.job_id == new.c.job_id)
        .values(metered_tokens=run_jobs.c.metered_tokens + new.c.tokens)
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
