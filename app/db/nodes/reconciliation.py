"""What the comparison of a provider's listing with our rows writes. Nothing here makes a planned action stale."""

from __future__ import annotations

from sqlalchemy import func, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.node import NodeState
from app.db.nodes.operations import OperationKind, OperationState
from app.db.tables import nodes, provider_operations
from app.db.transitions import Event, add_node_event, move_node
from app.ports.provider import Machine


async def set_listed(connection: AsyncConnection, node_id: str, machine: Machine, *, ends_ms: int | None) -> None:
    """The node's machine is listed: it is not missing (any more), and the provider's own times are known.

    Where a provider does not tell since when a machine is billed, each process goes by its own first look: the earliest
    counts.
    """
    await connection.execute(
        update(nodes)
        .where(nodes.c.id == node_id)
        .values(
            missing_since_ms=None,
            billed_from_ms=func.least(machine.billed_from_ms, nodes.c.billed_from_ms),
            ends_ms=ends_ms,
        )
    )


async def set_missing(connection: AsyncConnection, node_id: str, *, now_ms: int) -> None:
    """The node's machine is not listed; the first time this is seen starts its clock."""
    missing_since = update(nodes).where(nodes.c.id == node_id, nodes.c.missing_since_ms.is_(None))
    if (await connection.execute(missing_since.values(missing_since_ms=now_ms))).rowcount:
        event = Event("node_missing", "its machine is not in the provider's listing")
        await add_node_event(connection, node_id, event, now_ms=now_ms)


async def adopt_machine(
    connection: AsyncConnection, node_id: str, machine: Machine, *, ends_ms: int | None, now_ms: int
) -> bool:
    """Take a listed machine as the node's own. The node is locked and has none yet.

    False while a worker holds the create operation: it finds the machine itself.
    """
    row = provider_operations.c
    finished = await connection.execute(
        update(provider_operations)
        .where(
            row.node_id == node_id,
            row.kind == OperationKind.CREATE,
            row.state == OperationState.PENDING,
            row.lease_until.is_(None) | (row.lease_until < func.clock_timestamp()),
        )
        .values(state=OperationState.DONE, ended_ms=now_ms, lease_token=None, lease_until=None)
    )
    if finished.rowcount == 0:
        return False
    columns = {
        "provider_ref": machine.ref,
        "billed_from_ms": machine.billed_from_ms,
        "price_micros_per_hour": machine.price_per_hour.micros,
        "ends_ms": ends_ms,
    }
    event = Event("node_booting", f"{machine.provider} lists {machine.ref} under its name", {"ref": machine.ref})
    if not await move_node(connection, node_id, NodeState.BOOTING, event, now_ms=now_ms, **columns):
        await connection.execute(update(nodes).where(nodes.c.id == node_id).values(**columns))
    return True
