"""Planned moves: begun, found by their runs, taken from state to state. Callers hold the job's row lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, ScalarSelect, and_, any_, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.lifecycle import move_sources
from app.core.model.move import OPEN_MOVE_STATES, MoveState
from app.core.model.run import RunState
from app.db.arrays import is_one_of
from app.db.tables import allocations, metric_points, moves, run_jobs, runs, transfers

_OPEN = moves.c.state.in_(OPEN_MOVE_STATES)


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A move. `target_epoch` was set aside for its target: the job's, once it is promoted."""

    move_id: str
    job_id: str
    source_run_id: str
    target_run_id: str
    target_node_id: str
    target_epoch: int
    state: MoveState
    reason: str
    begun_ms: int
    saving_ms: int | None
    step: int | None


async def add_move(
    connection: AsyncConnection,
    move_id: str,
    *,
    job_id: str,
    source_run_id: str,
    target_run_id: str,
    reason: str,
    now_ms: int,
) -> None:
    """A move that prepares. A job has at most one that is open."""
    await connection.execute(
        moves.insert().values(
            id=move_id,
            job_id=job_id,
            source_run_id=source_run_id,
            target_run_id=target_run_id,
            state=MoveState.PREPARING,
            reason=reason,
            begun_ms=now_ms,
        )
    )


async def open_move_of_run(connection: AsyncConnection, run_id: str) -> MoveRow | None:
    """The open move that this run is the source or the target of."""
    return await _open_move(
        connection,
        moves.c.job_id == any_(_jobs_of(run_id)),
        or_(moves.c.source_run_id == run_id, moves.c.target_run_id == run_id),
    )


async def open_move_of_job(connection: AsyncConnection, job_id: str) -> MoveRow | None:
    return await _open_move(connection, moves.c.job_id == job_id)


async def advance(connection: AsyncConnection, move_id: str, to: MoveState, **columns: Any) -> bool:
    """Take a move to `to`; False, with nothing written, when its present state does not allow that."""
    done = await connection.execute(
        update(moves)
        .where(moves.c.id == move_id, is_one_of(moves.c.state, move_sources(to)))
        .values(state=to, **columns)
    )
    return bool(done.rowcount)


async def failed_moves(connection: AsyncConnection, job_id: str) -> int:
    """How many moves of the job were given up because their target failed."""
    statement = select(func.count()).where(moves.c.job_id == job_id, moves.c.not_before_ms > 0)
    count: int = (await connection.execute(statement)).scalar_one()
    return count


async def was_handed_over(connection: AsyncConnection, source_run_id: str) -> bool:
    """Whether the job of this run went to the target of a move."""
    statement = select(moves.c.id).where(
        moves.c.job_id == any_(_jobs_of(source_run_id)),
        moves.c.source_run_id == source_run_id,
        moves.c.promoted_ms.is_not(None),
    )
    return (await connection.execute(statement)).first() is not None


async def slow_moves(connection: AsyncConnection, *, quiet_since_ms: int, begun_before_ms: int) -> list[str]:
    """Targets, by run id, that have prepared since before `begun_before_ms`, or since before `quiet_since_ms` without
    that anything more was fetched since then."""
    last_ms = func.greatest(moves.c.begun_ms, transfers.c.grown_ms)
    rows = await connection.execute(
        select(moves.c.target_run_id)
        .outerjoin(transfers, transfers.c.run_id == moves.c.target_run_id)
        .where(
            moves.c.state == MoveState.PREPARING,
            or_(last_ms < quiet_since_ms, moves.c.begun_ms < begun_before_ms),
        )
        .order_by(moves.c.target_run_id)
    )
    return list(rows.scalars())


def outlives_its_target() -> ColumnElement[bool]:
    """Of a row of `runs`: it has handed its job over, the run that has gone on with it is over, and it still sends what
    it has left. Its machine is all that is its own."""
    held, moved, target = run_jobs.alias(), moves.alias(), runs.alias()
    is_over = (
        exists()
        .where(held.c.run_id == runs.c.id, moved.c.job_id == held.c.job_id, moved.c.source_run_id == runs.c.id)
        .where(moved.c.state == MoveState.PROMOTING)
        .where(target.c.id == moved.c.target_run_id, target.c.state == RunState.ENDED)
        .correlate(runs)
    )
    return and_(runs.c.state == RunState.STOPPING, is_over)


