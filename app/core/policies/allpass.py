"""`allpass`: ours. It acts on events, weighs each job by itself, and steers by pressure only where nodes are short.

1. A job without a place takes an idle node if one fits: nothing is quicker or cheaper.
2. Patience: a batch job whose run is long beside the cost of a move waits for a fresh node instead of starting on
   serverless, if that takes at most a minute and a tenth of the time it was given until its deadline; every other job
   starts serverless at once. One that has lost its place waits in the same way, as long as it has time to spare.
   Where beginning on serverless takes long itself a job waits longer, and also to save what that costs.
3. Break-even: a serverless run moves once what it will save on a cheaper node exceeds 1.25 times the cost of moving;
   never when that would make a job late that is on time. The node is rented while the job trains on, and the job
   moves when it is ready (make before break, where the world can do that).
4. Chase: a run on a rented node moves to one that costs a tenth less, by the same weighing.
5. At the limit of nodes, jobs that have stayed F on serverless and have time to spare save and wait for a node; F
   follows the pressure. A job that waits so long that its deadline comes near goes back to serverless, and no sooner:
   F may rise meanwhile. A job whose owner said `start: now`, or one that somebody looks at, never waits so. One that
   has waited for its `max_wait` since it was submitted waits for nothing cheaper: it starts on what there is.
6. Merging, where it is on: before anything is placed, waiting jobs of one base model become one where that makes
   them end sooner at no higher cost; see `app.core.policies.merging`.
7. An idle node is given back at once, unless free nodes would have saved more lately than keeping one costs. Then
   nodes are rented ahead, too, within the project's share; neither for a project that has it switched off.
8. Where GPUs differ in speed, a job that would miss the deadline that its owner stated leaves for faster ones on which
   it keeps it, at up to twice the price of an hour of its work; see `app.core.policies.rescuing`.
9. A job that is alone on a rented node that is larger than it needs has all of it to pay for, and is moved by that,
   less what the rest of the node is worth to jobs that come; see `app.core.policies.alone`.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.core import queue
from app.core.board import Board
from app.core.due import begins_ms
from app.core.gpu_speeds import time_on
from app.core.model.job import JobState, StartRule
from app.core.model.plan import STOP_AND_GO, ActionKind, Plan
from app.core.model.snapshot import JobView
from app.core.policies.alone import Leaver
from app.core.policies.merging import Merger
from app.core.policies.moving import Mover
from app.core.policies.paper import class_demands, highest, signals_of
from app.core.policies.placement import Place
from app.core.policies.plan_builder import PlanBuilder
from app.core.policies.rescuing import Rescuer
from app.core.policies.reuse import reuse_flows, size_pool
from app.core.policies.weighing import (
    late_from_ms,
    may_be_parked,
    most_wait_ms,
    patient_until_ms,
    slack_ms,
    starts_by_ms,
)
from app.core.policy import PolicyConfig, PolicyState
from app.core.remaining import remaining_ms
from app.core.tiers import next_budget_ms


class Allpass:
    """See the module. Remembers F, the last tick, and what free nodes would have saved lately."""

    name = "allpass"
    uses = STOP_AND_GO | {ActionKind.MIGRATE, ActionKind.MERGE, ActionKind.SPLIT}
    moves_by_budget = False

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        desk = PlanBuilder(board, config)
        state, budget_ms = _tick(desk, state)
        state = state.having(parked_ms=_parked_from_ms(desk, state, budget_ms))
        state, flows = reuse_flows(desk, state)
        if config.merging and desk.outlook.may(ActionKind.MERGE):
            state = Merger(desk).merge_and_split(state)
        _Placing(desk, int(state.get("parked_ms", budget_ms))).place_jobs()
        mover = Mover(desk, budget_ms)
        Rescuer(mover).rescue_runs()
        mover.move_runs()
        Leaver(mover, flows).leave_larger_nodes()
        size_pool(desk, flows)
        signals = {"F_s": budget_ms / 1000}
        if config.explains:
            signals |= signals_of(class_demands(board, config))
        return desk.plan(self.name, **signals), state


def _tick(desk: PlanBuilder, state: PolicyState) -> tuple[PolicyState, int]:
    """F, moved by the pressure at most once a tick. Only where nodes are short it decides anything: there a tick is
    never missed."""
    config, now_ms = desk.config, desk.now_ms
    budget_ms, ticked_ms = state.get("F_ms", config.budget.first_ms), state.get("ticked_ms", -1.0)
    if ticked_ms < 0 or now_ms >= ticked_ms + config.tick_ms:
        pressing = highest(class_demands(desk.board, config))
        budget_ms, ticked_ms = next_budget_ms(config.budget, budget_ms, pressing), float(now_ms)
        state = state.having(F_ms=budget_ms, ticked_ms=ticked_ms)
    if desk.board.jobs and desk.outlook.fleet_is_full():
        desk.wake(int(ticked_ms) + config.tick_ms)
    return state, int(budget_ms)


def _parked_from_ms(desk: PlanBuilder, state: PolicyState, budget_ms: int) -> float:
    """After how much time on serverless a job that waits counts as parked: the least F since the nodes ran short. Were
    it F itself, every rise of F would send all that wait back, and the next fall would take them off again."""
    return min(state.get("parked_ms", budget_ms), budget_ms) if desk.outlook.fleet_is_full() else float(budget_ms)


class _Placing:
    """Gives the jobs of one decision their places; used once. `parked_ms`: see `_parked_from_ms`."""

    def __init__(self, desk: PlanBuilder, parked_ms: int) -> None:
        self.desk, self.board, self.outlook, self.config = desk, desk.board, desk.outlook, desk.config
        self.now_ms, self.parked_ms = desk.now_ms, parked_ms
        self.makes_before_break = desk.outlook.may(ActionKind.MIGRATE)

    def place_jobs(self) -> None:
        """Idle nodes first; then patience, serverless, or the queue for a node."""
        for job in self._looked_at():
            if job.job_id in self.desk.spoken_for or self.desk.holds_back(job):
                continue
            place = self.desk.ready_place(job)
            if place is not None:
                self.desk.assign(job, place)
            else:
                self._place_without_node(job)
        for job in sorted(self.board.saving.values(), key=queue.edf_key):
            self._foresee(job)

    def _looked_at(self) -> Iterator[JobView]:
        """All, until nothing is left. Those behind get nothing either: only who is told why is looked at."""
        seen: set[str] = set()
        for job in self.board.each_placeable():
            if self.desk.nothing_is_left():
                break
            seen.add(job.job_id)
            yield job
        else:
            return
        yield from (job for job in self.config.told_of(self.board) if job.job_id not in seen)

    def _place_without_node(self, job: JobView) -> None:
        choice = self.outlook.serverless.choose(job) if self.outlook.may_start() else None
        if self.desk.start_on_own(job, choice):
            return
        serverful = self.outlook.serverful_possible(job)
        if choice is None and not serverful:
            self.desk.wait(job, self.outlook.nothing_at_all(job))
        elif choice is None or self.desk.rather_rents(job, choice):
            self.desk.place_serverful(job)
        elif self.desk.has_waited_enough(job):
            self.desk.start_now(job, choice)
        elif serverful and self._rather_waits(job):
            self.desk.place_serverful(job)
        else:
            self.desk.start(job, choice)

    def _rather_waits(self, job: JobView) -> bool:
        """Whether the job waits for a node although it could start on serverless."""
        is_full = self.outlook.fleet_is_full()
        if job.start == StartRule.WHEN_CHEAP or (is_full and self._is_parked(job)):
            return True
        if self._must_start(job):
            return False
        if self.desk.fleet.hosts(job):
            return True
        coming = self.desk.coming_place(job)
        if is_full and coming is None:
            return False
        return self._expects_a_node(job, coming)

    def _expects_a_node(self, job: JobView, coming: Place | None) -> bool:
        if job.state == JobState.WAITING and job.serverless_used_ms and not self.makes_before_break:
            return True
        serverless = self.outlook.serverless.choose(job)
        offer = None if serverless is None else serverless.offer
        self.desk.wake(patient_until_ms(self.config, job, offer) + 1)
        self.desk.wake(self.now_ms + slack_ms(self.config, job, None, self.now_ms) + 1)
        self.desk.wake(late_from_ms(job, self.now_ms))
        return self._takes_what_comes(job, coming) or self.desk.is_patient(job)

    def _must_start(self, job: JobView) -> bool:
        """Whether any more waiting could cost the job a deadline that it keeps by starting on serverless now. One that
        never saves would stay there to its end: it has waited for as long as its own rule lets it (`settles`)."""
        serverless, left_ms = self.outlook.serverless.choose(job), remaining_ms(job, None, self.now_ms)
        if serverless is None:
            return False
        by_ms = starts_by_ms(job, left_ms, serverless.offer, self.now_ms)
        if by_ms is None or job.never_saves:
            return False
        self.desk.wake(by_ms + 1)
        takes_ms = begins_ms(serverless.offer) + time_on(job.speeds, serverless.offer.gpu_type, left_ms)
        self.desk.wake(job.deadline_ms - takes_ms + 1)  # then it is late anyway
        return self.now_ms > by_ms

    def _takes_what_comes(self, job: JobView, coming: Place | None) -> bool:
        """Whether a node that comes for nobody else is near enough: a batch job waits for it as long as serverless
        takes to start, or for half of its own time where that is known."""
        serverless = self.outlook.serverless.choose(job)
        if coming is None or serverless is None:
            return False
        rules = self.config.rules
        most_ms = max(serverless.offer.startup_ms, int(rules.patience_run_share * (job.total_run_ms or 0)))
        most_ms = min(most_ms, most_wait_ms(self.config, job, self.now_ms, serverless.offer))
        left_ms = remaining_ms(job, None, self.now_ms)
        by_ms = starts_by_ms(job, left_ms, serverless.offer, self.now_ms)
        if most_ms < 0 or (by_ms is not None and coming.expected_ready_ms > by_ms):
            return False
        given_up_ms = coming.expected_ready_ms + rules.patience_ms
        self.desk.wake(coming.expected_ready_ms - most_ms)
        self.desk.wake(given_up_ms + 1)
        return coming.expected_ready_ms - most_ms <= self.now_ms <= given_up_ms

    def _is_parked(self, job: JobView) -> bool:
        """At the limit: a job that has had its time on serverless, and whose deadline is not near, waits for a node."""
        if job.serverless_used_ms < self.parked_ms or not may_be_parked(job):
            return False
        spare_ms = slack_ms(self.config, job, None, self.now_ms)
        if spare_ms < 0:
            return False
        self.desk.wake(self.now_ms + spare_ms + 1)
        return True

    def _foresee(self, job: JobView) -> None:
        """A job that saves to leave serverless wants a node in a moment; one that pauses or ends then does not."""
        run = self.board.run_of(job.job_id)
        if run is None or job.leaving or queue.has_spent_all(job):
            return
        place = self.desk.keep_room(job)
        if place is None and self.desk.provision(job):
            return
        if self.config.explains:
            then = self.outlook.no_serverful_place(job, None) if place is None else self.outlook.counts_on(place)
            self.desk.wait(job, f"saves a checkpoint and leaves its place; then: {then}")
