"""What the installation may rent, and what it has rented: over all projects."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Numeric, Row, cast, exists, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.limits import FIRST_TIME, Limits, OpenMachine, Rented, day_begins_ms
from app.core.model.job import TERMINAL_JOB_STATES, JobState, PauseReason
from app.core.model.money import ZERO, Money
from app.core.model.node import GONE_NODE_STATES, BillingRule, BillingStart, NodeState
from app.core.model.run import RunState
from app.db import notify
from app.db.arrays import is_one_of
from app.db.tables import allocations, jobs, ledger, limits, nodes, run_jobs, runs

MACHINES, DAY_MICROS = "machines", "day_micros"
_HOLDABLE = (JobState.STARTING, JobState.RUNNING)
_ENDING = (*GONE_NODE_STATES, NodeState.TERMINATING)


async def read_limits(connection: AsyncConnection) -> Limits:
    """As an owner settled them, else as for a first time."""
    rows = await connection.execute(select(limits.c.name, limits.c.amount))
    settled = {row.name: row.amount for row in rows}
    day = settled.get(DAY_MICROS, FIRST_TIME.per_day.micros if FIRST_TIME.per_day else None)
    return Limits(settled.get(MACHINES, FIRST_TIME.machines), None if day is None else Money(day))


async def change_limits(connection: AsyncConnection, new: Mapping[str, int | None], *, now_ms: int) -> None:
    """Settle those that are named, and have it decided on at once."""
    for name, amount in sorted(new.items()):
        row = {"amount": amount, "changed_ms": now_ms}
        statement = insert(limits).values(name=name, **row)
        await connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=row))
    await notify.control(connection)


async def rented_now(connection: AsyncConnection, providers: Collection[str], *, now_ms: int) -> Rented:
    """Machines of these providers, and what they have cost since the day began."""
    if not providers:
        return Rented(0, ZERO)
    ours = is_one_of(nodes.c.provider, sorted(providers))
    there = select(func.count()).select_from(nodes).where(ours, nodes.c.state.not_in(GONE_NODE_STATES))
    booked = (
        select(func.coalesce(func.sum(cast(ledger.c.amount_micros, Numeric)), 0))
        .select_from(ledger)
        .join(nodes, nodes.c.id == ledger.c.node_id)
        .where(ours, ledger.c.to_ms > day_begins_ms(now_ms))
    )
    machines: int = (await connection.execute(there)).scalar_one()
    spent = int((await connection.execute(booked)).scalar_one())
    unbooked = select(nodes).where(ours, ~nodes.c.meter_closed, nodes.c.state.not_in(GONE_NODE_STATES))
    spent += sum(open_machine(row).unbooked(now_ms).micros for row in await connection.execute(unbooked))
    return Rented(machines, Money(spent))


async def jobs_at(connection: AsyncConnection, providers: Collection[str]) -> list[str]:
    """Jobs that hold machines of these providers and were not asked to leave, by id."""
    rows = await connection.execute(
        select(jobs.c.id)
        .distinct()
        .join(run_jobs, run_jobs.c.job_id == jobs.c.id)
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(
            runs.c.state != RunState.ENDED,
            allocations.c.to_ms.is_(None),
            is_one_of(nodes.c.provider, sorted(providers)),
            or_(jobs.c.state.in_(_HOLDABLE), jobs.c.state == JobState.CHECKPOINTING),
            jobs.c.pause_reason.is_(None),
        )
        .order_by(jobs.c.id)
    )
    return list(rows.scalars())


async def jobs_held_by_limit(connection: AsyncConnection) -> list[str]:
    """Jobs that the limit of a day has paused, or will when they have saved, by id."""
    rows = await connection.execute(
        select(jobs.c.id)
        .where(jobs.c.state.not_in(TERMINAL_JOB_STATES), jobs.c.pause_reason == PauseReason.DAY_LIMIT)
        .order_by(jobs.c.id)
    )
    return list(rows.scalars())


async def idle_machines(connection: AsyncConnection, providers: Collection[str]) -> list[str]:
    """Machines of these providers that hold nothing and do not end yet, by id."""
    rows = await connection.execute(
        select(nodes.c.id)
        .where(is_one_of(nodes.c.provider, sorted(providers)), nodes.c.state.not_in(_ENDING), ~_held())
        .order_by(nodes.c.id)
    )
    return list(rows.scalars())


def _held() -> ColumnElement[bool]:
    return exists().where(allocations.c.node_id == nodes.c.id, allocations.c.to_ms.is_(None))


def open_machine(row: Row[Any]) -> OpenMachine:
    """Of a node's row."""
    return OpenMachine(
        rule=BillingRule(row.billing_unit_ms, read_as(BillingStart, row.billing_starts), row.billing_minimum_ms),
        price_per_hour=Money(row.price_micros_per_hour),
        since_ms=row.requested_ms if row.billed_from_ms is None else row.billed_from_ms,
        metered_until_ms=row.metered_until_ms,
        metered=Money(row.metered_micros),
    )
