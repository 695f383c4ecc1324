"""Chains of ejection within one partition (Algorithm 1 of the SpotGPU paper, `Eject`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from app.core.defragmentation.model import SearchBounds
from app.core.defragmentation.packed_fleet import PackedFleet


class Ejection:
    """The occupied nodes of a partition, by kind and free GPUs, and the search for room among them."""

    def __init__(self, fleet: PackedFleet, nodes: Sequence[int], bounds: SearchBounds) -> None:
        self._fleet, self._bounds = fleet, bounds
        self._most_gpus = max((fleet.free_gpus[node] for node in nodes), default=0)
        self._buckets: dict[tuple[int, int], dict[int, None]] = {}
        self._blocked: set[int] = set()
        self._tries_left = 0
        for node in nodes:
            fleet.on[node].sort()
            self._enter(node)

    def vacate(self, node: int) -> bool:
        """Moves every task off `node`, the largest first. False: it could not be done, and nothing has changed."""
        fleet, begun = self._fleet, len(self._fleet.log)
        most_moves = min(begun + self._bounds.moves_per_release, self._bounds.max_moves)
        self._leave(node)
        if not self._has_room(node):
            self._enter(node)
            return False
        for task in sorted(fleet.on[node], key=lambda one: -fleet.tasks[one].gpus):
            self._tries_left = self._bounds.branches
            if not self._eject(task, self._bounds.depth) or len(fleet.log) > most_moves:
                self.undo(begun)
                self._enter(node)
                return False
        return True

    def undo(self, length: int) -> None:
        """Takes moves back until the log has `length` of them."""
        touched = {node for _, *ends in self._fleet.log[length:] for node in ends}
        for node in touched:
            self._leave(node)
        self._fleet.undo(length)
        for node in sorted(touched):
            self._enter(node)

    def _has_room(self, node: int) -> bool:
        """Whether the other nodes have as many free GPUs in all; where not, no search is needed."""
        fleet = self._fleet
        kinds = {kind for task in fleet.on[node] for kind in fleet.kinds[task]}
        free_gpus = sum(free * len(held) for (kind, free), held in self._buckets.items() if kind in kinds)
        return sum(fleet.tasks[task].gpus for task in fleet.on[node]) <= free_gpus

    def _eject(self, task: int, depth: int) -> bool:
        for target in self._with_free(task, self._fleet.tasks[task].gpus, self._most_gpus):
            if self._fleet.fits(task, target):
                self._move(task, target)
                return True
        return depth > 1 and self._eject_through(task, depth)

    def _eject_through(self, task: int, depth: int) -> bool:
        """Makes room on a node that lacks few GPUs by moving a smaller task off it first."""
        fleet, gpus = self._fleet, self._fleet.tasks[task].gpus
        for lacking in range(1, gpus):
            for target in list(islice(self._with_free(task, gpus - lacking, gpus - lacking), self._tries_left)):
                for other in list(fleet.on[target]):
                    if self._tries_left <= 0:
                        return False
                    self._tries_left -= 1
                    if fleet.tasks[other].locked or not lacking <= fleet.tasks[other].gpus < gpus:
                        continue
                    if self._swap_out(other, task, target, depth):
                        return True
        return False

    def _swap_out(self, other: int, task: int, target: int, depth: int) -> bool:
        begun = len(self._fleet.log)
        self._blocked.add(target)
        moved = self._eject(other, depth - 1)
        self._blocked.discard(target)
        if moved and self._fleet.fits(task, target):
            self._move(task, target)
            return True
        self.undo(begun)
        return False

    def _with_free(self, task: int, least: int, most: int) -> Iterator[int]:
        """Nodes that may be a target of `task`, the fewest free GPUs first."""
        here = self._fleet.where[task]
        for free in range(least, most + 1):
            for kind in self._fleet.kinds[task]:
                for node in self._buckets.get((kind, free), ()):
                    if node != here and node not in self._blocked:
                        yield node

    def _move(self, task: int, target: int) -> None:
        source = self._fleet.where[task]
        entered = self._is_entered(source)
        self._leave(source)
        self._leave(target)
        self._fleet.move(task, target)
        self._most_gpus = max(self._most_gpus, self._fleet.free_gpus[source])
        self._enter(target)
        if entered:
            self._enter(source)

    def _is_entered(self, node: int) -> bool:
        return node in self._buckets.get(self._key(node), ())

    def _enter(self, node: int) -> None:
        if self._fleet.on[node]:
            self._buckets.setdefault(self._key(node), {})[node] = None

    def _leave(self, node: int) -> None:
        self._buckets.get(self._key(node), {}).pop(node, None)

    def _key(self, node: int) -> tuple[int, int]:
        return self._fleet.kind[node], self._fleet.free_gpus[node]
