"""Reading jobs for their owners. Every question names the project: what belongs to another one does not exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, desc, func, literal, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.job import JobState
from app.core.model.node import Tier
from app.core.model.run import RunState
from app.db.arrays import is_one_of
from app.db.bids import is_bid
from app.db.foreign import reads_as_one_of
from app.db.lock_order import lock_jobs
from app.db.tables import allocations, app_versions, apps, jobs, nodes, run_jobs, runs


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """GPUs that a job holds now. The price is for these GPUs alone."""

    node_id: str
    provider: str
    tier: str
    gpu_type: str
    gpu_count: int
    price_micros_per_hour: int
    nodes: int = 1  # machines, of which that named here leads; GPUs and price are those of all of them
    interruptible: bool = False


@dataclass(frozen=True, slots=True)
class JobRow:
    id: str
    project_id: str
    app_id: str
    app_name: str
    app_version: int
    sweep_id: str | None
    name: str
    labels: Mapping[str, str]
    parameters: Any
    template: Mapping[str, Any]
    state: JobState
    pause_reason: str | None
    end_reason: str | None
    end_message: str | None
    wait_reason: str | None
    epoch: int
    faults: int
    evictions: int
    moves: int
    step: int
    total_steps: int | None
    checkpoint_step: int | None
    from_checkpoint_id: str | None
    refused_why: str | None
    saves_ms: int | None
    links: Mapping[str, str] | None
    spent_micros: int
    max_cost_micros: int | None
    max_duration_ms: int | None
    max_hourly_micros: int | None
    max_wait_ms: int | None
    retries: int | None
    retried: int
    deadline_ms: int
    submitted_ms: int
    first_running_ms: int | None
    ended_ms: int | None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """`app` is an app's id or its name, `name` a part of the job's in any case, times are [from, until). Empty fields
    filter nothing."""

    states: frozenset[JobState] = frozenset()
    app: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    name: str | None = None
    submitted_from_ms: int | None = None
    submitted_until_ms: int | None = None


_NOWHERE = (RunState.ENDED, RunState.STANDBY)
_JOB_COLUMNS = (
    *(
        jobs.c[name]
        for name in JobRow.__dataclass_fields__
        if name not in ("app_name", "app_version")  # of the tables that are joined
    ),
    apps.c.name.label("app_name"),
    app_versions.c.version.label("app_version"),
)


async def find_job(connection: AsyncConnection, project_id: str, job_id: str) -> JobRow | None:
    """One job of this project."""
    statement = _jobs().where(jobs.c.project_id == project_id, jobs.c.id == job_id)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _job_row(row)


async def find_jobs(connection: AsyncConnection, project_id: str, job_ids: Sequence[str]) -> dict[str, JobRow]:
    """Those of these jobs that are of this project, by id."""
    statement = _jobs().where(jobs.c.project_id == project_id, is_one_of(jobs.c.id, job_ids))
    return {row.id: _job_row(row) for row in await connection.execute(statement)}


async def find_state(connection: AsyncConnection, project_id: str, job_id: str) -> JobState | None:
    """The state of a job of this project."""
    statement = select(jobs.c.state).where(jobs.c.project_id == project_id, jobs.c.id == job_id)
    state = (await connection.execute(statement)).scalar_one_or_none()
    return None if state is None else read_as(JobState, state)


async def lock_state(connection: AsyncConnection, project_id: str, job_id: str) -> JobState | None:
    """The same, with the job's row (and that of the job it is merged with) locked until the transaction ends."""
    await lock_jobs(connection, [job_id])
    return await find_state(connection, project_id, job_id)


async def list_jobs(
    connection: AsyncConnection, project_id: str, wanted: JobFilter, *, before: str | None, limit: int
) -> list[JobRow]:
    """Newest first, of those with ids below `before`."""
    statement = _jobs().where(jobs.c.project_id == project_id)
    statement = statement.where(*_conditions(project_id, wanted))
    if before is not None:
        statement = statement.where(jobs.c.id < before)
    return [_job_row(row) for row in await connection.execute(statement.order_by(desc(jobs.c.id)).limit(limit))]


async def jobs_of_sweep(connection: AsyncConnection, project_id: str, sweep_id: str) -> list[JobRow]:
    """All jobs of a sweep, in the order of their parameter sets."""
    statement = _jobs().where(jobs.c.project_id == project_id, jobs.c.sweep_id == sweep_id).order_by(jobs.c.id)
    return [_job_row(row) for row in await connection.execute(statement)]


async def places_of(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, PlaceRow]:
    """Where these jobs are now, by job id; those that are nowhere are left out. A machine that stands by does not count
    yet."""
    statement = (
        select(
            run_jobs.c.job_id,
            nodes.c.id,
            nodes.c.provider,
            nodes.c.tier,
            nodes.c.gpu_type,
            nodes.c.gpu_count,
            nodes.c.price_micros_per_hour,
            is_bid().label("is_bid"),
            func.cardinality(allocations.c.gpu_indices).label("held"),
            runs.c.node_rank,
        )
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(is_one_of(run_jobs.c.job_id, job_ids), runs.c.state.not_in(_NOWHERE), allocations.c.to_ms.is_(None))
        .order_by(run_jobs.c.epoch, runs.c.id)
    )
    places: dict[str, PlaceRow] = {}
    for row in await connection.execute(statement):
        price = row.price_micros_per_hour * row.held // max(1, row.gpu_count)
        place = PlaceRow(row.id, row.provider, read_as(Tier, row.tier), row.gpu_type, row.held, price, 1, row.is_bid)
        before = places.get(row.job_id)
        places[row.job_id] = place if before is None or row.node_rank is None else _together(before, place)
    return places


def _together(some: PlaceRow, one: PlaceRow) -> PlaceRow:
    """Machines of one job. They come in the order of their epochs: the one that leads is the last."""
    return replace(
        one,
        gpu_count=some.gpu_count + one.gpu_count,
        price_micros_per_hour=some.price_micros_per_hour + one.price_micros_per_hour,
        nodes=some.nodes + 1,
    )


def _conditions(project_id: str, wanted: JobFilter) -> Iterator[ColumnElement[bool]]:
    """Each in the form that an index of the jobs serves; only a part of a name has to be looked for."""
    if wanted.states:
        yield reads_as_one_of(jobs.c.state, JobState, wanted.states)
    if wanted.app is not None:
        named = select(apps.c.id).where(apps.c.project_id == project_id, apps.c.name == wanted.app)
        yield jobs.c.app_id.in_(union_all(named, select(literal(wanted.app))))
    if wanted.labels:
        yield jobs.c.labels.contains(dict(wanted.labels))
    if wanted.name is not None:
        yield jobs.c.name.icontains(wanted.name, autoescape=True)
    if wanted.submitted_from_ms is not None:
        yield jobs.c.submitted_ms >= wanted.submitted_from_ms
    if wanted.submitted_until_ms is not None:
        yield jobs.c.submitted_ms < wanted.submitted_until_ms


def _jobs() -> Select[Any]:
    return (
        select(*_JOB_COLUMNS)
        .join(apps, apps.c.id == jobs.c.app_id)
        .join(app_versions, app_versions.c.id == jobs.c.app_version_id)
    )


def _job_row(row: Row[Any]) -> JobRow:
    fields = dict(row._mapping)
    fields["state"] = read_as(JobState, fields["state"])
    return JobRow(**fields)
