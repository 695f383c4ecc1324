"""The files that a job leaves behind."""

from __future__ import annotations

from sqlalchemy import and_, delete, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.checkpoint import FileEntry, folders_of
from app.db import notify
from app.db.arrays import insert_rows, is_none_of, is_one_of
from app.db.tables import artifacts, run_jobs


async def replace_artifacts(
    connection: AsyncConnection, run_id: str, job_id: str, files: tuple[FileEntry, ...], *, now_ms: int
) -> None:
    """Make `files` the job's whole set: what an earlier report named and this one does not is gone from it.

    A file that this run has reported with this content before stays as it was: the report may be a repeat.
    """
    columns = artifacts.c
    kept = [file.path for file in files]
    await connection.execute(delete(artifacts).where(columns.job_id == job_id, is_none_of(columns.path, kept)))
    await _put(connection, run_id, job_id, files, now_ms=now_ms)
    await notify.job(connection, job_id)


async def join_artifacts(
    connection: AsyncConnection, run_id: str, job_id: str, epoch: int, files: tuple[FileEntry, ...], *, now_ms: int
) -> None:
    """Make `files` all that this run has left, beside what the job's other runs have. Where two left the same path, or
    one a file and the other a folder of that name, the later run's is kept.

    The caller holds the job's lock.
    """
    columns = artifacts.c
    paths = [file.path for file in files]
    mine = and_(columns.job_id == job_id, columns.run_id == run_id)
    await connection.execute(delete(artifacts).where(mine, is_none_of(columns.path, paths)))
    files = await _beside_others(connection, run_id, job_id, epoch, files)
    await _put(connection, run_id, job_id, files, now_ms=now_ms)
    await notify.job(connection, job_id)


async def _beside_others(
    connection: AsyncConnection, run_id: str, job_id: str, epoch: int, files: tuple[FileEntry, ...]
) -> tuple[FileEntry, ...]:
    """Those of `files` that can stand beside what later runs left; what earlier runs left in their way is removed."""
    columns = artifacts.c
    theirs = (
        select(columns.path, run_jobs.c.epoch)
        .join(run_jobs, and_(run_jobs.c.job_id == columns.job_id, run_jobs.c.run_id == columns.run_id))
        .where(columns.job_id == job_id, columns.run_id != run_id)
    )
    others = {row.path: row.epoch for row in await connection.execute(theirs)}
    if not others:
        return files
    paths = {file.path for file in files}
    folders = folders_of(paths)
    in_the_way = {path for path in others if path in folders or not paths.isdisjoint(folders_of([path]))}
    earlier = [path for path in in_the_way if others[path] <= epoch]
    if earlier:
        await connection.execute(delete(artifacts).where(columns.job_id == job_id, is_one_of(columns.path, earlier)))
    later = {path for path, other in others.items() if other > epoch and (path in paths or path in in_the_way)}
    taken = later | folders_of(later)
    return tuple(file for file in files if file.path not in taken and later.isdisjoint(folders_of([file.path])))


async def _put(
    connection: AsyncConnection, run_id: str, job_id: str, files: tuple[FileEntry, ...], *, now_ms: int
) -> None:
    if not files:
        return
    columns = artifacts.c
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
