"""Which GPUs a job gets: the heterogeneity-aware placement of the Frenzy paper (HAS, Algorithm 1), and ours.

Two rankers over one index, by name:

`literal`: the algorithm with its line 15 mended (`>=` where `>` is printed: as printed, nodes of exactly the size that
line 14 looks for would be left out). Among nodes with idle GPUs of sufficient memory, the fewest idle GPUs first, ties
by (memory, node id); the first that holds the whole job, else all of the last, and on with the rest. Any nodes may be
put together.

`ours`: the smallest sufficient memory, then the fewest idle GPUs, then the lowest price, then the node id. A single
node before several; several only of one place, that is one region of one provider with a private network.

A decision costs the same for a hundred nodes and for a hundred thousand.
"""

from app.core.placement.cluster import Cluster, ClusterNode, FoundPlace, GpuNeed, NodeShare, Ranker
from app.core.placement.sources import machine_of_node, machine_of_offer

__all__ = [
    "Cluster",
    "ClusterNode",
    "FoundPlace",
    "GpuNeed",
    "NodeShare",
    "Ranker",
    "machine_of_node",
    "machine_of_offer",
]
