"""Carry out a terminate operation: it is over only when the provider says that the machine has ended."""

from __future__ import annotations

import logging

from app.control.back_off import back_off_ms
from app.control.context import ControlContext
from app.control.orphans import take_in
from app.core.model.node import NodeState
from app.db.money.ledger import lock_to_meter, read_meter
from app.db.nodes.lifecycle import NodeRow, last_create_call_ms, lock_node, read_node, set_node
from app.db.nodes.operations import (
    LeasedOperation,
    OperationState,
    Settlement,
    create_had_no_effect,
    settle,
    supersede_create,
)
from app.db.transitions import Event, move_node
from app.errors import AuthFailed, ProviderError, RateLimited, Transient
from app.ports.provider import Machine, MachineStatus, Provider
from app.services.nodes.report_refund_due import report_refund_due

log = logging.getLogger(__name__)

# A create that is still in flight, or an end that is not confirmed yet, is looked at again after this.
_SOON_MS = 1_000


async def end_machine(context: ControlContext, operation: LeasedOperation) -> None:
    """Ask for the end of the node's machine, look whether it came, and close the bill. Never gives up."""
    async with context.database.transaction() as connection:
        node = await read_node(connection, operation.node_id)
    if node is None or node.state is not NodeState.TERMINATING:
        await _close(context, operation)
        return
    provider = context.providers.get(operation.provider)
    try:
        if provider is None:
            raise AuthFailed(f"provider {operation.provider!r} is not configured here")
        await _end(context, provider, operation, node)
    except ProviderError as error:
        await _try_later(context, operation, error)


async def _end(context: ControlContext, provider: Provider, operation: LeasedOperation, node: NodeRow) -> None:
    ref = node.provider_ref
    if ref is None:
        if not await _none_can_follow(context, operation, node):
            await _look_again(context, operation, "a create call may be in flight")
            return
        machine = await _find(context, provider, node)
        if machine is None:
            await _end_without_machine(context, operation, node)
            return
        ref = machine.ref
        async with context.database.transaction() as connection:
            price = machine.price_per_hour.micros
            await set_node(connection, node.node_id, provider_ref=ref, price_micros_per_hour=price)
    await context.ask(provider.terminate(ref))
    left = await context.ask(provider.get(ref))
    if left is None or left.status is MachineStatus.ENDED:
        await _ended(context, operation, left)
    else:
        await _look_again(context, operation, f"{ref} is {left.status}, its end is not confirmed yet")


async def _none_can_follow(context: ControlContext, operation: LeasedOperation, node: NodeRow) -> bool:
    """Take the create operation back; False while a worker may still be inside the call."""
    async with context.database.transaction() as connection:
        await lock_node(connection, node.node_id)
        return await supersede_create(connection, node.node_id, now_ms=context.clock.now_ms())


async def _find(context: ControlContext, provider: Provider, node: NodeRow) -> Machine | None:
    """The node's machine by its label: a living one first, then the oldest. None without asking when none can be."""
    async with context.database.transaction() as connection:
        called_ms = await last_create_call_ms(connection, node.node_id)
        if called_ms is None or await create_had_no_effect(connection, node.node_id):
            return None
    machines = await context.ask(provider.find(node.node_id))
    ranked = sorted(machines, key=lambda m: (m.status is MachineStatus.ENDED, m.created_ms, m.ref))
    for other in ranked[1:]:
        if other.status is not MachineStatus.ENDED:
            async with context.database.transaction() as connection:
                await take_in(connection, context, other, f"a second machine of {node.node_id}, which is to end")
    return ranked[0] if ranked else None


