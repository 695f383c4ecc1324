"""The rows that an explanation of a job is made of. Callers check the project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.explaining.facts import JobMachine, LastDecision, LastStay, Moving, Said
from app.core.foreign import read_as
from app.core.model.job import PLACEABLE_JOB_STATES, JobState, PriorityClass
from app.core.model.money import Money
from app.core.model.move import OPEN_MOVE_STATES, MoveState
from app.core.model.node import GONE_NODE_STATES, NodeState, Tier
from app.core.model.pool import JOINED
from app.core.model.run import PREPARED_RUN_STATES, RunState
from app.db.arrays import is_one_of
from app.db.bids import is_bid
from app.db.graces import own_grace_ms
from app.db.moves.planned_moves import outlives_its_target
from app.db.tables import allocations, job_events, jobs, moves, nodes, run_jobs, runs, ticks

_ENTERED = {
    JobState.QUEUED: ("job_queued", JobState.QUEUED, "resumed"),
    JobState.WAITING: (JobState.WAITING, "resumed"),
}
_LEAVING_NODES = (*GONE_NODE_STATES, NodeState.TERMINATING, NodeState.DRAINING)
_NODE_COLUMNS = (
    nodes.c.id.label("node_id"),
    nodes.c.provider,
    nodes.c.tier,
    nodes.c.state.label("node_state"),
    nodes.c.gpu_type,
    nodes.c.gpu_count,
    nodes.c.price_micros_per_hour,
    nodes.c.requested_ms,
    nodes.c.expected_ready_ms,
    nodes.c.startup_deadline_ms,
    is_bid().label("is_bid"),
)


@dataclass(frozen=True, slots=True)
class ExplainedRun:
    run_id: str
    state: RunState
    running_ms: int | None
    machine: JobMachine
    own_grace_ms: int | None  # to leave in; None: the usual


async def job_columns(connection: AsyncConnection, job_id: str) -> Mapping[str, Any]:
    """The job's row, by column."""
    return dict((await connection.execute(select(jobs).where(jobs.c.id == job_id))).one()._mapping)


async def entered_ms(connection: AsyncConnection, job_id: str, state: JobState) -> int | None:
    """When the job last came into this state; None when no event tells."""
    newest = await last_event(connection, job_id, _ENTERED.get(state, (state,)))
    return None if newest is None else newest.at_ms


async def last_event(connection: AsyncConnection, job_id: str, kinds: tuple[str, ...]) -> Said | None:
    """The job's newest event of one of these kinds."""
    event = job_events.c
    rows = await connection.execute(
        select(event.at_ms, event.message, event.data)
        .where(event.job_id == job_id, is_one_of(event.kind, kinds))
        .order_by(event.position.desc())
        .limit(1)
    )
    row = rows.one_or_none()
    return None if row is None else Said(row.at_ms, row.message, dict(row.data))


async def cut_event(connection: AsyncConnection, job_id: str, machine: JobMachine | None) -> Said | None:
    """Why this machine of a pool, which was cut for the job, is where it is."""
    if machine is None or machine.provider != JOINED:
        return None
    told = await last_event(connection, job_id, ("node_rented",))
    return told if told is not None and told.data.get("node_id") == machine.node_id else None


async def live_run(connection: AsyncConnection, job_id: str) -> ExplainedRun | None:
    """The run that holds the job now, with its machine."""
    row = await _newest_run(connection, job_id, ended=False)
    if row is None:
        return None
    return ExplainedRun(
        row.run_id, read_as(RunState, row.run_state), row.running_ms, _machine(row, row.held), row.own_grace_ms
    )


async def last_stay(connection: AsyncConnection, job_id: str) -> LastStay | None:
    """The newest run that is over."""
    row = await _newest_run(connection, job_id, ended=True)
    if row is None or row.ended_ms is None:
        return None
    reason, message = row.end_reason or "ended", row.run_end_message or "no message is on record"
    return LastStay(row.run_id, _machine(row, row.held), row.running_ms, row.ended_ms, reason, message)


