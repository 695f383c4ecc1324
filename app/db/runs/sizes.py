"""How many GPUs a live run has, and is to use: rows that are read and written under the locks of its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import exists, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.elastic.runs import ElasticRun
from app.core.foreign import read_as
from app.core.model.job import JobState, PauseReason, Resources
from app.core.model.money import Money
from app.core.model.move import OPEN_MOVE_STATES
from app.core.model.node import NodeState, Tier
from app.core.model.run import RunState
from app.core.resizing import LEAST, GpusHeld, GpusTold
from app.db import notify
from app.db.tables import allocations, jobs, moves, nodes, run_jobs, runs
from app.db.transitions import bump_desired

_INDICES = ("used", "leaving", "refused")
_LONGEST_PAUSE_MS = 86_400_000
# As its owner wants it. Where its code follows by itself it says so in the same words, and is only thought slower.
_RESTARTS = (jobs.c.template["resize_by"].astext == "restart").label("restarts")


@dataclass(frozen=True, slots=True)
class SizedJob:
    """A locked job: what it asks for, and what its GPUs may cost per hour. `least`: of one that asks for a range, the
    fewest that it may be left with. `split_over`: so many GPUs share the weights of its base model, and what each of
    them has to hold was predicted for that."""

    job_id: str
    state: JobState
    pause_reason: PauseReason | None
    resources: Resources
    max_hourly: Money | None
    least: int | None = None
    split_over: int = 1


@dataclass(frozen=True, slots=True)
class SizedRun:
    """A locked run with what it holds of its machine. `told` None: its training has not said that it can change its
    GPUs. `asked` None: nobody has wanted it to."""

    run_id: str
    state: RunState
    node_id: str
    node_state: NodeState
    tier: Tier
    gpu_type: str
    node_gpus: int
    node_price: Money
    held: GpusHeld
    asked: int | None
    told: GpusTold | None
    broken: tuple[int, ...] = ()  # GPUs on which no process of it could begin
    restarts: bool = False  # its processes begin again when its GPUs change

    def price_of(self, gpus: int) -> int:
        """What so many of the machine's GPUs cost per hour, in micro-dollars."""
        return self.node_price.micros * gpus // max(1, self.node_gpus)


def _split_over(template: Any) -> int:
    """By the job's template, as any release may have written it."""
    told = template if isinstance(template, dict) else {}
    training = told.get("training")
    is_split = isinstance(training, dict) and training.get("sharded") is True
    return (_number(told.get("gpu"), "count") or 1) if is_split else 1


async def sized_job(connection: AsyncConnection, job_id: str, project_id: str) -> SizedJob | None:
    """Of a job that is locked; None when there is no such job of this project."""
    of = jobs.c
    found = await connection.execute(
        select(of.state, of.pause_reason, of.resources, of.max_hourly_micros, of.template).where(
            of.id == job_id, of.project_id == project_id
        )
    )
    row = found.one_or_none()
    if row is None:
        return None
    return SizedJob(
        job_id,
        read_as(JobState, row.state),
        None if row.pause_reason is None else read_as(PauseReason, row.pause_reason),
        codec.decode_row(Resources, row.resources),
        None if row.max_hourly_micros is None else Money(row.max_hourly_micros),
        _number(row.resources, LEAST),
        _split_over(row.template),
    )


async def sized_run(connection: AsyncConnection, run_id: str) -> SizedRun | None:
    """Of a run that is locked, with its node; None where it holds nothing any more."""
    found = await connection.execute(
        select(
            *(runs.c.id, runs.c.state, runs.c.wanted_gpus, runs.c.gpus_told, allocations.c.gpu_indices),
            *(nodes.c.id.label("node_id"), nodes.c.state.label("node_state"), nodes.c.tier, nodes.c.gpu_type),
            *(nodes.c.gpu_count, nodes.c.price_micros_per_hour, jobs.c.resources, _RESTARTS),
        )
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(jobs, jobs.c.id == run_jobs.c.job_id)
        .where(runs.c.id == run_id)
        .order_by(jobs.c.id)
        .limit(1)
    )
    row = found.one_or_none()
    if row is None:
        return None
    return SizedRun(
        run_id=run_id,
        state=read_as(RunState, row.state),
        node_id=row.node_id,
        node_state=read_as(NodeState, row.node_state),
        tier=read_as(Tier, row.tier),
        gpu_type=row.gpu_type,
        node_gpus=row.gpu_count,
        node_price=Money(row.price_micros_per_hour),
        held=gpus_held(row.gpu_indices, row.wanted_gpus, row.resources),
        asked=row.wanted_gpus,
        told=gpus_told(row.gpus_told),
        broken=broken_gpus(row.gpus_told),
        restarts=row.restarts is True,
    )