async def _end_without_machine(context: ControlContext, operation: LeasedOperation, node: NodeRow) -> None:
    """No machine is listed: over at once if none was ever asked for, else when listings have had time to catch up."""
    traits = context.traits_of(operation.provider, node.tier)
    async with context.database.transaction() as connection:
        called_ms = await last_create_call_ms(connection, node.node_id)
        settled = called_ms is None or await create_had_no_effect(connection, node.node_id)
    grace_ms = 0 if traits is None else traits.create_grace_ms
    if settled or called_ms is None or called_ms + grace_ms <= context.clock.now_ms():
        await _ended(context, operation, None)
    else:
        await _look_again(context, operation, "not listed; it may still appear")


async def _ended(context: ControlContext, operation: LeasedOperation, machine: Machine | None) -> None:
    """The provider says it is over: its own times go into the books, and the meter is closed on its figure."""
    now_ms = context.clock.now_ms()
    async with context.database.transaction() as connection:
        # Whoever lived there pays, also where it has moved on since: before the node's row is changed.
        told_ms = None if machine is None else machine.billed_to_ms
        until_ms = now_ms if told_ms is None else min(told_ms, now_ms)
        await lock_to_meter(connection, [operation.node_id], until_ms=until_ms)
        node = await read_node(connection, operation.node_id)
        done = Settlement(operation, OperationState.DONE, now_ms)
        if node is None or not await settle(connection, done):
            return
        times = _billed_times(node, machine, now_ms)
        event = Event("node_terminated", f"{operation.provider} confirms the end", dict(times))
        moved = await move_node(
            connection, node.node_id, NodeState.TERMINATED, event, now_ms=now_ms, ended_ms=now_ms, **times
        )
        if moved:
            billed = None if machine is None else machine.billed
            await read_meter(connection, node.node_id, now_ms=now_ms, billed=billed)
            await report_refund_due(connection, node, now_ms=now_ms)


def _billed_times(node: NodeRow, machine: Machine | None, now_ms: int) -> dict[str, int | None]:
    billed_from_ms, billed_to_ms = node.billed_from_ms, node.billed_to_ms
    if machine is not None:
        looks = (machine.billed_from_ms, node.billed_from_ms)  # of two processes, where the provider tells nothing
        billed_from_ms = min((look for look in looks if look is not None), default=None)
        billed_to_ms = machine.billed_to_ms if machine.billed_to_ms is not None else billed_to_ms
        if billed_from_ms is None and machine.billed is not None and machine.billed.micros:
            billed_from_ms = machine.created_ms  # it was billed, whatever its times say
    if billed_from_ms is None:
        billed_from_ms = node.ready_ms  # nobody looked in time, and its agent called: it ran
    if billed_from_ms is not None and billed_to_ms is None:
        billed_to_ms = max(now_ms, billed_from_ms)
    return {"billed_from_ms": billed_from_ms, "billed_to_ms": billed_to_ms}


async def _look_again(context: ControlContext, operation: LeasedOperation, message: str) -> None:
    await _postpone(context, operation, _SOON_MS, Transient(message))


async def _try_later(context: ControlContext, operation: LeasedOperation, error: ProviderError) -> None:
    """A machine that may cost money is never forgotten: the tries get rarer, and they do not end."""
    wait_ms = back_off_ms(operation.attempts)
    if isinstance(error, RateLimited):
        wait_ms = max(wait_ms, error.retry_after_ms)
    if isinstance(error, AuthFailed):
        log.error("ALARM: %s cannot be ended, %s refuses us: %s", operation.node_id, operation.provider, error)
    else:
        log.warning("%s is not ended yet, trying again in %d ms: %s", operation.node_id, wait_ms, error)
    await _postpone(context, operation, wait_ms, error)


async def _postpone(context: ControlContext, operation: LeasedOperation, wait_ms: int, error: ProviderError) -> None:
    again_ms = context.clock.now_ms() + wait_ms
    await context.settle(Settlement(operation, OperationState.PENDING, again_ms, error.error_code, error.message))


async def _close(context: ControlContext, operation: LeasedOperation) -> None:
    await context.settle(Settlement(operation, OperationState.DONE, context.clock.now_ms()))
