"""A machine that is not what was rented is ended: its jobs go on elsewhere, and its host is remembered."""

from __future__ import annotations

from app.core.hosts import HostFailure
from app.db.connection import Connection
from app.db.nodes.host_failures import add_host_failure
from app.db.nodes.lifecycle import NodeRow
from app.db.transitions import Event, add_node_event
from app.ports.clock import IdSource
from app.services.moves.hand_jobs_on import hand_jobs_on
from app.services.nodes.release_node import release_node

UNFIT = "node_unfit"
NEVER_CAME = "node_never_came"  # it never called home, for as long as its company may take


async def give_machine_back(connection: Connection, ids: IdSource, row: NodeRow, why: str, *, now_ms: int) -> None:
    """`why`: what the machine does or has, as in "has 1 GPU". The node is locked."""
    message = f"the machine of {row.provider} {row.offer.offer_id} {why}"
    facts = {"offer": row.offer.key, "host": row.offer.host}
    await add_node_event(connection, row.node_id, Event(UNFIT, message, facts), now_ms=now_ms)
    await hand_jobs_on(connection, ids, row, message, now_ms=now_ms)
    if row.offer.host:
        failure = HostFailure(row.offer.host, row.provider_ref or row.node_id, now_ms)
        await add_host_failure(connection, row.provider, failure)
    await release_node(connection, ids, row.node_id, message, now_ms=now_ms)
