"""What a job has left on a host that is vacated for a job on several machines is given back at once: nobody new is
decided onto it, and so nothing else would end it."""

from __future__ import annotations

from app.core.defragmentation import PlannedRelease, SeenFleet
from app.core.model.node import NodeState
from app.core.model.snapshot import NodeView
from app.db.connection import Connection
from app.db.decisions.enactment import held_gpus
from app.db.lock_order import lock_scope
from app.ports.clock import IdSource
from app.services.nodes.release_node import release_node


def idle_parts(seen: SeenFleet, release: PlannedRelease) -> list[NodeView]:
    """Nodes that were cut from the host, and on which nothing is."""
    busy = {run.node_id for run in seen.snapshot.runs}
    return [
        node
        for node in seen.snapshot.nodes
        if node.state is NodeState.READY
        and node.node_id not in busy
        and (facts := seen.facts.get(node.node_id)) is not None
        and facts.place == release.node_id
    ]


async def give_back(connection: Connection, ids: IdSource, node: NodeView, why: str, *, now_ms: int) -> bool:
    """False, with nothing done, where the node has moved on meanwhile."""
    found = await lock_scope(connection, [node.node_id])
    if found.get(node.node_id) != node.row_version or await held_gpus(connection, node.node_id):
        return False
    await release_node(connection, ids, node.node_id, why, now_ms=now_ms)
    return True
