"""Compare every provider's listing with our rows, both ways: no machine without an owner, no row without a machine.

Other installations may rent from the same account. A machine is ours if our rows know it or its label has our mark; any
other is left alone, whatever it costs, and told.

A listing that fails changes nothing. What a listing seems to say is checked against the row as it is now, under a
lock, before anything is done about it.
"""

from __future__ import annotations

import sys

from app.control.context import ControlContext, as_ms
from app.control.each import each, each_by_itself
from app.control.orphans import take_in
from app.core.model.health import Chore
from app.core.model.ids import is_marked
from app.core.model.node import GONE_NODE_STATES, NodeState
from app.db.access.installation import installation_id
from app.db.connection import Connection
from app.db.nodes.lifecycle import (
    NodeRow,
    lock_node,
    nodes_in,
    nodes_named,
    nodes_of_machines,
    read_node,
    set_node,
    terminating_without_operation,
)
from app.db.nodes.operations import OperationKind, add_operation
from app.db.nodes.reconciliation import adopt_machine, set_listed, set_missing
from app.db.transitions import Event, add_node_event
from app.ports.provider import Machine, MachineStatus, Provider
from app.services.moves.hand_jobs_on import hand_jobs_on
from app.services.nodes.lose_node import lose_node
from app.services.nodes.release_node import release_node

_END_ROUNDED_MS = 60_000
# Nodes whose machine has to be in the listing.
_LISTED = (NodeState.BOOTING, NodeState.READY, NodeState.UNREACHABLE, NodeState.DRAINING)


async def sweep(context: ControlContext) -> None:
    """One comparison with every provider that answers."""
    await _see_to_terminating(context)

    async def compare(name: str) -> None:
        await _sweep_provider(context, context.providers[name])

    await each_by_itself(context, Chore.SWEEP, sorted(context.providers), compare, named="the listing of {}".format)


async def _sweep_provider(context: ControlContext, provider: Provider) -> None:
    async with context.database.transaction() as connection:
        expected = await nodes_in(connection, _LISTED, provider=provider.name)
    listing = await context.ask(provider.list_owned())
    living = [machine for machine in listing if machine.status is not MachineStatus.ENDED]
    alive = {machine.ref for machine in living}
    labels = {machine.label for machine in living if machine.label is not None}
    async with context.database.transaction() as connection:
        named = await nodes_named(connection, labels)
        known = await nodes_of_machines(connection, provider.name, alive)
        own = await installation_id(connection)
    owners = {machine.ref: known.get(machine.ref) or named.get(machine.label or "") for machine in living}
    ours, others = [], {}
    for machine in living:
        if owners[machine.ref] is not None or is_marked(machine.label, own):
            ours.append(machine)
        else:
            others[machine.ref] = machine.label
    context.strangers.tell(provider.name, others)

    async def place(machine: Machine) -> None:
        await _place(context, provider, machine, owners[machine.ref])

    async def missing(node: NodeRow) -> None:
        if node.provider_ref is not None and node.provider_ref not in alive:
            await _missing(context, provider, node)

    await each_by_itself(context, Chore.SWEEP, sorted(ours, key=_oldest_first), place, named=lambda each: each.ref)
    await each_by_itself(context, Chore.SWEEP, expected, missing, named=lambda node: f"{node.node_id}, not listed,")


async def _place(context: ControlContext, provider: Provider, machine: Machine, owner: NodeRow | None) -> None:
    """A living machine is its node's own, or is adopted, or is ended. It is known by its reference, and by its label
    while its node knows none: a listing may show a machine without its label."""
    if owner is None or owner.provider != provider.name:
        await _end_orphan(context, provider, machine)
    elif owner.provider_ref not in (None, machine.ref):
        await _end_orphan(context, provider, machine)  # a second machine of one node
    elif owner.state in GONE_NODE_STATES:
        await _end_late(context, machine, owner)
    elif owner.state is NodeState.TERMINATING:
        async with context.led() as connection:
            await _reissue_end(connection, context, owner.node_id)
    elif owner.state is NodeState.BOOTING and machine.status is MachineStatus.STOPPED:
        await _came_to_nothing(context, machine, owner)
    else:
        await _keep(context, machine, owner)


