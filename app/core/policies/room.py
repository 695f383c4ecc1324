"""Where there is room: places by shape and by free GPUs, so that a burst of jobs does not look at every place for each.

What is full or too small is never looked at. Within one plan places only fill up; one that has is found out, and put
where it belongs, when it comes to the front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from app.core.board import Shape
from app.core.market import kind_fits
from app.core.model.job import Resources
from app.core.model.snapshot import JobView

if TYPE_CHECKING:
    from app.core.policies.placement import Place

Lasting: TypeAlias = tuple[int, int, int, bool]  # mean life, what an arrival takes and costs, whether taken back
_Rank: TypeAlias = tuple[int, int, str]
_Heap: TypeAlias = "list[tuple[_Rank, int, Place]]"  # the number: who came first, where all else is equal


class Room:
    """Places in an order; `rank` gives a place's, which may depend on how many GPUs it has free."""

    def __init__(self, places: Iterable[Place], rank: Callable[[Place], _Rank]) -> None:
        self._rank = rank
        self._numbers = count()
        self._by_shape: dict[tuple[Shape, Lasting], dict[int, _Heap]] = {}
        for place in places:
            if place.free_gpus:
                self._heap(place).append(self._entry(place))
        for by_free in self._by_shape.values():
            for heap in by_free.values():
                heapify(heap)

    def add(self, place: Place) -> None:
        if place.free_gpus:
            heappush(self._heap(place), self._entry(place))

    def first(self, job: JobView, most_micros: float) -> Place | None:
        """The first place that takes the job, of those where an hour of its work costs at most so much."""
        return min(self.heads(job, most_micros), key=self._rank, default=None)

    def cheapest(self, job: JobView, most_micros: float) -> Place | None:
        """The same by what an hour of its work costs: where GPUs have other speeds, not what an hour costs there."""
        if job.speeds is None:
            return self.first(job, most_micros)
        heads = self.heads(job, most_micros)
        return min(heads, key=lambda place: (place.weighed_share_micros(job), *self._rank(place)), default=None)

    def heads(self, job: JobView, most_micros: float) -> Iterator[Place]:
        """Of each shape, and of those that last alike, the first place for each number of free GPUs."""
        return (
            head
            for (shape, _), by_free in self._by_shape.items()
            if shape_fits(job.resources, shape)
            for free in range(shape[2], job.resources.gpus_min - 1, -1)  # what is put elsewhere has fewer: it comes yet
            if free in by_free and (head := self._head(by_free, free, job, most_micros)) is not None
        )

    def _head(self, by_free: dict[int, _Heap], free: int, job: JobView, most_micros: float) -> Place | None:
        heap = by_free[free]
        while heap and len(heap[0][-1].free_gpus) != free:
            self.add(heappop(heap)[-1])
        if not heap or _is_for(heap[0][-1], job, most_micros):
            return heap[0][-1] if heap else None
        self._settle(heap, free)
        suitable = (entry for entry in heap if _is_for(entry[-1], job, most_micros))
        return min(suitable, default=(None,))[-1]

    def _settle(self, heap: _Heap, free: int) -> None:
        """Put those elsewhere that have been filled up since."""
        moved = [entry[-1] for entry in heap if len(entry[-1].free_gpus) != free]
        if moved:
            heap[:] = [entry for entry in heap if len(entry[-1].free_gpus) == free]
            heapify(heap)
            for place in moved:
                self.add(place)

    def _entry(self, place: Place) -> tuple[_Rank, int, Place]:
        return self._rank(place), next(self._numbers), place

    def _heap(self, place: Place) -> _Heap:
        by_free = self._by_shape.setdefault((place.shape, place.lasting), {})
        return by_free.setdefault(len(place.free_gpus), [])


def _is_for(place: Place, job: JobView, most_micros: float) -> bool:
    return place.takes(job) and place.weighed_share_micros(job) <= most_micros


def shape_fits(resources: Resources, shape: Shape) -> bool:
    """Whether a job would fit on an empty place of this shape: one with another image is never for it."""
    gpu_type, gpu_memory_bytes, gpu_count, cpus, memory_bytes, image = shape
    return (
        image == (resources.base_image or "")
        and gpu_count >= resources.gpus_min
        and kind_fits(resources, gpu_type, gpu_memory_bytes)
        and cpus >= resources.cpus_min
        and memory_bytes >= resources.memory_bytes_min
    )
