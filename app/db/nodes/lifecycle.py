"""Rows of nodes on their way up and down: what chores and operation workers read and write of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, any_, case, exists, func, literal, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.foreign import read_as
from app.core.model.job import TERMINAL_JOB_STATES
from app.core.model.money import Money
from app.core.model.node import GONE_NODE_STATES, NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.run import RunState, StopMode
from app.db import notify
from app.db.arrays import is_one_of
from app.db.foreign import reads_as_one_of
from app.db.graces import own_grace_ms
from app.db.lock_order import lock_nodes, tenants_of
from app.db.nodes.operations import OperationKind, OperationState
from app.db.tables import (
    allocations,
    jobs,
    node_events,
    node_heartbeats,
    nodes,
    provider_operations,
    runs,
)
from app.db.unreadable import RowReading

CREATE_CALLED = "node_create_called"

_AT_WORK = (NodeState.READY, NodeState.UNREACHABLE)
_ON_THE_WAY_OUT = (NodeState.TERMINATING, NodeState.TERMINATED, NodeState.FAILED)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as chores see it. `heartbeat_ms` None: its agent has never called home.

    It is looked after and ended whatever was agreed: `offer_known` False says that the offer cannot be read, and was
    put together from the row's other columns.
    """

    node_id: str
    project_id: str
    provider: str
    tier: Tier
    state: NodeState
    provider_ref: str | None
    offer: Offer
    offer_known: bool
    image: str
    rented_for_job_id: str | None
    token_sha256: bytes | None
    requested_ms: int
    startup_deadline_ms: int
    unreachable_since_ms: int | None
    missing_since_ms: int | None
    ready_ms: int | None
    billed_from_ms: int | None
    billed_to_ms: int | None
    heartbeat_ms: int | None
    ended_ms: int | None
    end_message: str | None
    ends_ms: int | None
    orphan: bool


@dataclass(frozen=True, slots=True)
class StoppingRun:
    """A run that was asked to stop and has not reported its exit. `grace_ms`: what it has to leave in."""

    run_id: str
    node_id: str
    stop_mode: StopMode
    stop_asked_ms: int
    grace_ms: int


async def read_node(connection: AsyncConnection, node_id: str) -> NodeRow | None:
    """One node, without a lock."""
    rows = await connection.execute(_select_nodes().where(nodes.c.id == node_id))
    row = rows.one_or_none()
    return None if row is None else _node_row(row)


async def nodes_in(
    connection: AsyncConnection, states: Collection[NodeState], *, provider: str | None = None
) -> list[NodeRow]:
    """Nodes in these states, by id."""
    statement = _select_nodes().where(reads_as_one_of(nodes.c.state, NodeState, states)).order_by(nodes.c.id)
    if provider is not None:
        statement = statement.where(nodes.c.provider == provider)
    return [_node_row(row) for row in await connection.execute(statement)]


async def nodes_named(connection: AsyncConnection, node_ids: Collection[str]) -> dict[str, NodeRow]:
    """Nodes with these ids, gone ones too."""
    if not node_ids:
        return {}
    rows = await connection.execute(_select_nodes().where(is_one_of(nodes.c.id, node_ids)))
    return {row.id: _node_row(row) for row in rows}


async def nodes_of_machines(connection: AsyncConnection, provider: str, refs: Collection[str]) -> dict[str, NodeRow]:
    """By the provider's reference, whose machines these are: the node that is not gone, else the newest one."""
    if not refs:
        return {}
    mine = (nodes.c.provider == provider, is_one_of(nodes.c.provider_ref, refs))
    gone = nodes.c.state.in_(GONE_NODE_STATES)
    rows = await connection.execute(_select_nodes().where(*mine).order_by(gone.desc(), nodes.c.id))
    return {row.provider_ref: _node_row(row) for row in rows}


async def lock_node(connection: AsyncConnection, node_id: str) -> NodeRow | None:
    """Lock a node, and before it the jobs that live on it or that it was rented for, with their reach; and read it."""
    await lock_nodes(connection, [node_id], tenants_of, reach=True)
    return await read_node(connection, node_id)


async def last_create_call_ms(connection: AsyncConnection, node_id: str) -> int | None:
    """When the provider was last asked for this machine; None: never, so that no machine can exist."""
    called: int | None = (
        await connection.execute(
            select(func.max(node_events.c.at_ms)).where(
                node_events.c.node_id == node_id, node_events.c.kind == CREATE_CALLED
            )
        )
    ).scalar_one()
    return called


async def has_node_event(connection: AsyncConnection, node_id: str, kind: str) -> bool:
    """Whether that has happened to the node. The caller holds its lock, if it means to note it."""
    found = exists().where(node_events.c.node_id == node_id, node_events.c.kind == kind)
    return bool((await connection.execute(select(found))).scalar_one())


async def set_node(connection: AsyncConnection, node_id: str, **columns: Any) -> None:
    """Write columns that no decision depends on: the row version stays."""
    await connection.execute(update(nodes).where(nodes.c.id == node_id).values(**columns))


async def set_lost(connection: AsyncConnection, node_id: str, *, now_ms: int) -> None:
    """The machine of a node that was at work has failed; one on its way out says nothing about its like."""
    at_work = is_one_of(nodes.c.state, _AT_WORK)
    await connection.execute(update(nodes).where(nodes.c.id == node_id, at_work).values(lost_ms=now_ms))


