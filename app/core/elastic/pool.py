"""Which job holds how many GPUs of one kind: allocation and partial preemption (Algorithms 2 and 3), kept up to date.

An `ElasticPool` is told what has changed, and `settle` then says whose size changes. It costs what has changed, not
what there is: all orders are heaps whose outdated entries are skipped. Jobs of another kind of GPU have another pool.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from app.core.elastic.profile import NOISE, SpeedProfile
from app.core.elastic.queues import PriorityQueue
from app.core.elastic.rules import ElasticRules
from app.core.elastic.scaling import gain_per_gpu, is_worth_resizing, loss_per_gpu

MOST_SKIPPED = 64  # inelastic jobs that are passed over for smaller ones, each time
UNTRIED = 1e-9  # the gain at a size that nobody has measured: enough to try it on idle GPUs, after all known gains
Entry = tuple[tuple[float, ...], int, Hashable]


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A job as the pool sees it. `service_class`: its order inside its queue. `remaining_s`: what it is expected to
    run on at its present speed, and `resize_cost_s` the measured pause of a resize; both for growth alone."""

    job_id: Hashable
    queue: PriorityQueue
    profile: SpeedProfile
    service_class: int = 0
    remaining_s: float = float("inf")
    resize_cost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Resize:
    job_id: Hashable
    before: int
    after: int
    because: str


@dataclass(slots=True)
class _Member:
    job: ElasticJob
    arrival: int
    sizes: tuple[int, ...]
    speeds: tuple[float, ...]
    place: int = -1
    version: int = 0

    @property
    def held(self) -> int:
        return 0 if self.place < 0 else self.sizes[self.place]

    def place_for(self, gpus: int) -> int:
        """The largest size of at most so many GPUs."""
        return bisect.bisect_right(self.sizes, gpus) - 1


@dataclass(slots=True)
class _Orders:
    """Of one queue: who waits, who can give a part, who can only give all, who can grow."""

    waiting: list[Entry] = field(default_factory=list)
    shrinking: list[Entry] = field(default_factory=list)
    stripping: list[Entry] = field(default_factory=list)
    growing: list[Entry] = field(default_factory=list)


