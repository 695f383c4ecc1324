"""Questions about runs, the jobs they execute and the GPUs they hold."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import any_, exists, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.node import Tier
from app.core.model.run import RunPurpose, RunState, StopMode
from app.db.arrays import is_one_of
from app.db.lock_order import lock_run_reach
from app.db.tables import allocations, jobs, nodes, run_jobs, runs


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run with its one node. `job_ids` ascending."""

    run_id: str
    project_id: str
    state: RunState
    stop_mode: StopMode | None
    tier: Tier
    running_ms: int | None
    job_ids: tuple[str, ...]
    node_id: str
    purpose: RunPurpose
    evicted_for_job_id: str | None = None
    node_rank: int | None = None  # of a job on several machines
    member_of: str | None = None  # the run that leads those of all its machines


async def lock_run(connection: AsyncConnection, run_id: str) -> RunRow | None:
    """Lock the jobs of a run with all that they reach (`app.db.lock_order`), and read the run; None when there is no
    such run."""
    job_ids = await lock_run_reach(connection, run_id)
    found = (
        select(runs, allocations.c.node_id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .where(runs.c.id == run_id)
        .order_by(allocations.c.from_ms.desc())
        .limit(1)
    )
    row = (await connection.execute(found)).one_or_none()
    if row is None:
        return None
    return RunRow(
        run_id=run_id,
        project_id=row.project_id,
        state=read_as(RunState, row.state),
        stop_mode=None if row.stop_mode is None else read_as(StopMode, row.stop_mode),
        tier=read_as(Tier, row.tier),
        running_ms=row.running_ms,
        job_ids=job_ids,
        node_id=row.node_id,
        purpose=read_as(RunPurpose, row.purpose),
        evicted_for_job_id=row.evicted_for_job_id,
        node_rank=row.node_rank,
        member_of=row.member_of,
    )


async def close_allocations(connection: AsyncConnection, run_id: str, *, now_ms: int) -> None:
    """The run holds no GPU any more. A node without live allocations is idle from now on."""
    await connection.execute(
        update(allocations).where(allocations.c.run_id == run_id, allocations.c.to_ms.is_(None)).values(to_ms=now_ms)
    )
    other = allocations.alias()
    still_used = exists().where(other.c.node_id == nodes.c.id, other.c.to_ms.is_(None))
    held = select(allocations.c.node_id).where(allocations.c.run_id == run_id).scalar_subquery()
    await connection.execute(
        update(nodes)
        .where(nodes.c.id == any_(held), ~still_used)
        .values(idle_since_ms=now_ms, row_version=nodes.c.row_version + 1)
    )


async def live_runs_of_node(connection: AsyncConnection, node_id: str) -> tuple[str, ...]:
    """Ids of the runs that hold GPUs of this node, ascending."""
    rows = await connection.execute(
        select(runs.c.id)
        .distinct()
        .join(allocations, allocations.c.run_id == runs.c.id)
        .where(allocations.c.node_id == node_id, allocations.c.to_ms.is_(None), runs.c.state != RunState.ENDED)
        .order_by(runs.c.id)
    )
    return tuple(rows.scalars())


async def has_begun(connection: AsyncConnection, node_id: str) -> bool:
    """Whether the code of a run has ever begun on this node."""
    begun = exists().where(
        allocations.c.node_id == node_id, runs.c.id == allocations.c.run_id, runs.c.running_ms.is_not(None)
    )
    return bool((await connection.execute(select(begun))).scalar_one())


async def mate_of(connection: AsyncConnection, run_id: str) -> RunState | None:
    """The state of the other run of this run's process, while it is live. Which runs share one never changes."""
    lead = select(func.coalesce(runs.c.companion_of, runs.c.id)).where(runs.c.id == run_id).scalar_subquery()
    rows = await connection.execute(
        select(runs.c.state).where(
            or_(runs.c.id == lead, runs.c.companion_of == lead), runs.c.id != run_id, runs.c.state != RunState.ENDED
        )
    )
    state = rows.scalar_one_or_none()
    return None if state is None else read_as(RunState, state)


async def shared_process(connection: AsyncConnection, run_id: str) -> bool:
    """Whether another run has ever shared this run's process."""
    with_companion = runs.c.companion_of == run_id
    is_companion = (runs.c.id == run_id) & runs.c.companion_of.is_not(None)
    found = await connection.execute(select(runs.c.id).where(or_(with_companion, is_companion)).limit(1))
    return found.first() is not None


async def live_run_of_job(connection: AsyncConnection, job_id: str) -> str | None:
    """The run that holds this job now, if any: not one that only stands by for it, or that has handed it over."""
    rows = await connection.execute(
        select(runs.c.id)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(jobs, (jobs.c.id == run_jobs.c.job_id) & (jobs.c.epoch == run_jobs.c.epoch))
        .where(run_jobs.c.job_id == job_id, runs.c.state.not_in((RunState.ENDED, RunState.STANDBY)))
        .order_by(run_jobs.c.epoch.desc(), runs.c.id.desc())
        .limit(1)
    )
    return rows.scalar_one_or_none()


async def faults_of(connection: AsyncConnection, job_ids: tuple[str, ...]) -> int:
    """The largest fault count among these jobs: a run of several jobs goes on only while each may."""
    statement = select(func.coalesce(func.max(jobs.c.faults), 0)).where(is_one_of(jobs.c.id, job_ids))
    count: int = (await connection.execute(statement)).scalar_one()
    return count
