"""What a project's runs told of themselves, and what was learned from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from sqlalchemy import delete, func, lateral, select, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.machine_clock import TOLERATED_MS
from app.core.memory.calibration import Calibration, TrainingKind
from app.core.model.run import RunState
from app.core.progress import ProgressRate
from app.core.throughput import MeasuredStep, StepKey
from app.db.arrays import is_one_of
from app.db.tables import allocations, calibrations, jobs, metric_points, nodes, projects, run_jobs, runs, step_times

_POINTS = 50
_MOST_STRETCHES, _MOST_POINTS = 16, 20_000
_MOST_STEP_ROWS = 5_000
_STEP_KEY = tuple(StepKey.__dataclass_fields__)
_KIND = tuple(TrainingKind.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class EndedRun:
    """An ended run from which nothing was learned yet. `pace`: of its newest points with the GPUs that it had last, if
    it measured two; `layout`: how it was to run, if that was planned. `earlier`: its paces with other numbers of
    GPUs."""

    run_id: str
    project_id: str
    facts: Mapping[str, Any]
    template: Mapping[str, Any]
    gpu_type: str
    gpu_memory_bytes: int
    gpus: int
    pace: ProgressRate | None
    layout: Mapping[str, Any] | None = None
    earlier: tuple[tuple[int, ProgressRate], ...] = ()
    machines: int = 1  # on which it ran at once, each with so many GPUs


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """A calibration as it is kept; one that is not `enabled` goes on learning and corrects nothing."""

    id: str
    kind: TrainingKind
    calibration: Calibration
    updated_ms: int
    enabled: bool


async def set_facts(connection: AsyncConnection, run_id: str, facts: Mapping[str, Any]) -> None:
    """What the run's code told of itself."""
    await connection.execute(update(runs).where(runs.c.id == run_id).values(facts=dict(facts)))


