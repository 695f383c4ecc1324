"""First come, first served, without preemption: `fifo`, whose head of the line blocks, and `fjf`, which skips it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from app.simulator.compat.record import JobRecord, arrivals_of


class SizedQueue:
    """A queue that gives the first job of at most so many GPUs. What stands before it did not fit and stays.

    One line for each number of GPUs keeps this fast: only the heads of the lines are looked at.
    """

    def __init__(self) -> None:
        self._lines: dict[int, deque[tuple[int, JobRecord]]] = {}
        self._front = 0
        self._back = 0

    def append(self, record: JobRecord) -> None:
        self._back += 1
        self._lines.setdefault(record.gpus, deque()).append((self._back, record))

    def prepend(self, records: list[JobRecord]) -> None:
        """Puts jobs before all others, in this order."""
        for record in reversed(records):
            self._front -= 1
            self._lines.setdefault(record.gpus, deque()).appendleft((self._front, record))

    def pop_fitting(self, free: int) -> JobRecord | None:
        """Takes the first job of at most `free` GPUs. Jobs that have ended meanwhile are dropped."""
        first: tuple[int, JobRecord] | None = None
        for gpus, line in self._lines.items():
            while line and line[0][1].finish_s is not None:
                line.popleft()
            if gpus <= free and line and (first is None or line[0][0] < first[0]):
                first = line[0]
        if first is None:
            return None
        self._lines[first[1].gpus].popleft()
        return first[1]


def replay_fifo(records: list[JobRecord], gpus: int) -> None:
    """In the order of arrival; a job that does not fit holds up those behind it."""
    line: deque[JobRecord] = deque()

    def pop_head(free: int) -> JobRecord | None:
        return line.popleft() if line and line[0].gpus <= free else None

    _replay(records, gpus, line.append, pop_head)


def replay_first_fit(records: list[JobRecord], gpus: int) -> None:
    """In the order of arrival; a job that does not fit is skipped."""
    queue = SizedQueue()
    _replay(records, gpus, queue.append, queue.pop_fitting)


def _replay(
    records: list[JobRecord],
    gpus: int,
    enqueue: Callable[[JobRecord], None],
    dequeue: Callable[[int], JobRecord | None],
) -> None:
    free = gpus
    ends: list[tuple[int, int]] = []  # (instant, place) of running jobs
    for now_s, arrived in _instants(records, ends):
        while ends and ends[0][0] == now_s:
            ended = records[heapq.heappop(ends)[1]]
            free += ended.gpus
            ended.executed_s = ended.duration_s
            ended.finish(now_s)
        for new in arrived:
            enqueue(new)
        while free > 0 and (record := dequeue(free)) is not None:
            record.start_s = now_s
            free -= record.gpus
            # The original books the end of a job of 0 s at the instant that it is just dealing with and never sees it:
            # such a job does not end, and keeps its GPUs.
            if record.duration_s > 0:
                heapq.heappush(ends, (now_s + record.duration_s, record.place))


def _instants(records: list[JobRecord], ends: list[tuple[int, int]]) -> Iterator[tuple[int, list[JobRecord]]]:
    """Each second in which a job ends or arrives. `ends` grows while this runs."""
    for second, arrived in arrivals_of(records):
        while ends and ends[0][0] < second:
            yield ends[0][0], []
        yield second, arrived
    while ends:
        yield ends[0][0], []
