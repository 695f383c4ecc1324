"""Shortest first, with preemption: `shortest` by remaining time, `shortest-gpu` by remaining time x GPUs.

At every instant jobs are ordered by their key, ties as they stood before, newcomers last. Then each in turn gets GPUs
if enough are left. Keys fall only while a job runs, so waiting jobs keep their order among themselves: they are kept
in heaps, by number of GPUs, and only the running ones are ordered anew.
"""

from __future__ import annotations

import heapq
from itertools import count

from app.simulator.compat.record import JobRecord, arrivals_of

Entry = tuple[int, int, JobRecord]  # key, rank, job; no two have the same rank


def replay_shortest(records: list[JobRecord], gpus: int) -> None:
    """Least remaining time first."""
    _Cluster(gpus, by_gpu_time=False).replay(records)


def replay_shortest_gpu(records: list[JobRecord], gpus: int) -> None:
    """Least remaining time x GPUs first."""
    _Cluster(gpus, by_gpu_time=True).replay(records)


class _Cluster:
    def __init__(self, gpus: int, *, by_gpu_time: bool) -> None:
        self._gpus = gpus
        self._by_gpu_time = by_gpu_time
        self._now_s = 0
        self._running: list[JobRecord] = []  # in the order of the last plan
        self._waiting: dict[int, list[Entry]] = {}  # heaps, by number of GPUs
        self._ranks = count()

    def replay(self, records: list[JobRecord]) -> None:
        for second, arrived in arrivals_of(records):
            self._run_until(second)
            self._advance(second)
            self._plan(arrived)
        self._run_until(None)

    def _run_until(self, second: int | None) -> None:
        """Handles the ends before a second, or all of them."""
        while (end_s := self._next_end_s()) is not None and (second is None or end_s < second):
            self._advance(end_s)
            self._plan([])

    def _next_end_s(self) -> int | None:
        if not self._running:
            return None
        return self._now_s + min([record.duration_s - record.executed_s for record in self._running])

    def _advance(self, now_s: int) -> None:
        passed_s = now_s - self._now_s
        self._now_s = now_s
        still: list[JobRecord] = []
        for record in self._running:
            record.executed_s += passed_s
            if passed_s > 0:  # it falls behind the waiting jobs whose key it has just reached
                record.rank = next(self._ranks)
            if record.executed_s == record.duration_s:
                record.finish(now_s)
            else:
                still.append(record)
        self._running = still

    def _plan(self, arrived: list[JobRecord]) -> None:
        """Walks running and waiting jobs in one order; the first waiting one that fits is kept at hand."""
        for record in arrived:
            record.rank = next(self._ranks)
            self._wait(record)
        free = self._gpus
        chosen: list[JobRecord] = []
        preempted: list[JobRecord] = []
        head = self._head(free)
        for key, rank, record in sorted([self._entry(record) for record in self._running]):
            while head is not None and head < (key, rank):
                free = self._start(head, free, chosen)
                head = self._head(free)
            if record.gpus > free:
                preempted.append(record)
                continue
            free -= record.gpus
            chosen.append(record)
            if head is not None and head[2].gpus > free:
                head = self._head(free)
        while head is not None:
            free = self._start(head, free, chosen)
            head = self._head(free)
        for record in preempted:
            record.preempt()
            self._wait(record)
        self._running = chosen

    def _head(self, free: int) -> Entry | None:
        """The first waiting job of at most `free` GPUs."""
        if free == 0:
            return None
        return min((heap[0] for gpus, heap in self._waiting.items() if gpus <= free and heap), default=None)

    def _start(self, head: Entry, free: int, chosen: list[JobRecord]) -> int:
        record = head[2]
        heapq.heappop(self._waiting[record.gpus])
        record.resume(self._now_s)
        chosen.append(record)
        return free - record.gpus

    def _wait(self, record: JobRecord) -> None:
        heapq.heappush(self._waiting.setdefault(record.gpus, []), self._entry(record))

    def _entry(self, record: JobRecord) -> Entry:
        left_s = record.duration_s - record.executed_s
        return left_s * record.gpus if self._by_gpu_time else left_s, record.rank, record
