"""What an agent should be doing: the live runs of its node, and all that is needed to execute them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.run import RunPurpose, RunState, StopMode
from app.core.resizing import GpusTold
from app.db.graces import own_grace_ms
from app.db.runs.progress import STATED_STEPS, stated_steps
from app.db.runs.sizes import gpus_held, gpus_told
from app.db.tables import allocations, app_versions, apps, jobs, nodes, run_jobs, runs

# Of the two runs of a move: the target before its job is its own, and the source while it leaves.
_BESIDE_ITS_JOB = (RunState.STANDBY, RunState.STOPPING)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """How far a run of this node has got, for one of its jobs."""

    run_id: str
    job_id: str
    epoch: int
    state: RunState
    step: int
    tokens: int
    saves: bool
    total_steps: int | None
    stated_steps: int | None  # by its template
    links: Mapping[str, str]
    libraries: Mapping[str, str] | None  # that the job began with
    goes_on: bool  # from a checkpoint
    gpus_told: GpusTold | None = None
    node_rank: int | None = None  # of a run of a job on several machines
    stops_together: bool = False  # with those on the other machines


@dataclass(frozen=True, slots=True)
class RunOrder:
    """One run to execute, for one of its jobs. `resumed_from_step` is None until it was first delivered.

    `companion` shares this run's process, `companion_of` is the run whose process this one shares: as long as that is
    live. Who is left of the two is a run like any other.
    """

    run_id: str
    job_id: str
    project_id: str
    epoch: int
    state: RunState
    stop_mode: StopMode | None
    resumed_from_step: int | None
    resumed_checkpoint_id: str | None
    gpu_indices: tuple[int, ...]
    use_gpus: tuple[int, ...]  # of them those that its training is to use
    layout: Any
    app_name: str
    job_name: str
    bundle_sha256: str
    bundle_size_bytes: int
    entrypoint: str
    pip: tuple[str, ...]
    environment_sha256: str
    base_image: str | None
    parameters: Any
    template: Any
    total_steps: int | None
    checkpoint_interval_s: int
    mean_life_ms: int
    libraries: Any
    companion: str | None
    companion_of: str | None
    purpose: RunPurpose
    own_grace_ms: int | None  # to save and leave; None: what the service gives
    node_rank: int | None = None  # of a run of a job on several machines; all but 0 stop when that one does
    member_of: str | None = None
    lead_state: RunState | None = None
    lead_stop_mode: StopMode | None = None


_LEAD, _COMPANION = runs.alias("lead"), runs.alias("companion")
_FIRST = runs.alias("first")  # of a job on several machines: the run that leads
# Every agent asks these at every call: made once, since making a statement costs as much as running it.
_LIVE_RUNS = (
    select(
        runs.c.id,
        run_jobs.c.job_id,
        run_jobs.c.epoch,
        runs.c.state,
        jobs.c.step,
        run_jobs.c.tokens,
        jobs.c.saves_ms.is_not(None).label("saves"),
        jobs.c.total_steps,
        STATED_STEPS.label("stated_steps"),
        jobs.c.links,
        jobs.c.libraries,
        runs.c.resumed_checkpoint_id.is_not(None).label("goes_on"),
        runs.c.gpus_told,
        runs.c.node_rank,
        runs.c.stops_together,
    )
    .select_from(allocations)
    .join(runs, runs.c.id == allocations.c.run_id)
    .join(run_jobs, run_jobs.c.run_id == runs.c.id)
    .join(jobs, jobs.c.id == run_jobs.c.job_id)
    .where(
        allocations.c.node_id == bindparam("node_id"),
        allocations.c.to_ms.is_(None),
        runs.c.state != RunState.ENDED,
        or_(jobs.c.epoch == run_jobs.c.epoch, runs.c.state.in_(_BESIDE_ITS_JOB), runs.c.member_of.is_not(None)),
    )
)
_ORDERS = (
    select(
        runs.c.id.label("run_id"),
        run_jobs.c.job_id,
        jobs.c.project_id,
        run_jobs.c.epoch,
        runs.c.state,
        runs.c.stop_mode,
        runs.c.resumed_from_step,
        runs.c.resumed_checkpoint_id,
        allocations.c.gpu_indices,
        runs.c.wanted_gpus,
        jobs.c.resources,
        runs.c.layout,
        runs.c.purpose,
        apps.c.name.label("app_name"),
        jobs.c.name.label("job_name"),
        app_versions.c.bundle_sha256,
        app_versions.c.bundle_size_bytes,
        app_versions.c.entrypoint,
        app_versions.c.pip,
        app_versions.c.environment_sha256,
        app_versions.c.base_image,
        jobs.c.parameters,
        jobs.c.template,
        jobs.c.total_steps,
        jobs.c.checkpoint_interval_s,
        nodes.c.offer["mean_life_ms"].label("mean_life_ms"),
        jobs.c.libraries,
        own_grace_ms().label("own_grace_ms"),
        select(_COMPANION.c.id)
        .where(_COMPANION.c.companion_of == runs.c.id, _COMPANION.c.state != RunState.ENDED)
        .scalar_subquery()
        .label("companion"),
        select(_LEAD.c.id)
        .where(_LEAD.c.id == runs.c.companion_of, _LEAD.c.state != RunState.ENDED)
        .scalar_subquery()
        .label("companion_of"),
        runs.c.node_rank,
        runs.c.member_of,
        _FIRST.c.state.label("lead_state"),
        _FIRST.c.stop_mode.label("lead_stop_mode"),
    )
    .select_from(allocations)
    .join(runs, runs.c.id == allocations.c.run_id)
    .join(run_jobs, run_jobs.c.run_id == runs.c.id)
    .join(jobs, jobs.c.id == run_jobs.c.job_id)
    .join(app_versions, app_versions.c.id == jobs.c.app_version_id)
    .join(apps, apps.c.id == app_versions.c.app_id)
    .join(nodes, nodes.c.id == allocations.c.node_id)
    .outerjoin(_FIRST, _FIRST.c.id == runs.c.member_of)
    .where(
        allocations.c.node_id == bindparam("node_id"),
        allocations.c.to_ms.is_(None),
        runs.c.state != RunState.ENDED,
        or_(jobs.c.epoch == run_jobs.c.epoch, runs.c.state.in_(_BESIDE_ITS_JOB), runs.c.member_of.is_not(None)),
    )
    .order_by(runs.c.id, run_jobs.c.job_id)
)


async def live_runs(connection: AsyncConnection, node_id: str) -> list[LiveRun]:
    """The runs that this node holds under their jobs' current epochs, and those that move."""
    rows = await connection.execute(_LIVE_RUNS, {"node_id": node_id})
    return [
        LiveRun(
            row.id,
            row.job_id,
            row.epoch,
            read_as(RunState, row.state),
            row.step,
            row.tokens,
            row.saves,
            row.total_steps,
            stated_steps(row.stated_steps),
            row.links or {},
            row.libraries,
            row.goes_on,
            gpus_told(row.gpus_told),
            row.node_rank,
            row.stops_together,
        )
        for row in rows.all()
    ]


