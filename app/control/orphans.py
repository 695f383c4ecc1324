"""A machine that nobody owns, or a second one of a node: ended and paid for like any other."""

from __future__ import annotations

import logging

from app.control.context import ControlContext
from app.core.model.ids import marked
from app.db.access.installation import installation_id
from app.db.connection import Connection
from app.db.nodes.lifecycle import read_node
from app.db.nodes.orphans import add_orphan, paying_project
from app.db.transitions import Event, add_node_event
from app.ports.provider import Machine
from app.services.nodes.release_node import release_node

log = logging.getLogger(__name__)


async def take_in(connection: Connection, context: ControlContext, machine: Machine, why: str) -> bool:
    """Make it a node that is to end, whose cost is the project's line `orphan`. False when a node has it already.

    Its end is then asked for, confirmed and paid by the same operation as any other node's.
    """
    now_ms = context.clock.now_ms()
    project_id = await paying_project(connection, machine.label)
    if project_id is None:
        return False
    node_id = marked(context.ids.new("node"), await installation_id(connection))
    traits = context.traits_of(machine.provider, machine.tier)
    if not await add_orphan(connection, node_id, project_id, machine, traits, now_ms=now_ms):
        return False
    log.warning("orphan: %s of %s, labelled %s, is ended as %s: %s", machine.ref, machine.provider, machine.label,
                node_id, why)  # fmt: skip
    owner = None if machine.label is None else await read_node(connection, machine.label)
    if owner is not None:
        told = Event("orphan_ended", f"{machine.ref} is ended: {why}", {"ref": machine.ref, "orphan": node_id})
        await add_node_event(connection, owner.node_id, told, now_ms=now_ms)
    found = Event("orphan_found", f"{machine.provider} lists {machine.ref}: {why}", {"label": machine.label})
    await add_node_event(connection, node_id, found, now_ms=now_ms)
    return await release_node(connection, context.ids, node_id, f"orphan: {why}", now_ms=now_ms)
