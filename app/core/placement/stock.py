"""Idle GPUs by kind and by how many of them a node has: what a ranker asks."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Literal

from app.core.placement.sorted_keys import Key, SortedKeys

Order = Literal["idle", "memory"]  # what comes first: the fewest idle GPUs, or the smallest memory
Candidate = tuple[int, int, Key]  # idle GPUs, memory in bytes, key


class NodeKind:
    """Nodes with GPUs of one type and memory. Bit i of `mask`: some node has i idle GPUs."""

    __slots__ = ("gpu_type", "mask", "memory_bytes", "shelves", "total")

    def __init__(self, memory_bytes: int, gpu_type: str) -> None:
        self.memory_bytes = memory_bytes
        self.gpu_type = gpu_type
        self.mask = 0
        self.total = 0
        self.shelves: dict[int, SortedKeys] = {}


class Stock:
    """Nodes that have idle GPUs; those without are not in it."""

    __slots__ = ("_by_kind", "_kinds", "_memories")

    def __init__(self) -> None:
        self._by_kind: dict[tuple[int, str], NodeKind] = {}
        self._kinds: list[NodeKind] = []  # ascending by memory, then type
        self._memories: list[tuple[int, str]] = []

    def add(self, memory_bytes: int, gpu_type: str, idle: int, key: Key) -> None:
        """A node with so many idle GPUs."""
        if idle == 0:
            return
        kind = self._by_kind.get((memory_bytes, gpu_type))
        if kind is None:
            kind = self._by_kind[memory_bytes, gpu_type] = NodeKind(memory_bytes, gpu_type)
            place = bisect_left(self._memories, (memory_bytes, gpu_type))
            insort(self._memories, (memory_bytes, gpu_type))
            self._kinds.insert(place, kind)
        shelf = kind.shelves.get(idle)
        if shelf is None:
            shelf = kind.shelves[idle] = SortedKeys()
        shelf.add(key)
        kind.mask |= 1 << idle
        kind.total += idle

    def remove(self, memory_bytes: int, gpu_type: str, idle: int, key: Key) -> None:
        """The same node with the same number of idle GPUs is not there any more."""
        if idle == 0:
            return
        kind = self._by_kind[memory_bytes, gpu_type]
        shelf = kind.shelves[idle]
        shelf.remove(key)
        if not shelf:
            kind.mask &= ~(1 << idle)
        kind.total -= idle

    def enough(self, gpus: int, memory_bytes: int, gpu_type: str | None) -> bool:
        """Whether so many GPUs of sufficient memory are idle, on whatever nodes."""
        total = 0
        for kind in self._kinds[bisect_left(self._memories, (memory_bytes, "")) :]:
            if gpu_type is None or kind.gpu_type == gpu_type:
                total += kind.total
                if total >= gpus:
                    return True
        return False

    def tightest(self, gpus: int, memory_bytes: int, gpu_type: str | None, order: Order) -> Candidate | None:
        """The first node, in this order, that has so many idle GPUs of sufficient memory; the lowest key of equals."""
        best: Candidate | None = None
        for kind in self._kinds[bisect_left(self._memories, (memory_bytes, "")) :]:
            if best is not None and order == "memory" and kind.memory_bytes > best[1]:
                break
            above = kind.mask >> gpus
            if not above or not (gpu_type is None or kind.gpu_type == gpu_type):
                continue
            idle = gpus + (above & -above).bit_length() - 1
            if best is None or idle <= best[0]:
                found = idle, kind.memory_bytes, kind.shelves[idle].first
                best = found if best is None or found < best else best
        return best

    def largest(self, memory_bytes: int, gpu_type: str | None, order: Order) -> Candidate | None:
        """The node with the most idle GPUs of sufficient memory. Of equals, the last in the order by idle GPUs (most
        memory, highest key), or the best in the order by memory (least memory, lowest key)."""
        best: Candidate | None = None
        for kind in self._kinds[bisect_left(self._memories, (memory_bytes, "")) :]:
            if not kind.mask or not (gpu_type is None or kind.gpu_type == gpu_type):
                continue
            idle = kind.mask.bit_length() - 1
            shelf = kind.shelves[idle]
            if order == "idle":
                found = idle, kind.memory_bytes, shelf.last
                best = found if best is None or found > best else best
            elif best is None or (-idle, kind.memory_bytes, shelf.first) < (-best[0], best[1], best[2]):
                best = idle, kind.memory_bytes, shelf.first
        return best
