"""`cornucopia`: the three queues of the Cornucopia paper (section 4.2) over jobs that wait and jobs that run.

Interactive jobs come first and are never stopped; then batch jobs, then long ones, and in each of these whoever has had
less. On machines of the team's own a range begins on what is free, and what it has above its least it lends; that is
done beside any policy (`app.core.lending`), so a whole job is stopped for one only once that has waited for long enough
to be lent something. What a view tells has to do: a job falls by the time that it has trained, and rises by all the
time that it has waited; how much that is, the jobs of its project have shown that ended before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from app.core.board import Board
from app.core.elastic.kinds import ENOUGH_JOBS, ElasticKind, KindEvidence, judge_kind
from app.core.elastic.queues import (
    QUANTUM_GPU_S,
    PriorityQueue,
    QueuePlace,
    QueueThresholds,
    demotion_s,
    promotion_wait_s,
    service_class,
)
from app.core.elastic.rules import MENDED
from app.core.model.job import JobKind
from app.core.model.plan import ActionKind, Plan
from app.core.model.snapshot import JobView, RunView
from app.core.policies.ordered import Ordered
from app.core.policies.plan_builder import PlanBuilder
from app.core.policies.stopping import REST_MS, Rank, Rider
from app.core.policy import PolicyConfig, PolicyState
from app.core.remaining import ran_ms

LENT_WITHIN_MS = 10_000  # since a job came: until then nobody is stopped for it, as it may be lent what it needs
_CLASSES = 64
_MOST_DEMOTIONS = 3  # that are foreseen
LEAST_MEAN_S = 30.0  # nothing falls or rises within a minute: each time is a decision
COLD = QueueThresholds()  # until a thousand jobs of a project have ended


class Cornucopia(Ordered):
    """See the module."""

    name = "cornucopia"
    uses = frozenset(
        {ActionKind.START, ActionKind.ASSIGN, ActionKind.PROVISION, ActionKind.RELEASE, ActionKind.PREEMPT}
    )

    def __init__(self, thresholds: Mapping[str, QueueThresholds] = MappingProxyType({})) -> None:
        self._thresholds = thresholds  # by project

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        known = {
            one.project_id: QueueThresholds(max(LEAST_MEAN_S, one.interactive_s), max(LEAST_MEAN_S, one.batch_s))
            for one in board.queue_means
        }
        return Ordered.decide(Cornucopia(known), board, state, config)

    def _of(self, job: JobView) -> QueueThresholds:
        return self._thresholds.get(job.project_id, COLD)

    def rank(self, job: JobView, run: RunView | None, now_ms: int) -> Rank:
        """Its queue and its class in that, then by arrival."""
        ran = ran_ms(job, run, now_ms)
        return self._rank(job, ran, now_ms - job.submitted_ms - ran, rests=_rests_ms(run, now_ms) > 0)

    def _rank(self, job: JobView, ran: int, waited: int, *, rests: bool) -> Rank:
        place = standing_of(job, ran, waited, self._of(job))
        if rests:  # long jobs among themselves and for batch jobs: as if it had had nothing
            return min(place.queue, PriorityQueue.BATCH) * _CLASSES, job.submitted_ms, job.job_id
        classed = min(_CLASSES - 1, service_class(place, MENDED))
        return place.queue * _CLASSES + classed, job.submitted_ms, job.job_id

    def _begin(self, desk: PlanBuilder, job: JobView) -> bool:
        return desk.start_on_own(job, None)

    def _may_have_others_stopped(self, desk: PlanBuilder, job: JobView) -> bool:
        if job.helped:
            return False
        if desk.now_ms - job.submitted_ms >= LENT_WITHIN_MS:
            return True
        desk.wake(job.submitted_ms + LENT_WITHIN_MS)
        return False

    def comes_before(self, waiting: Rank, running: Rank) -> bool:
        """An earlier queue, or an earlier class of the same one. Nothing that is interactive is stopped."""
        return waiting[0] < running[0] and running[0] // _CLASSES > PriorityQueue.INTERACTIVE

    def _wake_when_it_comes_before(self, desk: PlanBuilder, rank: Rank, rider: Rider) -> None:
        """Time alone puts a run behind a job that waits, and a job that waits before a run."""
        job, run, now_ms = rider.job, rider.run, desk.now_ms
        ran, rests_ms = ran_ms(job, run, now_ms), _rests_ms(run, now_ms)
        waited = now_ms - job.submitted_ms - ran
        for after_ms in sorted({rests_ms, *(one - ran for one in boundaries_ms(job, self._of(job), ran))}):
            if after_ms > 0:
                then = self._rank(job, ran + after_ms, waited, rests=after_ms < rests_ms)
                if self.comes_before(rank, then):
                    desk.wake(now_ms + after_ms)
                    return

    def _left_waiting(self, desk: PlanBuilder, job: JobView) -> None:
        """A long job that has waited for as long again is a batch job again: all that are within a tick, at once."""
        ran = ran_ms(job, None, desk.now_ms)
        waited = desk.now_ms - job.submitted_ms - ran
        thresholds = self._of(job)
        if standing_of(job, ran, waited, thresholds).queue is PriorityQueue.LONG:
            wait_ms = round(promotion_wait_s(thresholds) * 1000)
            rises_ms, tick_ms = desk.now_ms + wait_ms - waited % wait_ms, desk.config.tick_ms
            desk.wake(-(-rises_ms // tick_ms) * tick_ms)


def kind_of(job: JobView) -> ElasticKind:
    """By its label, else by what is predicted of its time, else by its number of steps."""
    known = KindEvidence(
        label=ElasticKind.INTERACTIVE if job.kind is JobKind.INTERACTIVE else None,
        usual_s=None if job.total_run_ms is None else max(1, job.total_run_ms) / 1000,
        past_jobs=ENOUGH_JOBS,
        steps=job.total_steps,
    )
    return judge_kind(known).kind


def standing_of(job: JobView, ran: int, waited: int, thresholds: QueueThresholds = COLD) -> QueuePlace:
    """Where a job stands that has trained and waited for so long: it falls each time that it has trained for a
    threshold, and rises to the batch jobs each time that it has waited for one, and what it has had is halved then."""
    place = QueuePlace.of(kind_of(job))
    left_s = ran / 1000
    if place.queue is PriorityQueue.INTERACTIVE:
        falls_s = demotion_s(PriorityQueue.INTERACTIVE, thresholds)
        if left_s < falls_s:
            return replace(place, served_gpu_s=left_s * job.resources.gpus_min)
        left_s -= falls_s
    falls = int(left_s // demotion_s(PriorityQueue.BATCH, thresholds))
    rises = min(falls, max(0, int(waited / 1000 // promotion_wait_s(thresholds))))
    queue = PriorityQueue.LONG if falls > rises else PriorityQueue.BATCH
    return QueuePlace(queue, served_gpu_s=math.ldexp(ran / 1000 * job.resources.gpus_min, -rises))


def boundaries_ms(job: JobView, thresholds: QueueThresholds = COLD, ran: int = 0) -> Iterator[int]:
    """After how much training a job that has trained for so long may stand elsewhere: it falls, or is of the next
    class."""
    first_s = demotion_s(PriorityQueue.INTERACTIVE, thresholds) if kind_of(job) is ElasticKind.INTERACTIVE else 0.0
    then_s = demotion_s(PriorityQueue.BATCH, thresholds)
    past = max(0, int((ran / 1000 - first_s) // then_s))
    for falls in range(past, past + _MOST_DEMOTIONS + 1):
        yield round(1000 * (first_s + falls * then_s))
    for number in range(2 * _CLASSES):  # halved classes included
        yield -(-round(1000 * QUANTUM_GPU_S * 2**number) // job.resources.gpus_min)
        if QUANTUM_GPU_S * 2**number > 1e9:
            return


def _rests_ms(run: RunView | None, now_ms: int) -> int:
    since_ms = None if run is None else run.trains_since_ms
    return 0 if since_ms is None else since_ms + REST_MS - now_ms
