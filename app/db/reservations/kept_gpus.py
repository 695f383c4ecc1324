"""Which GPUs are kept for reservations, and who is on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, and_, any_, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.job import PriorityClass
from app.core.reserving import GpuKey, GpuUse
from app.db.arrays import as_rows, insert_rows, is_one_of
from app.db.tables import allocations, host_machines, jobs, nodes, reservations, reserved_gpus, run_jobs, standbys


@dataclass(frozen=True, slots=True)
class Untold:
    """A guaranteed job of another project that is on GPUs which are kept, and was not told so."""

    reservation_id: str
    job_id: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class ReservedFor:
    """What of a machine is kept: for which project, and until when."""

    project_id: str
    until_ms: int
    gpus: int


async def kept_gpus(connection: AsyncConnection, reservation_ids: Collection[str]) -> dict[str, list[GpuKey]]:
    """By reservation: what is kept for it now."""
    of = reserved_gpus.c
    rows = await connection.execute(
        select(of.reservation_id, of.host_id, of.gpu_index)
        .where(is_one_of(of.reservation_id, sorted(reservation_ids)), of.until_ms.is_(None))
        .order_by(of.host_id, of.gpu_index)
    )
    found: defaultdict[str, list[GpuKey]] = defaultdict(list)
    for row in rows:
        found[row.reservation_id].append((row.host_id, row.gpu_index))
    return dict(found)


async def keep(connection: AsyncConnection, reservation_id: str, keys: Sequence[GpuKey], *, now_ms: int) -> None:
    """For a locked reservation, under the locks of their hosts. Raises IntegrityError for a GPU that is kept for
    another."""
    if keys:
        rows = [
            {"reservation_id": reservation_id, "host_id": host_id, "gpu_index": index, "since_ms": now_ms}
            for host_id, index in keys
        ]
        again = {"until_ms": None, "told_ms": None}
        key = ["reservation_id", "host_id", "gpu_index", "since_ms"]
        await connection.execute(insert_rows(reserved_gpus, rows).on_conflict_do_update(index_elements=key, set_=again))


async def set_kept_until(
    connection: AsyncConnection, reservation_id: str, keys: Sequence[GpuKey], *, now_ms: int
) -> None:
    of = reserved_gpus.c
    if keys:
        dropped = as_rows("dropped", (of.host_id, of.gpu_index), keys)
        is_one = and_(of.host_id == dropped.c.host_id, of.gpu_index == dropped.c.gpu_index)
        its = (of.reservation_id == reservation_id, of.until_ms.is_(None), is_one)
        await connection.execute(update(reserved_gpus).where(*its).values(until_ms=now_ms))


async def gpu_uses(connection: AsyncConnection, host_ids: Collection[str]) -> dict[GpuKey, GpuUse]:
    """Who has GPUs of these hosts. A machine that a job has left to stand by is that job's, which comes back."""
    of, rented_for = host_machines.c, jobs.alias("rented_for")
    stands_by = exists().where(standbys.c.node_id == of.node_id, standbys.c.ended_ms.is_(None))
    spot = func.bool_and(
        func.coalesce(jobs.c.priority_class, rented_for.c.priority_class, "") != PriorityClass.GUARANTEED
    )
    rows = await connection.execute(
        select(
            *(of.host_id, of.gpu_indices, nodes.c.project_id, stands_by.label("stands_by"), spot.label("spot")),
            func.array_agg(jobs.c.id).filter(jobs.c.id.is_not(None)).label("job_ids"),
        )
        .select_from(host_machines.join(nodes, nodes.c.id == of.node_id))
        .outerjoin(allocations, (allocations.c.node_id == of.node_id) & allocations.c.to_ms.is_(None))
        .outerjoin(run_jobs, run_jobs.c.run_id == allocations.c.run_id)
        .outerjoin(jobs, jobs.c.id == run_jobs.c.job_id)
        .outerjoin(rented_for, rented_for.c.id == nodes.c.rented_for_job_id)
        .where(of.ended_ms.is_(None), is_one_of(of.host_id, sorted(host_ids)))
        .group_by(of.id, of.host_id, of.gpu_indices, nodes.c.project_id)
        .order_by(of.id)
    )
    found: dict[GpuKey, GpuUse] = {}
    for row in rows:
        use = GpuUse(row.project_id, bool(row.spot) and not row.stands_by, tuple(row.job_ids or ()))
        for index in row.gpu_indices:
            before = found.get((row.host_id, index))
            if before is None or before.is_spot:  # of two on one GPU, the one that comes back to it
                found[row.host_id, index] = use
    return found


async def nodes_on_kept(connection: AsyncConnection) -> frozenset[str]:
    """Nodes with GPUs that are kept for another project: nothing guaranteed begins there."""
    rows = await connection.execute(_machines_on_kept().where(nodes.c.project_id != reservations.c.project_id))
    return frozenset(row.node_id for row in rows)


async def nodes_of_quotas(connection: AsyncConnection) -> dict[str, str]:
    """Nodes with GPUs that are of a project's quota of hosts: whose."""
    rows = await connection.execute(
        _machines_on_kept(host_machines.c.node_id, reservations.c.project_id).where(
            reservations.c.piece_gpus.is_not(None)
        )
    )
    return {row.node_id: row.project_id for row in rows}


