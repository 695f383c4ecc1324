"""A host says what is, and is told what should be."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace

from allpass.wire.hosts import HostMachineOrder, HostMachineReport, HostSyncReply, HostSyncRequest
from app.core.model.node import GONE_NODE_STATES, NodeState
from app.db.connection import Connection
from app.db.engine import Database
from app.db.nodes.lifecycle import read_node
from app.db.pools.hosts import HostRow, host_of_token, lock_host, set_heard, set_leaves, set_left
from app.db.pools.machines import HostMachine, live_machines, set_log_tail, set_over, set_started
from app.db.text import storable_text
from app.errors import Unauthenticated
from app.ports.clock import IdSource
from app.services.kit.seal import Sealer, Unsealable
from app.services.nodes.authenticate_node import shown_sha256
from app.services.nodes.lose_node import lose_node
from app.services.pools.drain_host import set_host_ends
from app.services.pools.join_host import facts_of, tell_offers
from app.services.pools.own_hosts import SEALED_FOR

LEAVE_WITHIN_MS = 1_200_000
_UNDERWAY_MS = 120_000  # longer than any call of a host may take
_DEAD = frozenset({*GONE_NODE_STATES, NodeState.TERMINATING})
log = logging.getLogger(__name__)


async def authenticate_host(connection: Connection, authorization: str | None) -> HostRow:
    """The host that calls. Raises Unauthenticated, also once it has left."""
    host = await host_of_token(connection, shown_sha256(authorization, "the host's token"))
    if host is None:
        raise Unauthenticated("this token is of no host that is in a pool: join again with `allpass node join`")
    return host


async def report_host(
    database: Database,
    ids: IdSource,
    authorization: str | None,
    request: HostSyncRequest,
    *,
    fault_budget: int,
    now_ms: int,
) -> str:
    """Take in what the host says; its id. Machines that are over take their nodes with them, each by itself."""
    async with database.transaction() as connection:
        called = await authenticate_host(connection, authorization)
        host = await lock_host(connection, called.host_id)
        assert host is not None  # no row of a host is ever deleted while its token counts
        facts = facts_of(request.facts)
        over = await _take_in(connection, host, request, now_ms=now_ms)
        await set_heard(connection, host.host_id, boot_id=request.boot_id, facts=facts, now_ms=now_ms)
        if request.leaving and host.leaves_ms is None:
            await set_leaves(connection, host.host_id, now_ms + LEAVE_WITHIN_MS)
            await set_host_ends(connection, replace(host, leaves_ms=now_ms + LEAVE_WITHIN_MS), now_ms=now_ms)
        if over or request.leaving or _changed(host.facts, facts) or _was_silent(host, now_ms):
            await tell_offers(connection, now_ms=now_ms)
    for node_id, why in over.items():
        await _lose(database, ids, node_id, why, fault_budget=fault_budget, now_ms=now_ms)
    return host.host_id


async def orders_of_host(connection: Connection, sealer: Sealer, host_id: str, *, now_ms: int) -> HostSyncReply:
    """What should be on the host. One that is to leave, and holds nothing any more, has left with this answer."""
    host = await lock_host(connection, host_id)
    if host is None or host.left_ms is not None:
        return HostSyncReply(version=0, machines=[], leaving=True, gone=True)
    machines = await live_machines(connection, host_id)
    gone = host.leaves_ms is not None and not machines
    if gone:
        await set_left(connection, host_id, now_ms=now_ms)
        await tell_offers(connection, now_ms=now_ms)
    orders = [order for one in machines if (order := _order(sealer, one)) is not None]
    return HostSyncReply(version=host.version, machines=orders, leaving=host.leaves_ms is not None, gone=gone)


async def _take_in(
    connection: Connection, host: HostRow, request: HostSyncRequest, *, now_ms: int
) -> Mapping[str, str]:
    """Nodes whose machines are over although nobody asked for that, with the reason."""
    said = {one.id: one for one in request.machines}
    over: dict[str, str] = {}
    for machine in await live_machines(connection, host.host_id):
        report = said.get(machine.machine_id)
        why = _why_over(host, machine, report, request.boot_id, now_ms)
        if report is not None and report.log:
            await set_log_tail(connection, machine.machine_id, storable_text(report.log))
        if why is not None:
            await set_over(connection, [machine.machine_id], storable_text(why), now_ms=now_ms)
            if machine.ending_ms is None:
                over[machine.node_id] = f"{host.name} of pool {host.pool}: {why}"
        elif report is not None and report.state == "running" and machine.started_ms is None:
            await set_started(connection, machine.machine_id, now_ms=now_ms)
    return over


def _why_over(
    host: HostRow, machine: HostMachine, report: HostMachineReport | None, boot_id: str, now_ms: int
) -> str | None:
    """Why the machine is over, in words; None while it is not, or is still to be started."""
    if report is not None:
        return (report.detail or "its agent has ended") if report.state == "ended" else None
    if machine.started_ms is None:
        return "it was never started" if machine.ending_ms is not None else None
    if boot_id != host.boot_id:
        return "the host was started anew"
    # A host's calls may overtake each other: one that was written before the machine began does not know of it.
    return "the host knows of it no more" if now_ms - machine.started_ms > _UNDERWAY_MS else None


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> bool:
    """Whether the host has something else to offer."""
    return any(before.get(name) != after.get(name) for name in ("cpus", "memory_bytes", "gpus", "unusable"))


def _was_silent(host: HostRow, now_ms: int) -> bool:
    return now_ms - host.heard_ms > LEAVE_WITHIN_MS // 20


def _order(sealer: Sealer, machine: HostMachine) -> HostMachineOrder | None:
    """None for one whose order cannot be opened: it is never started, and its node is given up in time."""
    environment: dict[str, str] | None = None
    if machine.started_ms is None and machine.ending_ms is None and machine.sealed_order is not None:
        try:
            order = sealer.open(SEALED_FOR, machine.machine_id, machine.sealed_order, machine.order_key_id or "")
        except Unsealable as error:
            log.error("%s cannot be started: %s", machine.machine_id, error)  # noqa: TRY400 - the error says it
            return None
        environment = json.loads(order)
    return HostMachineOrder(
        id=machine.machine_id,
        node_id=machine.node_id,
        gpu_indices=list(machine.gpu_indices),
        environment=environment,
        ends=machine.ending_ms is not None,
    )


async def _lose(database: Database, ids: IdSource, node_id: str, why: str, *, fault_budget: int, now_ms: int) -> None:
    """What ran there goes on elsewhere, at once and not when its silence is noticed."""
    async with database.transaction() as connection:
        node = await read_node(connection, node_id)
        if node is not None and node.state not in _DEAD:
            await lose_node(connection, ids, node_id, why, now_ms=now_ms, fault_budget=fault_budget)
