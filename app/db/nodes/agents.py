"""Questions about the machine an agent runs on: who it is, when it last called, what version of its orders stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, case, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB, Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.machine_clock import behind_ms
from app.core.model.node import GONE_NODE_STATES, NodeState
from app.db.tables import allocations, node_heartbeats, nodes
from app.db.text import storable_json
from app.db.transitions import Event, move_node

SHUT_OUT = GONE_NODE_STATES | {NodeState.TERMINATING}
_HEARTBEAT_EVERY_MS = 1_000


def _heartbeat() -> Insert:
    statement = insert(node_heartbeats).values(
        node_id=bindparam("node_id"), at_ms=bindparam("at_ms"), report=bindparam("report", type_=JSONB)
    )
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[node_heartbeats.c.node_id],
        set_={"at_ms": func.greatest(node_heartbeats.c.at_ms, new.at_ms), "report": new.report},
        where=or_(
            node_heartbeats.c.at_ms <= new.at_ms - _HEARTBEAT_EVERY_MS,
            node_heartbeats.c.report.is_distinct_from(new.report),
        ),
    )


# Every agent asks these at every call: made once, since making a statement costs as much as running it.
_NODE_OF_TOKEN = select(nodes.c.id, nodes.c.project_id, nodes.c.state).where(
    nodes.c.token_sha256 == bindparam("token_sha256"), nodes.c.state.not_in(SHUT_OUT)
)
_ORDERS_OF = select(nodes.c.desired_version, nodes.c.state, nodes.c.token_sha256).where(
    nodes.c.id == bindparam("node_id")
)
_RECORD_HEARTBEAT = _heartbeat()


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The node that a token stands for."""

    node_id: str
    project_id: str
    state: NodeState


@dataclass(frozen=True, slots=True)
class Orders:
    """Which version of its orders stands for a node, and whether its agent is still to be let in."""

    version: int
    welcome: bool


async def node_of_token(connection: AsyncConnection, token_sha256: bytes) -> NodeIdentity | None:
    """Whose token this is; None when nobody's, or when its node is on its way out."""
    row = (await connection.execute(_NODE_OF_TOKEN, {"token_sha256": token_sha256})).one_or_none()
    return None if row is None else NodeIdentity(row.id, row.project_id, read_as(NodeState, row.state))


async def orders_of(connection: AsyncConnection, node_id: str) -> Orders:
    """Read before the orders themselves: what changes in between is then delivered twice, never missed."""
    row = (await connection.execute(_ORDERS_OF, {"node_id": node_id})).one()
    return Orders(row.desired_version, row.token_sha256 is not None and row.state not in SHUT_OUT)


async def outrun_agent(connection: AsyncConnection, node_id: str, seen: int) -> int:
    """Raise the version of a node's orders above the one that its agent has seen; the version that stands then."""
    raised = (
        update(nodes)
        .where(nodes.c.id == node_id)
        .values(desired_version=func.greatest(nodes.c.desired_version, seen + 1))
        .returning(nodes.c.desired_version)
    )
    version: int = (await connection.execute(raised)).scalar_one()
    return version


async def set_node_token(connection: AsyncConnection, node_id: str, token_sha256: bytes) -> None:
    """From now on its agent is known by this token alone."""
    await connection.execute(update(nodes).where(nodes.c.id == node_id).values(token_sha256=token_sha256))


async def set_heartbeat(connection: AsyncConnection, node_id: str, report: Mapping[str, Any], *, now_ms: int) -> None:
    """Note that the agent called. An unchanged report within a second of the last is not written again."""
    values = {"node_id": node_id, "at_ms": now_ms, "report": storable_json(dict(report))}
    await connection.execute(_RECORD_HEARTBEAT, values)


async def welcome_node(connection: AsyncConnection, node: NodeIdentity, *, now_ms: int) -> bool:
    """Its agent has called home, for the first time or after a silence: the node is ready.

    False when it was ready already. A node that holds no run is idle from now on.
    """
    back = node.state is NodeState.UNREACHABLE
    event = Event("node_back" if back else "node_ready", "its agent calls again" if back else "its agent called home")
    in_use = exists().where(allocations.c.node_id == node.node_id, allocations.c.to_ms.is_(None))
    return await move_node(
        connection,
        node.node_id,
        NodeState.READY,
        event,
        now_ms=now_ms,
        ready_ms=func.coalesce(nodes.c.ready_ms, now_ms),
        unreachable_since_ms=None,
        idle_since_ms=case((in_use, None), else_=func.coalesce(nodes.c.idle_since_ms, now_ms)),
    )


async def clock_behind_ms(connection: AsyncConnection, node_id: str) -> int:
    """By how much the clock of the node's machine is behind ours, from what it said when its agent last called."""
    last = select(node_heartbeats.c.at_ms, node_heartbeats.c.report["host"]["clock_ms"])
    row = (await connection.execute(last.where(node_heartbeats.c.node_id == node_id))).one_or_none()
    return 0 if row is None else behind_ms(row[0], row[1])


async def host_of(connection: AsyncConnection, node_id: str) -> Mapping[str, Any]:
    """What the node's agent said of its host, and of itself, when it last called."""
    report = select(node_heartbeats.c.report).where(node_heartbeats.c.node_id == node_id)
    found = (await connection.execute(report)).scalar_one_or_none()
    host = found.get("host") if isinstance(found, dict) else None
    return host if isinstance(host, dict) else {}
