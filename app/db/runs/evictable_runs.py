"""Runs that may have to leave: what ending them would lose, and for whom they were asked to."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import any_, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.borrowing import PoolUse
from app.core.evicting import EvictableRun
from app.core.eviction import GraceSaves, Saving
from app.core.model.checkpoint import CheckpointState
from app.core.model.job import JobState, PriorityClass
from app.core.model.move import OPEN_MOVE_STATES
from app.core.model.node import SERVERFUL_TIERS, NodeState
from app.core.model.pool import JOINED
from app.core.model.run import RunPurpose, RunState
from app.core.spot_share import FULL, at_share
from app.db.arrays import is_one_of
from app.db.tables import (
    allocations,
    checkpoints,
    host_machines,
    jobs,
    moves,
    node_heartbeats,
    nodes,
    pools,
    reservations,
    reserved_gpus,
    run_jobs,
    runs,
)


async def evictable_runs(connection: AsyncConnection, pools: Collection[str]) -> list[EvictableRun]:
    """Those that may be asked to leave: the code of one spot job runs, on a node that outlives it, and nobody moves it,
    pauses it or shares its process; and those of guaranteed jobs in these pools, but for jobs that are locked."""
    moving = exists().where(moves.c.job_id == jobs.c.id, moves.c.state.in_(OPEN_MOVE_STATES))
    other = run_jobs.alias()
    shared = exists().where(other.c.run_id == runs.c.id, other.c.job_id != jobs.c.id)
    rider = runs.alias()
    with_rider = exists().where(rider.c.companion_of == runs.c.id, rider.c.state != RunState.ENDED)
    of = checkpoints.c
    newest = (
        select(of.committed_ms, (of.committed_ms - of.opened_ms).label("took_ms"))
        .where(of.id == jobs.c.checkpoint_id, of.state == CheckpointState.COMMITTED)
        .lateral()
    )
    may_borrow = (
        (jobs.c.priority_class == PriorityClass.GUARANTEED)
        & (nodes.c.provider == JOINED)
        & is_one_of(nodes.c.region, sorted(pools))
        & ~func.coalesce(jobs.c.affinity["locked"].as_boolean(), False)
    )
    is_spot = jobs.c.priority_class == PriorityClass.SPOT
    rows = await connection.execute(
        select(
            *(jobs.c.project_id, is_spot.label("is_spot"), nodes.c.provider, nodes.c.region),
            *(runs.c.id, jobs.c.id.label("job_id"), allocations.c.node_id, allocations.c.gpu_indices),
            *(runs.c.running_ms, runs.c.created_ms, jobs.c.template["checkpoint_interval_s"].label("interval_s")),
            *(jobs.c.evictions, jobs.c.eviction_saves, newest.c.committed_ms, newest.c.took_ms),
        )
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(jobs, (jobs.c.id == run_jobs.c.job_id) & (jobs.c.epoch == run_jobs.c.epoch))
        .outerjoin(newest, jobs.c.checkpoint_id.is_not(None))
        .where(
            *(runs.c.state == RunState.RUNNING, runs.c.running_ms.is_not(None), runs.c.companion_of.is_(None)),
            *(runs.c.purpose == RunPurpose.TRAIN, runs.c.tier.in_(SERVERFUL_TIERS), nodes.c.state == NodeState.READY),
            *(is_spot | may_borrow, jobs.c.state == JobState.RUNNING),
            *(jobs.c.pause_reason.is_(None), ~moving, ~shared, ~with_rider, runs.c.node_rank.is_(None)),
        )
        .order_by(runs.c.id)
    )
    return [_evictable_run(row) for row in rows if row.gpu_indices]


def _evictable_run(row: Any) -> EvictableRun:
    saved_ms = None if row.committed_ms is None else max(row.committed_ms, row.running_ms)
    saving = Saving(
        started_ms=row.running_ms,
        saved_ms=saved_ms,
        stated_interval_ms=1000 * row.interval_s if type(row.interval_s) is int else None,
        save_ms=max(0, row.took_ms or 0),
        restore_ms=max(0, row.running_ms - row.created_ms),
        grace=GraceSaves(row.evictions, min(row.eviction_saves, row.evictions)),
        suffered=row.evictions,
    )
    pool = row.region if row.provider == JOINED else ""
    return EvictableRun(
        row.id, row.job_id, row.node_id, len(row.gpu_indices), saving, row.project_id, bool(row.is_spot), pool
    )


async def pool_uses(connection: AsyncConnection, pools: Collection[str]) -> list[PoolUse]:
    """What guaranteed jobs have of these pools, whatever their runs are doing; but for what their project has reserved:
    that is no part of its quota, and nobody else's to take back."""
    gpu = reserved_gpus.c
    on_it = (host_machines.c.host_id == gpu.host_id) & (gpu.gpu_index == any_(host_machines.c.gpu_indices))
    kept = (
        select(1)
        .select_from(reserved_gpus)
        .join(reservations, reservations.c.id == gpu.reservation_id)
        .join(host_machines, on_it)
        .where(gpu.until_ms.is_(None), host_machines.c.ended_ms.is_(None), host_machines.c.node_id == nodes.c.id)
        .correlate(nodes, jobs)
    )
    its_own = kept.where(reservations.c.project_id == jobs.c.project_id)
    others = kept.where(reservations.c.project_id != jobs.c.project_id, reservations.c.piece_gpus.is_not(None))
    rows = await connection.execute(
        select(
            *(runs.c.id, runs.c.created_ms, jobs.c.project_id, nodes.c.region, allocations.c.gpu_indices),
            others.exists().label("on_others"),
        )
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(jobs, jobs.c.id == run_jobs.c.job_id)
        .where(
            *(runs.c.state != RunState.ENDED, nodes.c.provider == JOINED, is_one_of(nodes.c.region, sorted(pools))),
            *(jobs.c.priority_class == PriorityClass.GUARANTEED, ~its_own.exists()),
        )
        .order_by(runs.c.id)
    )
    once = {row.id: row for row in rows}  # one that trains two jobs is one
    return [
        PoolUse(row.region, row.project_id, len(row.gpu_indices), row.id, row.created_ms, row.on_others)
        for row in once.values()
    ]


