"""Cornucopia as a policy of the engine: it calls the core's queues, profiles and pool, and is told no duration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from app.core.elastic.pool import ElasticJob, ElasticPool
from app.core.elastic.profile import MEASURED_BATCHES, WARM_UP_BATCHES, SpeedProfile
from app.core.elastic.queues import (
    PriorityQueue,
    QueuePlace,
    QueueThresholds,
    demoted,
    demotion_s,
    expected_remaining_s,
    next_class_gpu_s,
    promoted,
    promotion_wait_s,
    service_class,
)
from app.core.elastic.rules import ElasticRules
from app.simulator.elastic.costs import ResizeModel
from app.simulator.elastic.workload import MixedJob


@dataclass(slots=True)
class _Known:
    """What the scheduler knows of one job."""

    place: QueuePlace
    profile: SpeedProfile
    run_s: float = 0.0
    stripped_at_s: float = math.nan


class CornucopiaSizes:
    """The core's rules over a pool. What it measures is exact here: the true speed at a size that a job has got."""

    def __init__(self, jobs: Sequence[MixedJob], capacity: int, rules: ElasticRules, costs: ResizeModel) -> None:
        self._jobs, self._rules, self._costs = jobs, rules, costs
        self._pool = ElasticPool(capacity, rules)
        self._known: dict[int, _Known] = {}
        self._thresholds = QueueThresholds()

    def arrive(self, place: int, now_s: float) -> None:
        job = self._jobs[place]
        known = _Known(QueuePlace.of(job.label), job.profile(), stripped_at_s=now_s)
        self._known[place] = known
        self._pool.add(self._seen(place, known))

    def ran(self, place: int, seconds: float, gpus: int) -> None:
        known = self._known[place]
        known.place = known.place.after_running(seconds, gpus, self._jobs[place].request, self._rules)
        known.run_s += seconds * (gpus > 0)

    def end(self, place: int) -> None:
        known = self._known.pop(place)
        self._thresholds = self._thresholds.after(self._jobs[place].label, known.run_s)
        self._pool.remove(place)

    def check(self, place: int, now_s: float) -> None:
        known = self._known[place]
        if self._pool.holds(place):
            known.place = demoted(known.place, self._thresholds)
        else:
            known.place = promoted(known.place, now_s - known.stripped_at_s + 1e-6, self._thresholds, self._rules)
        self._pool.update(self._seen(place, known))

    def settle(self, now_s: float) -> Iterable[tuple[int, int]]:
        """Every size that a job gets is measured: a new speed may have it resized again, until nothing changes."""
        found: dict[int, int] = {}
        while changes := self._pool.settle():
            for one in changes:
                place = cast(int, one.job_id)
                found[place] = one.after
                known = self._known[place]
                if one.after == 0:
                    known.stripped_at_s = now_s
                else:
                    self._measure(place, known, one.after)
        return found.items()

    def check_in_s(self, place: int, gpus: int) -> float:
        known = self._known[place]
        if gpus == 0:
            return promotion_wait_s(self._thresholds) if known.place.queue is PriorityQueue.LONG else math.inf
        counted = gpus / self._jobs[place].request if self._rules.resets else 1.0
        demotion = (demotion_s(known.place.queue, self._thresholds) - known.place.executed_s) / counted
        rises = (next_class_gpu_s(known.place, self._rules) - known.place.served_gpu_s) / gpus
        return max(1e-3, min(demotion, rises) + 1e-6)

    def _measure(self, place: int, known: _Known, gpus: int) -> None:
        job = self._jobs[place]
        if gpus in known.profile.measured or known.profile.sizes()[-1] == 1:
            return
        batch_s = 1 / job.rate(job.profile(), gpus)
        before, known.profile = (
            known.profile,
            known.profile.with_batches(gpus, (batch_s,) * (WARM_UP_BATCHES + MEASURED_BATCHES)),
        )
        if known.profile is not before:
            self._pool.update(self._seen(place, known))

    def _seen(self, place: int, known: _Known) -> ElasticJob:
        return ElasticJob(
            place,
            known.place.queue,
            known.profile,
            service_class(known.place, self._rules),
            expected_remaining_s(known.place, known.run_s, self._thresholds),
            self._costs.pause_s,
        )
