"""The event engine: jobs come, are given sizes by a policy, and end; played until the last one has ended."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.simulator.elastic.costs import ResizeModel
from app.simulator.elastic.workload import MixedJob

_END, _CHECK, _ARRIVAL = range(3)


class SizePolicy(Protocol):
    """Jobs are named by their place in the workload. `settle` returns pairs of (place, GPUs) of all that change;
    `check_in_s` when it wants to look at a job again, infinite for never."""

    def arrive(self, place: int, now_s: float) -> None: ...
    def ran(self, place: int, seconds: float, gpus: int) -> None: ...
    def end(self, place: int) -> None: ...
    def check(self, place: int, now_s: float) -> None: ...
    def settle(self, now_s: float) -> Iterable[tuple[int, int]]: ...
    def check_in_s(self, place: int, gpus: int) -> float: ...


@dataclass(slots=True)
class PlayedJob:
    """Times of one job; NaN until they are known. `waste_gpu_s`: GPU time of pauses."""

    first_gpu_s: float = math.nan
    full_size_s: float = math.nan
    end_s: float = math.nan
    resizes: int = 0
    waste_gpu_s: float = 0.0


@dataclass(slots=True)
class _Progress:
    left_s: float  # of its duration at the requested size
    gpus: int = 0
    rate: float = 0.0
    since_s: float = 0.0  # progress is counted up to here; later than now while it pauses
    told_s: float = 0.0
    version: int = 0


class ElasticEngine:
    """One play. Raises RuntimeError where a policy gives more GPUs than there are, or leaves jobs waiting for ever."""

    def __init__(
        self, jobs: Sequence[MixedJob], capacity: int, policy: SizePolicy, costs: ResizeModel, seed: int = 0
    ) -> None:
        self.jobs, self.capacity, self.policy, self.costs = jobs, capacity, policy, costs
        self.played = [PlayedJob() for _ in jobs]
        self._now = [_Progress(one.duration_s) for one in jobs]
        self._profiles = [one.profile() for one in jobs]
        self._chance, self._used = random.Random(seed), 0  # noqa: S311 - a simulation
        self._events = [(one.submit_s, _ARRIVAL, place, 0) for place, one in enumerate(jobs)]

    def play(self) -> list[PlayedJob]:
        heapq.heapify(self._events)
        while self._events:
            now_s = self._events[0][0]
            while self._events and self._events[0][0] <= now_s:
                _, kind, place, version = heapq.heappop(self._events)
                if kind == _ARRIVAL or version == self._now[place].version:
                    self._handle(kind, place, now_s)
            self._apply(list(self.policy.settle(now_s)), now_s)
        if any(math.isnan(one.end_s) for one in self.played):
            raise RuntimeError("some jobs wait for ever")
        return self.played

    def _handle(self, kind: int, place: int, now_s: float) -> None:
        if kind == _ARRIVAL:
            self._now[place].told_s = now_s
            self.policy.arrive(place, now_s)
        else:
            self._advance(place, now_s)
        if kind == _END:
            self.played[place].end_s = now_s
            self._used -= self._now[place].gpus
            self._now[place].gpus, self._now[place].version = 0, -1
            self.policy.end(place)
        else:
            if kind == _CHECK:
                self.policy.check(place, now_s)
            self._schedule(place, now_s)

    def _advance(self, place: int, now_s: float) -> None:
        one = self._now[place]
        if now_s > one.since_s:
            one.left_s = max(0.0, one.left_s - (now_s - one.since_s) * one.rate)
            one.since_s = now_s
        self.policy.ran(place, now_s - one.told_s, one.gpus)
        one.told_s = now_s

    def _apply(self, changes: list[tuple[int, int]], now_s: float) -> None:
        gives = any(gpus < self._now[place].gpus for place, gpus in changes)
        wait_s = self.costs.handover_s * self._chance.random() if gives and self.costs.handover_s else 0.0
        for place, gpus in changes:
            self._advance(place, now_s)
            self._resize(place, gpus, now_s, wait_s)
        if self._used > self.capacity:
            raise RuntimeError(f"{self._used} GPUs given of {self.capacity}")
        for place, _ in changes:
            self._schedule(place, now_s)

    def _resize(self, place: int, gpus: int, now_s: float, wait_s: float) -> None:
        one, told, job = self._now[place], self.played[place], self.jobs[place]
        begins = math.isnan(told.first_gpu_s)
        starts_s = now_s + (wait_s if gpus > one.gpus else 0.0)
        pause_s = 0.0 if begins or not gpus else self.costs.pause_s
        if begins:
            told.first_gpu_s = starts_s
        else:
            told.resizes += 1
            told.waste_gpu_s += pause_s * gpus
        if gpus >= job.request and math.isnan(told.full_size_s):
            told.full_size_s = starts_s
        self._used += gpus - one.gpus
        one.gpus, one.rate = gpus, job.rate(self._profiles[place], gpus)
        one.since_s = max(now_s, starts_s + pause_s)

    def _schedule(self, place: int, now_s: float) -> None:
        one = self._now[place]
        one.version += 1
        if one.rate:
            heapq.heappush(self._events, (max(now_s, one.since_s) + one.left_s / one.rate, _END, place, one.version))
        look_s = self.policy.check_in_s(place, one.gpus)
        if look_s < math.inf:
            heapq.heappush(self._events, (now_s + look_s, _CHECK, place, one.version))