async def runs_to_learn(connection: AsyncConnection, limit: int) -> tuple[EndedRun, ...]:
    """The oldest first. A run of several jobs is told by one of them, with the GPUs that it had last: its newest steps
    are what is learned from."""
    members = runs.alias()
    others = select(func.count()).where(members.c.member_of == runs.c.id).scalar_subquery()
    rows = await connection.execute(
        select(runs.c.id, runs.c.project_id, runs.c.facts, runs.c.layout, run_jobs.c.job_id, run_jobs.c.epoch)
        .add_columns(others.label("others"))
        .add_columns(jobs.c.template, nodes.c.gpu_type, nodes.c.gpu_memory_bytes)
        .add_columns(func.cardinality(allocations.c.gpu_indices).label("gpus"))
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(jobs, jobs.c.id == run_jobs.c.job_id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(runs.c.state == RunState.ENDED, runs.c.facts.is_not(None), ~runs.c.learned)
        .order_by(runs.c.id, run_jobs.c.job_id, allocations.c.from_ms.desc(), allocations.c.id.desc())
        .limit(limit)
    )
    first: dict[str, Any] = {}
    for row in rows:
        first.setdefault(row.id, row)
    return tuple([await _told(connection, row) for row in first.values()])


async def _told(connection: AsyncConnection, row: Any) -> EndedRun:
    *before, last = await _stretches(connection, row.id)
    paces = [(one.gpus, await _pace(connection, row, one)) for one in before if one.gpus != last.gpus]
    return EndedRun(
        run_id=row.id,
        project_id=row.project_id,
        facts=row.facts,
        template=row.template,
        gpu_type=row.gpu_type,
        gpu_memory_bytes=row.gpu_memory_bytes,
        gpus=row.gpus,
        pace=await _pace(connection, row, last if before else _Stretch(last.gpus, 0, None)),
        layout=row.layout,
        earlier=tuple({gpus: pace for gpus, pace in paces if pace is not None}.items()),
        machines=1 + row.others,
    )


@dataclass(frozen=True, slots=True)
class _Stretch:
    gpus: int
    from_ms: int
    to_ms: int | None


async def _stretches(connection: AsyncConnection, run_id: str) -> list[_Stretch]:
    """From when to when the run had how many GPUs: the newest so many, in their order."""
    of = allocations.c
    rows = await connection.execute(
        select(func.cardinality(of.gpu_indices).label("gpus"), of.from_ms, of.to_ms)
        .where(of.run_id == run_id)
        .order_by(of.from_ms.desc(), of.id.desc())
        .limit(_MOST_STRETCHES)
    )
    return [_Stretch(row.gpus, row.from_ms, row.to_ms) for row in reversed(rows.all())]


async def _pace(connection: AsyncConnection, row: Any, within: _Stretch) -> ProgressRate | None:
    """Of the newest points that were measured while it had these GPUs, but for those of the change itself. What lies
    further back than so many points of the run is not looked for."""
    point = metric_points.c
    told = select(point.step, point.at_ms).where(point.job_id == row.job_id, point.epoch == row.epoch)
    recent = told.order_by(point.step.desc()).limit(_MOST_POINTS if within.from_ms else _POINTS).subquery().c
    measured = select(recent.step, recent.at_ms)
    if within.from_ms:
        measured = measured.where(recent.at_ms >= within.from_ms + TOLERATED_MS)
        if within.to_ms is not None:
            measured = measured.where(recent.at_ms <= within.to_ms)
    newest = measured.order_by(recent.step.desc()).limit(_POINTS).subquery().c
    spans = select(func.min(newest.step), func.min(newest.at_ms), func.max(newest.step), func.max(newest.at_ms))
    span = (await connection.execute(spans)).one()
    return None if span[0] is None else ProgressRate(*span)


async def mark_learned(connection: AsyncConnection, run_ids: Sequence[str]) -> None:
    """Nothing more is to be learned from these."""
    await connection.execute(update(runs).where(is_one_of(runs.c.id, run_ids)).values(learned=True))


async def step_rows(connection: AsyncConnection, project_id: str) -> tuple[tuple[StepKey, MeasuredStep], ...]:
    """The newest so many."""
    return (await steps_by_project(connection, [project_id])).get(project_id, ())


async def steps_by_project(
    connection: AsyncConnection, project_ids: Sequence[str]
) -> dict[str, tuple[tuple[StepKey, MeasuredStep], ...]]:
    """The newest so many of each."""
    newest = (
        select(step_times)
        .where(step_times.c.project_id == projects.c.id)
        .order_by(step_times.c.updated_ms.desc(), *(step_times.c[name] for name in _STEP_KEY))
        .limit(_MOST_STEP_ROWS)
    )
    each = lateral(newest).alias("each")
    rows = await connection.execute(
        select(each).select_from(projects).join(each, true()).where(is_one_of(projects.c.id, project_ids))
    )
    found: dict[str, list[tuple[StepKey, MeasuredStep]]] = {}
    for row in rows:
        key = StepKey(*(getattr(row, name) for name in _STEP_KEY))
        found.setdefault(row.project_id, []).append((key, MeasuredStep(row.step_ms, row.samples, row.roofline_ms)))
    return {project_id: tuple(steps) for project_id, steps in found.items()}


async def step_row(connection: AsyncConnection, project_id: str, key: StepKey) -> MeasuredStep | None:
    """The row of one key, locked."""
    held = [step_times.c[name] == value for name, value in zip(_STEP_KEY, astuple(key), strict=True)]
    row = (
        await connection.execute(
            select(step_times).where(step_times.c.project_id == project_id, *held).with_for_update()
        )
    ).one_or_none()
    return None if row is None else MeasuredStep(row.step_ms, row.samples, row.roofline_ms)


async def set_step_time(
    connection: AsyncConnection, project_id: str, key: StepKey, row: MeasuredStep, *, now_ms: int
) -> None:
    """In the place of what was there."""
    values = asdict(row) | {"updated_ms": now_ms}
    fresh = insert(step_times).values(project_id=project_id, **asdict(key), **values)
    await connection.execute(fresh.on_conflict_do_update(index_elements=["project_id", *_STEP_KEY], set_=values))


async def list_calibrations(
    connection: AsyncConnection, project_id: str, *, after: str | None = None, limit: int = 1000
) -> tuple[CalibrationRow, ...]:
    """By id."""
    asked = select(calibrations).where(calibrations.c.project_id == project_id)
    if after is not None:
        asked = asked.where(calibrations.c.id > after)
    rows = await connection.execute(asked.order_by(calibrations.c.id).limit(limit))
    return tuple(_calibration(row) for row in rows)


async def newest_calibrations(
    connection: AsyncConnection, project_id: str
) -> tuple[tuple[TrainingKind, Calibration], ...]:
    """All of a project that are switched on, the newest last."""
    return (await calibrations_by_project(connection, [project_id])).get(project_id, ())


async def calibrations_by_project(
    connection: AsyncConnection, project_ids: Sequence[str]
) -> dict[str, tuple[tuple[TrainingKind, Calibration], ...]]:
    """The same of each."""
    rows = await connection.execute(
        select(calibrations)
        .where(is_one_of(calibrations.c.project_id, project_ids), calibrations.c.enabled)
        .order_by(calibrations.c.updated_ms, calibrations.c.id)
    )
    found: dict[str, list[tuple[TrainingKind, Calibration]]] = {}
    for row in rows:
        one = _calibration(row)
        found.setdefault(row.project_id, []).append((one.kind, one.calibration))
    return {project_id: tuple(known) for project_id, known in found.items()}


async def calibration_of(connection: AsyncConnection, project_id: str, kind: TrainingKind) -> Calibration | None:
    """The one of a kind, locked."""
    held = [calibrations.c[name] == value for name, value in zip(_KIND, astuple(kind), strict=True)]
    row = (
        await connection.execute(
            select(calibrations).where(calibrations.c.project_id == project_id, *held).with_for_update()
        )
    ).one_or_none()
    return None if row is None else _calibration(row).calibration


async def set_calibration(
    connection: AsyncConnection, new_id: str, project_id: str, kind: TrainingKind, row: Calibration, *, now_ms: int
) -> None:
    """In the place of what was there, which keeps its id; `new_id` is for a kind that is new."""
    values = asdict(row) | {"updated_ms": now_ms}
    fresh = insert(calibrations).values(id=new_id, project_id=project_id, **asdict(kind), **values)
    await connection.execute(fresh.on_conflict_do_update(constraint="uq_calibrations_kind", set_=values))


async def find_calibration(connection: AsyncConnection, project_id: str, calibration_id: str) -> CalibrationRow | None:
    """None when the project has none of that id."""
    held = calibrations.c.project_id == project_id, calibrations.c.id == calibration_id
    row = (await connection.execute(select(calibrations).where(*held))).one_or_none()
    return None if row is None else _calibration(row)


async def switch_calibration(
    connection: AsyncConnection, project_id: str, calibration_id: str, *, enabled: bool
) -> CalibrationRow | None:
    """The row as it is then; None when the project has none of that id."""
    rows = await connection.execute(
        update(calibrations)
        .where(calibrations.c.project_id == project_id, calibrations.c.id == calibration_id)
        .values(enabled=enabled)
        .returning(calibrations)
    )
    row = rows.one_or_none()
    return None if row is None else _calibration(row)


async def delete_calibration(
    connection: AsyncConnection, project_id: str, calibration_id: str
) -> CalibrationRow | None:
    """The deleted row; None when the project has none of that id."""
    rows = await connection.execute(
        delete(calibrations)
        .where(calibrations.c.project_id == project_id, calibrations.c.id == calibration_id)
        .returning(calibrations)
    )
    row = rows.one_or_none()
    return None if row is None else _calibration(row)


def _calibration(row: Any) -> CalibrationRow:
    kind = TrainingKind(*(getattr(row, name) for name in _KIND))
    found = Calibration(row.samples, row.log_ratio, row.fragmentation, row.overhead_bytes)
    return CalibrationRow(row.id, kind, found, row.updated_ms, row.enabled)