async def coming_machine(connection: AsyncConnection, job_id: str) -> JobMachine | None:
    """The newest machine that was rented for this job, is there or coming, and holds nothing."""
    occupied = exists().where(allocations.c.node_id == nodes.c.id, allocations.c.to_ms.is_(None))
    rows = await connection.execute(
        select(*_NODE_COLUMNS)
        .where(nodes.c.rented_for_job_id == job_id, nodes.c.state.not_in(_LEAVING_NODES), ~occupied)
        .order_by(nodes.c.id.desc())
        .limit(1)
    )
    row = rows.one_or_none()
    return None if row is None else _machine(row, row.gpu_count)


async def open_move(connection: AsyncConnection, job_id: str) -> Moving | None:
    """The move of the job that is under way."""
    rows = await connection.execute(
        select(
            moves.c.state,
            moves.c.reason,
            moves.c.begun_ms,
            moves.c.saving_ms,
            moves.c.step,
            func.cardinality(allocations.c.gpu_indices).label("held"),
            *_NODE_COLUMNS,
        )
        .join(allocations, allocations.c.run_id == moves.c.target_run_id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .join(runs, runs.c.id == moves.c.target_run_id)
        .where(
            moves.c.job_id == job_id,
            moves.c.state.in_(OPEN_MOVE_STATES),
            runs.c.state.in_(PREPARED_RUN_STATES),
        )
    )
    row = rows.one_or_none()
    if row is None:
        return None
    machine = _machine(row, row.held)
    return Moving(MoveState(row.state), row.reason, row.begun_ms, row.saving_ms, row.step, machine)


async def earlier_waiting(connection: AsyncConnection, project_id: str, job_id: str) -> int:
    """How many jobs of the project want a place too and come first: those that are guaranteed, then the earliest
    deadline, then submission, then id."""
    is_spot = (jobs.c.priority_class == PriorityClass.SPOT).label("is_spot")
    order = (is_spot, jobs.c.deadline_ms, jobs.c.submitted_ms, jobs.c.id)
    mine = select(*order).where(jobs.c.id == job_id).cte("mine")
    statement = (
        select(func.count())
        .select_from(jobs)
        .join(mine, tuple_(*order) < tuple_(*mine.c))
        .where(jobs.c.project_id == project_id, jobs.c.state.in_(PLACEABLE_JOB_STATES))
    )
    count: int = (await connection.execute(statement)).scalar_one()
    return count


async def last_decision(connection: AsyncConnection) -> LastDecision | None:
    """The newest decision on record. Only what concerns every project is read of it."""
    rows = await connection.execute(
        select(ticks.c.at_ms, ticks.c.policy, ticks.c.plan["signals"].label("signals"))
        .order_by(ticks.c.id.desc())
        .limit(1)
    )
    row = rows.one_or_none()
    if row is None:
        return None
    signals = dict(row.signals or ())
    budget_s = signals.get("F_s")
    return LastDecision(row.at_ms, row.policy, None if budget_s is None else round(budget_s * 1000))


async def _newest_run(connection: AsyncConnection, job_id: str, *, ended: bool) -> Any:
    """The row, or None."""
    only_stood_by = exists().where(moves.c.target_run_id == runs.c.id, moves.c.promoted_ms.is_(None))
    state = runs.c.state == RunState.ENDED if ended else (runs.c.state != RunState.ENDED) & ~outlives_its_target()
    rows = await connection.execute(
        select(
            runs.c.id.label("run_id"),
            runs.c.state.label("run_state"),
            runs.c.running_ms,
            runs.c.ended_ms,
            runs.c.end_reason,
            runs.c.end_message.label("run_end_message"),
            func.cardinality(allocations.c.gpu_indices).label("held"),
            own_grace_ms().label("own_grace_ms"),
            *_NODE_COLUMNS,
        )
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(run_jobs.c.job_id == job_id, state, ~only_stood_by)
        .order_by(run_jobs.c.epoch.desc(), allocations.c.from_ms.desc())
        .limit(1)
    )
    return rows.one_or_none()


def _machine(row: Any, held: int) -> JobMachine:
    return JobMachine(
        node_id=row.node_id,
        provider=row.provider,
        tier=read_as(Tier, row.tier),
        state=read_as(NodeState, row.node_state),
        gpu_type=row.gpu_type,
        gpu_count=held,
        price_per_hour=Money(row.price_micros_per_hour * held // max(1, row.gpu_count)),
        requested_ms=row.requested_ms,
        expected_ready_ms=row.expected_ready_ms,
        startup_deadline_ms=row.startup_deadline_ms,
        interruptible=row.is_bid,
    )