async def avoid_offer_for(
    connection: AsyncConnection, job_id: str, offer_key: str, *, not_before_ms: int, in_passing: bool = False
) -> None:
    """The job rather takes another offer next, and not before then; so does one that trains on meanwhile.
    `in_passing`: one that is like it, or else the same again."""
    column = jobs.c.unreached_offers if in_passing else jobs.c.avoided_offers
    known = literal(offer_key) == any_(column)
    await connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id, jobs.c.state.not_in(TERMINAL_JOB_STATES))
        .values(
            {
                column: case((known, column), else_=func.array_append(column, offer_key)),
                jobs.c.not_before_ms: func.greatest(jobs.c.not_before_ms, not_before_ms),
                jobs.c.row_version: jobs.c.row_version + 1,
            }
        )
    )
    await notify.control(connection)


async def has_avoided(connection: AsyncConnection, job_ids: Collection[str], offer_key: str) -> bool:
    """Whether this offer has already failed one of these jobs."""
    failed = or_(*(literal(offer_key) == any_(one) for one in (jobs.c.avoided_offers, jobs.c.unreached_offers)))
    statement = select(func.count()).where(is_one_of(jobs.c.id, job_ids), failed)
    count: int = (await connection.execute(statement)).scalar_one()
    return count > 0


async def is_over(connection: AsyncConnection, job_id: str) -> bool:
    """Whether the job has ended, or is not known."""
    unfinished = select(func.count()).where(jobs.c.id == job_id, jobs.c.state.not_in(TERMINAL_JOB_STATES))
    return not (await connection.execute(unfinished)).scalar_one()


async def any_ran(connection: AsyncConnection, job_ids: Collection[str]) -> bool:
    """Whether user code of one of these jobs has ever run."""
    statement = select(func.count()).where(is_one_of(jobs.c.id, job_ids), jobs.c.first_running_ms.is_not(None))
    count: int = (await connection.execute(statement)).scalar_one()
    return count > 0


async def unowned_serverless(connection: AsyncConnection) -> list[str]:
    """Serverless nodes that hold no run and are not on their way out: they die with their run."""
    held = exists().where(allocations.c.node_id == nodes.c.id, allocations.c.to_ms.is_(None))
    rows = await connection.execute(
        select(nodes.c.id)
        .where(nodes.c.tier == Tier.SERVERLESS, nodes.c.state.not_in(_ON_THE_WAY_OUT), ~held)
        .order_by(nodes.c.id)
    )
    return list(rows.scalars())


async def terminating_without_operation(connection: AsyncConnection) -> list[tuple[str, str]]:
    """(node, provider) of nodes that are to end with nobody to see to it."""
    seen_to = exists().where(
        provider_operations.c.node_id == nodes.c.id,
        provider_operations.c.kind == OperationKind.TERMINATE,
        provider_operations.c.state == OperationState.PENDING,
    )
    rows = await connection.execute(
        select(nodes.c.id, nodes.c.provider)
        .where(nodes.c.state == NodeState.TERMINATING, ~seen_to)
        .order_by(nodes.c.id)
    )
    return [(row.id, row.provider) for row in rows]


async def stopping_runs(connection: AsyncConnection, *, now_ms: int, usual_grace_ms: int) -> list[StoppingRun]:
    """Runs whose time to leave in is over, by id."""
    grace = func.coalesce(own_grace_ms(), usual_grace_ms)
    rows = await connection.execute(
        select(runs.c.id, allocations.c.node_id, runs.c.stop_mode, runs.c.stop_asked_ms, grace.label("grace_ms"))
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(runs.c.state == RunState.STOPPING, runs.c.stop_asked_ms + grace < now_ms)
        .order_by(runs.c.id)
    )
    known = {mode.value: mode for mode in StopMode}  # any other one is given the time that saving takes
    return [
        StoppingRun(row.id, row.node_id, known.get(row.stop_mode, StopMode.CHECKPOINT), row.stop_asked_ms, row.grace_ms)
        for row in rows
    ]


def _select_nodes() -> Any:
    return select(nodes, node_heartbeats.c.at_ms.label("heartbeat_ms")).outerjoin(
        node_heartbeats, node_heartbeats.c.node_id == nodes.c.id
    )


def _node_row(row: Row[Any]) -> NodeRow:
    """Where the agreed offer cannot be read, the node's own columns have to do."""
    tier = read_as(Tier, row.tier)
    offer = RowReading().of(nodes.name, row.id, lambda: codec.decode_row(Offer, row.offer))
    return NodeRow(
        node_id=row.id,
        project_id=row.project_id,
        provider=row.provider,
        tier=tier,
        state=read_as(NodeState, row.state),
        provider_ref=row.provider_ref,
        offer=_offer_of(row, tier) if offer is None else offer,
        offer_known=offer is not None,
        image=row.image,
        rented_for_job_id=row.rented_for_job_id,
        token_sha256=row.token_sha256,
        requested_ms=row.requested_ms,
        startup_deadline_ms=row.startup_deadline_ms,
        unreachable_since_ms=row.unreachable_since_ms,
        missing_since_ms=row.missing_since_ms,
        ready_ms=row.ready_ms,
        billed_from_ms=row.billed_from_ms,
        billed_to_ms=row.billed_to_ms,
        heartbeat_ms=row.heartbeat_ms,
        ended_ms=row.ended_ms,
        end_message=row.end_message,
        ends_ms=row.ends_ms,
        orphan=row.orphan,
    )


def _offer_of(row: Row[Any], tier: Tier) -> Offer:
    """What the node's own columns tell of the offer. Its id names the node: it is no offer that anybody else has."""
    return Offer(
        provider=row.provider,
        offer_id=row.id,
        tier=tier,
        gpu_type=row.gpu_type,
        gpu_count=row.gpu_count,
        gpu_memory_bytes=row.gpu_memory_bytes,
        cpus=row.cpus,
        memory_bytes=row.memory_bytes,
        price_per_hour=Money(row.price_micros_per_hour),
        startup_ms=max(0, row.expected_ready_ms - row.requested_ms),
        region=row.region,
        host=row.host,
    )
