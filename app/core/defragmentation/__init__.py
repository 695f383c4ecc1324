"""Whole nodes made free by moving tasks: iterative partition and chains of ejection (IPC).

The SpotGPU paper (section 4.1, Algorithm 1): nodes are divided into partitions that are solved apart; in each, nodes
are taken in order of fewest tasks, and every task of a node is moved to another occupied node, where need be after a
smaller task there has moved on. A node is vacated as a whole or left as it was.

Two goals share the search. `whole_nodes` frees as many nodes as it can, for jobs that need one or several whole.
`cheaper_rent` ends the rent of a node where the money saved is more than what the moves cost.

What is live begins in `packing`, which makes nodes and tasks of what decisions see (who has to stay: `staying`), and
`deciding`, which plans; `execution` says round by round what is done next, and `moving` which move that is. Jobs on
several machines that are spread over switches come together by `repairs` and `repairing`.
"""

from app.core.defragmentation.closing import without_vacated
from app.core.defragmentation.deciding import (
    DefragPlan,
    PlannedRelease,
    ReleaseState,
    ReleaseStep,
    StepState,
    is_wanted,
    plan_for,
)
from app.core.defragmentation.execution import Deciding, MoveNow, NextSteps, caught_up, next_steps
from app.core.defragmentation.model import Defragmentation, NodeRelease, PackedNode, PackedTask, SearchBounds, TaskMove
from app.core.defragmentation.moving import move_of
from app.core.defragmentation.packing import Packing, pack
from app.core.defragmentation.packing_bound import least_nodes
from app.core.defragmentation.planning import cheaper_rent, whole_nodes
from app.core.defragmentation.repairing import NextRepairs, begun, next_repairs, not_begun
from app.core.defragmentation.repairs import RepairState, SwitchRepair
from app.core.defragmentation.seen_fleet import Goal, HeldGpus, MoveHabits, NodeFacts, SeenFleet
from app.core.defragmentation.staleness import still_valid
from app.core.defragmentation.staying import Stays

__all__ = [
    "Deciding",
    "DefragPlan",
    "Defragmentation",
    "Goal",
    "HeldGpus",
    "MoveHabits",
    "MoveNow",
    "NextRepairs",
    "NextSteps",
    "NodeFacts",
    "NodeRelease",
    "PackedNode",
    "PackedTask",
    "Packing",
    "PlannedRelease",
    "ReleaseState",
    "ReleaseStep",
    "RepairState",
    "SearchBounds",
    "SeenFleet",
    "Stays",
    "StepState",
    "SwitchRepair",
    "TaskMove",
    "begun",
    "caught_up",
    "cheaper_rent",
    "is_wanted",
    "least_nodes",
    "move_of",
    "next_repairs",
    "next_steps",
    "not_begun",
    "pack",
    "plan_for",
    "still_valid",
    "whole_nodes",
    "without_vacated",
]
