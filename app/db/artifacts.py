"""The files that a job leaves behind."""

from __future__ import annotations

from sqlalchemy import delete, or_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.checkpoint import FileEntry
from app.db import notify
from app.db.arrays import insert_rows, is_none_of
from app.db.tables import artifacts


async def replace_artifacts(
    connection: AsyncConnection, run_id: str, job_id: str, files: tuple[FileEntry, ...], *, now_ms: int
) -> None:
    """Make `files` the job's whole set: what an earlier report named and this one does not is gone from it.

    A file that this run has reported with this content before stays as it was: the report may be a repeat.
    """
    columns = artifacts.c
    kept = [file.path for file in files]
    await connection.execute(delete(artifacts).where(columns.job_id == job_id, is_none_of(columns.path, kept)))
    if files:
        rows = {
            file.path: {
                "job_id": job_id,
                "path": file.path,
                "run_id": run_id,
                "sha256": file.sha256,
                "size_bytes": file.size_bytes,
                "created_ms": now_ms,
            }
            for file in files
        }
        statement = insert_rows(artifacts, list(rows.values()))
        new = statement.excluded
        await connection.execute(
            statement.on_conflict_do_update(
                index_elements=[columns.job_id, columns.path],
                set_={name: new[name] for name in ("run_id", "sha256", "size_bytes", "created_ms")},
                where=or_(columns.run_id != new.run_id, columns.sha256 != new.sha256),
            )
        )
    await notify.job(connection, job_id)