class ElasticPool:
    """GPUs of one kind. Raises ValueError for a negative capacity."""

    def __init__(self, capacity: int, rules: ElasticRules) -> None:
        if capacity < 0:
            raise ValueError(f"a pool has 0 GPUs or more, not {capacity}")
        self.capacity, self.free, self.rules = capacity, capacity, rules
        self._members: dict[Hashable, _Member] = {}
        self._orders = {queue: _Orders() for queue in PriorityQueue}
        self._held: dict[PriorityQueue, Counter[int]] = {queue: Counter() for queue in PriorityQueue}  # GPUs by class
        self._held_in = dict.fromkeys(PriorityQueue, 0)  # GPUs of each queue
        self._arrivals = self._versions = 0
        self._before: dict[Hashable, tuple[int, str]] = {}

    def add(self, job: ElasticJob) -> None:
        """A job that comes. Raises ValueError where it is there already."""
        if job.job_id in self._members:
            raise ValueError(f"{job.job_id} is in the pool already")
        self._arrivals += 1
        self._members[job.job_id] = _Member(job, self._arrivals, *_curve(job.profile))
        self._enter(self._members[job.job_id])

    def remove(self, job_id: Hashable) -> None:
        """A job that has ended or goes elsewhere; its GPUs are free. Raises KeyError where it is not there."""
        member = self._members.pop(job_id)
        self._count(member, -member.held)
        self._before.pop(job_id, None)

    def update(self, job: ElasticJob) -> None:
        """What is known of a job has changed; its GPUs stay until `settle`. A size that its profile no longer has
        becomes the next smaller one. Raises KeyError where it is not there."""
        member = self._members[job.job_id]
        held = member.held
        self._count(member, -held)
        known = job.profile is member.job.profile
        member.job = job
        if not known:
            member.sizes, member.speeds = _curve(job.profile)
            member.place = member.place_for(held)
            if member.held != held:
                self._before.setdefault(job.job_id, (held, "its profile has no such size"))
        self._count(member, member.held)
        self._enter(member)

    def holds(self, job_id: Hashable) -> int:
        return self._members[job_id].held

    def settle(self) -> list[Resize]:
        """Gives, takes and grows until nobody can be helped by the rules; every job whose size is another one now."""
        for queue in PriorityQueue:
            self._serve(queue)
        for queue in (PriorityQueue.BATCH, PriorityQueue.LONG):
            self._grow(queue)
        changed = [Resize(one, size, self.holds(one), why) for one, (size, why) in self._before.items()]
        self._before.clear()
        return [one for one in changed if one.before != one.after]

    def _serve(self, queue: PriorityQueue) -> None:
        """Everybody who waits in a queue, in order, from idle GPUs and from those who have to give way."""
        heap, skipped = self._orders[queue].waiting, list[Entry]()
        while (entry := self._top(heap)) is not None and len(skipped) < MOST_SKIPPED:
            member = self._members[entry[2]]
            reach = self._reach(member)
            if reach <= 0:
                break  # whoever comes after it reaches no more
            wanted = self._wanted(member, reach)
            if wanted > member.place:
                self._gather(member, member.sizes[wanted] - member.held)
                self._set(member, wanted, f"its turn in the {queue.name.lower()} queue")
            elif member.job.profile.elastic and queue is not PriorityQueue.INTERACTIVE:
                break  # nobody after it has a better claim to a single GPU
            else:
                skipped.append(heapq.heappop(heap))
        for entry in skipped:
            heapq.heappush(heap, entry)

    def _wanted(self, member: _Member, reach: int) -> int:
        """The size that can be had now: as much of its request as possible, or a first size of a batch job where idle
        GPUs let it grow afterwards (`mended`)."""
        if member.job.queue is PriorityQueue.INTERACTIVE or not self.rules.least_served:
            return max(member.place, member.place_for(min(member.job.profile.request, member.held + reach)))
        return 0 if member.sizes[0] <= reach else member.place

    def _reach(self, member: _Member) -> int:
        """Idle GPUs and all that may be taken for this job: of later queues, and of later classes of its own."""
        job = member.job
        later = sum(gpus for queue, gpus in self._held_in.items() if queue > job.queue)
        if job.queue is PriorityQueue.INTERACTIVE or not self.rules.least_served:
            return self.free + later
        own = sum(gpus for order, gpus in self._held[job.queue].items() if order > job.service_class)
        can_shrink = self._top(self._orders[job.queue].shrinking) is not None
        return self.free + later + own + (own == 0 and can_shrink)

    def _gather(self, member: _Member, gpus: int) -> None:
        """Takes GPUs until so many are idle, one step of one job at a time (Algorithm 3)."""
        why = f"for {member.job.job_id}"
        victims = self._victims(member)
        while self.free < gpus and (victim := next(victims, None)) is not None:
            self._set(victim, victim.place - 1, why)

    def _victims(self, member: _Member) -> Iterator[_Member]:
        """The last queue first; in each, parts before wholes. In a job's own queue only whoever was served more gives
        all, while anybody who holds more than a first size gives a part."""
        job = member.job
        for queue in (PriorityQueue.LONG, PriorityQueue.BATCH):
            if queue < job.queue or (queue == job.queue and not self.rules.least_served):
                continue
            orders = self._orders[queue]
            while (entry := self._top(orders.shrinking)) is not None:
                yield self._members[entry[2]]
            while (entry := self._top(orders.stripping)) is not None:
                victim = self._members[entry[2]]
                if queue == job.queue and victim.job.service_class <= job.service_class:
                    break
                yield victim

    def _grow(self, queue: PriorityQueue) -> None:
        """Idle GPUs to whoever gains most of them, a step at a time, until none are left or nobody gains."""
        heap, kept = self._orders[queue].growing, list[Entry]()
        while self.free > 0 and (entry := self._top(heap)) is not None:
            member = self._members[entry[2]]
            step = member.sizes[member.place + 1] - member.held
            if step <= self.free and self._is_worth(member):
                self._set(member, member.place + 1, "GPUs were idle")
            else:
                kept.append(heapq.heappop(heap))
        for entry in kept:
            heapq.heappush(heap, entry)

    def _is_worth(self, member: _Member) -> bool:
        job, after = member.job, member.speeds[member.place + 1]
        if not self.rules.heeds_costs:
            return True
        if member.sizes[member.place + 1] not in job.profile.measured:
            after = max(after, member.speeds[member.place] * member.sizes[member.place + 1] / member.held)
        return is_worth_resizing(member.speeds[member.place], after, job.remaining_s, job.resize_cost_s)

    def _set(self, member: _Member, place: int, because: str) -> None:
        job_id = member.job.job_id
        before = self._before.get(job_id, (member.held, because))[0]
        self._before[job_id] = (before, because)
        self._count(member, -member.held)
        member.place = place
        self._count(member, member.held)
        self._enter(member)

    def _count(self, member: _Member, gpus: int) -> None:
        self.free -= gpus
        self._held[member.job.queue][member.job.service_class] += gpus
        self._held_in[member.job.queue] += gpus

    def _enter(self, member: _Member) -> None:
        """Into all orders where it belongs; what it had there before is outdated."""
        self._versions += 1
        member.version = self._versions
        job, orders = member.job, self._orders[member.job.queue]
        interactive = job.queue is PriorityQueue.INTERACTIVE
        if member.place < 0 or (interactive and member.place < member.place_for(job.profile.request)):
            self._push(orders.waiting, member, (job.service_class, member.arrival))
        if interactive or member.place < 0:
            return
        loss = loss_per_gpu(member.sizes, member.speeds, member.place, self.rules)
        if member.place > 0:
            self._push(orders.shrinking, member, (loss, -member.held, -job.service_class, -member.arrival))
        else:
            self._push(orders.stripping, member, (-job.service_class, loss, -member.held, -member.arrival))
        gain = self._gain(member)
        if gain > 0:
            self._push(orders.growing, member, (-gain, member.held, job.service_class, member.arrival))

    def _gain(self, member: _Member) -> float:
        """Of the next size; below the noise of a measurement it is none."""
        if member.place + 1 >= len(member.sizes):
            return 0.0
        gain = gain_per_gpu(member.sizes, member.speeds, member.place, self.rules)
        untried = member.sizes[member.place + 1] not in member.job.profile.measured
        return max(gain, UNTRIED) if untried else gain * (gain > NOISE)

    @staticmethod
    def _push(heap: list[Entry], member: _Member, key: tuple[float, ...]) -> None:
        heapq.heappush(heap, (key, member.version, member.job.job_id))

    def _top(self, heap: list[Entry]) -> Entry | None:
        """The first entry that is not outdated."""
        while heap:
            member = self._members.get(heap[0][2])
            if member is not None and member.version == heap[0][1]:
                return heap[0]
            heapq.heappop(heap)
        return None


def _curve(profile: SpeedProfile) -> tuple[tuple[int, ...], tuple[float, ...]]:
    sizes = profile.sizes()
    return sizes, tuple(profile.speed(size) for size in sizes)
