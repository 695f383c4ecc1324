"""Rounds over partitions, and what is accepted of what the search finds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from app.core.defragmentation.ejecting import Ejection
from app.core.defragmentation.gang_room import GangRoom, GangWish, make_room
from app.core.defragmentation.model import Defragmentation, NodeRelease, PackedNode, PackedTask, SearchBounds, TaskMove
from app.core.defragmentation.packed_fleet import PackedFleet
from app.core.defragmentation.packing_bound import least_nodes
from app.core.defragmentation.rent import Rent

# A prime well above any number of nodes: multiples of it spread neighbours over all partitions, another way each round.
_SPREAD = 2_654_435_761
_DEFAULT = SearchBounds()
# Of the fleet, a vacated node, and where in the log its moves begin: what is saved and what it costs, both in
# micro-dollars, and why; None: not worth it.
Judge = Callable[[PackedFleet, int, int], tuple[int, int, str] | None]


def whole_nodes(
    nodes: Sequence[PackedNode], tasks: Sequence[PackedTask], bounds: SearchBounds = _DEFAULT
) -> Defragmentation:
    """Frees as many nodes as the search finds, with no regard to money.

    Executed in the order given, each move after the one before, no node is over its capacity at any time, also while a
    task is on its source and its target at once. Locked tasks stay, and no empty node becomes occupied.
    """
    return _plan(
        PackedFleet(nodes, tasks), bounds, lambda fleet, node, begun: _any_node(fleet, node, fleet.log[begun:])
    )


def rooms_for_gangs(
    fleet: PackedFleet,
    waiting: Iterable[Sequence[GangWish]],
    bounds: SearchBounds = _DEFAULT,
    others: Collection[int] = (),
) -> list[tuple[GangRoom, tuple[NodeRelease, ...]]]:
    """Nodes to vacate so that jobs on several machines can begin, the first of them first, each with its releases in
    their order of execution. No node counts for two of them, and none is filled that counts for one. `others`: nodes
    that are somebody's already."""
    found: list[tuple[GangRoom, tuple[NodeRelease, ...]]] = []
    taken = set(others)
    for wishes in waiting:
        room = make_room(fleet, wishes, bounds, taken)
        if room is None:
            continue
        taken |= room.nodes
        for_whom = f", and {room.wish.job_id} can have {room.wish.in_words} {room.where}"
        releases = []
        for node, begun, ended in room.vacated:
            moved = fleet.log[begun:ended]
            _, cost_micros, reason = _any_node(fleet, node, moved)
            moves = tuple(_told(fleet, *one) for one in moved)
            releases.append(NodeRelease(fleet.nodes[node].id, moves, 0, cost_micros, reason + for_whom))
        found.append((room, tuple(releases)))
    return found


def cheaper_rent(
    nodes: Sequence[PackedNode],
    tasks: Sequence[PackedTask],
    now_s: int,
    least_gap: float = 0.01,
    least_return: float = 2.0,
    bounds: SearchBounds = _DEFAULT,
    least: int | None = None,
) -> Defragmentation:
    """Ends the rent of nodes where this saves more than the moves cost, each node by itself.

    A node is taken to be rented until the last of its tasks is expected to end, and longer where that is paid anyway;
    a target that is kept longer by a task it takes in is a cost of the move. Ends are predictions, so a
    release has to save `least_return` times its cost. Where fewer than `least_gap` of the
    occupied nodes could be spared even by the best packing, nothing moves. `least`: how many that packing has; None: by
    the labels of the nodes.
    """
    fleet = PackedFleet(nodes, tasks)
    occupied = len(fleet.occupied())
    fewest = least_nodes(nodes, tasks) if least is None else least
    if occupied - fewest < max(1, least_gap * occupied):
        return Defragmentation(left_out=fleet.left_out)
    return _plan(fleet, bounds, Rent(fleet, now_s, least_return).judge)


def _plan(fleet: PackedFleet, bounds: SearchBounds, judge: Judge) -> Defragmentation:
    releases: list[NodeRelease] = []
    settled = False
    for round_ in range(bounds.rounds):
        found = [
            release
            for partition in _partitions(fleet.occupied(), round_, bounds.partition_nodes)
            for release in _solve(fleet, partition, bounds, judge)
        ]
        releases += found
        if not found:
            settled = len(fleet.log) + bounds.moves_per_release <= bounds.max_moves
            break
    return Defragmentation(tuple(releases), settled, fleet.left_out)


def _partitions(nodes: list[int], round_: int, size: int) -> Iterator[list[int]]:
    if len(nodes) <= size:
        yield nodes
        return
    spread = sorted(nodes, key=lambda node: (node * (round_ + 1) + round_) * _SPREAD % (1 << 32))
    for start in range(0, len(spread), size):
        yield sorted(spread[start : start + size])


def _solve(fleet: PackedFleet, partition: list[int], bounds: SearchBounds, judge: Judge) -> Iterator[NodeRelease]:
    """The nodes of a partition, fewest tasks first, then fewest GPUs taken."""
    ejection = Ejection(fleet, partition, bounds)
    taken = {node: fleet.nodes[node].gpus - fleet.free_gpus[node] for node in partition}
    for node in sorted(partition, key=lambda one: (len(fleet.on[one]), taken[one], one)):
        begun = len(fleet.log)
        if not fleet.is_movable(node) or not ejection.vacate(node):
            continue
        judged = judge(fleet, node, begun)
        if judged is None:
            ejection.undo(begun)
            continue
        saved_micros, cost_micros, reason = judged
        moves = tuple(_told(fleet, *one) for one in fleet.log[begun:])
        yield NodeRelease(fleet.nodes[node].id, moves, saved_micros, cost_micros, reason)


def _told(fleet: PackedFleet, task: int, source: int, target: int) -> TaskMove:
    moved, left, reached = fleet.tasks[task], fleet.nodes[source], fleet.nodes[target]
    return TaskMove(moved.id, left.id, reached.id, moved.version, left.version, reached.version)


def _any_node(fleet: PackedFleet, node: int, moved: Sequence[tuple[int, int, int]]) -> tuple[int, int, str]:
    gpus = sum(fleet.tasks[task].gpus for task, _, _ in moved)
    cost_micros = sum(fleet.tasks[task].move_cost_micros for task, _, _ in moved)
    freed = fleet.nodes[node]
    plural = "" if len(moved) == 1 else "s"
    reason = f"all {freed.gpus} GPUs of {freed.id} are free after {len(moved)} move{plural} of {gpus} GPUs in all"
    return 0, cost_micros, reason
