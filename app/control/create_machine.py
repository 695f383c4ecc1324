"""Carry out a create operation: exactly one machine for a node, whatever gets lost on the way.

The node's id travels inside the create call as the machine's label, and so does a join token of this very call.
Before the call, its own transaction writes the token's hash and that the outcome is unknown from now on; so whoever
comes after a crash looks first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from app.control.back_off import back_off_ms
from app.control.context import ControlContext, as_ms
from app.control.orphans import take_in
from app.core.model.node import GONE_NODE_STATES, NodeState, ProviderTraits
from app.db.nodes.join_tokens import add_join_token, has_joined, supersede_joins
from app.db.nodes.lifecycle import CREATE_CALLED, NodeRow, last_create_call_ms, lock_node, read_node, set_node
from app.db.nodes.operations import LeasedOperation, OperationState, Settlement, set_called, settle
from app.db.offers.image_builds import not_ready_after_all
from app.db.transitions import Event, add_node_event, move_node
from app.errors import (
    AuthFailed,
    ImageNotBuilt,
    ImageRefused,
    NoCapacity,
    OfferGone,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
)
from app.ports.provider import Machine, MachineRequest, MachineStatus, Provider
from app.services.kit.node_tokens import TokenMint, token_sha256
from app.services.moves.hand_jobs_on import Against, hand_jobs_on
from app.services.nodes.agent_program import agent_program
from app.services.nodes.release_node import release_node

log = logging.getLogger(__name__)

TRANSIENT_ATTEMPTS = 5
_JOIN_MARGIN_MS = 60_000  # a machine that starts in the last moment may still join
_WANTS_A_MACHINE = frozenset({NodeState.REQUESTED, NodeState.UNKNOWN})


async def create_machine(context: ControlContext, mint: TokenMint, operation: LeasedOperation) -> None:
    """Rent the machine, adopt the one that an earlier attempt left, or give up and hand the jobs on."""
    async with context.database.transaction() as connection:
        node = await read_node(connection, operation.node_id)
    if node is None or node.provider_ref is not None or _is_ending(node):
        await _finish(context, operation, "not needed any more")
        return
    provider = context.providers.get(operation.provider)
    if provider is None:
        error = AuthFailed(f"provider {operation.provider!r} is not configured here")
        await _give_up(context, operation, error)
        return
    if operation.attempts > 1 and await _look_first(context, provider, operation, node):
        return
    if not node.offer_known:  # and no machine was found that could be it
        await _give_up(context, operation, OfferGone(f"what was agreed for {node.node_id} cannot be read"))
    elif node.state in _WANTS_A_MACHINE:
        await _call(context, provider, mint, operation, node)
    else:
        await _postpone(context, operation, OutcomeUnknown(f"{node.node_id} calls home, but is not listed yet"))


async def _look_first(context: ControlContext, provider: Provider, operation: LeasedOperation, node: NodeRow) -> bool:
    """Whether the operation is dealt with for now: a machine was found, or may still appear."""
    try:
        machines = await context.ask(provider.find(node.node_id))
    except ProviderError as error:
        await _postpone(context, operation, error, keep_code=operation.error_code)
        return True
    alive = sorted((m for m in machines if m.status is not MachineStatus.ENDED), key=lambda m: (m.created_ms, m.ref))
    if alive:
        await _end_others(context, alive[1:])
        await _booted(context, operation, alive[0])  # last: with it, the lease is given up
        return True
    if machines:
        await _give_up(context, operation, NoCapacity("the machine ended before it could be used"))
        return True
    return operation.error_code == OutcomeUnknown.code and await _may_still_appear(context, operation, node)


async def _may_still_appear(context: ControlContext, operation: LeasedOperation, node: NodeRow) -> bool:
    """Listings lag behind: within the provider's grace, a machine that is not listed may exist all the same."""
    async with context.database.transaction() as connection:
        called_ms = await last_create_call_ms(connection, node.node_id)
    traits = context.traits_of(operation.provider, node.tier)
    if called_ms is None or traits is None:
        return False
    left_ms = called_ms + traits.create_grace_ms - context.clock.now_ms()
    if left_ms <= 0:
        return False
    waits = OutcomeUnknown(f"not listed; it may still appear for {left_ms} ms")
    await _postpone(context, operation, waits, at_most_ms=left_ms)
    return True


