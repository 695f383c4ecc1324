"""`dlas-gpu`: Tiresias-L, two-dimensional least attained service with three queues.

A job moves to the next queue when its GPU time reaches the queue's limit. Queues are served one after the other, each
in its order, skipping what does not fit. In a queue, running jobs stand before waiting ones.
"""

from __future__ import annotations

from collections import deque

from app.simulator.compat.queueing import SizedQueue
from app.simulator.compat.record import JobRecord, arrivals_of

LIMITS_GPU_S = (3250, 7200)  # of the first two queues; the last has none


def replay_dlas(records: list[JobRecord], gpus: int) -> None:
    """Least attained GPU time first, in steps."""
    cluster = _Cluster(gpus)
    arrivals = deque(arrivals_of(records))
    noted: list[JobRecord] = []
    while (end_s := cluster.next_end_s()) is not None or arrivals:
        arrival_s = arrivals[0][0] if arrivals else None
        # The original notes the jobs that end in the second of the next arrival with that arrival, even when a demotion
        # comes first. If the demotion preempts them, the arrival ends them all the same, before their time, unless
        # another job really ends in that second.
        if end_s is not None and end_s == arrival_s:
            noted = cluster.ending_at(end_s)
        event_s = min(one for one in (end_s, arrival_s) if one is not None)
        demotion_s = cluster.next_demotion_s()
        if demotion_s is not None and demotion_s < event_s:
            cluster.handle(demotion_s, [], [])
        elif event_s == arrival_s:
            cluster.handle(event_s, noted, arrivals.popleft()[1])
            noted = []
        else:
            cluster.handle(event_s, cluster.ending_at(event_s), [])


class _Cluster:
    """The three queues: of each, the jobs that run, in order, and those that wait behind them."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._now_s = 0
        self._running: list[list[JobRecord]] = [[] for _ in range(len(LIMITS_GPU_S) + 1)]
        self._waiting = [SizedQueue() for _ in self._running]

    def next_end_s(self) -> int | None:
        left = [record.duration_s - record.executed_s for queue in self._running for record in queue]
        return self._now_s + min(left) if left else None

    def ending_at(self, second: int) -> list[JobRecord]:
        left_s = second - self._now_s
        return [one for queue in self._running for one in queue if one.duration_s - one.executed_s == left_s]

    def next_demotion_s(self) -> int | None:
        """When the original looks for demotions again. It takes the limit for seconds that are yet to be run on all
        GPUs together, so that a job on several GPUs is looked at, and demoted, after its time.
        """
        waits = [
            (limit - record.executed_s) // record.gpus
            for limit, queue in zip(LIMITS_GPU_S, self._running, strict=False)
            for record in queue
        ]
        # A job on more GPUs than the limit has seconds would keep the original at one instant for ever.
        return self._now_s + max(1, min(waits)) if waits else None

    def handle(self, now_s: int, ended: list[JobRecord], arrived: list[JobRecord]) -> None:
        """One instant: ends, arrivals, demotions, then a new plan."""
        for queue in self._running:
            for record in queue:
                record.executed_s += now_s - self._now_s
        self._now_s = now_s
        for record in ended:
            record.finish(now_s)
        for record in arrived:
            self._waiting[0].append(record)
        for number, queue in enumerate(self._running):
            self._running[number] = [record for record in queue if record.running]
        demoted = self._demote()
        free = self._gpus
        for number in range(len(self._running)):
            free = self._plan(number, demoted[number], free)

    def _demote(self) -> list[list[JobRecord]]:
        """Takes jobs that have had their share from their queues. Gives them by new queue, in the order of arrival."""
        demoted: list[list[JobRecord]] = [[] for _ in self._running]
        for number, limit in enumerate(LIMITS_GPU_S):
            queue = self._running[number]
            over = [record for record in queue if record.executed_s * record.gpus >= limit]
            if over:
                self._running[number] = [record for record in queue if record.executed_s * record.gpus < limit]
                demoted[number + 1] = sorted(over, key=lambda record: record.place)
        return demoted

    def _plan(self, number: int, demoted: list[JobRecord], free: int) -> int:
        """Gives GPUs to a queue: its running jobs, those that wait, then those that have just come from the queue
        above. Running jobs that get none wait before, or behind, those that waited already. Gives what is left.
        """
        chosen: list[JobRecord] = []
        displaced: tuple[list[JobRecord], list[JobRecord]] = ([], [])

        def keep(records: list[JobRecord], losers: list[JobRecord]) -> None:
            nonlocal free
            for record in records:
                if record.gpus <= free:
                    free -= record.gpus
                    chosen.append(record)
                else:
                    record.preempt()
                    losers.append(record)

        keep(self._running[number], displaced[0])
        waiting = self._waiting[number]
        while free > 0 and (record := waiting.pop_fitting(free)) is not None:
            free -= record.gpus
            record.resume(self._now_s)
            chosen.append(record)
        keep(demoted, displaced[1])
        waiting.prepend(displaced[0])
        for record in displaced[1]:
            waiting.append(record)
        self._running[number] = chosen
        return free
