"""Which waiting jobs `allpass` trains as one, and which merges it undoes (Ymir, with prices: `merging.pricing`).

- Jobs of one base model that may share, wait and have made no progress are looked at together, and those that train
  alone, which may lead: a waiting job goes on from what such a one has learned, when that has ended. Whom a job helps
  is known once it is profiled: `profiling`.
- A long batch job waits a moment for others of its kind; nothing is paid meanwhile.
- A merge without better validation for two epochs is undone; so is one whose companion would be late for its turn,
  and would not be by itself.
"""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from app.core import queue
from app.core.merging.estimates import train_ms
from app.core.merging.fast import solve
from app.core.merging.partners import Kind, kind_of
from app.core.merging.pricing import Course, PricedJobs, course_of, priced_problem
from app.core.merging.problem import Group, Ints, Mode
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.merge import MergeMode, MergeView
from app.core.model.money import MS_PER_HOUR, Money
from app.core.model.plan import ActionKind
from app.core.model.snapshot import JobView
from app.core.policies import reasons
from app.core.policies.merge_market import MergeCandidate, Sides, pair_score
from app.core.policies.plan_builder import PlanBuilder
from app.core.policies.profiling import Profiler
from app.core.policies.weighing import merge_wait_ms
from app.core.policy import PolicyState
from app.core.progress import has_progress

_COMES, _SEEN = "merge_comes/", "merge_seen_ms"
_HALF_LIFE_MS = 900_000
_ONE_HOURLY = math.log(2) / _HALF_LIFE_MS * MS_PER_HOUR  # what a job that comes now adds
_LEAST_HOURLY = 0.01


class Merger:
    """Used once, before jobs are placed."""

    def __init__(self, desk: PlanBuilder) -> None:
        self.desk, self.board, self.config, self.sides = desk, desk.board, desk.config, Sides(desk)
        self.rules, self.now_ms = desk.config.rules, desk.now_ms

    def merge_and_split(self, state: PolicyState) -> PolicyState:
        """Puts merges and splits into the plan, and holds back jobs that wait for one. Remembers how often jobs of
        each kind come."""
        for merge in sorted(self.board.merges.values(), key=lambda one: one.merge_id):
            self._review(merge)
        kinds: dict[Kind, list[MergeCandidate]] = defaultdict(list)
        for side in self.sides.all():
            kind = kind_of(side.job)
            if kind is not None:
                kinds[kind].append(side)
        for sides in kinds.values():
            if len(sides) > 1 and any(side.run is None for side in sides):
                self._merge(sides[: self.rules.merge_most_jobs])
        state, hourly = self._arrivals(state)
        Profiler(self.desk, self.sides).profile()
        for kind, sides in kinds.items():
            for side in sides:
                self._wait_for_partner(side, hourly.get(_COMES + kind[0], 0.0))
        return state

    def _arrivals(self, state: PolicyState) -> tuple[PolicyState, dict[str, float]]:
        """By base model: how many jobs that are long enough come per hour, older ones counting less."""
        seen_ms = int(state.get(_SEEN, -1.0))
        faded = 0.5 ** ((self.now_ms - seen_ms) / _HALF_LIFE_MS) if seen_ms >= 0 else 0.0
        flows = {name: value * faded for name, value in state.values if name.startswith(_COMES)}
        for job in self.board.queued_after(seen_ms):
            kind = kind_of(job)
            if kind is not None and merge_wait_ms(self.config, job):
                name = _COMES + kind[0]
                flows[name] = flows.get(name, 0.0) + _ONE_HOURLY
        flows = {name: flow for name, flow in flows.items() if flow >= _LEAST_HOURLY}
        others = [(name, value) for name, value in state.values if not name.startswith(_COMES) and name != _SEEN]
        return PolicyState(tuple(sorted([*others, (_SEEN, float(self.now_ms)), *flows.items()]))), flows

    # Merging

    def _merge(self, sides: list[MergeCandidate]) -> None:
        sizes = self.sides.sizes(sides)
        market = self.sides.market(sides, sizes)
        if not market.may.any():
            return
        problem = priced_problem(market, sizes, self.sides.gpus(sides), wait_cost=self.rules.merge_wait_cost)
        if not len(problem.first):
            return
        try:
            groups = solve(problem).groups
        except ValueError:  # no choice fits: nobody is merged, and all are placed as ever
            return
        for group in groups:
            if group.mode != Mode.ALONE:
                self._tell(sides, market, sizes, group)

    def _tell(self, sides: list[MergeCandidate], market: PricedJobs, sizes: Ints, group: Group) -> None:
        """Into the plan, with what is expected of it in words."""
        first, second = group.jobs
        turned = group.mode == Mode.SECOND_BEFORE_FIRST
        lead, companion = (sides[second], sides[first]) if turned else (sides[first], sides[second])
        mode = MergeMode.TOGETHER if group.mode == Mode.TOGETHER else MergeMode.IN_TURN
        found = pair_score(lead.job, companion.job)
        assert found is not None
        gain = _gain(market, (second, first) if turned else (first, second), mode)
        column = int(np.searchsorted(sizes, group.gpus))
        course = course_of(market, sizes, first, second, group.mode)
        why = _words(lead, companion, mode, group.gpus, found, gain) + self._against(
            market, sizes, course, (first, second), column
        )
        self.desk.merge(lead.job, companion.job, mode, group.gpus, (found, gain), why)

    def _against(self, market: PricedJobs, sizes: Ints, course: Course, pair: tuple[int, int], column: int) -> str:
        """What it takes and costs, and what it would take and cost apart."""
        apart_ms = [market.begins_ms[one] + market.times_ms[one, market.own[one]] for one in pair]
        apart = sum(
            market.gpu_micros[one] * sizes[market.own[one]] * market.times_ms[one, market.own[one]] for one in pair
        )
        merged_ms = [course.first_ms[0, column], course.second_ms[0, column]]
        dearer = course.money[0, column] > apart
        because = ": the deadlines need it" if dearer else ""
        merged = reasons.times(merged_ms), reasons.times(apart_ms)
        costs = _usd(float(course.money[0, column])), _usd(float(apart))
        return f"; done in {merged[0]} for {costs[0]}, apart in {merged[1]} for {costs[1]}{because}"

    # Waiting for a partner

    def _wait_for_partner(self, side: MergeCandidate, hourly: float) -> None:
        """`hourly`: how many jobs of its kind come per hour. It waits where one is likely to come meanwhile."""
        job = side.job
        wait_ms = merge_wait_ms(self.config, job)
        until_ms = job.submitted_ms + wait_ms
        if side.run is not None or job.job_id in self.desk.spoken_for or has_progress(job):
            return
        if self.now_ms >= until_ms or hourly * wait_ms < self.rules.merge_wait_for * MS_PER_HOUR:
            return
        self.desk.spoken_for.add(job.job_id)
        self.desk.wake(until_ms)
        left = reasons.duration(until_ms - self.now_ms)
        self.desk.wait(job, f"waits up to {left} for a job of the same base model that helps it, before it starts")

    # Undoing

    def _review(self, merge: MergeView) -> None:
        if not self.desk.outlook.may(ActionKind.SPLIT):
            return
        companion, lead = self.board.jobs.get(merge.companion_id), self.board.jobs.get(merge.lead_id)
        if companion is None or lead is None:
            return
        settled = lead.state in PLACEABLE_JOB_STATES or lead.state == JobState.RUNNING
        if merge.mode == MergeMode.TOGETHER and (not settled or _would_lose(lead) or self.board.is_moving(lead.job_id)):
            return
        if merge.fruitless_epochs >= self.rules.merge_epochs:
            whose = "its" if merge.mode == MergeMode.IN_TURN else "a job's"
            why = f"is trained apart again: {whose} validation has not improved for {merge.fruitless_epochs} epochs"
            self.desk.split(merge, why)
        elif merge.mode == MergeMode.IN_TURN:
            self._review_turn(merge, lead, companion)
        elif self.config.explains and queue.is_placeable(companion):
            self.desk.wait(companion, f"is trained together with {_other(companion, lead)}, which waits too")

    def _review_turn(self, merge: MergeView, lead: JobView, companion: JobView) -> None:
        """The companion starts at once if it would be late for waiting, and is not yet late without; and when it has
        waited for as long as it may."""
        if self.desk.has_waited_enough(companion):
            self.desk.split(merge, f"starts by itself{reasons.waited_enough(companion)}")
            return
        self.desk.wake(queue.waits_until_ms(companion))
        alone_ms = train_ms(companion, None, companion.resources.gpus_min, self.now_ms)
        left_ms = train_ms(lead, self.board.run_of(lead.job_id), lead.resources.gpus_min, self.now_ms)
        if alone_ms is not None and left_ms is not None:
            slack_ms = companion.deadline_ms - self.now_ms
            late_ms = left_ms + alone_ms / (1 + merge.gain) - slack_ms
            spare_ms = slack_ms - alone_ms - self.sides.begins_ms(companion)
            if late_ms > 0 and spare_ms >= 0:
                self.desk.split(merge, "starts by itself: waiting for its turn would make it late")
                return
            self.desk.wake(self.now_ms + self.config.tick_ms)
        if self.config.explains and queue.is_placeable(companion):
            after = _other(companion, lead)
            self.desk.wait(companion, f"starts where {after} ends, from what that has learned")


