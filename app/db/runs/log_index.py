"""The index of logs; their text is in the object store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from sqlalchemy.ext.asyncio import AsyncConnection

from app.db import notify
from app.db.arrays import insert_rows
from app.db.tables import log_chunks


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """A stored piece of a run's log: `line_count` newlines, written between `first_ms` and `last_ms`."""

    sequence: int
    sha256: str
    size_bytes: int
    line_count: int
    first_ms: int
    last_ms: int


async def add_chunks(
    connection: AsyncConnection, run_id: str, job_id: str, epoch: int, chunks: Iterable[ChunkEntry]
) -> None:
    """Add pieces to a job's log. A piece that is there stays as it is: repeating a report changes nothing."""
    rows = [{"run_id": run_id, "job_id": job_id, "epoch": epoch, **asdict(chunk)} for chunk in chunks]
    if rows:
        await connection.execute(insert_rows(log_chunks, rows).on_conflict_do_nothing())
    await notify.job(connection, job_id)
