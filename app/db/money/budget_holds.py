"""Jobs and machines that budgets may hold, and those that they do."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import BigInteger, Text, cast, exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.job import TERMINAL_JOB_STATES, JobState, PauseReason
from app.core.model.node import GONE_NODE_STATES, NodeState
from app.core.model.run import RunState
from app.db.arrays import as_rows
from app.db.tables import allocations, job_events, jobs, nodes, run_jobs, runs

BUDGET_NEAR = "budget_near"  # an event
_HELD_STATES = (JobState.STARTING, JobState.RUNNING, JobState.CHECKPOINTING)
_ENDING = (*GONE_NODE_STATES, NodeState.TERMINATING)
_BOOTS = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class HoldingJob:
    """A job that holds a machine. `asked`: it was asked to pause. A move holds two, at two providers perhaps."""

    job_id: str
    project_id: str
    key_id: str | None
    provider: str
    asked: bool


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job that a budget has paused, or will when it has saved. `providers`: where it still is; of one that is
    paused, nowhere."""

    job_id: str
    project_id: str
    key_id: str | None
    providers: frozenset[str]
    paused: bool
    told: str | None


@dataclass(frozen=True, slots=True)
class IdleMachine:
    """A machine that holds nothing and does not end yet. `key_id`: of the job that pays while it boots."""

    node_id: str
    project_id: str
    key_id: str | None
    provider: str


async def placed_jobs(connection: AsyncConnection) -> list[HoldingJob]:
    """All of them, by job."""
    rows = await connection.execute(
        select(jobs.c.id, jobs.c.project_id, jobs.c.key_id, nodes.c.provider, jobs.c.pause_reason)
        .distinct()
        .join(run_jobs, run_jobs.c.job_id == jobs.c.id)
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(runs.c.state != RunState.ENDED, allocations.c.to_ms.is_(None), jobs.c.state.in_(_HELD_STATES))
        .order_by(jobs.c.id, nodes.c.provider)
    )
    return [HoldingJob(row.id, row.project_id, row.key_id, row.provider, row.pause_reason is not None) for row in rows]


async def held_jobs(connection: AsyncConnection) -> list[HeldJob]:
    """Those that a budget holds, by job."""
    placed = (
        select(run_jobs.c.job_id, func.array_agg(nodes.c.provider).label("providers"))
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(runs.c.state != RunState.ENDED, allocations.c.to_ms.is_(None))
        .group_by(run_jobs.c.job_id)
        .subquery("placed")
    )
    rows = await connection.execute(
        select(jobs.c.id, jobs.c.project_id, jobs.c.key_id, jobs.c.state, jobs.c.wait_reason, placed.c.providers)
        .outerjoin(placed, placed.c.job_id == jobs.c.id)
        .where(jobs.c.state.not_in(TERMINAL_JOB_STATES), jobs.c.pause_reason == PauseReason.BUDGET)
        .order_by(jobs.c.id)
    )
    return [
        HeldJob(
            job_id=row.id,
            project_id=row.project_id,
            key_id=row.key_id,
            providers=frozenset(row.providers or ()),
            paused=row.state == JobState.PAUSED,
            told=row.wait_reason,
        )
        for row in rows
    ]


async def machines_without_jobs(connection: AsyncConnection) -> list[IdleMachine]:
    """All of them, by id. What a ready one costs is paid by its project, and by no job."""
    held = exists().where(allocations.c.node_id == nodes.c.id, allocations.c.to_ms.is_(None))
    rows = await connection.execute(
        select(nodes.c.id, nodes.c.project_id, nodes.c.state, jobs.c.key_id, nodes.c.provider)
        .outerjoin(jobs, jobs.c.id == nodes.c.rented_for_job_id)
        .where(nodes.c.state.not_in(_ENDING), ~held)
        .order_by(nodes.c.id)
    )
    return [
        IdleMachine(row.id, row.project_id, row.key_id if row.state in _BOOTS else None, row.provider) for row in rows
    ]


async def not_told(
    connection: AsyncConnection, wanted: Collection[tuple[str, str, int, int]]
) -> set[tuple[str, str, int, int]]:
    """Of these (job, budget, amount, beginning of the period), those that no event has told the job of."""
    if not wanted:
        return set()
    event = job_events.c
    columns = (event.job_id, event.kind, event.position, event.at_ms)  # of the types that are asked about
    asked = as_rows("asked", columns, sorted(wanted))
    job_id, budget_id, amount, begins = asked.c
    told = exists().where(
        event.job_id == job_id,
        event.kind == BUDGET_NEAR,
        event.data["budget_id"].astext == budget_id,
        event.data["amount"].astext == cast(cast(amount, BigInteger), Text),
        event.data["begins_ms"].astext == cast(cast(begins, BigInteger), Text),
    )
    rows = await connection.execute(select(job_id, budget_id, amount, begins).where(~told))
    return {(row[0], row[1], row[2], row[3]) for row in rows}