async def _call(
    context: ControlContext, provider: Provider, mint: TokenMint, operation: LeasedOperation, node: NodeRow
) -> None:
    agent = await asyncio.to_thread(agent_program)
    if not await _announce(context, mint, operation):
        return
    traits = context.traits_of(operation.provider, node.tier)
    request = MachineRequest(
        label=node.node_id,
        offer=node.offer,
        max_price_per_hour=node.offer.price_per_hour,
        image=node.image,
        bootstrap=(
            ("ALLPASS_URL", context.settings.public_url),
            ("ALLPASS_AGENT_SHA256", agent.sha256),
            ("ALLPASS_JOIN_TOKEN", mint.join_token(node.node_id, operation.attempts)),
            ("ALLPASS_AGENT_ALONE_IDLE_S", str(context.settings.alone_idle_s)),
            ("ALLPASS_AGENT_ALONE_TRAINING_S", str(context.settings.alone_training_s)),
            ("ALLPASS_AGENT_GPU_LOOK_S", str(context.settings.gpu_look_s)),
            *_checks(context, node),
            *_rights(context, traits),
        ),
        lifetime_ms=None if traits is None else traits.max_lifetime_ms,
    )
    try:
        machine = await context.ask(provider.create(request))
    except OutcomeUnknown as error:
        await _lost_sight(context, operation, error)
    except RateLimited as error:
        await _postpone(context, operation, error, at_least_ms=error.retry_after_ms)
    except Transient as error:
        if operation.attempts < TRANSIENT_ATTEMPTS and not isinstance(error, ImageNotBuilt):
            await _postpone(context, operation, error)
        else:
            await _give_up(context, operation, error)
    except ProviderError as error:
        await _give_up(context, operation, error)
    else:
        await _booted(context, operation, machine, answered=True)


def _checks(context: ControlContext, node: NodeRow) -> Iterator[tuple[str, str]]:
    """What the machine is to find out of itself. An image that a job brings is code of a user's: what its torch says
    of a GPU is not believed."""
    settings = context.settings
    if node.tier in settings.gpu_check_tiers and node.image == settings.node_image:
        yield "ALLPASS_AGENT_GPU_CHECK", "1"
    if node.offer.download_mbps and settings.probe_mb:
        yield "ALLPASS_AGENT_PROBE_BYTES", str(settings.probe_mb * 1_000_000)


def _rights(context: ControlContext, traits: ProviderTraits | None) -> Iterator[tuple[str, str]]:
    """Why code may run as root on this machine, should there be no other user for it; else it will not."""
    if traits is not None and traits.is_sandbox and traits.dies_with_run:
        yield "ALLPASS_AGENT_SINGLE_RUN", "1"
    if context.settings.user_code_as_root:
        yield "ALLPASS_AGENT_CODE_AS_ROOT", "1"


async def _announce(context: ControlContext, mint: TokenMint, operation: LeasedOperation) -> bool:
    """Write down, before the call, all that is needed if we die inside it. False: the call is not ours to make."""
    now_ms = context.clock.now_ms()
    async with context.database.transaction() as connection:
        node = await lock_node(connection, operation.node_id)
        if node is None or node.state not in _WANTS_A_MACHINE or await has_joined(connection, node.node_id):
            return False
        if not await set_called(connection, operation, OutcomeUnknown.code):
            return False
        await set_node(connection, node.node_id, token_sha256=token_sha256(mint.token(node.node_id)))
        join_sha256 = token_sha256(mint.join_token(node.node_id, operation.attempts))
        expires_ms = max(now_ms + as_ms(context.settings.join_token_ttl_s), node.startup_deadline_ms + _JOIN_MARGIN_MS)
        await add_join_token(connection, node.node_id, operation.attempts, join_sha256, expires_ms=expires_ms)
        told = Event(CREATE_CALLED, f"asked {operation.provider} for {node.offer.key}", {"attempt": operation.attempts})
        await add_node_event(connection, node.node_id, told, now_ms=now_ms)
        return True


