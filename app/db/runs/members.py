"""The runs of a job on several machines: one leads, and the others, its members, follow it (ADR 0100).

A member belongs to the job as the run that leads does, with an older epoch: it may read what the job's run reads, and
nothing that it writes counts. It is stopped and ended with the run that leads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, exists, func, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.gang_offers import GangNode
from app.core.model.node import GONE_NODE_STATES, NodeState
from app.core.model.run import RunState
from app.db import notify
from app.db.arrays import is_one_of
from app.db.runs.live_runs import close_allocations
from app.db.tables import allocations, job_events, node_heartbeats, nodes, runs
from app.db.transitions import bump_desired, move_member

JOINS_GANGS = "gang"  # as agents say it that can take part in a job on several machines
LEFT = "left"  # of an exit that was told: as a process ends that was asked to leave
SENDS_PARTS = "parts"  # and that send what each machine has written of a checkpoint


@dataclass(frozen=True, slots=True)
class GangRun:
    """A live run of a job on several machines. `lead_id`: of the one that leads. `meeting`: where it can be reached."""

    run_id: str
    lead_id: str
    rank: int
    node_id: str
    state: RunState
    is_prepared: bool
    meeting: Mapping[str, Any] | None
    network_bits_per_s: int | None = None  # between the first machine and this one
    exit_told: Any = None  # of a process that has failed: what it would mean by itself
    exit_told_ms: int = 0
    is_left: bool = False  # its machine is being taken away
    is_silent: bool = False  # nobody has heard of its machine for a while
    sends_parts: bool = False  # its agent sends what the machine has written of a checkpoint

    @property
    def has_left(self) -> bool:
        """Whether its process ended as one does that was asked to leave, though we have asked nobody."""
        return isinstance(self.exit_told, Mapping) and bool(self.exit_told.get(LEFT))


async def gang_of(connection: AsyncConnection, run_id: str) -> list[GangRun]:
    """All live runs of the gang that this run is one of, by rank; none where it is the only run of its job. A member
    whose process is over is not among them."""
    this = select(func.coalesce(runs.c.member_of, runs.c.id)).where(runs.c.id == run_id).scalar_subquery()
    rows = await connection.execute(
        select(
            *(runs.c.id, runs.c.member_of, runs.c.node_rank, runs.c.state, runs.c.prepared_ms, runs.c.meeting),
            *(
                runs.c.network_bits_per_s,
                runs.c.exit_told,
                runs.c.exit_told_ms,
                allocations.c.node_id,
                nodes.c.state.label("node_state"),
                node_heartbeats.c.report["host"]["reads"].label("reads"),
            ),
        )
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .outerjoin(node_heartbeats, node_heartbeats.c.node_id == nodes.c.id)
        .where(
            or_(runs.c.id == this, runs.c.member_of == this),
            runs.c.node_rank.is_not(None),
            runs.c.state != RunState.ENDED,
        )
        .order_by(runs.c.node_rank)
    )
    return [
        GangRun(
            run_id=row.id,
            lead_id=row.member_of or row.id,
            rank=row.node_rank,
            node_id=row.node_id,
            state=read_as(RunState, row.state),
            is_prepared=row.prepared_ms is not None,
            meeting=row.meeting,
            network_bits_per_s=row.network_bits_per_s,
            exit_told=row.exit_told,
            exit_told_ms=row.exit_told_ms or 0,
            is_left=row.node_state == NodeState.DRAINING,
            is_silent=row.node_state == NodeState.UNREACHABLE,
            sends_parts=isinstance(row.reads, list) and SENDS_PARTS in row.reads,
        )
        for row in rows
    ]


async def gang_size(connection: AsyncConnection, lead_id: str) -> int:
    """How many runs the gang began with."""
    found = await connection.execute(
        select(func.count()).where(or_(runs.c.id == lead_id, runs.c.member_of == lead_id)).select_from(runs)
    )
    return int(found.scalar_one())


async def seat_of(connection: AsyncConnection, run_id: str) -> tuple[str, int] | None:
    """The run that leads, and which machine this run is on; None for the only run of its job."""
    rows = await connection.execute(select(runs.c.member_of, runs.c.node_rank).where(runs.c.id == run_id))
    row = rows.one_or_none()
    return None if row is None or row.node_rank is None else (row.member_of or run_id, row.node_rank)


async def set_prepared(
    connection: AsyncConnection, run_id: str, *, network_bits_per_s: int | None = None, now_ms: int
) -> None:
    """Its agent has all that its code needs, and waits to be told to begin. `network_bits_per_s`: as it was measured
    between the first machine and this one."""
    values = {"prepared_ms": now_ms, "network_bits_per_s": network_bits_per_s}
    await connection.execute(update(runs).where(runs.c.id == run_id, runs.c.prepared_ms.is_(None)).values(**values))


async def set_meeting(connection: AsyncConnection, run_id: str, meeting: Mapping[str, Any]) -> None:
    """Where the machine of the run that leads can be reached by the others."""
    await connection.execute(update(runs).where(runs.c.id == run_id).values(meeting=dict(meeting)))


async def set_exit_told(connection: AsyncConnection, run_id: str, told: Mapping[str, Any], *, now_ms: int) -> None:
    """Its process has failed; what that means is for the ends of the others to say."""
    await connection.execute(update(runs).where(runs.c.id == run_id).values(exit_told=dict(told), exit_told_ms=now_ms))


async def has_told_exit(connection: AsyncConnection, run_id: str) -> bool:
    found = await connection.execute(select(runs.c.exit_told.is_not(None)).where(runs.c.id == run_id))
    return bool(found.scalar_one())


async def unsettled_gangs(connection: AsyncConnection, *, before_ms: int) -> list[str]:
    """Runs, by id, whose process failed before that moment, and whose others have not said their end."""
    rows = await connection.execute(
        select(runs.c.id)
        .where(runs.c.exit_told.is_not(None), runs.c.state != RunState.ENDED, runs.c.exit_told_ms < before_ms)
        .order_by(runs.c.id)
    )
    return list(rows.scalars())


async def wake_gang(connection: AsyncConnection, gang: Collection[GangRun]) -> None:
    """What their agents should do has changed."""
    for one in sorted(gang, key=lambda one: one.node_id):
        await bump_desired(connection, one.node_id)


async def begin_member(connection: AsyncConnection, run_id: str, to: RunState, *, now_ms: int) -> bool:
    """Its agent prepares, or its code runs. What its job does is said by the run that leads."""
    times: dict[str, Any] = {"starting_ms": func.coalesce(runs.c.starting_ms, now_ms)}
    if to is RunState.RUNNING:
        times["running_ms"] = literal(now_ms, BigInteger)
    return await move_member(connection, run_id, to, **times)


async def close_member(connection: AsyncConnection, run_id: str, node_id: str, *, now_ms: int, **columns: Any) -> None:
    """A member is over. Its end is no event of its own: that of the run that leads is told."""
    await move_member(connection, run_id, RunState.ENDED, ended_ms=now_ms, **columns)
    await close_allocations(connection, run_id, now_ms=now_ms)
    await bump_desired(connection, node_id)
    await notify.control(connection)


async def set_stops_together(connection: AsyncConnection, run_id: str) -> None:
    """The code of this run, which leads, says that all processes of its job stop after the same step."""
    await connection.execute(
        update(runs)
        .where(runs.c.id == run_id, runs.c.state != RunState.ENDED, runs.c.stops_together.is_(False))
        .values(stops_together=True)
    )


async def gang_nodes(connection: AsyncConnection, job_ids: Collection[str]) -> list[GangNode]:
    """The machines that were rented for these jobs and are there or coming, by id. With the run of each that leads,
    where its code says that all stop together."""
    if not job_ids:
        return []
    reads = node_heartbeats.c.report["host"]["reads"]
    leads = (
        select(runs.c.id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .where(
            allocations.c.node_id == nodes.c.id,
            runs.c.state != RunState.ENDED,
            runs.c.node_rank == 0,
            runs.c.stops_together,
        )
        .limit(1)
    )
    rows = await connection.execute(
        select(
            *(nodes.c.id, nodes.c.rented_for_job_id, nodes.c.host),
            *(reads.label("reads"), leads.scalar_subquery().label("leads")),
        )
        .outerjoin(node_heartbeats, node_heartbeats.c.node_id == nodes.c.id)
        .where(is_one_of(nodes.c.rented_for_job_id, sorted(job_ids)), nodes.c.state.not_in(GONE_NODE_STATES))
        .order_by(nodes.c.id)
    )
    return [
        GangNode(
            *(row.id, row.rented_for_job_id, row.host),
            joins=isinstance(row.reads, list) and JOINS_GANGS in row.reads,
            leads=row.leads or "",
        )
        for row in rows
    ]


async def rented_together(connection: AsyncConnection, node_ids: Collection[str]) -> dict[str, str]:
    """Which of these machines were rented so that a job is on several, and for which job: no policy did."""
    of = job_events.c
    told = exists().where(
        of.job_id == nodes.c.rented_for_job_id, of.kind == "node_rented", of.data["node_ids"].has_key(nodes.c.id)
    )
    rows = await connection.execute(
        select(nodes.c.id, nodes.c.rented_for_job_id).where(is_one_of(nodes.c.id, node_ids), told)
    )
    return {row.id: row.rented_for_job_id for row in rows}
