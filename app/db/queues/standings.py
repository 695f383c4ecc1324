"""Where jobs stand, and all by which that is judged."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.elastic.kinds import ElasticKind, KindEvidence, KindSource, attended_program
from app.core.elastic.queues import PriorityQueue
from app.core.elastic.standing import JobUse, QueueStanding
from app.core.resizing import LEAST
from app.db.arrays import as_rows, insert_rows, is_one_of
from app.db.tables import allocations, job_queues, jobs, run_history, run_jobs, runs

_KEPT = ("kind", "source", "because", "queue", "since_ms", "base_s", "forgiven_gpu_s")
_LONGEST = 500  # characters of a reason


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """An unfinished job. `kept` None: nobody has looked at it yet. `evidence`: without what its present run shows.
    `asked`: the GPUs that it counts on."""

    job_id: str
    project_id: str
    evidence: KindEvidence
    asked: int
    kept: QueueStanding | None


async def queued_jobs(connection: AsyncConnection, job_ids: Collection[str]) -> list[QueuedJob]:
    """Of these, those that there are. Rows that make no sense are read as if there were none."""
    samples = func.sum(run_history.c.samples)
    past = (
        select(
            samples.label("past_jobs"),
            (func.sum(run_history.c.run_ms * run_history.c.samples) / samples).label("usual_ms"),
        )
        .where(run_history.c.app_id == jobs.c.app_id)
        .lateral("past")
    )
    of = jobs.c
    rows = await connection.execute(
        select(
            *(of.id, of.project_id, of.kind.label("label"), of.kind_said, of.total_steps, of.predicted_step_ms),
            *(
                of.resources,
                of.template["command"].label("command"),
                past.c.past_jobs,
                past.c.usual_ms,
                job_queues.c.job_id.label("kept"),
            ),
            *(job_queues.c[name] for name in _KEPT),
        )
        .select_from(jobs)
        .outerjoin(past, true())
        .outerjoin(job_queues, job_queues.c.job_id == of.id)
        .where(is_one_of(of.id, job_ids))
        .order_by(of.id)
    )
    return [_queued(row) for row in rows]


async def job_uses(
    connection: AsyncConnection, found: Sequence[tuple[str, int, int]], *, now_ms: int
) -> dict[str, JobUse]:
    """What jobs have had, of (job id, since when it counts, the GPUs that it counts on). Code that has not begun yet
    has had nothing. Jobs that never had a GPU are left out."""
    given = as_rows("given", [run_jobs.c.job_id, job_queues.c.since_ms], [one[:2] for one in found])
    of = allocations.c
    ends = func.least(func.coalesce(of.to_ms, now_ms), now_ms)
    seconds = _seconds(ends, func.greatest(of.from_ms, runs.c.running_ms))
    counted = _seconds(ends, func.greatest(of.from_ms, runs.c.running_ms, given.c.since_ms))
    gpus = func.cardinality(of.gpu_indices)
    rows = await connection.execute(
        select(
            given.c.job_id,
            func.sum(counted * gpus).label("counted_gpu_s"),
            func.sum(counted).label("held_s"),
            func.sum(seconds * gpus).label("served_gpu_s"),
            func.max(of.to_ms).label("left_ms"),
            func.bool_or(of.to_ms.is_(None)).label("holds"),
        )
        .join(run_jobs, run_jobs.c.job_id == given.c.job_id)
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .join(allocations, of.run_id == runs.c.id)
        .where(runs.c.running_ms.is_not(None))
        .group_by(given.c.job_id)
    )
    asked = {job_id: gpus for job_id, _, gpus in found}
    return {
        row.job_id: JobUse(
            float(row.counted_gpu_s) / asked[row.job_id],
            float(row.held_s),
            float(row.served_gpu_s),
            None if row.holds or row.left_ms is None else max(0.0, (now_ms - row.left_ms) / 1000),
        )
        for row in rows
    }


async def set_standings(
    connection: AsyncConnection, found: Sequence[tuple[QueuedJob, QueueStanding]], *, now_ms: int
) -> None:
    """Of jobs, each named once. Whoever was counted already stays so."""
    rows = [
        {
            "job_id": job.job_id,
            "project_id": job.project_id,
            "kind": standing.kind.value,
            "source": int(standing.source),
            "because": standing.because[:_LONGEST],
            "queue": int(standing.queue),
            "since_ms": standing.since_ms,
            "base_s": standing.base_s,
            "forgiven_gpu_s": standing.forgiven_gpu_s,
            "updated_ms": now_ms,
        }
        for job, standing in found
    ]
    if rows:
        fresh = insert_rows(job_queues, rows)
        newer = {name: fresh.excluded[name] for name in (*_KEPT, "updated_ms")}
        await connection.execute(fresh.on_conflict_do_update(index_elements=["job_id"], set_=newer))


async def standing_of(connection: AsyncConnection, job_id: str) -> QueueStanding | None:
    """As it is kept; None: nobody has looked at it, or the row makes no sense."""
    found = await connection.execute(
        select(*(job_queues.c[name] for name in _KEPT)).where(job_queues.c.job_id == job_id)
    )
    row = found.one_or_none()
    return None if row is None else _kept(row)


def _seconds(ends: ColumnElement[Any], begins: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.greatest(0, ends - begins) / 1000.0


def _queued(row: Any) -> QueuedJob:
    said = ElasticKind.INTERACTIVE if row.label == ElasticKind.INTERACTIVE else ElasticKind.BATCH
    evidence = KindEvidence(
        label=said if row.kind_said or said is ElasticKind.INTERACTIVE else None,
        usual_s=None if row.usual_ms is None else float(row.usual_ms) / 1000,
        past_jobs=int(row.past_jobs or 0),
        steps=row.total_steps,
        predicted_step_s=None if row.predicted_step_ms is None else row.predicted_step_ms / 1000,
        attended=attended_program(row.command) if isinstance(row.command, list) else None,
    )
    asks = row.resources if isinstance(row.resources, dict) else {}
    asked = asks.get(LEAST) or asks.get("gpus_min")
    kept = None if row.kept is None else _kept(row)
    return QueuedJob(row.id, row.project_id, evidence, asked if type(asked) is int and asked > 0 else 1, kept)


def _kept(row: Any) -> QueueStanding | None:
    try:
        return QueueStanding(
            ElasticKind(row.kind),
            KindSource(row.source),
            row.because,
            PriorityQueue(row.queue),
            row.since_ms,
            row.base_s,
            row.forgiven_gpu_s,
        )
    except ValueError:  # a word of another release
        return None
