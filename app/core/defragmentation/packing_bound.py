"""How few nodes could hold all tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from app.core.defragmentation.model import PackedNode, PackedTask


def least_nodes(nodes: Sequence[PackedNode], tasks: Sequence[PackedTask]) -> int:
    """No packing that leaves locked tasks in place occupies fewer nodes.

    By labels, for the resource that asks for most. Nodes with a locked task stay occupied; besides them it takes room
    for the tasks that fit on none of these, and for what is more than the room there. Tasks are counted with the labels
    of the nodes where they are: where several kinds of nodes will do, a packing across kinds could be below this.
    """
    nodes_of: dict[frozenset[str], list[PackedNode]] = defaultdict(list)
    tasks_of: dict[frozenset[str], list[PackedTask]] = defaultdict(list)
    labels_of = {node.id: node.labels for node in nodes}
    for node in nodes:
        nodes_of[node.labels].append(node)
    for task in tasks:
        if task.node_id in labels_of:
            tasks_of[labels_of[task.node_id]].append(task)
    return sum(_least_of_kind(nodes_of[labels], held) for labels, held in tasks_of.items())


def _least_of_kind(nodes: list[PackedNode], tasks: list[PackedTask]) -> int:
    held = {task.node_id for task in tasks if task.locked}
    open_ = [node for node in nodes if node.id not in held]
    free = {node.id: list(_sizes(node)) for node in nodes if node.id in held}
    for task in tasks:
        if task.locked:
            free[task.node_id] = [have - need for have, need in zip(free[task.node_id], _sizes(task), strict=True)]
    widest = max((gpus for gpus, _, _ in free.values()), default=0)
    movable = [task for task in tasks if not task.locked]
    beside = []
    for number in range(3):
        outside = sum(_sizes(task)[number] for task in movable if task.gpus > widest)
        inside = sum(_sizes(task)[number] for task in movable if task.gpus <= widest)
        room = sum(sizes[number] for sizes in free.values())
        beside.append(_fewest([_sizes(node)[number] for node in open_], outside + max(0, inside - room)))
    return len(held) + max(beside)


def _sizes(one: PackedNode | PackedTask) -> tuple[int, int, int]:
    return one.gpus, one.cpus_milli, one.memory_bytes


def _fewest(sizes: list[int], need: int) -> int:
    """How many of the largest sizes reach the need."""
    count = 0
    for size in sorted(sizes, reverse=True):
        if need <= 0:
            break
        need -= size
        count += 1
    return count
