"""Rows that a plan's actions lock and write. Callers hold a transaction that has checked the leader's term."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.node import NodeState, Tier
from app.core.model.plan import Waiting
from app.db import notify
from app.db.arrays import as_rows, is_one_of
from app.db.tables import allocations, app_versions, jobs, nodes, run_jobs


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """What enacting needs to know of a job, read under its row lock. `next_epoch` is above all that its runs have."""

    job_id: str
    project_id: str
    state: JobState
    next_epoch: int
    base_image: str | None
    leaving: bool
    plan: str | None = None  # what the training that it states needs, in words
    key_id: str | None = None  # the API key that submitted it; None: not told
    resources: Mapping[str, Any] = field(default_factory=dict)  # as its row has them


@dataclass(frozen=True, slots=True)
class Places:
    """The GPUs of a node, read under its row lock. `taken`: those that live allocations hold."""

    state: NodeState
    tier: Tier
    gpu_count: int
    taken: frozenset[int]


@asynccontextmanager
async def attempt(connection: AsyncConnection) -> AsyncIterator[None]:
    """All that the block writes, or none of it when it raises; the transaction itself lives on."""
    async with connection.begin_nested():
        yield


async def jobs_to_place(connection: AsyncConnection, job_ids: Collection[str]) -> dict[str, PlacedJob]:
    """Read jobs that are already locked, by id; nothing of those that do not exist."""
    given = select(func.max(run_jobs.c.epoch)).where(run_jobs.c.job_id == jobs.c.id).scalar_subquery()
    of = jobs.c
    rows = await connection.execute(
        select(of.id, of.project_id, of.state, of.resources, of.pause_reason, of.plan, of.key_id)
        .add_columns(app_versions.c.base_image, func.greatest(of.epoch, given).label("newest_epoch"))
        .join(app_versions, app_versions.c.id == of.app_version_id)
        .where(is_one_of(of.id, job_ids))
    )
    return {row.id: _placed_job(row) for row in rows}


async def job_to_place(connection: AsyncConnection, job_id: str) -> PlacedJob | None:
    """The same of one job."""
    return (await jobs_to_place(connection, [job_id])).get(job_id)


def _placed_job(row: Row[Any]) -> PlacedJob:
    return PlacedJob(
        job_id=row.id,
        project_id=row.project_id,
        state=read_as(JobState, row.state),
        next_epoch=row.newest_epoch + 1,
        base_image=row.resources.get("base_image") or row.base_image,
        leaving=row.pause_reason is not None,
        plan=row.plan,
        key_id=row.key_id,
        resources=row.resources,
    )


async def places_on(connection: AsyncConnection, node_ids: Collection[str]) -> dict[str, Places]:
    """Read nodes that are already locked, by id; nothing of those that do not exist."""
    if not node_ids:
        return {}
    held = await connection.execute(
        select(allocations.c.node_id, allocations.c.gpu_indices).where(
            is_one_of(allocations.c.node_id, node_ids), allocations.c.to_ms.is_(None)
        )
    )
    taken: defaultdict[str, set[int]] = defaultdict(set)
    for node_id, gpu_indices in held:
        taken[node_id] |= set(gpu_indices)
    rows = await connection.execute(
        select(nodes.c.id, nodes.c.state, nodes.c.tier, nodes.c.gpu_count).where(is_one_of(nodes.c.id, node_ids))
    )
    return {
        row.id: Places(
            read_as(NodeState, row.state), read_as(Tier, row.tier), row.gpu_count, frozenset(taken.get(row.id, ()))
        )
        for row in rows
    }


async def node_tier(connection: AsyncConnection, node_id: str) -> tuple[NodeState, Tier, int] | None:
    """State, tier and GPU count of a node that is already locked."""
    row = (
        await connection.execute(select(nodes.c.state, nodes.c.tier, nodes.c.gpu_count).where(nodes.c.id == node_id))
    ).one_or_none()
    return None if row is None else (read_as(NodeState, row.state), read_as(Tier, row.tier), row.gpu_count)


async def held_gpus(connection: AsyncConnection, node_id: str) -> frozenset[int]:
    """GPU indices of a locked node that live allocations hold."""
    rows = await connection.execute(
        select(allocations.c.gpu_indices).where(allocations.c.node_id == node_id, allocations.c.to_ms.is_(None))
    )
    return frozenset(index for indices in rows.scalars() for index in indices)


async def free_gpus(connection: AsyncConnection, node_id: str) -> int | None:
    """How many GPUs of a locked node nobody holds; None where it is gone."""
    found = await connection.execute(select(nodes.c.gpu_count).where(nodes.c.id == node_id))
    count = found.scalar_one_or_none()
    return None if count is None else count - len(await held_gpus(connection, node_id))


async def jobs_of_run(connection: AsyncConnection, run_id: str) -> tuple[str, ...]:
    """The jobs a run executes, ascending."""
    rows = await connection.execute(
        select(run_jobs.c.job_id).where(run_jobs.c.run_id == run_id).order_by(run_jobs.c.job_id)
    )
    return tuple(rows.scalars())


async def node_of_run(connection: AsyncConnection, run_id: str) -> str | None:
    """The node whose GPUs the run holds."""
    rows = await connection.execute(
        select(allocations.c.node_id).where(allocations.c.run_id == run_id, allocations.c.to_ms.is_(None)).limit(1)
    )
    return rows.scalar_one_or_none()


async def set_wait_reasons(connection: AsyncConnection, waiting: Sequence[Waiting]) -> int:
    """Keep why jobs wait, where the words changed; returns how many. Never makes a planned action stale.

    Only jobs that still have no run are told: a reason must not outlive the wait.
    """
    if not waiting:
        return 0
    reasons = ((wait.job_id, wait.reason) for wait in waiting)
    told = as_rows("told", (jobs.c.id, jobs.c.wait_reason), reasons)
    waits = jobs.c.state.in_((*PLACEABLE_JOB_STATES, JobState.RUNNING, JobState.CHECKPOINTING))
    changed = (
        select(jobs.c.id, told.c.wait_reason)
        .join(told, told.c.id == jobs.c.id)
        .where(waits, jobs.c.wait_reason.is_distinct_from(told.c.wait_reason))
        .order_by(jobs.c.id)
        .with_for_update(key_share=True, of=jobs)
        .cte("changed")
    )
    rows = await connection.execute(
        update(jobs).where(jobs.c.id == changed.c.id).values(wait_reason=changed.c.wait_reason).returning(jobs.c.id)
    )
    told_ids = sorted(rows.scalars())
    await notify.jobs(connection, told_ids)
    return len(told_ids)