async def _keep(context: ControlContext, machine: Machine, owner: NodeRow) -> None:
    ends_ms = context.ends_ms(machine)
    news = (
        owner.missing_since_ms is not None
        or (machine.billed_from_ms is not None and machine.billed_from_ms < (owner.billed_from_ms or sys.maxsize))
        or _differs(owner.ends_ms, ends_ms)
    )
    if owner.provider_ref is not None and not news:
        return
    async with context.database.transaction() as connection:
        node = await _still(context, connection, owner.node_id)
        if node is None or node.state in GONE_NODE_STATES:
            return
        if node.provider_ref is None:
            await adopt_machine(connection, node.node_id, machine, ends_ms=ends_ms, now_ms=context.clock.now_ms())
        elif node.provider_ref == machine.ref:
            await set_listed(connection, node.node_id, machine, ends_ms=ends_ms)


async def _came_to_nothing(context: ControlContext, machine: Machine, owner: NodeRow) -> None:
    """It stopped before its agent called: its jobs take the next offer, without waiting for its deadline."""
    now_ms = context.clock.now_ms()
    async with context.database.transaction() as connection:
        node = await _still(context, connection, owner.node_id)
        if node is None or node.state is not NodeState.BOOTING or node.heartbeat_ms is not None:
            return
        if node.provider_ref == machine.ref:
            message = f"{node.provider} {node.offer.offer_id} did not come up: {machine.detail}"
            await hand_jobs_on(connection, context.ids, node, message, now_ms=now_ms)
            await release_node(connection, context.ids, node.node_id, message, now_ms=now_ms)


async def _end_orphan(context: ControlContext, provider: Provider, machine: Machine) -> None:
    """We have rented it, and no node has it. A young one is left alone: its row, or its create call's answer, may be on
    the way."""
    if not _is_old(context, machine):
        return
    async with context.led() as connection:
        if not await _is_of_nobody(connection, context, provider, machine):
            return
        is_second = machine.label is not None and await read_node(connection, machine.label) is not None
        why = "a second machine of this node" if is_second else "it belongs to nobody"
        await take_in(connection, context, machine, why)


async def _is_of_nobody(connection: Connection, context: ControlContext, provider: Provider, machine: Machine) -> bool:
    """As the rows are now."""
    known = (await nodes_of_machines(connection, provider.name, {machine.ref})).get(machine.ref)
    if known is not None and known.state not in GONE_NODE_STATES:
        return False
    owner = await read_node(connection, machine.label or "")
    return owner is None or owner.provider != provider.name or not _may_own(owner, machine)


async def _end_late(context: ControlContext, machine: Machine, owner: NodeRow) -> None:
    """The machine of a node that is over. Of a failed one it is ended through the node, so that it is paid for."""
    traits = context.traits_of(owner.provider, owner.tier)
    grace_ms = 0 if traits is None else traits.create_grace_ms  # listings lag behind ends as they do behind creates
    now_ms = context.clock.now_ms()
    if not _is_old(context, machine) or (owner.ended_ms is not None and now_ms - owner.ended_ms < grace_ms):
        return
    async with context.database.transaction() as connection:
        node = await _still(context, connection, owner.node_id)
        if node is None or node.state not in GONE_NODE_STATES:
            return
        if node.state is NodeState.FAILED and node.provider_ref in (None, machine.ref):
            event = Event("orphan_ended", f"{machine.ref} is still there and is ended", {"ref": machine.ref})
            await add_node_event(connection, node.node_id, event, now_ms=now_ms)
            price = machine.price_per_hour.micros
            columns = {"provider_ref": machine.ref, "billed_from_ms": machine.billed_from_ms}
            await set_node(connection, node.node_id, meter_closed=False, price_micros_per_hour=price, **columns)
            await release_node(connection, context.ids, node.node_id, "its machine came up late", now_ms=now_ms)
        else:
            await take_in(connection, context, machine, f"{owner.node_id}, whose it was, is over")


