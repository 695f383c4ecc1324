"""What the runs of a job left behind in their folders: what is kept, and what is not, as far as it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import desc, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import artifacts, run_results
from app.db.text import storable_json


@dataclass(frozen=True, slots=True)
class ResultsRow:
    """`files` of `size_bytes` are kept of the job. Of `left`, the largest that its newest run left behind, with
    `left_files` of `left_bytes` in all; None: no run has told of any."""

    files: int
    size_bytes: int
    left: Sequence[Mapping[str, Any]] | None
    left_files: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What a run left behind that is not kept."""

    largest: Sequence[Mapping[str, Any]]
    files: int
    size_bytes: int


async def is_final(connection: AsyncConnection, job_id: str, epoch: int) -> bool:
    """Whether that run has told of what it left when its processes were gone."""
    of = run_results.c
    found = await connection.execute(select(of.final).where(of.job_id == job_id, of.epoch == epoch))
    return bool(found.scalar_one_or_none())


async def set_results(
    connection: AsyncConnection,
    run_id: str,
    job_id: str,
    epoch: int,
    left: LeftBehind,
    *,
    final: bool,
    now_ms: int,
) -> None:
    """Keep what the run says now."""
    told = {
        "run_id": run_id,
        "left_behind": storable_json(list(left.largest)),
        "left_files": left.files,
        "left_bytes": left.size_bytes,
        "final": final,
        "told_ms": now_ms,
    }
    statement = insert(run_results).values(job_id=job_id, epoch=epoch, **told)
    await connection.execute(
        statement.on_conflict_do_update(index_elements=[run_results.c.job_id, run_results.c.epoch], set_=told)
    )


async def results_of(connection: AsyncConnection, job_id: str) -> ResultsRow:
    """What is there of the job."""
    kept = select(func.count(), func.coalesce(func.sum(artifacts.c.size_bytes), 0)).where(artifacts.c.job_id == job_id)
    files, size_bytes = (await connection.execute(kept)).one()
    of = run_results.c
    newest = (
        select(of.left_behind, of.left_files, of.left_bytes)
        .where(of.job_id == job_id)
        .order_by(desc(of.epoch))
        .limit(1)
    )
    row = (await connection.execute(newest)).one_or_none()
    if row is None:
        return ResultsRow(files, int(size_bytes), None, 0, 0)
    return ResultsRow(files, int(size_bytes), row.left_behind, row.left_files, row.left_bytes)
