"""End a node's lease: it takes no new run, and the provider is asked to end the machine."""

from __future__ import annotations

from app.core.model.node import NodeState
from app.db.connection import Connection
from app.db.nodes.operations import OperationKind, add_operation
from app.db.nodes.tenure import clear_token, node_provider
from app.db.transitions import Event, move_node
from app.ports.clock import IdSource


async def release_node(connection: Connection, ids: IdSource, node_id: str, reason: str, *, now_ms: int) -> bool:
    """Take a node that holds no run to `terminating`, with the operation that makes it true.

    False when it is already on its way out. From `failed` too: a machine that the provider still lists is ended
    properly.
    """
    event = Event("node_terminating", reason)
    if not await move_node(connection, node_id, NodeState.TERMINATING, event, now_ms=now_ms, end_message=reason):
        return False
    await clear_token(connection, node_id)
    provider = await node_provider(connection, node_id)
    await add_operation(connection, ids.new("op"), node_id, provider, OperationKind.TERMINATE, now_ms=now_ms)
    return True
