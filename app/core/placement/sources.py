"""What placement looks at: nodes that are rented, and offers of nodes that could be."""

from __future__ import annotations

from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import NodeView
from app.core.placement.cluster import ClusterNode


def machine_of_node(node: NodeView) -> ClusterNode:
    """A rented node, whole or in part: its idle GPUs are those that no live allocation holds."""
    return ClusterNode(
        node.node_id,
        node.gpu_memory_bytes,
        len(node.free_gpus),
        node.gpu_type,
        node.price_per_hour.micros // max(node.gpu_count, 1),
        _place(node.provider, node.tier, node.region),
    )


def machine_of_offer(offer: Offer) -> ClusterNode:
    """A node that could be rented. Its id is the offer's key."""
    return ClusterNode(
        offer.key,
        offer.gpu_memory_bytes,
        offer.gpu_count,
        offer.gpu_type,
        offer.price_per_hour.micros // max(offer.gpu_count, 1),
        _place(offer.provider, offer.tier, offer.region),
    )


def _place(provider: str, tier: Tier, region: str) -> str | None:
    """Conventional clouds give the nodes of a region a private network. Marketplace hosts belong to strangers, and
    serverless machines cannot call each other."""
    return f"{provider}/{region}" if tier is Tier.CONVENTIONAL and region else None