async def _missing(context: ControlContext, provider: Provider, seen: NodeRow) -> None:
    """A node whose machine is not listed is lost once the provider says that it has ended, or when it was not to be
    found for longer than listings may lag. While its agent speaks, a machine is there, whatever is listed."""
    assert seen.provider_ref is not None
    now_ms = context.clock.now_ms()
    machine = await context.ask(provider.get(seen.provider_ref))
    ended = machine is not None and machine.status is MachineStatus.ENDED
    traits = context.traits_of(seen.provider, seen.tier)
    grace_ms = 0 if traits is None else traits.create_grace_ms
    async with context.database.transaction() as connection:
        node = await _still(context, connection, seen.node_id)
        if node is None or node.state not in _LISTED:
            return
        if machine is not None and not ended:
            # The listing was behind: the machine is there.
            await set_listed(connection, node.node_id, machine, ends_ms=context.ends_ms(machine))
            return
        await set_missing(connection, node.node_id, now_ms=now_ms)
        missing_since_ms = now_ms if node.missing_since_ms is None else node.missing_since_ms
        spoke_since = node.heartbeat_ms is not None and node.heartbeat_ms > missing_since_ms
        if not ended and (spoke_since or now_ms - missing_since_ms < grace_ms):
            return
        message = "its machine has ended, says the provider" if ended else "its machine has vanished"
        outage = machine is not None and machine.outage
        interrupted = machine is not None and machine.interrupted
        if outage:
            message = f"{node.provider} went down, and its machine with it"
        # Of one that is gone without a trace, all that is known is when it was first missed.
        billed_to_ms = missing_since_ms if machine is None else machine.billed_to_ms
        await set_node(connection, node.node_id, billed_to_ms=billed_to_ms)
        budget, why = context.settings.fault_budget, {"outage": outage, "interrupted": interrupted}
        await lose_node(connection, context.ids, node.node_id, message, now_ms=now_ms, fault_budget=budget, **why)


async def _reissue_end(connection: Connection, context: ControlContext, node_id: str) -> None:
    node = await lock_node(connection, node_id)
    if node is not None and node.state is NodeState.TERMINATING:
        end = OperationKind.TERMINATE
        operation_id = context.ids.new("op")
        await add_operation(connection, operation_id, node_id, node.provider, end, now_ms=context.clock.now_ms())


async def _see_to_terminating(context: ControlContext) -> None:
    """A node that is to end always has an open operation that sees to it, even at a provider that does not list."""
    async with context.database.transaction() as connection:
        forgotten = await terminating_without_operation(connection)

    async def reissue(connection: Connection, node_id: str) -> None:
        await _reissue_end(connection, context, node_id)

    await each(context, Chore.SWEEP, [node_id for node_id, _provider in forgotten], reissue)


def _oldest_first(machine: Machine) -> tuple[bool, int, str]:
    """What has no time comes last: an adapter may have told nonsense of one machine."""
    known = isinstance(machine.created_ms, int)
    return not known, machine.created_ms if known else 0, str(machine.ref)


def _is_old(context: ControlContext, machine: Machine) -> bool:
    return context.clock.now_ms() - machine.created_ms > as_ms(context.settings.orphan_grace_s)


def _differs(known_ms: int | None, told_ms: int | None) -> bool:
    """Whether a machine's end has moved by more than providers round it."""
    if known_ms is None or told_ms is None:
        return known_ms != told_ms
    return abs(known_ms - told_ms) > _END_ROUNDED_MS


def _may_own(owner: NodeRow, machine: Machine) -> bool:
    return owner.provider_ref in (None, machine.ref) and owner.state not in GONE_NODE_STATES


async def _still(context: ControlContext, connection: Connection, node_id: str) -> NodeRow | None:
    await context.leader.guard(connection)
    return await lock_node(connection, node_id)
