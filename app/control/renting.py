"""Places for runs: GPUs of a node that is there, or a machine that is to be rented."""

from __future__ import annotations

from collections.abc import Sequence

from app.control.budgets import why_not_paid
from app.control.context import ControlContext
from app.control.limits import why_not_rented
from app.core.model.ids import marked
from app.core.model.node import NodeState, Tier
from app.core.model.offer import Offer
from app.db.access.installation import installation_id
from app.db.connection import Connection
from app.db.decisions.enactment import NewNode, PlacedJob, add_node, held_gpus, node_tier
from app.db.nodes.operations import OperationKind, add_operation
from app.db.transitions import Event, add_node_event


class MovedOnError(Exception):
    """A row is not as the decision saw it."""


async def free_place(connection: Connection, node_id: str, gpu_indices: Sequence[int]) -> Tier:
    """The tier of a ready node whose GPUs are free. Raises MovedOnError."""
    node = await node_tier(connection, node_id)
    if node is None or node[0] is not NodeState.READY:
        raise MovedOnError(f"{node_id} is not ready")
    _state, tier, gpu_count = node
    taken = await held_gpus(connection, node_id)
    wanted = set(gpu_indices)
    if wanted & taken or not all(0 <= index < gpu_count for index in wanted):
        raise MovedOnError(f"GPUs {sorted(wanted)} of {node_id} are not free")
    return tier


async def rent(
    connection: Connection,
    context: ControlContext,
    job: PlacedJob,
    offer: Offer,
    reason: str,
    *,
    now_ms: int,
    ahead: bool = False,
) -> str:
    """The intent to rent a machine: its row, and the operation that makes it true. Returns the node's id. `ahead`: one
    that the job would take, for jobs to come; the job does not pay for it. Raises MovedOnError."""
    traits = context.traits_of(offer.provider, offer.tier)
    if traits is None:
        raise MovedOnError(f"provider {offer.provider!r} is not configured here")
    refused = await why_not_rented(connection, context, offer, now_ms=now_ms) or await why_not_paid(
        connection, context, job.project_id, job.job_id, offer, now_ms=now_ms
    )
    if refused is not None:
        raise MovedOnError(refused)
    node_id = marked(context.ids.new("node"), await installation_id(connection))
    image = job.base_image or context.settings.node_image
    new = NewNode(node_id, job.project_id, None if ahead else job.job_id, offer, traits, image)
    await add_node(connection, new, now_ms=now_ms)
    event = Event("node_requested", reason, {"job_id": job.job_id, "offer": offer.key})
    await add_node_event(connection, node_id, event, now_ms=now_ms)
    create = OperationKind.CREATE
    await add_operation(connection, context.ids.new("op"), node_id, offer.provider, create, now_ms=now_ms)
    return node_id
