"""Jobs that want a place, in the order in which they are served, without a look at those behind. Pure.

All projects have their turn, as in `app.core.queue.in_turn`, first with their guaranteed jobs; within one, the earliest
deadline comes first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace

from app.core.model.snapshot import JobView
from app.core.queue import EdfKey, edf_key, is_spot


class WaitingLine:
    """A job is in it once; one whose deadline, class or project changes is removed and added again."""

    def __init__(self) -> None:
        self._of: tuple[dict[str, list[EdfKey]], ...] = ({}, {})  # of guaranteed jobs, and of spot jobs, by project
        self._ids: list[str] = []

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, job: JobView) -> None:
        insort(self._of[is_spot(job)].setdefault(job.project_id, []), edf_key(job))
        insort(self._ids, job.job_id)

    def remove(self, job: JobView) -> None:
        """As it was added."""
        of, key = self._of[is_spot(job)], edf_key(job)
        keys = of[job.project_id]
        del keys[bisect_left(keys, key)]
        if not keys:
            del of[job.project_id]
        del self._ids[bisect_left(self._ids, job.job_id)]

    def in_turn(self, machines: Mapping[str, int]) -> Iterator[str]:
        """Ids, one after the other. `machines`: how many each project has; the next goes to who would have least."""
        guaranteed, spot = self._of
        yield from _in_turn(guaranteed, machines)
        if spot:
            would_have = {project: machines.get(project, 0) + len(guaranteed.get(project, ())) for project in spot}
            yield from _in_turn(spot, would_have)

    def within(self, ranges: Iterable[tuple[str, str]]) -> set[str]:
        """Those whose ids lie within one of the ranges, both ends included."""
        found: set[str] = set()
        for first, last in ranges:
            found.update(self._ids[bisect_left(self._ids, first) : bisect_right(self._ids, last)])
        return found


def _in_turn(of: Mapping[str, list[EdfKey]], machines: Mapping[str, int]) -> Iterator[str]:
    if len(of) == 1:
        (keys,) = of.values()
        yield from (key[-1] for key in keys)
        return
    heads = [(machines.get(project, 0), keys[0], project, 0) for project, keys in of.items()]
    heapify(heads)
    while heads:
        rank, key, project, place = heads[0]
        yield key[-1]
        keys = of[project]
        if place + 1 < len(keys):
            heapreplace(heads, (rank + 1, keys[place + 1], project, place + 1))
        else:
            heappop(heads)
