"""Rows of defragmentations and of the nodes that they vacate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, delete, literal, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as insert_new
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.defragmentation import Goal, PlannedRelease, ReleaseState, ReleaseStep, RepairState, SwitchRepair
from app.core.gangs import ComingTogether
from app.db import notify
from app.db.arrays import insert_rows, is_one_of
from app.db.tables import defragmentations, node_releases
from app.errors import InvalidInput

OPEN = ("asked", "moving")
_REPAIRS = "repairs"  # in what is found
_LIST = "steps"  # in an object: rows that are written as arrays hold no lists


@dataclass(frozen=True, slots=True)
class DefragRow:
    """`state`: `asked`, `moving`, `done`, `cancelled` or `failed`. `found`: what the plan says beside its releases."""

    id: str
    goal: Goal
    pool: str | None
    begun_by: str
    most_moves: int
    state: str
    asked_ms: int
    planned_ms: int | None = None
    cancelled_ms: int | None = None
    ended_ms: int | None = None
    found: Mapping[str, Any] = field(default_factory=dict)
    end_message: str | None = None


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """A release as it was planned, and what has become of it."""

    release: PlannedRelease
    ended_ms: int | None = None
    end_message: str | None = None


async def add_defragmentation(connection: AsyncConnection, row: DefragRow) -> bool:
    """False, with nothing written, while another one of its goal is open."""
    values = {
        "id": row.id,
        "goal": row.goal,
        "pool": row.pool,
        "begun_by": row.begun_by,
        "most_moves": row.most_moves,
        "state": row.state,
        "asked_ms": row.asked_ms,
    }
    done = await connection.execute(
        insert_new(defragmentations).values(**values).on_conflict_do_nothing().returning(defragmentations.c.id)
    )
    added = done.scalar_one_or_none() is not None
    if added:
        await notify.control(connection)
    return added


async def set_planned(
    connection: AsyncConnection,
    row_id: str,
    found: Mapping[str, Any],
    releases: Sequence[PlannedRelease],
    *,
    now_ms: int,
) -> bool:
    """It is planned, and begins. False, with nothing written, where it is not asked for any more."""
    of = defragmentations.c
    done = await connection.execute(
        update(defragmentations)
        .where(of.id == row_id, of.state == "asked")
        .values(state="moving", planned_ms=now_ms, found=dict(found))
    )
    if not done.rowcount:
        return False
    rows = [{"defragmentation_id": row_id, **_columns(release)} for release in releases]
    if rows:
        await connection.execute(insert_rows(node_releases, rows))
    return True


async def set_release(
    connection: AsyncConnection,
    row_id: str,
    release: PlannedRelease,
    *,
    ended_ms: int | None = None,
    why: str | None = None,
) -> None:
    """How far it has come; once it is over it stays as it is."""
    of = node_releases.c
    values: dict[str, Any] = {"steps": {_LIST: codec.encode(release.steps)}, "state": release.state}
    values |= {"settled_ms": release.settled_ms, "begun_ms": release.begun_ms}
    values |= {"ended_ms": ended_ms, "end_message": why}
    await connection.execute(
        update(node_releases)
        .where(of.defragmentation_id == row_id, of.position == release.position, of.ended_ms.is_(None))
        .values(**values)
    )


async def set_repairs(connection: AsyncConnection, row_id: str, repairs: Sequence[SwitchRepair]) -> None:
    """How far the jobs have come that come together by it: decisions keep machines for them, or let them go."""
    of = defragmentations.c
    known = literal({_REPAIRS: codec.encode(tuple(repairs))}, JSONB)
    await connection.execute(
        update(defragmentations).where(of.id == row_id, of.state.in_(OPEN)).values(found=of.found.concat(known))
    )
    await notify.control(connection)


async def coming_together(connection: AsyncConnection, *, since_ms: int) -> list[ComingTogether]:
    """Jobs for which machines were rented since then, so that they come together."""
    return [
        ComingTogether(one.job_id, one.run_id, frozenset(one.places), f"{one.in_words} ({row.id})")
        for row in await open_defragmentations(connection)
        for one in repairs_of(row.found)
        if one.state is RepairState.MOVING and (one.begun_ms or 0) > since_ms
    ]


async def is_coming_together(connection: AsyncConnection, job_id: str) -> bool:
    """Whether machines were rented for the job, so that it comes together."""
    return any(one.job_id == job_id for one in await coming_together(connection, since_ms=0))


async def end_defragmentation(
    connection: AsyncConnection, row_id: str, state: str, message: str, *, now_ms: int
) -> bool:
    """It is over; whether that is new."""
    of = defragmentations.c
    done = await connection.execute(
        update(defragmentations)
        .where(of.id == row_id, of.state.in_(OPEN))
        .values(state=state, ended_ms=now_ms, end_message=message)
    )
    return bool(done.rowcount)


async def cancel_defragmentation(connection: AsyncConnection, row_id: str, *, now_ms: int) -> None:
    """Nothing more of it begins. One that is over stays as it is."""
    of = defragmentations.c
    await connection.execute(
        update(defragmentations)
        .where(of.id == row_id, of.state.in_(OPEN), of.cancelled_ms.is_(None))
        .values(cancelled_ms=now_ms)
    )
    await notify.control(connection)


async def open_defragmentations(connection: AsyncConnection) -> list[DefragRow]:
    """Those that are not over, the oldest first."""
    of = defragmentations.c
    rows = await connection.execute(select(defragmentations).where(of.state.in_(OPEN)).order_by(of.asked_ms, of.id))
    return [_row(row) for row in rows]


async def vacated_nodes(connection: AsyncConnection, *, since_ms: int) -> set[str]:
    """Nodes, and hosts as their offers name them, of which a move has begun, or has ended, since then, for a
    defragmentation that goes on: one that was called off vacates nothing more. Of those for a job on several machines
    all that it is to have, from the first of these moves on until the last is over: it begins on all of them, or on
    none. One that comes together there has them from then on until machines are rented for it."""
    of, whole = node_releases.c, defragmentations.c
    rows = await connection.execute(
        select(of.defragmentation_id, of.node_id, of.state, of.begun_ms, of.settled_ms, of.for_job_id, whole.found)
        .join(defragmentations, whole.id == of.defragmentation_id)
        .where(whole.state.in_(OPEN), whole.cancelled_ms.is_(None), of.state != ReleaseState.DROPPED)
    )
    found: set[str] = set()
    together: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        if row.for_job_id is not None:
            together.setdefault((row.defragmentation_id, row.for_job_id), []).append(row)
        elif row.state == ReleaseState.MOVING and _is_moved_since(row, since_ms):
            found.add(row.node_id)
    for (_, job_id), its in together.items():
        comes = any(one.job_id == job_id and one.state is RepairState.WAITING for one in repairs_of(its[0].found))
        is_open = comes or any(row.state != ReleaseState.FREED for row in its)
        if is_open and any(_is_moved_since(row, since_ms) for row in its):
            found |= {row.node_id for row in its} | set(held_of(its[0].found).get(job_id, ()))
    return found


def held_of(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """By job on several machines, the nodes that have room for it as they are."""
    held = found.get("held")
    return {str(job_id): list(map(str, its)) for job_id, its in held.items()} if isinstance(held, Mapping) else {}


def repairs_of(found: Mapping[str, Any]) -> list[SwitchRepair]:
    """Jobs that come together, as they were planned and as far as they have come."""
    rows = found.get(_REPAIRS)
    return [one for row in rows if (one := _repair(row)) is not None] if isinstance(rows, list) else []


def _repair(row: Any) -> SwitchRepair | None:
    """A row that is not as ours keeps no other from being read."""
    try:
        return codec.decode_row(SwitchRepair, row)
    except InvalidInput:
        return None


def _is_moved_since(row: Any, since_ms: int) -> bool:
    return row.begun_ms is not None and int(max(row.begun_ms, row.settled_ms or 0)) > since_ms


async def find_defragmentation(connection: AsyncConnection, row_id: str) -> DefragRow | None:
    row = (await connection.execute(select(defragmentations).where(defragmentations.c.id == row_id))).one_or_none()
    return None if row is None else _row(row)


async def open_of_goal(connection: AsyncConnection, goal: Goal) -> DefragRow | None:
    return next((one for one in await open_defragmentations(connection) if one.goal == goal), None)


async def list_defragmentations(connection: AsyncConnection, *, before: str | None, limit: int) -> list[DefragRow]:
    """The newest first; their ids grow with time."""
    of = defragmentations.c
    statement = select(defragmentations).order_by(of.id.desc()).limit(limit)
    if before is not None:
        statement = statement.where(of.id < before)
    return [_row(row) for row in await connection.execute(statement)]


async def releases_of(connection: AsyncConnection, row_ids: Sequence[str]) -> dict[str, list[ReleaseRow]]:
    """In their order."""
    of = node_releases.c
    rows = await connection.execute(
        select(node_releases)
        .where(is_one_of(of.defragmentation_id, sorted(row_ids)))
        .order_by(of.defragmentation_id, of.position)
    )
    found: dict[str, list[ReleaseRow]] = {}
    for row in rows:
        found.setdefault(row.defragmentation_id, []).append(_release_row(row))
    return found


async def delete_old_defragmentations(connection: AsyncConnection, *, before_ms: int) -> None:
    """Those that were over by then, with their releases."""
    await connection.execute(delete(defragmentations).where(defragmentations.c.ended_ms < before_ms))


def _columns(release: PlannedRelease) -> dict[str, Any]:
    return {
        "position": release.position,
        "node_id": release.node_id,
        "name": release.name,
        "gpus": release.gpus,
        "reason": release.reason,
        "saved_micros": release.saved_micros,
        "cost_micros": release.cost_micros,
        "pause_ms": release.pause_ms,
        "steps": {_LIST: codec.encode(release.steps)},
        "state": release.state,
        "for_job_id": release.for_job_id,
    }


def _row(row: Row[Any]) -> DefragRow:
    return DefragRow(
        id=row.id,
        goal=Goal(row.goal),
        pool=row.pool,
        begun_by=row.begun_by,
        most_moves=row.most_moves,
        state=row.state,
        asked_ms=row.asked_ms,
        planned_ms=row.planned_ms,
        cancelled_ms=row.cancelled_ms,
        ended_ms=row.ended_ms,
        found=row.found,
        end_message=row.end_message,
    )


def _release_row(row: Row[Any]) -> ReleaseRow:
    release = PlannedRelease(
        position=row.position,
        node_id=row.node_id,
        name=row.name,
        gpus=row.gpus,
        reason=row.reason,
        saved_micros=row.saved_micros,
        cost_micros=row.cost_micros,
        pause_ms=row.pause_ms,
        steps=tuple(codec.decode_row(ReleaseStep, step) for step in row.steps[_LIST]),
        state=ReleaseState(row.state),
        settled_ms=row.settled_ms,
        begun_ms=row.begun_ms,
        for_job_id=row.for_job_id,
    )
    return ReleaseRow(release, row.ended_ms, row.end_message)