def _gain(market: PricedJobs, pair: tuple[int, int], mode: MergeMode) -> float:
    """By how much the lead's job helps the companion's; side by side, each the other."""
    if mode == MergeMode.IN_TURN:
        return float(market.gains[pair])
    return float(market.gains_together[pair] + market.gains_together[pair[::-1]]) / 2


def _would_lose(lead: JobView) -> bool:
    """What it has done, if it were asked to save and leave now."""
    return lead.unsaved or lead.has_never_saved


def _words(
    lead: MergeCandidate, companion: MergeCandidate, mode: MergeMode, gpus: int, found: float, gain: float
) -> str:
    one = _other(companion.job, lead.job)
    if one != lead.job.job_id:  # of different projects: neither learns the other's name
        both, after = "it and a job of another project", "a job of another project"
    else:
        both, after = f"{lead.job.job_id} and {companion.job.job_id}", one
    on = f"{gpus} GPU" + ("s" if gpus > 1 else "")
    expected = f"score {found:.2f}, {gain:.0%} faster expected"
    if mode == MergeMode.TOGETHER:
        return f"{both} are trained together on {on} ({expected})"
    then = companion.job.job_id if one == lead.job.job_id else "the next job"
    return f"{then} starts where {after} ends, on {on}, from what that has learned ({expected})"


def _other(job: JobView, other: JobView) -> str:
    """The other job as this one's user may know it."""
    return other.job_id if job.project_id == other.project_id else "a job of another project"


def _usd(micros_ms: float) -> Money:
    """Micro-dollar-milliseconds per hour as money, in whole cents."""
    return Money(round(micros_ms / MS_PER_HOUR / 10_000) * 10_000)