async def _booted(
    context: ControlContext, operation: LeasedOperation, machine: Machine, *, answered: bool = False
) -> None:
    """There is a machine: from now on it is known by the provider's own reference.

    `answered`: it is the one of this attempt, so that those of earlier ones, should they turn up, come too late. Of one
    that was found, nobody can tell.
    """
    now_ms = context.clock.now_ms()
    async with context.database.transaction() as connection:
        node = await lock_node(connection, operation.node_id)
        done = Settlement(operation, OperationState.DONE, now_ms)
        if node is None or not await settle(connection, done):
            return  # whoever holds the operation now finds the machine by its label
        if answered:
            await supersede_joins(connection, node.node_id, but=operation.attempts)
        columns = {
            "provider_ref": machine.ref,
            "billed_from_ms": machine.billed_from_ms,
            "price_micros_per_hour": machine.price_per_hour.micros,
            "ends_ms": context.ends_ms(machine),
        }
        event = Event("node_booting", f"{operation.provider} rents {machine.ref}", {"ref": machine.ref})
        if not await move_node(connection, node.node_id, NodeState.BOOTING, event, now_ms=now_ms, **columns):
            await set_node(connection, node.node_id, **columns)
        if node.state is NodeState.FAILED:
            await set_node(connection, node.node_id, meter_closed=False)
            await release_node(connection, context.ids, node.node_id, "it came up after it was given up", now_ms=now_ms)


async def _end_others(context: ControlContext, others: list[Machine]) -> None:
    """One node, one machine."""
    for machine in others:
        async with context.database.transaction() as connection:
            await take_in(connection, context, machine, f"{machine.label} has another machine")


async def _lost_sight(context: ControlContext, operation: LeasedOperation, error: OutcomeUnknown) -> None:
    now_ms = context.clock.now_ms()
    async with context.database.transaction() as connection:
        node = await lock_node(connection, operation.node_id)
        again_ms = now_ms + back_off_ms(operation.attempts)
        later = Settlement(operation, OperationState.PENDING, again_ms, OutcomeUnknown.code, error.message)
        if node is None or not await settle(connection, later):
            return
        event = Event("node_unknown", f"it is not known whether the machine was created: {error}")
        await move_node(connection, node.node_id, NodeState.UNKNOWN, event, now_ms=now_ms)


async def _postpone(
    context: ControlContext,
    operation: LeasedOperation,
    error: ProviderError,
    *,
    keep_code: str | None = None,
    at_least_ms: int = 0,
    at_most_ms: int | None = None,
) -> None:
    """Try again later. `keep_code`: what is known of the create call, when this error was of a look-up."""
    wait_ms = max(at_least_ms, back_off_ms(operation.attempts))
    if at_most_ms is not None:
        wait_ms = min(wait_ms, at_most_ms)
    again_ms = context.clock.now_ms() + wait_ms
    code = keep_code or error.error_code
    await context.settle(Settlement(operation, OperationState.PENDING, again_ms, code, error.message))


async def _give_up(context: ControlContext, operation: LeasedOperation, error: ProviderError) -> None:
    """There is no machine and there will be none: the node is over, its jobs go on without it."""
    now_ms = context.clock.now_ms()
    if isinstance(error, AuthFailed):
        log.error("ALARM: %s refuses our credentials: %s", operation.provider, error)
    async with context.database.transaction() as connection:
        node = await lock_node(connection, operation.node_id)
        if node is None:
            return
        message = f"{operation.provider} did not rent {node.offer.offer_id}: {error.message}"
        failed = Settlement(operation, OperationState.FAILED, now_ms, error.error_code, message)
        if not await settle(connection, failed):
            return
        event = Event("node_create_failed", message, {"code": error.error_code})
        await add_node_event(connection, node.node_id, event, now_ms=now_ms)
        if isinstance(error, ImageNotBuilt | ImageRefused):
            await not_ready_after_all(connection, operation.provider, node.image, now_ms=now_ms)
        await hand_jobs_on(connection, context.ids, node, message, now_ms=now_ms, against=_against(error))
        ended = {"end_message": message, "ended_ms": now_ms, "token_sha256": None, "meter_closed": True}
        # A serverless node went with its run just now, and its end is being seen to.
        event = Event("node_failed", message)
        current = await read_node(connection, node.node_id)
        if current is not None and not _is_ending(current):
            await move_node(connection, node.node_id, NodeState.FAILED, event, now_ms=now_ms, **ended)


def _against(error: ProviderError) -> Against:
    if isinstance(error, AuthFailed | QuotaExceeded | ImageNotBuilt | ImageRefused):
        return Against.NOTHING
    return Against.MOMENT if isinstance(error, Transient) else Against.OFFER


async def _finish(context: ControlContext, operation: LeasedOperation, message: str) -> None:
    done = OperationState.DONE
    await context.settle(Settlement(operation, done, context.clock.now_ms(), operation.error_code, message))


def _is_ending(node: NodeRow) -> bool:
    return node.state in GONE_NODE_STATES or node.state is NodeState.TERMINATING
