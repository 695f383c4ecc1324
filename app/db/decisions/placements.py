"""Rows that give jobs a place: machines to be rented, runs on their GPUs. Many of a kind in one statement.

Callers hold the locks of the jobs and nodes, in a transaction that has checked the leader's term.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ARRAY, Column, Integer, Text, cast, func, insert, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.model.node import NodeState, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.run import RunPurpose, RunState
from app.db import notify
from app.db.arrays import as_rows, insert_rows
from app.db.nodes.operations import OperationKind, OperationState
from app.db.tables import allocations, node_events, nodes, provider_operations, run_jobs, runs
from app.db.transitions import Event


@dataclass(frozen=True, slots=True)
class NewNode:
    """A machine to be rented: its row, the operation that makes it true, and the event that says why. `job_id`: who it
    is for (None: jobs to come); `key_id`: who submitted that. Its id is the label under which its provider will know
    the machine."""

    node_id: str
    operation_id: str
    project_id: str
    job_id: str | None
    key_id: str | None
    offer: Offer
    traits: ProviderTraits
    image: str
    event: Event


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run of one job, holding that epoch and these GPUs. `companion_of`: the run whose process it shares, and whose
    GPUs these are. `layout`: how it is to be laid out on them, where its job states its training. `node_rank`: of a
    job on several machines, whose run on each follows that which leads (`member_of`)."""

    run_id: str
    allocation_id: str
    project_id: str
    job_id: str
    epoch: int
    node_id: str
    tier: Tier
    gpu_indices: Sequence[int]
    state: RunState = RunState.ASSIGNED
    companion_of: str | None = None
    purpose: RunPurpose = RunPurpose.TRAIN
    layout: Mapping[str, Any] | None = None
    member_of: str | None = None
    node_rank: int | None = None


async def add_nodes(connection: AsyncConnection, new: Sequence[NewNode], *, now_ms: int) -> None:
    """Nodes that are `requested`, each with its first event, and the intents to create their machines."""
    if not new:
        return
    await connection.execute(insert_rows(nodes, [_node_row(one, now_ms) for one in new]))
    await connection.execute(insert_rows(node_events, [_event_row(one, now_ms) for one in new]))
    await connection.execute(insert_rows(provider_operations, [_operation_row(one, now_ms) for one in new]))
    await notify.operations(connection)


async def add_runs(connection: AsyncConnection, new: Sequence[NewRun], *, now_ms: int) -> None:
    """Runs with what they hold. A run comes after the one whose process it shares, or with it."""
    if not new:
        return
    await connection.execute(_insert_runs(new, now_ms))
    held = [{"run_id": one.run_id, "job_id": one.job_id, "epoch": one.epoch} for one in new]
    await connection.execute(insert_rows(run_jobs, held))
    await connection.execute(_insert_allocations(new, now_ms))


async def occupy_nodes(connection: AsyncConnection, node_ids: Collection[str]) -> None:
    """Nodes that are given runs, each as often as it is named here, are not idle: what was decided while they were is
    stale, and what their agents should do has changed."""
    if not node_ids:
        return
    times = [(node_id, sum(1 for one in node_ids if one == node_id)) for node_id in sorted(set(node_ids))]
    given = as_rows("given", (nodes.c.id, nodes.c.row_version), times)
    await connection.execute(
        update(nodes)
        .where(nodes.c.id == given.c.id)
        .values(
            idle_since_ms=None,
            row_version=nodes.c.row_version + given.c.row_version,
            desired_version=nodes.c.desired_version + given.c.row_version,
        )
        .returning(func.pg_notify(notify.NODE, nodes.c.id))
    )


def _node_row(new: NewNode, now_ms: int) -> dict[str, Any]:
    offer, traits = new.offer, new.traits
    return {
        "id": new.node_id,
        "project_id": new.project_id,
        "provider": offer.provider,
        "tier": offer.tier,
        "offer": codec.encode(offer),
        "gpu_type": offer.gpu_type,
        "gpu_count": offer.gpu_count,
        "gpu_memory_bytes": offer.gpu_memory_bytes,
        "cpus": offer.cpus,
        "memory_bytes": offer.memory_bytes,
        "region": offer.region,
        "host": offer.host,
        "image": new.image,
        "price_micros_per_hour": offer.price_per_hour.micros,
        "billing_unit_ms": traits.billing.unit_ms,
        "billing_starts": traits.billing.starts,
        "billing_minimum_ms": traits.billing.minimum_ms,
        "state": NodeState.REQUESTED,
        "rented_for_job_id": new.job_id,
        "requested_ms": now_ms,
        "expected_ready_ms": now_ms + offer.startup_ms,
        "startup_deadline_ms": now_ms + traits.startup_deadline_ms,
        "event_position": 1,
    }


def _event_row(new: NewNode, now_ms: int) -> dict[str, Any]:
    event = new.event
    told = {"kind": event.kind, "message": event.message, "data": dict(event.data)}
    return {"node_id": new.node_id, "position": 1, "at_ms": now_ms, **told}


def _operation_row(new: NewNode, now_ms: int) -> dict[str, Any]:
    return {
        "id": new.operation_id,
        "node_id": new.node_id,
        "project_id": new.project_id,
        "provider": new.offer.provider,
        "kind": OperationKind.CREATE,
        "state": OperationState.PENDING,
        "not_before_ms": now_ms,
        "created_ms": now_ms,
    }


def _insert_runs(new: Sequence[NewRun], now_ms: int) -> Any:
    """A run without a layout has none: NULL, and not the null of JSON."""
    of = runs.c
    columns = (
        *(of.id, of.project_id, of.tier, of.state, of.created_ms, of.companion_of, of.purpose),
        *(of.member_of, of.node_rank),
    )
    rows = [
        (
            *(one.run_id, one.project_id, one.tier, one.state, now_ms, one.companion_of, one.purpose),
            *(one.member_of, one.node_rank, one.layout),
        )
        for one in new
    ]
    given = as_rows("given", (*columns, Column("layout", JSONB(none_as_null=True))), rows)
    return insert(runs).from_select([column.key for column in given.c], select(*given.c))


def _insert_allocations(new: Sequence[NewRun], now_ms: int) -> Any:
    """Arrays of unlike lengths make no array of arrays: each travels as its text."""
    of = allocations.c
    rows = [(one.allocation_id, one.run_id, one.node_id, now_ms, _as_text(one.gpu_indices)) for one in new]
    given = as_rows("given", (of.id, of.run_id, of.node_id, of.from_ms, Column("gpu_indices", Text)), rows)
    held = (given.c.id, given.c.run_id, given.c.node_id, given.c.from_ms, cast(given.c.gpu_indices, ARRAY(Integer)))
    return insert(allocations).from_select(["id", "run_id", "node_id", "from_ms", "gpu_indices"], select(*held))


def _as_text(numbers: Sequence[int]) -> str:
    """An array as PostgreSQL reads it."""
    return "{" + ",".join(map(str, numbers)) + "}"
