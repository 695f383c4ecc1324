"""Nobody new comes to a node while it is being vacated. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from app.core.model.node import Tier
from app.core.model.snapshot import Snapshot


def without_vacated(snapshot: Snapshot, closed: Collection[str]) -> Snapshot:
    """The world as it is for everybody else. `closed`: nodes, and hosts of pools as their offers name them: nothing of
    these is on offer, and nothing is free there. What runs there is seen as it is. A machine without free GPUs is not
    idle: nobody gives it back but whoever closed it."""
    if not closed:
        return snapshot
    return replace(
        snapshot,
        offers=tuple(one for one in snapshot.offers if one.tier is not Tier.OWN or one.host not in closed),
        nodes=tuple(
            replace(node, free_gpus=()) if node.node_id in closed and node.free_gpus else node
            for node in snapshot.nodes
        ),
    )
