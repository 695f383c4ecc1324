"""Budgets as they were set, and what counts against them now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Row, case, delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.budgets import BudgetStanding, PaidMachine, begins_ms, standing
from app.core.foreign import read_as
from app.core.model.budget import Budget, Period
from app.core.model.job import TERMINAL_JOB_STATES
from app.core.model.money import Money
from app.core.model.node import GONE_NODE_STATES
from app.db import notify
from app.db.arrays import is_one_of
from app.db.money.limits import open_machine
from app.db.tables import budgets, jobs, nodes, provider_states, spending
from app.db.unreadable import RowReading

INSTALLATION = ""  # the project of budgets over all projects
_SAME = ("project_id", "key_id", "provider", "period")


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A budget, who set it and when. `standing`: with what counts against it now."""

    standing: BudgetStanding
    set_by: str
    set_ms: int


async def set_budget(connection: AsyncConnection, new: Budget, *, set_by: str, now_ms: int) -> str:
    """Settle a budget, in the place of an earlier one for the same, and have it decided on at once; returns its id. Of
    two that are set at once, one comes after the other."""
    row = {"amount_micros": new.amount.micros, "set_by": set_by, "set_ms": now_ms}
    whose = (new.project_id or INSTALLATION, new.key_id or "", new.provider or "", new.period)
    statement = insert(budgets).values(id=new.budget_id, **dict(zip(_SAME, whose, strict=True)), **row)
    settled = statement.on_conflict_do_update(index_elements=_SAME, set_=row).returning(budgets.c.id)
    budget_id: str = (await connection.execute(settled)).scalar_one()
    await notify.control(connection)
    return budget_id


async def delete_budget(connection: AsyncConnection, budget_id: str) -> None:
    """What it held goes on by itself."""
    await connection.execute(delete(budgets).where(budgets.c.id == budget_id))
    await notify.control(connection)


async def count_budgets(connection: AsyncConnection, project_id: str) -> int:
    """How many there are of a project, or of the installation."""
    counted = select(func.count()).select_from(budgets).where(budgets.c.project_id == project_id)
    number: int = (await connection.execute(counted)).scalar_one()
    return number


async def list_budgets(
    connection: AsyncConnection, project_ids: Collection[str], *, before: str | None, limit: int, now_ms: int
) -> list[BudgetRow]:
    """Of these projects, newest first, each with what counts against it. What only a newer release can read is left
    out."""
    statement = select(budgets).where(
        is_one_of(budgets.c.project_id, sorted(project_ids)),
        is_one_of(budgets.c.period, list(Period)),
        budgets.c.amount_micros >= 0,
    )
    if before is not None:
        statement = statement.where(budgets.c.id < before)
    rows = (await connection.execute(statement.order_by(budgets.c.id.desc()).limit(limit))).all()
    return await _with_standings(connection, rows, now_ms)


async def find_budget(connection: AsyncConnection, budget_id: str, *, now_ms: int) -> BudgetRow | None:
    """The budget, whoever's it is."""
    rows = (await connection.execute(select(budgets).where(budgets.c.id == budget_id))).all()
    return next(iter(await _with_standings(connection, rows, now_ms)), None)


async def budgets_now(
    connection: AsyncConnection,
    reading: RowReading,
    *,
    now_ms: int,
    project_ids: Collection[str] | None = None,
) -> list[BudgetStanding]:
    """All budgets (that jobs of these projects count against), by id, with what counts against them. One that cannot be
    read is noted in `reading`, and holds nothing."""
    statement = select(budgets).order_by(budgets.c.id)
    if project_ids is not None:
        statement = statement.where(is_one_of(budgets.c.project_id, sorted({INSTALLATION, *project_ids})))
    rows = (await connection.execute(statement)).all()
    return await _standings(connection, rows, reading, now_ms)


async def known_providers(connection: AsyncConnection) -> list[str]:
    """The providers that this service is, or was, configured with, by name."""
    rows = await connection.execute(select(provider_states.c.provider).order_by(provider_states.c.provider))
    return list(rows.scalars())


async def unfinished_jobs_of(connection: AsyncConnection, key_ids: Collection[str]) -> dict[str, str]:
    """The key of each job that is not over, of those that these API keys have submitted."""
    if not key_ids:
        return {}
    rows = await connection.execute(
        select(jobs.c.id, jobs.c.key_id).where(
            jobs.c.state.not_in(TERMINAL_JOB_STATES), is_one_of(jobs.c.key_id, sorted(key_ids))
        )
    )
    return {row.id: row.key_id for row in rows}


async def _with_standings(connection: AsyncConnection, rows: Sequence[Row[Any]], now_ms: int) -> list[BudgetRow]:
    found = {one.budget.budget_id: one for one in await _standings(connection, rows, RowReading(), now_ms)}
    return [BudgetRow(found[row.id], row.set_by, row.set_ms) for row in rows if row.id in found]


async def _standings(
    connection: AsyncConnection, rows: Sequence[Row[Any]], reading: RowReading, now_ms: int
) -> list[BudgetStanding]:
    read = [reading.of(budgets.name, row.id, partial(_budget, row)) for row in rows]
    every = [one for one in read if one is not None]
    if not every:
        return []
    booked = await _booked(connection, [one.budget_id for one in every], now_ms)
    machines = await _open_machines(connection, reading)
    return [standing(one, booked.get(one.budget_id, Money(0)), machines, now_ms) for one in every]


def _budget(row: Row[Any]) -> Budget:
    if row.amount_micros < 0:
        raise ValueError(f"a budget of {row.amount_micros} micro-dollars")
    return Budget(
        budget_id=row.id,
        project_id=row.project_id or None,
        key_id=row.key_id or None,
        provider=row.provider or None,
        period=read_as(Period, row.period),
        amount=Money(row.amount_micros),
    )


async def _booked(connection: AsyncConnection, budget_ids: Collection[str], now_ms: int) -> dict[str, Money]:
    """What the meter has booked in the present period of each: some rows for each project, key and provider."""
    begins = case({period: begins_ms(period, now_ms) for period in Period}, value=budgets.c.period)
    ours = (_any_or_same(name) for name in ("project_id", "key_id", "provider"))
    rows = await connection.execute(
        select(budgets.c.id, func.sum(spending.c.amount_micros))
        .join(spending, (spending.c.period == budgets.c.period) & (spending.c.begins_ms == begins))
        .where(is_one_of(budgets.c.id, sorted(budget_ids)), *ours)
        .group_by(budgets.c.id)
    )
    return {budget_id: Money(int(micros)) for budget_id, micros in rows}


def _any_or_same(name: str) -> ColumnElement[bool]:
    return or_(budgets.c[name] == "", budgets.c[name] == spending.c[name])


async def _open_machines(connection: AsyncConnection, reading: RowReading) -> list[PaidMachine]:
    """Machines whose bill is open; one whose row cannot be read costs nothing until it can."""
    rows = await connection.execute(
        select(nodes, jobs.c.key_id)
        .outerjoin(jobs, jobs.c.id == nodes.c.rented_for_job_id)
        .where(~nodes.c.meter_closed, nodes.c.state.not_in(GONE_NODE_STATES))
        .order_by(nodes.c.id)
    )
    read = (reading.of(nodes.name, row.id, partial(_paid_machine, row)) for row in rows)
    return [one for one in read if one is not None]


def _paid_machine(row: Row[Any]) -> PaidMachine:
    machine = open_machine(row)
    machine.unbooked(row.requested_ms)  # raises for numbers that no bill can be made of
    return PaidMachine(row.project_id, row.key_id, row.provider, machine)
