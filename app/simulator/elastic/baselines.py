"""What Cornucopia is compared with: rigid jobs in an order (FIFO, Tiresias, SRTF), ElasticFlow without deadlines."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from typing import cast

from app.core.elastic.pool import ElasticJob, ElasticPool
from app.core.elastic.queues import PriorityQueue
from app.core.elastic.rules import LITERAL
from app.simulator.elastic.workload import MixedJob

TIRESIAS_QUEUES_GPU_S = (3250.0, 7200.0)  # its public simulator: three queues, by received GPU time
MOST_SKIPPED = 64
Key = tuple[float, float]


class RigidSizes:
    """Every job has its request or nothing. The lowest key first; where `preempts`, whoever has a higher key gives way,
    the highest first. Jobs that do not fit are passed over."""

    def __init__(self, jobs: Sequence[MixedJob], capacity: int, *, preempts: bool) -> None:
        self._jobs, self._free, self._preempts = jobs, capacity, preempts
        self._waiting: list[tuple[Key, int]] = []
        self._running: list[tuple[Key, int]] = []  # keys negated: the one to stop first on top
        self._keys: dict[int, Key] = {}
        self._holds: set[int] = set()

    def key(self, place: int, now_s: float) -> Key:
        """Of a job that comes, or that is looked at."""
        return (0.0, self._jobs[place].submit_s)

    def arrive(self, place: int, now_s: float) -> None:
        self._keys[place] = self.key(place, now_s)
        heapq.heappush(self._waiting, (self._keys[place], place))

    def ran(self, place: int, seconds: float, gpus: int) -> None:
        """Rigid orders that count service do so in `check`."""

    def end(self, place: int) -> None:
        self._holds.discard(place)
        self._free += self._jobs[place].request
        del self._keys[place]

    def check(self, place: int, now_s: float) -> None:
        self._rekey(place, self.key(place, now_s))

    def check_in_s(self, place: int, gpus: int) -> float:
        return math.inf

    def settle(self, now_s: float) -> Iterable[tuple[int, int]]:
        changes: dict[int, int] = {}
        skipped: list[tuple[Key, int]] = []
        while self._waiting and len(skipped) < MOST_SKIPPED:
            entry = heapq.heappop(self._waiting)
            if not self._make_room(entry, changes, now_s):
                skipped.append(entry)
                if self._free == 0 and not self._may_preempt(entry[0]):
                    break
                continue
            self._holds.add(entry[1])
            self._free -= self._jobs[entry[1]].request
            key = self.started_key(entry[1], now_s)
            self._rekey(entry[1], key)
            changes[entry[1]] = self._jobs[entry[1]].request
        for entry in skipped:
            heapq.heappush(self._waiting, entry)
        return changes.items()

    def started_key(self, place: int, now_s: float) -> Key:
        return self._keys[place]

    def stopped_key(self, place: int, now_s: float) -> Key:
        return self._keys[place]

    def compared(self, key: Key, now_s: float) -> Key:
        """A waiting job's key as it compares with those of running ones."""
        return key

    def _rekey(self, place: int, key: Key) -> None:
        self._keys[place] = key
        if place in self._holds:
            heapq.heappush(self._running, ((-key[0], -key[1]), place))

    def _top(self) -> tuple[Key, int] | None:
        while self._running:
            (first, second), place = self._running[0]
            if place in self._holds and self._keys[place] == (-first, -second):
                return self._keys[place], place
            heapq.heappop(self._running)
        return None

    def _may_preempt(self, key: Key) -> bool:
        top = self._top()
        return self._preempts and top is not None and top[0] > key

    def _make_room(self, entry: tuple[Key, int], changes: dict[int, int], now_s: float) -> bool:
        """Stops whoever has to; nobody where it would not be enough."""
        needed, stopped = self._jobs[entry[1]].request - self._free, list[int]()
        key = self.compared(entry[0], now_s)
        while needed > 0 and self._may_preempt(key):
            _, place = heapq.heappop(self._running)
            self._holds.discard(place)
            stopped.append(place)
            needed -= self._jobs[place].request
        for place in stopped:
            if needed > 0:
                self._holds.add(place)
                self._rekey(place, self._keys[place])
                continue
            self._free += self._jobs[place].request
            self._keys[place] = self.stopped_key(place, now_s)
            heapq.heappush(self._waiting, (self._keys[place], place))
            changes[place] = 0
        return needed <= 0


class TiresiasSizes(RigidSizes):
    """Discretised two-dimensional least attained service: three queues by GPU time received, first come first served in
    each (Tiresias, NSDI 2019, section 3.2)."""

    def __init__(self, jobs: Sequence[MixedJob], capacity: int) -> None:
        super().__init__(jobs, capacity, preempts=True)
        self._served_gpu_s = [0.0] * len(jobs)

    def ran(self, place: int, seconds: float, gpus: int) -> None:
        self._served_gpu_s[place] += seconds * gpus

    def key(self, place: int, now_s: float) -> Key:
        passed = sum(self._served_gpu_s[place] >= limit for limit in TIRESIAS_QUEUES_GPU_S)
        return (float(passed), self._jobs[place].submit_s)

    def check_in_s(self, place: int, gpus: int) -> float:
        left = [one - self._served_gpu_s[place] for one in TIRESIAS_QUEUES_GPU_S if one > self._served_gpu_s[place]]
        return min(left) / gpus + 1e-6 if gpus and left else math.inf


class ShortestSizes(RigidSizes):
    """Shortest remaining time first, with an oracle. A running job is compared by the instant at which it will end."""

    def __init__(self, jobs: Sequence[MixedJob], capacity: int) -> None:
        super().__init__(jobs, capacity, preempts=True)
        self._left_s = [one.duration_s for one in jobs]

    def ran(self, place: int, seconds: float, gpus: int) -> None:
        self._left_s[place] -= seconds * (gpus > 0)

    def key(self, place: int, now_s: float) -> Key:
        return (self._left_s[place], self._jobs[place].submit_s)

    def started_key(self, place: int, now_s: float) -> Key:
        return (now_s + self._left_s[place], self._jobs[place].submit_s)

    def stopped_key(self, place: int, now_s: float) -> Key:
        ends_s, submit_s = self._keys[place]
        return (ends_s - now_s, submit_s)

    def compared(self, key: Key, now_s: float) -> Key:
        return (now_s + key[0], key[1])


class FlowSizes:
    """ElasticFlow with deadlines at infinity: first come first served, no preemption of a job's last GPU, and idle GPUs
    to whoever gains most. All speeds are known to it."""

    def __init__(self, jobs: Sequence[MixedJob], capacity: int) -> None:
        self._jobs = jobs
        self._pool = ElasticPool(capacity, LITERAL)

    def arrive(self, place: int, now_s: float) -> None:
        self._pool.add(ElasticJob(place, PriorityQueue.LONG, self._jobs[place].profile()))

    def ran(self, place: int, seconds: float, gpus: int) -> None:
        """Service is not counted."""

    def end(self, place: int) -> None:
        self._pool.remove(place)

    def check(self, place: int, now_s: float) -> None:
        """Nothing changes with time."""

    def check_in_s(self, place: int, gpus: int) -> float:
        return math.inf

    def settle(self, now_s: float) -> Iterable[tuple[int, int]]:
        return [(cast(int, one.job_id), one.after) for one in self._pool.settle()]
