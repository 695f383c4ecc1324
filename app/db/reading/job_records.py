"""Reading what a job leaves behind: events, log index, metrics, checkpoints, artifacts. Callers check the project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import desc, exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.checkpoint import CheckpointState, SavedFile
from app.core.model.run import RunPurpose, RunState
from app.db.arrays import as_rows
from app.db.checkpoints.manifests import spans_of
from app.db.tables import (
    allocations,
    artifacts,
    checkpoint_files,
    checkpoints,
    job_events,
    log_chunks,
    metric_points,
    nodes,
    run_jobs,
    runs,
)


@dataclass(frozen=True, slots=True)
class EventRow:
    position: int
    at_ms: int
    kind: str
    message: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChunkRow:
    epoch: int
    sequence: int
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MetricRow:
    step: int
    at_ms: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    id: str
    step: int
    epoch: int
    size_bytes: int
    stored_bytes: int | None
    metrics: Mapping[str, float]
    committed_ms: int


@dataclass(frozen=True, slots=True)
class FileRow:
    path: str
    sha256: str
    size_bytes: int


async def events_after(connection: AsyncConnection, job_id: str, after: int, *, limit: int) -> list[EventRow]:
    """Events with a position above `after`, in order."""
    columns = job_events.c
    statement = (
        select(columns.position, columns.at_ms, columns.kind, columns.message, columns.data)
        .where(columns.job_id == job_id, columns.position > after)
        .order_by(columns.position)
        .limit(limit)
    )
    return [EventRow(*row) for row in await connection.execute(statement)]


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """`rank`: of its machine, where its job runs on several."""

    has_ended: bool
    rank: int | None = None


async def runs_by_epoch(connection: AsyncConnection, job_id: str) -> dict[int, LoggedRun]:
    """The runs of this job by the epochs that they held, ascending."""
    statement = (
        select(run_jobs.c.epoch, runs.c.state, runs.c.node_rank)
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .where(run_jobs.c.job_id == job_id)
        .order_by(run_jobs.c.epoch)
    )
    rows = await connection.execute(statement)
    return {row.epoch: LoggedRun(row.state == RunState.ENDED, row.node_rank) for row in rows}


@dataclass(frozen=True, slots=True)
class RunHead:
    """A run as its part of the log begins. `number`: of the runs of the job whose code ran, from 1 on."""

    number: int
    gpu_type: str
    gpu_count: int
    first_step: int


async def run_heads(connection: AsyncConnection, job_id: str) -> dict[int, RunHead]:
    """By epoch."""
    statement = (
        select(
            run_jobs.c.epoch,
            runs.c.running_ms,
            runs.c.resumed_from_step,
            nodes.c.gpu_type,
            func.cardinality(allocations.c.gpu_indices).label("gpu_count"),
        )
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(run_jobs.c.job_id == job_id, runs.c.purpose == RunPurpose.TRAIN, runs.c.member_of.is_(None))
        .order_by(run_jobs.c.epoch, allocations.c.from_ms, allocations.c.id)
    )
    heads: dict[int, RunHead] = {}
    begun = 0
    for row in await connection.execute(statement):
        if row.epoch in heads:  # its GPUs have changed since it began
            continue
        heads[row.epoch] = RunHead(begun + 1, row.gpu_type, row.gpu_count, row.resumed_from_step or 0)
        begun += row.running_ms is not None
    return heads


async def log_chunks_from(
    connection: AsyncConnection, job_id: str, next_sequences: Mapping[int, int], *, limit: int
) -> list[ChunkRow]:
    """Chunks by (epoch, sequence): of each epoch those from its next sequence on, of unnamed epochs all."""
    columns = log_chunks.c
    read = as_rows("read", (columns.epoch, columns.sequence), sorted(next_sequences.items()))
    unread = columns.sequence >= func.coalesce(read.c.sequence, 0)
    statement = (
        select(columns.epoch, columns.sequence, columns.sha256, columns.size_bytes)
        .select_from(log_chunks.outerjoin(read, read.c.epoch == columns.epoch))
        .where(columns.job_id == job_id, unread)
        .order_by(columns.epoch, columns.sequence)
        .limit(limit)
    )
    return [ChunkRow(*row) for row in await connection.execute(statement)]


async def metrics_after(connection: AsyncConnection, job_id: str, after: int | None, *, limit: int) -> list[MetricRow]:
    """Points with a step above `after`, in order."""
    columns = metric_points.c
    statement = select(columns.step, columns.at_ms, metric_points.c["values"]).where(columns.job_id == job_id)
    if after is not None:
        statement = statement.where(columns.step > after)
    return [MetricRow(*row) for row in await connection.execute(statement.order_by(columns.step).limit(limit))]


async def list_checkpoints(
    connection: AsyncConnection, job_id: str, *, before: str | None, limit: int
) -> list[CheckpointSummary]:
    """Committed checkpoints, newest first, of those with ids below `before`."""
    columns = checkpoints.c
    statement = select(
        columns.id,
        columns.step,
        columns.epoch,
        columns.size_bytes,
        columns.stored_bytes,
        columns.metrics,
        columns.committed_ms,
    ).where(columns.job_id == job_id, columns.state == CheckpointState.COMMITTED)
    if before is not None:
        statement = statement.where(columns.id < before)
    rows = await connection.execute(statement.order_by(desc(columns.id)).limit(limit))
    return [CheckpointSummary(*row) for row in rows]


async def committed_checkpoint_exists(connection: AsyncConnection, job_id: str, checkpoint_id: str) -> bool:
    """Whether the job has this checkpoint, complete."""
    found = exists().where(
        checkpoints.c.id == checkpoint_id,
        checkpoints.c.job_id == job_id,
        checkpoints.c.state == CheckpointState.COMMITTED,
    )
    answer: bool = (await connection.execute(select(found))).scalar_one()
    return answer


async def checkpoint_files_after(
    connection: AsyncConnection, checkpoint_id: str, after: str | None, *, limit: int
) -> list[SavedFile]:
    """Files by path, of those above `after`."""
    columns = checkpoint_files.c
    statement = select(columns.path, columns.size_bytes).where(columns.checkpoint_id == checkpoint_id)
    if after is not None:
        statement = statement.where(columns.path > after)
    sizes = {
        row.path: row.size_bytes for row in await connection.execute(statement.order_by(columns.path).limit(limit))
    }
    spans = await spans_of(connection, checkpoint_id, sizes)
    return [SavedFile(path, size, tuple(spans.get(path, ()))) for path, size in sizes.items()]


async def artifacts_after(connection: AsyncConnection, job_id: str, after: str | None, *, limit: int) -> list[FileRow]:
    """Files by path, of those above `after`."""
    columns = artifacts.c
    statement = select(columns.path, columns.sha256, columns.size_bytes).where(columns.job_id == job_id)
    if after is not None:
        statement = statement.where(columns.path > after)
    return _files((await connection.execute(statement.order_by(columns.path).limit(limit))).all())


async def find_artifact(connection: AsyncConnection, job_id: str, path: str) -> FileRow | None:
    """The file that the job has left under exactly this path."""
    columns = artifacts.c
    statement = select(columns.path, columns.sha256, columns.size_bytes)
    row = (await connection.execute(statement.where(columns.job_id == job_id, columns.path == path))).one_or_none()
    return None if row is None else FileRow(*row)


def _files(rows: Sequence[Any]) -> list[FileRow]:
    return [FileRow(*row) for row in rows]
