"""What an agent says of its machine beside its runs: what is to be known of it, and that it is to end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from app.core.model.node import NodeState
from app.db.engine import Database
from app.db.lock_order import lock_nodes, tenants_of
from app.db.nodes.agents import NodeIdentity
from app.db.nodes.lifecycle import has_node_event
from app.db.runs.live_runs import live_runs_of_node
from app.db.text import storable_text
from app.db.transitions import Event, add_node_event, move_node
from app.ports.clock import IdSource
from app.services.moves.leave_machine import leave_machine
from app.services.nodes.judge_machine import MEASURED
from app.services.nodes.release_node import release_node

NOTICES = frozenset(
    {"node_runs_code_as_root", "node_refuses_code", "node_gpus_checked", "node_gpus_not_checked", MEASURED}
)
_LONGEST = 1_000


async def apply_machine_report(
    database: Database, ids: IdSource, node: NodeIdentity, host: Mapping[str, Any], *, now_ms: int
) -> None:
    """`notices` become events of the node, each kind once. With a `fault`, or when it is `draining`, the node takes no
    new run and ends with its last one. Hearing it again changes nothing."""
    for event in _notices(host):
        async with database.transaction() as connection:
            await lock_nodes(connection, [node.node_id], tenants_of, reach=False)
            if not await has_node_event(connection, node.node_id, event.kind):
                await add_node_event(connection, node.node_id, event, now_ms=now_ms)
    fault = host.get("fault")
    if isinstance(fault, str) and fault:
        why = f"its machine is at fault: {_text(fault)}"
        await _see_out(database, ids, node, Event("node_at_fault", why), asks=True, now_ms=now_ms)
    elif host.get("draining") is True:
        event = Event("node_draining", "its machine is being taken away")
        await _see_out(database, ids, node, event, asks=False, now_ms=now_ms)


async def _see_out(
    database: Database, ids: IdSource, node: NodeIdentity, event: Event, *, asks: bool, now_ms: int
) -> None:
    """No new run goes there, and its lease ends with the last one; what moves already goes on with its target. Not
    `asks`: its agent has asked its processes to save."""
    why = event.message
    async with database.transaction() as connection:
        await lock_nodes(connection, [node.node_id], tenants_of, reach=True)
        await move_node(connection, node.node_id, NodeState.DRAINING, event, now_ms=now_ms)
        await leave_machine(connection, ids, node.node_id, why, now_ms=now_ms, asks=asks)
        if not await live_runs_of_node(connection, node.node_id):
            await release_node(connection, ids, node.node_id, why, now_ms=now_ms)


def _notices(host: Mapping[str, Any]) -> Iterator[Event]:
    """What we know to be said; an agent is not free to fill a node's events."""
    told = host.get("notices")
    for notice in told if isinstance(told, list) else ():
        if isinstance(notice, dict) and notice.get("kind") in NOTICES and isinstance(notice.get("message"), str):
            yield Event(notice["kind"], _text(notice["message"]))


def _text(text: str) -> str:
    return storable_text(text[:_LONGEST])
