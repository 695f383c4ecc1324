"""The jobs that could be merged now, and what the merger's problem is made of them: times, prices, gains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from app.core import queue
from app.core.merging.estimates import TimeLeft, sizes_of, train_left, train_ms
from app.core.merging.partners import modes_of
from app.core.merging.pricing import PricedJobs
from app.core.merging.problem import Ints
from app.core.merging.transfer import alignment_of
from app.core.model.job import JobState, StartRule
from app.core.model.merge import MergeMode
from app.core.model.snapshot import JobView, RunView
from app.core.policies.plan_builder import PlanBuilder
from app.core.progress import has_progress
from app.core.remaining import ran_ms

_USELESS = -0.9  # a gain with which nobody is merged


@dataclass(frozen=True, slots=True)
class MergeCandidate:
    """A job that could be merged. `run`: where it trains alone; None: it waits. `own`: its number of GPUs."""

    job: JobView
    run: RunView | None
    own: int
    left: TimeLeft
    gpu_micros: float

    @property
    def left_ms(self) -> float:
        """What is likely."""
        return self.left.likely


class Sides:
    """Finds them, and describes them to the merger. Used once."""

    def __init__(self, desk: PlanBuilder) -> None:
        self.desk, self.board, self.config = desk, desk.board, desk.config
        self.rules, self.now_ms = desk.config.rules, desk.now_ms

    def all(self) -> list[MergeCandidate]:
        """Waiting jobs first, in their turn; then those that train alone."""
        waiting = [(job, None) for job in self.board.placeable() if job.recipe is not None and self.is_free(job)]
        if not waiting:
            return []
        training = [
            (job, run)
            for job in self.board.jobs.values()
            if job.recipe is not None and job.state == JobState.RUNNING and self.is_free(job)
            if (run := self.board.run_of(job.job_id)) is not None
            if self._trains_alone(run) and not self._is_on_lent(run)
        ]
        training.sort(key=lambda pair: queue.edf_key(pair[0]))
        return [side for job, run in [*waiting, *training] if (side := self._side(job, run)) is not None]

    def is_free(self, job: JobView) -> bool:
        """Neither merged already, nor leaving, nor kept from starting, nor at the end of its max_wait. One whose turn
        has come is placed, and does not wait for yet another job: it would lose the start that it has waited for."""
        merged = job.job_id in self.board.merges or job.job_id in self.board.companions
        split = job.job_id in self.desk.spoken_for
        held = job.not_before_ms > self.now_ms or queue.has_spent_all(job)
        held |= job.turn_has_come and self.board.run_of(job.job_id) is None
        held |= queue.has_waited_enough(job, self.now_ms)
        return not (merged or split or job.leaving or held) and job.start == StartRule.AUTO

    def _trains_alone(self, run: RunView) -> bool:
        return queue.is_running(run) and len(run.job_ids) == 1 and not self.board.is_moving(run.job_ids[0])

    def _is_on_lent(self, run: RunView) -> bool:
        """Whoever joined it would have to leave with it when its GPUs are called back."""
        node = self.board.nodes.get(run.node_id)
        return node is not None and node.spot_only

    def _side(self, job: JobView, run: RunView | None) -> MergeCandidate | None:
        left = train_left(job, run, job.resources.gpus_min, self.now_ms)
        if left is None:
            return None
        if run is not None:  # others would wait for it: a prediction that is nearly used up is not trusted
            left = left.later(self.rules.merge_caution * (left.likely + ran_ms(job, run, self.now_ms)))
        micros = self._gpu_micros(job, run)
        return None if micros is None else MergeCandidate(job, run, job.resources.gpus_min, left, micros)

    def _gpu_micros(self, job: JobView, run: RunView | None) -> float | None:
        """What a GPU costs the job per hour: where it is, else where it would be placed now."""
        node = None if run is None else self.board.nodes.get(run.node_id)
        if node is not None:
            return node.price_per_hour.micros / node.gpu_count
        outlook = self.desk.outlook
        ready = self.desk.ready_place(job)
        if ready is not None:
            return ready.price_per_hour.micros / ready.gpu_count
        rents = outlook.may_rent() and not outlook.fleet_is_full()
        market = outlook.serverful if rents else outlook.serverless
        choice = market.choose(job)
        return None if choice is None else choice.offer.price_per_hour.micros / choice.offer.gpu_count

    def sizes(self, sides: list[MergeCandidate]) -> Ints:
        """Numbers of GPUs that are on offer or in use, and known to one of the jobs."""
        outlook = self.desk.outlook
        offered = {offer.gpu_count for offer in (*outlook.serverful.offers, *outlook.serverless.offers)}
        known = {gpus for side in sides if side.job.recipe is not None for gpus in sizes_of(side.job.recipe)}
        return np.array(sorted((offered & known) | {side.own for side in sides}), dtype=np.int64)

    def market(self, sides: list[MergeCandidate], sizes: Ints) -> PricedJobs:
        jobs = [side.job for side in sides]
        times = np.array([[self._time_ms(side, int(size)) for size in sizes] for side in sides])
        own = np.searchsorted(sizes, [side.own for side in sides])
        own_ms = times[np.arange(len(sides)), own]
        may, joins = self._may(sides)
        behind_ms = np.array([ran_ms(side.job, side.run, self.now_ms) for side in sides])
        return PricedJobs(
            times_ms=times,
            own=own.astype(np.int64),
            least=np.array([side.left.span.least / side.left.likely for side in sides]),
            most=np.array([side.left.span.most / side.left.likely for side in sides]),
            whole_ms=own_ms + behind_ms,
            begins_ms=np.array([0.0 if side.run is not None else self.begins_ms(side.job) for side in sides]),
            slack_ms=np.array([float(job.deadline_ms - self.now_ms) for job in jobs]),
            gpu_micros=np.array([side.gpu_micros for side in sides]),
            running=np.array([side.run is not None for side in sides]),
            begun=np.array([has_progress(job) for job in jobs]),
            joins=joins,
            most_gpus=np.array([max(side.own, side.job.resources.gpus_max) for side in sides]),
            gains=self._gains(jobs, MergeMode.IN_TURN),
            gains_together=self._gains(jobs, MergeMode.TOGETHER),
            may=may,
            switch_ms=float(self.rules.merge_switch_ms),
            money_weight=self.rules.merge_money_weight,
            in_turn=MergeMode.IN_TURN in self.config.merge_modes,
        )

    def _time_ms(self, side: MergeCandidate, size: int) -> float:
        """Infinite for a size that the pair cannot have: a job that trains stays where it is."""
        if side.run is not None:
            return side.left_ms if size == side.own else np.inf
        found = train_ms(side.job, None, size, self.now_ms)
        return np.inf if found is None or size < side.job.resources.gpus_min else found

    def begins_ms(self, job: JobView) -> float:
        """Until a job that waits would train."""
        choice = self.desk.outlook.serverless.choose(job)
        return 0.0 if choice is None else float(choice.offer.startup_ms)

    def _gains(self, jobs: list[JobView], mode: MergeMode) -> np.ndarray:
        """By how much the row's job helps the column's. Steps whose number is fixed are not saved by anybody."""
        line = self.board.gain_line(mode)
        fixed = 0.0 if mode == MergeMode.TOGETHER else _USELESS
        gains = np.full((len(jobs), len(jobs)), _USELESS)
        for row, one in enumerate(jobs):
            for column, other in enumerate(jobs):
                found = None if row == column else pair_score(one, other)
                if found is not None:
                    gains[row, column] = line.gain(found) if ends_early(other) else fixed
        return gains

    def _may(self, sides: list[MergeCandidate]) -> tuple[np.ndarray, np.ndarray]:
        """Which are long enough, profiled, and forbidden by nothing else; and which of these side by side."""
        may, joins = np.zeros((2, len(sides), len(sides)), dtype=bool)
        for row, one in enumerate(sides):
            for column in range(row):
                modes = self._modes(one, sides[column])
                may[row, column] = may[column, row] = bool(modes)
                joins[row, column] = joins[column, row] = MergeMode.TOGETHER in modes
        return may, joins

    def _modes(self, one: MergeCandidate, other: MergeCandidate) -> frozenset[MergeMode]:
        waits = [side for side in (one, other) if side.run is None]
        long = all(side.left_ms >= self.rules.merge_least_ms for side in waits)
        if not waits or not long or pair_score(one.job, other.job) is None:
            return frozenset()
        modes = modes_of(one.job, other.job, self.config.merge_modes)
        fresh = len(waits) == 2 and not any(has_progress(side.job) for side in waits)
        return modes if fresh else modes - {MergeMode.TOGETHER}

    def gpus(self, sides: list[MergeCandidate]) -> int:
        """How many GPUs these jobs could have now: those that train have theirs."""
        outlook, most = self.desk.outlook, 2 * sum(side.own for side in sides)
        theirs = sum(side.own for side in sides if side.run is not None)
        largest = max((offer.gpu_count for offer in outlook.serverful.offers), default=0)
        rents = max(0, self.config.serverful_limit - outlook.fleet.rented) if outlook.may_rent() else 0
        serverless = max(0, self.config.serverless_limit - self.board.serverless_nodes) if outlook.may_start() else 0
        free = sum(len(node.free_gpus) for node in self.board.all_open())
        return max(1, min(most, theirs + free + rents * largest + serverless))


def ends_early(job: JobView) -> bool:
    return job.recipe is not None and job.recipe.ends_early


def pair_score(one: JobView, other: JobView) -> float | None:
    """How well the first steps of both agree (`transfer.alignment`). None: not both are profiled, or not alike."""
    first, second = one.recipe, other.recipe
    if first is None or second is None or not first.pull or not second.pull:
        return None
    return alignment_of(first.pull, second.pull)
