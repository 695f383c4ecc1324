"""The files that a job leaves behind."""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.checkpoint import FileEntry
from app.db import notify
from app.db.tables import artifacts


async def replace_artifacts(
    connection: AsyncConnection, run_id: str, job_id: str, files: tuple[FileEntry, ...], *, now_ms: int
) -> None:
    """Make `files` the job's whole set: what an earlier report named and this one does not is gone from it."""
    await connection.execute(delete(artifacts).where(artifacts.c.job_id == job_id))
    if files:
        await connection.execute(
            artifacts.insert(),
            [
                {
                    "job_id": job_id,
                    "path": file.path,
                    "run_id": run_id,
                    "sha256": file.sha256,
                    "size_bytes": file.size_bytes,
                    "created_ms": now_ms,
                }
                for file in files
            ],
        )
    await notify.job(connection, job_id)
