"""The complete checkpoints of a job, and letting go of some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.checkpoint import CheckpointState
from app.core.model.job import TERMINAL_JOB_STATES
from app.core.retention import Saved
from app.db.arrays import is_one_of
from app.db.tables import checkpoints, jobs, merges

_SUBMITTING_MS = 3_600_000  # from naming a checkpoint to the job's row, at the very most


async def template_of(connection: AsyncConnection, job_id: str) -> dict[str, Any]:
    """The job's template as it was submitted."""
    found: dict[str, Any] = (await connection.execute(select(jobs.c.template).where(jobs.c.id == job_id))).scalar_one()
    return found


async def saved_of(connection: AsyncConnection, job_id: str, *, now_ms: int) -> list[Saved]:
    """The complete checkpoints of the job."""
    of, other, companion = checkpoints.c, jobs.alias(), jobs.alias()
    wanted = or_(
        of.kept_ms > now_ms - _SUBMITTING_MS,
        exists().where(other.c.from_checkpoint_id == of.id, other.c.state.not_in(TERMINAL_JOB_STATES)),
        exists().where(
            merges.c.checkpoint_id == of.id,
            companion.c.id == merges.c.companion_job_id,
            companion.c.checkpoint_id.is_(None),
            companion.c.state.not_in(TERMINAL_JOB_STATES),
        ),
    )
    rows = await connection.execute(
        select(of.id, of.epoch, of.step, of.metrics, wanted.label("wanted")).where(
            of.job_id == job_id, of.state == CheckpointState.COMMITTED
        )
    )
    return [Saved(row.id, row.epoch, row.step, row.metrics, bool(row.wanted)) for row in rows.all()]


async def prune(connection: AsyncConnection, checkpoint_ids: Sequence[str], *, now_ms: int) -> int:
    """Let go of these, less those that somebody has come to want meanwhile; how many it were. They are not told of
    any more, and what nothing else refers to of them is collected."""
    done = await connection.execute(
        update(checkpoints)
        .where(
            is_one_of(checkpoints.c.id, checkpoint_ids),
            checkpoints.c.state == CheckpointState.COMMITTED,
            or_(checkpoints.c.kept_ms.is_(None), checkpoints.c.kept_ms <= now_ms - _SUBMITTING_MS),
        )
        .values(state=CheckpointState.PRUNED)
    )
    return done.rowcount


async def set_kept(
    connection: AsyncConnection, project_id: str, job_id: str, step: int | None, *, now_ms: int
) -> str | None:
    """The job's newest complete checkpoint (of that step), which from now on stays until a job that begins with it was
    written and is over. None: there is none."""
    of = checkpoints.c
    statement = select(of.id).where(
        of.project_id == project_id, of.job_id == job_id, of.state == CheckpointState.COMMITTED
    )
    if step is not None:
        statement = statement.where(of.step == step)
    newest = statement.order_by(of.epoch.desc(), of.step.desc(), of.id.desc()).limit(1).with_for_update()
    checkpoint_id: str | None = (await connection.execute(newest)).scalar_one_or_none()
    if checkpoint_id is not None:
        await connection.execute(update(checkpoints).where(of.id == checkpoint_id).values(kept_ms=now_ms))
    return checkpoint_id


async def steps_of(connection: AsyncConnection, project_id: str, job_id: str) -> list[int] | None:
    """The steps of its complete checkpoints, lowest first; None when the project has no such job."""
    known = select(exists().where(jobs.c.id == job_id, jobs.c.project_id == project_id))
    if not (await connection.execute(known)).scalar_one():
        return None
    rows = await connection.execute(
        select(checkpoints.c.step)
        .where(checkpoints.c.job_id == job_id, checkpoints.c.state == CheckpointState.COMMITTED)
        .distinct()
        .order_by(checkpoints.c.step)
    )
    return list(rows.scalars())