async def elastic_runs(connection: AsyncConnection) -> list[ElasticRun]:
    """Those that train, can change their GPUs and do, and whose owners lend them. Rows that make no sense are left
    out."""
    moving = exists().where(moves.c.job_id == jobs.c.id, moves.c.state.in_(OPEN_MOVE_STATES))
    rows = await connection.execute(
        select(
            *(runs.c.id, runs.c.wanted_gpus, runs.c.gpus_told, jobs.c.id.label("job_id"), jobs.c.resources),
            *(jobs.c.deadline_ms, jobs.c.deadline_given, _RESTARTS),
            *(allocations.c.node_id, allocations.c.gpu_indices, allocations.c.from_ms),
        )
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(jobs, (jobs.c.id == run_jobs.c.job_id) & (jobs.c.epoch == run_jobs.c.epoch))
        .where(
            *(runs.c.state == RunState.RUNNING, runs.c.gpus_told.is_not(None), runs.c.keeps_gpus_ms.is_(None)),
            *(jobs.c.elastic, jobs.c.state == JobState.RUNNING, jobs.c.pause_reason.is_(None), ~moving),
        )
        .order_by(runs.c.id)
    )
    return [run for row in rows if (run := _elastic_run(row)) is not None]


def _elastic_run(row: Any) -> ElasticRun | None:
    told = gpus_told(row.gpus_told)
    own = _most(row.resources)
    if told is None or own is None or not row.gpu_indices:
        return None
    held = gpus_held(row.gpu_indices, row.wanted_gpus, row.resources)
    asked = _number(row.resources, LEAST)
    return ElasticRun(
        run_id=row.id,
        job_id=row.job_id,
        node_id=row.node_id,
        held=held,
        told=told,
        own=own,
        changed_ms=row.from_ms,
        broken=broken_gpus(row.gpus_told),
        least=min(own, max(1, asked or 1)),
        is_range=asked is not None,
        due_ms=row.deadline_ms if row.deadline_given else None,
        restarts=row.restarts is True,
    )


def gpus_held(indices: Any, wanted: int | None, resources: Any) -> GpusHeld:
    """`wanted` None: as many as its job may have."""
    held = tuple(indices)
    count = wanted if wanted is not None else _most(resources)
    return GpusHeld(held, max(1, min(count, len(held))) if type(count) is int else len(held))


def _most(resources: Any) -> int | None:
    """As many GPUs as a job may have, by its row; None for a row that makes no sense."""
    asked = _number(resources, "gpus_min")
    return None if asked is None else max(asked, _number(resources, "gpus_max") or 0)


def _number(resources: Any, name: str) -> int | None:
    found = resources.get(name) if isinstance(resources, dict) else None
    return found if type(found) is int else None


def gpus_told(row: Any) -> GpusTold | None:
    """As it was written by whichever release; None for what is none."""
    if not isinstance(row, dict) or not all(isinstance(row.get(name), list) for name in _INDICES):
        return None
    kept, pause_ms = row.get("kept"), row.get("pause_ms")
    return GpusTold(
        **{name: tuple(row[name]) for name in _INDICES},
        kept=kept if isinstance(kept, str) and kept else None,
        pause_ms=pause_ms if type(pause_ms) is int and 0 <= pause_ms <= _LONGEST_PAUSE_MS else None,
        after_save=row.get("after_save") is True,
    )


def broken_gpus(row: Any) -> tuple[int, ...]:
    """Those that were ever refused in this run."""
    found = row.get("broken") if isinstance(row, dict) else None
    return tuple(one for one in found if type(one) is int) if isinstance(found, list) else ()


async def set_gpus_told(connection: AsyncConnection, run: SizedRun, told: GpusTold) -> None:
    """What the training of a locked run has said."""
    row: Mapping[str, Any] = {**asdict(told), "broken": sorted({*run.broken, *told.refused})}
    await connection.execute(update(runs).where(runs.c.id == run.run_id).values(gpus_told=row))


async def set_run_size(
    connection: AsyncConnection, run: SizedRun, to: GpusHeld, allocation_id: str, *, now_ms: int
) -> None:
    """What a locked run holds and is to use from now on. What it held until now is kept as such: it is what is paid
    for. Its agent is told, and what was decided on the machine's free GPUs is stale."""
    wanted = {"wanted_gpus": to.wanted, "wanted_ms": now_ms}
    await connection.execute(
        update(runs).where(runs.c.id == run.run_id).values(**wanted, row_version=runs.c.row_version + 1)
    )
    if to.indices != run.held.indices:
        of = allocations.c
        await connection.execute(
            update(allocations).where(of.run_id == run.run_id, of.to_ms.is_(None)).values(to_ms=now_ms)
        )
        await connection.execute(
            insert(allocations).values(
                id=allocation_id,
                run_id=run.run_id,
                node_id=run.node_id,
                gpu_indices=list(to.indices),
                from_ms=now_ms,
            )
        )
    await bump_desired(connection, run.node_id)
    await notify.control(connection)
