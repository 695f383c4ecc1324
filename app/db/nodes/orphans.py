"""Machines of nobody: taken in as nodes that are to end, so that they end like any other and are paid for."""

from __future__ import annotations

from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.model.node import BillingRule, BillingStart, NodeState, ProviderTraits
from app.core.model.offer import Offer
from app.db.tables import nodes, projects
from app.ports.provider import Machine

_UNKNOWN_GPU = "unknown"


async def paying_project(connection: AsyncConnection, label: str | None) -> str | None:
    """The project of the node that the machine is labelled with, else the oldest one; None without any project."""
    of_node = select(nodes.c.project_id).where(nodes.c.id == (label or ""))
    known: str | None = (await connection.execute(of_node)).scalar_one_or_none()
    if known is not None:
        return known
    oldest = select(projects.c.id).order_by(projects.c.created_ms, projects.c.id).limit(1)
    return (await connection.execute(oldest)).scalar_one_or_none()


async def add_orphan(
    connection: AsyncConnection,
    node_id: str,
    project_id: str,
    machine: Machine,
    traits: ProviderTraits | None,
    *,
    now_ms: int,
) -> bool:
    """A node's row for this machine; False when a node has it already.

    Where an earlier node had the machine, its meter goes on from what was paid for it then.
    """
    billing = BillingRule(1_000, BillingStart.READY) if traits is None else traits.billing
    price = machine.price_per_hour
    offer = Offer(machine.provider, machine.ref, machine.tier, _UNKNOWN_GPU, 1, 0, 0, 0, price, 0)
    earlier = await _read_so_far(connection, machine)
    new = insert(nodes).values(
        id=node_id,
        project_id=project_id,
        provider=machine.provider,
        tier=machine.tier,
        provider_ref=machine.ref,
        offer=codec.encode(offer),
        gpu_type=_UNKNOWN_GPU,
        gpu_count=1,
        gpu_memory_bytes=0,
        cpus=0,
        memory_bytes=0,
        region="",
        host="",
        image="",
        price_micros_per_hour=price.micros,
        billing_unit_ms=billing.unit_ms,
        billing_starts=billing.starts,
        billing_minimum_ms=billing.minimum_ms,
        state=NodeState.REQUESTED,
        orphan=True,
        requested_ms=now_ms,
        expected_ready_ms=now_ms,
        startup_deadline_ms=now_ms,
        billed_from_ms=machine.billed_from_ms,
        **earlier,
    )
    unless_owned = new.on_conflict_do_nothing(
        index_elements=[nodes.c.provider, nodes.c.provider_ref],
        index_where=text("provider_ref IS NOT NULL AND state NOT IN ('terminated','failed')"),
    )
    return bool((await connection.execute(unless_owned)).rowcount)


async def _read_so_far(connection: AsyncConnection, machine: Machine) -> dict[str, int | None]:
    row = (
        await connection.execute(
            select(nodes.c.metered_until_ms, nodes.c.metered_micros)
            .where(nodes.c.provider == machine.provider, nodes.c.provider_ref == machine.ref)
            .order_by(nodes.c.id.desc())
            .limit(1)
        )
    ).one_or_none()
    return {} if row is None else {"metered_until_ms": row.metered_until_ms, "metered_micros": row.metered_micros}