async def host_nodes(connection: AsyncConnection, node_ids: Collection[str]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Of nodes that are on hosts of pools: the host, and which of its GPUs they have."""
    of = host_machines.c
    rows = await connection.execute(
        select(of.node_id, of.host_id, of.gpu_indices).where(is_one_of(of.node_id, node_ids), of.ended_ms.is_(None))
    )
    return {row.node_id: (row.host_id, tuple(row.gpu_indices)) for row in rows}


async def runs_on(connection: AsyncConnection, node_ids: Collection[str]) -> dict[str, int]:
    """How many live runs hold GPUs of each of these nodes."""
    of = allocations.c
    rows = await connection.execute(
        select(of.node_id, func.count().label("number"))
        .where(is_one_of(of.node_id, node_ids), of.to_ms.is_(None))
        .group_by(of.node_id)
    )
    return {row.node_id: row.number for row in rows}


async def set_evicted(connection: AsyncConnection, run_id: str, for_job_id: str) -> None:
    """The locked run was asked to leave for this job."""
    await connection.execute(update(runs).where(runs.c.id == run_id).values(evicted_for_job_id=for_job_id))


@dataclass(frozen=True, slots=True)
class LeftRun:
    """What a run that was taken off its machine had of it, and since when nothing of it was kept."""

    unsaved_since_ms: int
    price_micros: int  # of its GPUs, per hour: what its job paid
    heard_ms: int | None  # its machine, last


async def left_run(connection: AsyncConnection, run_id: str, job_id: str) -> LeftRun | None:
    """None for a run whose code never ran."""
    committed = (
        select(checkpoints.c.committed_ms)
        .join(jobs, jobs.c.checkpoint_id == checkpoints.c.id)
        .where(jobs.c.id == job_id)
        .scalar_subquery()
    )
    share = select(pools.c.spot_share_parts).where(
        pools.c.launcher == nodes.c.provider,
        pools.c.name == nodes.c.region,
        select(jobs.c.priority_class).where(jobs.c.id == job_id).scalar_subquery() == PriorityClass.SPOT,
    )
    rows = await connection.execute(
        select(
            *(runs.c.running_ms, committed.label("committed_ms"), allocations.c.gpu_indices),
            *(nodes.c.price_micros_per_hour, nodes.c.gpu_count, node_heartbeats.c.at_ms.label("heard_ms")),
            func.coalesce(share.scalar_subquery(), FULL).label("parts"),
        )
        .join(allocations, allocations.c.run_id == runs.c.id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .outerjoin(node_heartbeats, node_heartbeats.c.node_id == nodes.c.id)
        .where(runs.c.id == run_id, runs.c.running_ms.is_not(None))
        .order_by(allocations.c.from_ms.desc())
        .limit(1)
    )
    row = rows.one_or_none()
    if row is None:
        return None
    price = row.price_micros_per_hour * len(row.gpu_indices) // max(1, row.gpu_count)
    return LeftRun(max(row.running_ms, row.committed_ms or 0), at_share(price, row.parts), row.heard_ms)