async def untold(connection: AsyncConnection) -> list[Untold]:
    """Guaranteed jobs of others that are on what is kept, and do not know; each once."""
    of = reserved_gpus.c
    rows = await connection.execute(
        _machines_on_kept(reservations.c.id, reservations.c.until_ms, run_jobs.c.job_id)
        .join(allocations, (allocations.c.node_id == nodes.c.id) & allocations.c.to_ms.is_(None))
        .join(run_jobs, run_jobs.c.run_id == allocations.c.run_id)
        .join(jobs, jobs.c.id == run_jobs.c.job_id)
        .where(
            *(of.told_ms.is_(None), nodes.c.project_id != reservations.c.project_id),
            jobs.c.priority_class == PriorityClass.GUARANTEED,
        )
        .order_by(run_jobs.c.job_id, reservations.c.id)
    )
    return [Untold(row.id, row.job_id, row.until_ms) for row in rows]


async def set_told(connection: AsyncConnection, one: Untold, *, now_ms: int) -> None:
    """Of what the job has of the reservation."""
    of = reserved_gpus.c
    theirs = (
        select(1)
        .select_from(host_machines)
        .join(allocations, (allocations.c.node_id == host_machines.c.node_id) & allocations.c.to_ms.is_(None))
        .join(run_jobs, run_jobs.c.run_id == allocations.c.run_id)
        .where(
            *(host_machines.c.host_id == of.host_id, of.gpu_index == any_(host_machines.c.gpu_indices)),
            *(host_machines.c.ended_ms.is_(None), run_jobs.c.job_id == one.job_id),
        )
    )
    mine = and_(of.reservation_id == one.reservation_id, of.until_ms.is_(None), theirs.exists())
    await connection.execute(update(reserved_gpus).where(mine).values(told_ms=now_ms))


async def reserved_at(connection: AsyncConnection, node_id: str) -> list[ReservedFor]:
    """For whom GPUs of this node are kept now."""
    until_ms = func.max(reservations.c.until_ms)
    rows = await connection.execute(
        _machines_on_kept(reservations.c.project_id, until_ms.label("until_ms"), func.count().label("gpus"))
        .where(nodes.c.id == node_id)
        .group_by(nodes.c.id, host_machines.c.node_id, reservations.c.project_id)
        .order_by(reservations.c.project_id)
    )
    return [ReservedFor(row.project_id, row.until_ms, row.gpus) for row in rows]


async def kept_places(connection: AsyncConnection) -> frozenset[str]:
    """Hosts on which something is kept."""
    rows = await connection.execute(
        select(reserved_gpus.c.host_id).where(reserved_gpus.c.until_ms.is_(None)).distinct()
    )
    return frozenset(row.host_id for row in rows)


async def kept_time_ms(connection: AsyncConnection, reservation_ids: Collection[str], *, now_ms: int) -> dict[str, int]:
    """By reservation: for how long GPUs were kept for it, added up."""
    of = reserved_gpus.c
    time_ms = func.sum(func.greatest(func.coalesce(of.until_ms, now_ms) - of.since_ms, 0)).label("time_ms")
    rows = await connection.execute(
        select(of.reservation_id, time_ms)
        .where(is_one_of(of.reservation_id, sorted(reservation_ids)))
        .group_by(of.reservation_id)
    )
    return {row.reservation_id: int(row.time_ms) for row in rows}


@dataclass(frozen=True, slots=True)
class KeptUse:
    """Of the GPUs that are kept for a reservation now: how many there are, and whose jobs are on how many of them."""

    kept: int = 0
    own: int = 0
    spot: int = 0
    others: int = 0


async def kept_uses(connection: AsyncConnection, rows: Sequence[tuple[str, str]]) -> dict[str, KeptUse]:
    """`rows`: ids of reservations, each with its project's."""
    kept = await kept_gpus(connection, [reservation_id for reservation_id, _ in rows])
    uses = await gpu_uses(connection, {host_id for keys in kept.values() for host_id, _ in keys}) if kept else {}
    found: dict[str, KeptUse] = {}
    for reservation_id, project_id in rows:
        keys = kept.get(reservation_id, [])
        there = [use for use in map(uses.get, keys) if use is not None]
        own = sum(use.project_id == project_id and not use.is_spot for use in there)
        spot = sum(use.is_spot for use in there)
        found[reservation_id] = KeptUse(len(keys), own, spot, len(there) - own - spot)
    return found


def _machines_on_kept(*columns: Any) -> Select[Any]:
    """Machines of hosts, each with every GPU of it that is kept."""
    of = reserved_gpus.c
    on_it = (host_machines.c.host_id == of.host_id) & (of.gpu_index == any_(host_machines.c.gpu_indices))
    return (
        select(*(columns or (host_machines.c.node_id,)))
        .distinct()
        .select_from(reserved_gpus)
        .join(reservations, reservations.c.id == of.reservation_id)
        .join(host_machines, on_it)
        .join(nodes, nodes.c.id == host_machines.c.node_id)
        .where(of.until_ms.is_(None), host_machines.c.ended_ms.is_(None))
    )
