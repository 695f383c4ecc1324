"""Rows of standbys: who stands by, until when, and what has become of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, exists, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.borrowing import PoolUse
from app.core.foreign import read_as
from app.core.model.node import NodeState
from app.core.model.pool import JOINED
from app.core.model.run import RunState
from app.core.standby import Holder, StandbyView
from app.db import notify
from app.db.arrays import is_one_of
from app.db.tables import allocations, host_machines, jobs, ledger, nodes, run_jobs, runs, standbys

_MOST = 10_000  # of one decision
_MOST_SHOWN = 100
_LEAVING = (RunState.STOPPING, RunState.ENDED)


@dataclass(frozen=True, slots=True)
class StandbyRow:
    """As it is written. `over_why`: why its job does not come back to its machine, which is to end."""

    standby_id: str
    project_id: str
    job_id: str
    node_id: str
    gpus: int
    rebate_parts: int
    lose_steps: bool
    left_step: int
    asked_ms: int
    until_ms: int
    left_ms: int | None = None
    called_ms: int | None = None
    called_why: str | None = None
    failures: int = 0
    over_why: str | None = None
    back_ms: int | None = None
    ended_ms: int | None = None
    ended_why: str | None = None


async def add_standby(connection: AsyncConnection, row: StandbyRow) -> None:
    """Its job is locked, and has no other that is open."""
    await connection.execute(
        insert(standbys).values(
            id=row.standby_id,
            project_id=row.project_id,
            job_id=row.job_id,
            node_id=row.node_id,
            gpus=row.gpus,
            rebate_parts=row.rebate_parts,
            lose_steps=row.lose_steps,
            left_step=row.left_step,
            asked_ms=row.asked_ms,
            until_ms=row.until_ms,
        )
    )
    await notify.control(connection)


async def open_standby_of(connection: AsyncConnection, job_id: str) -> StandbyRow | None:
    """Of a locked job, the one that is not over."""
    row = await connection.execute(_rows().where(standbys.c.job_id == job_id, standbys.c.ended_ms.is_(None)))
    found = row.one_or_none()
    return None if found is None else _standby_row(found)


async def standbys_of(connection: AsyncConnection, job_id: str) -> list[StandbyRow]:
    """The newest of a job, newest first."""
    rows = _rows().where(standbys.c.job_id == job_id).order_by(standbys.c.asked_ms.desc(), standbys.c.id.desc())
    return [_standby_row(row) for row in await connection.execute(rows.limit(_MOST_SHOWN))]


async def open_standbys(connection: AsyncConnection) -> list[StandbyRow]:
    """All that are not over, by id."""
    rows = _rows().where(standbys.c.ended_ms.is_(None)).order_by(standbys.c.id).limit(_MOST)
    return [_standby_row(row) for row in await connection.execute(rows)]


async def as_seen(connection: AsyncConnection, rows: Collection[StandbyRow]) -> list[StandbyView]:
    """With who is on their GPUs, and whether their jobs run there again."""
    node_ids = [row.node_id for row in rows]
    holders = await _holders(connection, node_ids)
    running = await _running(connection, node_ids)
    return [
        StandbyView(
            standby_id=row.standby_id,
            job_id=row.job_id,
            node_id=row.node_id,
            until_ms=row.until_ms,
            left_ms=row.left_ms,
            called_ms=row.called_ms,
            over_why=row.over_why,
            left_step=row.left_step,
            lent_gpus=row.gpus,
            holders=tuple(holders.get(row.node_id, ())),
            running_ms=running.get((row.node_id, row.job_id)),
        )
        for row in rows
    ]


async def change_standby(connection: AsyncConnection, standby_id: str, **columns: Any) -> None:
    """The job of it is locked."""
    await connection.execute(update(standbys).where(standbys.c.id == standby_id).values(**columns))
    await notify.control(connection)


async def host_of_node(connection: AsyncConnection, node_id: str) -> str | None:
    """The host of a pool on which the node's machine is now."""
    of = host_machines.c
    statement = select(of.host_id).where(of.node_id == node_id, of.ended_ms.is_(None)).limit(1)
    return (await connection.execute(statement)).scalar_one_or_none()


async def rebates_of(connection: AsyncConnection, rows: Collection[StandbyRow]) -> dict[str, tuple[int, int]]:
    """By standby: what was paid for its time, and what was not, in micro-dollars, as far as the meter has been read."""
    if not rows:
        return {}
    of = standbys.c
    lines = (
        select(
            of.id, func.sum(ledger.c.amount_micros).label("paid"), func.sum(ledger.c.discount_micros).label("rebate")
        )
        .join(
            ledger,
            (ledger.c.node_id == of.node_id)
            & (ledger.c.payer == "idle")
            & (ledger.c.from_ms >= of.left_ms)
            & (ledger.c.from_ms < func.coalesce(of.back_ms, of.ended_ms, 2**62)),
        )
        .where(is_one_of(of.id, [row.standby_id for row in rows]))
        .group_by(of.id)
    )
    return {row.id: (int(row.paid), int(row.rebate)) for row in await connection.execute(lines)}