async def slow_sources(
    connection: AsyncConnection, *, promoted_before_ms: int, quiet_since_ms: int, limit_ms: int
) -> list[str]:
    """Runs whose job went to another one before that moment, and that have not left: of those that have told since
    then that they send, only the ones of which nothing came after `quiet_since_ms`, or that left before `limit_ms`."""
    last_ms = func.greatest(moves.c.promoted_ms, transfers.c.grown_ms, transfers.c.arrived_ms)
    rows = await connection.execute(
        select(moves.c.source_run_id)
        .join(runs, runs.c.id == moves.c.source_run_id)
        .outerjoin(transfers, transfers.c.run_id == moves.c.source_run_id)
        .where(
            moves.c.state == MoveState.PROMOTING,
            moves.c.promoted_ms < promoted_before_ms,
            runs.c.state != RunState.ENDED,
            or_(last_ms <= moves.c.promoted_ms, last_ms < quiet_since_ms, moves.c.promoted_ms < limit_ms),
        )
        .order_by(moves.c.source_run_id)
    )
    return list(rows.scalars())


async def unmeasured_move(connection: AsyncConnection, job_id: str, run_id: str) -> MoveRow | None:
    """The move that brought this run about, while nobody has said how long training paused for it."""
    rows = await connection.execute(
        _select().where(
            moves.c.job_id == job_id,
            moves.c.target_run_id == run_id,
            moves.c.pause_ms.is_(None),
            moves.c.step.is_not(None),
            moves.c.state != MoveState.ABANDONED,
        )
    )
    return _row(rows.one_or_none())


async def measured_pause_ms(connection: AsyncConnection, move: MoveRow) -> int | None:
    """From the last step measured on the source to the first on the target; None while one of them is unknown."""
    point = metric_points.c
    before = (
        select(point.at_ms)
        .where(point.job_id == move.job_id, point.step <= (move.step or 0), point.epoch < move.target_epoch)
        .order_by(point.step.desc())
        .limit(1)
    )
    after = (
        select(point.at_ms)
        .where(point.job_id == move.job_id, point.step > (move.step or 0), point.epoch == move.target_epoch)
        .order_by(point.step)
        .limit(1)
    )
    row = (await connection.execute(select(before.scalar_subquery(), after.scalar_subquery()))).one()
    return None if row[0] is None or row[1] is None else max(0, int(row[1]) - int(row[0]))


async def set_pause(connection: AsyncConnection, move_id: str, pause_ms: int, *, now_ms: int) -> None:
    await connection.execute(update(moves).where(moves.c.id == move_id).values(pause_ms=pause_ms, measured_ms=now_ms))


async def not_moved_before(connection: AsyncConnection, *, now_ms: int) -> dict[str, int]:
    """Jobs that a failed move has made stay where they are, and until when."""
    rows = await connection.execute(
        select(moves.c.job_id, func.max(moves.c.not_before_ms))
        .where(moves.c.not_before_ms > now_ms, moves.c.not_before_ms > 0)
        .group_by(moves.c.job_id)
    )
    return {row.job_id: int(row[1]) for row in rows}


def _jobs_of(run_id: str) -> ScalarSelect[str]:
    return select(run_jobs.c.job_id).where(run_jobs.c.run_id == run_id).scalar_subquery()


def _select() -> Any:
    """With the target's epoch and node; a run keeps its allocation when it is over."""
    return select(
        moves.c.id,
        moves.c.job_id,
        moves.c.source_run_id,
        moves.c.target_run_id,
        _node_of_target().label("node_id"),
        run_jobs.c.epoch,
        moves.c.state,
        moves.c.reason,
        moves.c.begun_ms,
        moves.c.saving_ms,
        moves.c.step,
    ).join(run_jobs, (run_jobs.c.run_id == moves.c.target_run_id) & (run_jobs.c.job_id == moves.c.job_id))


def _node_of_target() -> ScalarSelect[str]:
    """All that a run ever holds is of one node."""
    of = allocations.c
    return select(of.node_id).where(of.run_id == moves.c.target_run_id).order_by(of.from_ms).limit(1).scalar_subquery()


async def _open_move(connection: AsyncConnection, *conditions: Any) -> MoveRow | None:
    return _row((await connection.execute(_select().where(_OPEN, *conditions))).one_or_none())


def _row(row: Row[Any] | None) -> MoveRow | None:
    if row is None:
        return None
    return MoveRow(
        move_id=row.id,
        job_id=row.job_id,
        source_run_id=row.source_run_id,
        target_run_id=row.target_run_id,
        target_node_id=row.node_id,
        target_epoch=row.epoch,
        state=MoveState(row.state),
        reason=row.reason,
        begun_ms=row.begun_ms,
        saving_ms=row.saving_ms,
        step=row.step,
    )
