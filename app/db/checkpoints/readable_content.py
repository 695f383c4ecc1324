"""Which stored content a job may read."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import any_, or_, select, union
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.checkpoint import CheckpointState
from app.core.model.merge import MergeMode, MergeState
from app.db.arrays import is_one_of
from app.db.tables import app_versions, checkpoint_pieces, checkpoints, jobs, merges


async def readable_content(connection: AsyncConnection, job_id: str, sha256s: Iterable[str]) -> set[str]:
    """Those of `sha256s` that are the job's code, or a stored piece of one of its committed checkpoints, of one that is
    still being written, or of the one that it begins with; or the code of the job that waits for its turn after it."""
    wanted = sorted(set(sha256s))
    code = (
        select(app_versions.c.bundle_sha256)
        .join(jobs, jobs.c.app_version_id == app_versions.c.id)
        .where(jobs.c.id == job_id, is_one_of(app_versions.c.bundle_sha256, wanted))
    )
    watched = (
        select(app_versions.c.bundle_sha256)
        .join(jobs, jobs.c.app_version_id == app_versions.c.id)
        .join(merges, merges.c.companion_job_id == jobs.c.id)
        .where(
            merges.c.lead_job_id == job_id,
            merges.c.state == MergeState.OPEN,
            merges.c.mode == MergeMode.IN_TURN,
            is_one_of(app_versions.c.bundle_sha256, wanted),
        )
    )
    first = select(jobs.c.from_checkpoint_id).where(jobs.c.id == job_id).scalar_subquery()
    learned = (
        select(merges.c.checkpoint_id)
        .where(merges.c.companion_job_id == job_id, merges.c.state == MergeState.ENDED)
        .scalar_subquery()
    )
    saved = (
        select(checkpoint_pieces.c.sha256)
        .join(checkpoints, checkpoints.c.id == checkpoint_pieces.c.checkpoint_id)
        .where(
            or_(checkpoints.c.job_id == job_id, checkpoints.c.id == first, checkpoints.c.id == any_(learned)),
            checkpoints.c.state.in_((CheckpointState.COMMITTED, CheckpointState.COMING)),
            is_one_of(checkpoint_pieces.c.sha256, wanted),
        )
    )
    return set((await connection.execute(union(code, watched, saved))).scalars())