async def lenders_of(connection: AsyncConnection, node_id: str) -> list[StandbyRow]:
    """Whose lent GPUs a node is on."""
    mine, theirs = host_machines.alias("mine"), host_machines.alias("theirs")
    found = (
        select(1)
        .select_from(mine)
        .join(theirs, (theirs.c.host_id == mine.c.host_id) & theirs.c.gpu_indices.overlap(mine.c.gpu_indices))
        .where(
            mine.c.node_id == node_id,
            mine.c.ended_ms.is_(None),
            theirs.c.ended_ms.is_(None),
            theirs.c.node_id != node_id,
            theirs.c.node_id == standbys.c.node_id,
        )
    )
    rows = _rows().where(found.exists(), standbys.c.left_ms.is_not(None), standbys.c.ended_ms.is_(None))
    return [_standby_row(row) for row in await connection.execute(rows.order_by(standbys.c.id))]


async def standby_uses(connection: AsyncConnection, pools: Collection[str]) -> list[PoolUse]:
    """GPUs of these pools that jobs have left and come back to."""
    of = standbys.c
    held = exists().where(allocations.c.node_id == of.node_id, allocations.c.to_ms.is_(None))
    rows = await connection.execute(
        select(nodes.c.region, of.project_id, of.gpus)
        .join(nodes, nodes.c.id == of.node_id)
        .where(of.ended_ms.is_(None), of.left_ms.is_not(None), of.over_why.is_(None), ~held)
        .where(nodes.c.provider == JOINED, is_one_of(nodes.c.region, sorted(pools)))
        .order_by(of.id)
    )
    return [PoolUse(row.region, row.project_id, row.gpus) for row in rows]


async def _holders(connection: AsyncConnection, node_ids: Collection[str]) -> dict[str, list[Holder]]:
    """By node that is lent: the other machines on its GPUs."""
    mine, other = host_machines.alias("mine"), host_machines.alias("other")
    rows = await connection.execute(
        select(
            mine.c.node_id.label("lent"),
            other.c.node_id,
            (other.c.gpu_indices).label("theirs"),
            (mine.c.gpu_indices).label("ours"),
            nodes.c.state,
            runs.c.state.label("run_state"),
            run_jobs.c.job_id,
        )
        .select_from(mine)
        .join(other, (other.c.host_id == mine.c.host_id) & other.c.gpu_indices.overlap(mine.c.gpu_indices))
        .join(nodes, nodes.c.id == other.c.node_id)
        .outerjoin(allocations, (allocations.c.node_id == nodes.c.id) & allocations.c.to_ms.is_(None))
        .outerjoin(runs, runs.c.id == allocations.c.run_id)
        .outerjoin(run_jobs, run_jobs.c.run_id == runs.c.id)
        .where(
            is_one_of(mine.c.node_id, sorted(node_ids)),
            mine.c.ended_ms.is_(None),
            other.c.ended_ms.is_(None),
            other.c.node_id != mine.c.node_id,
        )
        .order_by(mine.c.node_id, other.c.node_id, run_jobs.c.job_id)
    )
    found: dict[tuple[str, str], Holder] = {}
    for row in rows:
        before = found.get((row.lent, row.node_id))
        gpus = len(set(row.theirs) & set(row.ours))
        holder = before or Holder(row.node_id, gpus, read_as(NodeState, row.state))
        found[row.lent, row.node_id] = _with_job(holder, row.job_id, row.run_state)
    by_node: dict[str, list[Holder]] = {}
    for (node_id, _), holder in found.items():
        by_node.setdefault(node_id, []).append(holder)
    return by_node


def _with_job(holder: Holder, job_id: str | None, run_state: str | None) -> Holder:
    if job_id is None:
        return holder
    asked = holder.asked | ({job_id} if run_state in _LEAVING else set())
    return Holder(holder.node_id, holder.gpus, holder.state, (*holder.job_ids, job_id), frozenset(asked))


async def _running(connection: AsyncConnection, node_ids: Collection[str]) -> dict[tuple[str, str], int]:
    """By node and job: since when the code of a run there has run, of those that hold it now."""
    rows = await connection.execute(
        select(allocations.c.node_id, run_jobs.c.job_id, runs.c.running_ms)
        .join(runs, runs.c.id == allocations.c.run_id)
        .join(run_jobs, run_jobs.c.run_id == runs.c.id)
        .join(jobs, (jobs.c.id == run_jobs.c.job_id) & (jobs.c.epoch == run_jobs.c.epoch))
        .where(
            is_one_of(allocations.c.node_id, sorted(node_ids)),
            allocations.c.to_ms.is_(None),
            runs.c.running_ms.is_not(None),
        )
    )
    return {(row.node_id, row.job_id): row.running_ms for row in rows}


def _rows() -> Select[Any]:
    return select(standbys)


def _standby_row(row: Row[Any]) -> StandbyRow:
    return StandbyRow(
        standby_id=row.id,
        project_id=row.project_id,
        job_id=row.job_id,
        node_id=row.node_id,
        gpus=row.gpus,
        rebate_parts=row.rebate_parts,
        lose_steps=row.lose_steps,
        left_step=row.left_step,
        asked_ms=row.asked_ms,
        until_ms=row.until_ms,
        left_ms=row.left_ms,
        called_ms=row.called_ms,
        called_why=row.called_why,
        failures=row.failures,
        over_why=row.over_why,
        back_ms=row.back_ms,
        ended_ms=row.ended_ms,
        ended_why=row.ended_why,
    )
