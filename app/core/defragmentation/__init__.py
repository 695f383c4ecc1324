"""Whole nodes made free by moving tasks: iterative partition and chains of ejection (IPC).

The SpotGPU paper (section 4.1, Algorithm 1): nodes are divided into partitions that are solved apart; in each, nodes
are taken in order of fewest tasks, and every task of a node is moved to another occupied node, where need be after a
smaller task there has moved on. A node is vacated as a whole or left as it was.

Two goals share the search. `whole_nodes` frees as many nodes as it can, for jobs that need one or several whole.
`cheaper_rent` ends the rent of a node where the money saved is more than what the moves cost.
"""

from app.core.defragmentation.model import Defragmentation, NodeRelease, PackedNode, PackedTask, SearchBounds, TaskMove
from app.core.defragmentation.packing_bound import least_nodes
from app.core.defragmentation.planning import cheaper_rent, whole_nodes
from app.core.defragmentation.staleness import still_valid

__all__ = [
    "Defragmentation",
    "NodeRelease",
    "PackedNode",
    "PackedTask",
    "SearchBounds",
    "TaskMove",
    "cheaper_rent",
    "least_nodes",
    "still_valid",
    "whole_nodes",
]
