"""Rows that a plan's actions lock and write. Callers hold a transaction that has checked the leader's term."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.foreign import read_as
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.node import NodeState, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Waiting
from app.core.model.run import RunPurpose, RunState
from app.db import notify
from app.db.arrays import as_rows
from app.db.tables import allocations, app_versions, jobs, nodes, run_jobs, runs


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


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node row to be: who it is for (None: jobs to come), what was agreed, and how its provider behaves."""

    node_id: str
    project_id: str
    job_id: str | None
    offer: Offer
    traits: ProviderTraits
    image: str


@asynccontextmanager
async def attempt(connection: AsyncConnection) -> AsyncIterator[None]:
    """All that the block writes, or none of it when it raises; the transaction itself lives on."""
    async with connection.begin_nested():
        yield


async def job_to_place(connection: AsyncConnection, job_id: str) -> PlacedJob | None:
    """Read a job that is already locked."""
    given = select(func.max(run_jobs.c.epoch)).where(run_jobs.c.job_id == job_id).scalar_subquery()
    row = (
        await connection.execute(
            select(jobs, app_versions.c.base_image, func.greatest(jobs.c.epoch, given).label("newest_epoch"))
            .join(app_versions, app_versions.c.id == jobs.c.app_version_id)
            .where(jobs.c.id == job_id)
        )
    ).one_or_none()
    if row is None:
        return None
    image = row.resources.get("base_image") or row.base_image
    leaving = row.pause_reason is not None
    return PlacedJob(
        row.id, row.project_id, read_as(JobState, row.state), row.newest_epoch + 1, image, leaving, row.plan
    )


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


async def add_node(connection: AsyncConnection, new: NewNode, *, now_ms: int) -> None:
    """The node's row, `requested`. Its id is the label under which the provider will know the machine."""
    offer, traits = new.offer, new.traits
    await connection.execute(
        nodes.insert().values(
            id=new.node_id,
            project_id=new.project_id,
            provider=offer.provider,
            tier=offer.tier,
            offer=codec.encode(offer),
            gpu_type=offer.gpu_type,
            gpu_count=offer.gpu_count,
            gpu_memory_bytes=offer.gpu_memory_bytes,
            cpus=offer.cpus,
            memory_bytes=offer.memory_bytes,
            region=offer.region,
            host=offer.host,
            image=new.image,
            price_micros_per_hour=offer.price_per_hour.micros,
            billing_unit_ms=traits.billing.unit_ms,
            billing_starts=traits.billing.starts,
            billing_minimum_ms=traits.billing.minimum_ms,
            state=NodeState.REQUESTED,
            rented_for_job_id=new.job_id,
            requested_ms=now_ms,
            expected_ready_ms=now_ms + offer.startup_ms,
            startup_deadline_ms=now_ms + traits.startup_deadline_ms,
        )
    )


async def add_run(
    connection: AsyncConnection,
    job: PlacedJob,
    *,
    run_id: str,
    allocation_id: str,
    node_id: str,
    tier: Tier,
    gpu_indices: Sequence[int],
    now_ms: int,
    state: RunState = RunState.ASSIGNED,
    epoch: int | None = None,
    companion_of: str | None = None,
    purpose: RunPurpose = RunPurpose.TRAIN,
) -> None:
    """A run of one job, holding the job's next epoch (or `epoch`) and these GPUs. `companion_of`: the run whose process
    it shares, and whose GPUs these are."""
    await connection.execute(
        runs.insert().values(
            id=run_id,
            project_id=job.project_id,
            tier=tier,
            state=state,
            created_ms=now_ms,
            companion_of=companion_of,
            purpose=purpose,
        )
    )
    await connection.execute(
        run_jobs.insert().values(run_id=run_id, job_id=job.job_id, epoch=job.next_epoch if epoch is None else epoch)
    )
    await connection.execute(
        allocations.insert().values(
            id=allocation_id, run_id=run_id, node_id=node_id, gpu_indices=list(gpu_indices), from_ms=now_ms
        )
    )


async def occupy_node(connection: AsyncConnection, node_id: str) -> None:
    """A node that holds a run is not idle; what was decided while it was is stale."""
    await connection.execute(
        update(nodes).where(nodes.c.id == node_id).values(idle_since_ms=None, row_version=nodes.c.row_version + 1)
    )


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
