"""Checkpoints with a piece that the store lost or changed."""

from __future__ import annotations

from sqlalchemy import ColumnElement, exists, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.checkpoint import CheckpointState
from app.db.tables import checkpoint_pieces, checkpoints, jobs, runs


async def damaged_jobs(connection: AsyncConnection, project_id: str, sha256: str) -> list[str]:
    """The jobs with complete checkpoints that hold the piece, sorted."""
    rows = await connection.execute(
        select(checkpoints.c.job_id)
        .where(checkpoints.c.project_id == project_id, *_holding(sha256))
        .distinct()
        .order_by(checkpoints.c.job_id)
    )
    return list(rows.scalars())


async def mark_damaged(connection: AsyncConnection, job_id: str, sha256: str) -> list[int]:
    """Take the job's checkpoints that hold the piece out of use; their steps. The newest of the others, if any, is the
    job's newest then. The job's row is locked."""
    await connection.execute(select(jobs.c.id).where(jobs.c.id == job_id).with_for_update(key_share=True))
    rows = await connection.execute(
        update(checkpoints)
        .where(checkpoints.c.job_id == job_id, *_holding(sha256))
        .values(state=CheckpointState.DAMAGED)
        .returning(checkpoints.c.step)
    )
    steps = sorted(rows.scalars())
    newest = (
        select(checkpoints.c.id, checkpoints.c.step)
        .where(checkpoints.c.job_id == job_id, checkpoints.c.state == CheckpointState.COMMITTED)
        .order_by(checkpoints.c.epoch.desc(), checkpoints.c.step.desc(), checkpoints.c.id.desc())
        .limit(1)
    )
    left = (await connection.execute(newest)).one_or_none()
    await connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id)
        .values(checkpoint_id=left.id if left else None, checkpoint_step=left.step if left else None)
    )
    return steps


async def resumed_by(connection: AsyncConnection, run_id: str) -> str | None:
    """The checkpoint that the run was told to begin with."""
    found: str | None = (
        await connection.execute(select(runs.c.resumed_checkpoint_id).where(runs.c.id == run_id))
    ).scalar_one_or_none()
    return found


def _holding(sha256: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    of = checkpoint_pieces.c
    return (
        checkpoints.c.state == CheckpointState.COMMITTED,
        exists().where(of.checkpoint_id == checkpoints.c.id, of.sha256 == sha256),
    )