async def orders(connection: AsyncConnection, node_id: str) -> list[RunOrder]:
    """What this node is to execute, sorted by run and job."""
    rows = await connection.execute(_ORDERS, {"node_id": node_id})
    return [_order(row._mapping) for row in rows.all()]


async def set_resumed(connection: AsyncConnection, run_id: str, checkpoint_id: str, step: int) -> None:
    """Note where a run goes on from, once: a later choice never replaces it."""
    await connection.execute(
        update(runs)
        .where(runs.c.id == run_id, runs.c.resumed_from_step.is_(None))
        .values(resumed_from_step=step, resumed_checkpoint_id=checkpoint_id)
    )


async def replace_resume(connection: AsyncConnection, run_id: str, checkpoint_id: str | None, step: int | None) -> None:
    """What it was to go on from cannot be read: it goes on from another one, or from nothing."""
    await connection.execute(
        update(runs).where(runs.c.id == run_id).values(resumed_from_step=step, resumed_checkpoint_id=checkpoint_id)
    )


def _order(row: Any) -> RunOrder:
    values = dict(row)
    values["state"] = read_as(RunState, row["state"])
    values["purpose"] = read_as(RunPurpose, row["purpose"])
    for name in ("stop_mode", "lead_stop_mode"):
        values[name] = None if row[name] is None else read_as(StopMode, row[name])
    values["lead_state"] = None if row["lead_state"] is None else read_as(RunState, row["lead_state"])
    held = gpus_held(row["gpu_indices"], values.pop("wanted_gpus"), values.pop("resources"))
    values["gpu_indices"], values["use_gpus"] = held.indices, held.in_use
    values["pip"] = tuple(row["pip"])
    life = row["mean_life_ms"]
    values["mean_life_ms"] = life if isinstance(life, int) and 0 < life < 2**63 else 0  # not every row is ours
    return RunOrder(**values)
