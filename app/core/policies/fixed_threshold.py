"""`fixed-threshold`: every job starts serverless at once and moves to a rented node after a fixed budget F.

The baseline of the Allpass paper and the policy of stop-and-go. Serverless places and nodes alike are given out
earliest deadline first. In this order, each step on what the earlier ones left:

1. serverless runs that used up F are asked to leave (`Demote`), unless no serverful place could hold them;
2. jobs without a place are sent to serverless (budget left) or serverful, and to the other where theirs has nothing;
3. serverful jobs take a ready node (`Assign`), else count on a coming one, else rent one (`Provision`);
4. jobs that are about to come (still saving, or backing off) keep or rent nodes meanwhile;
5. what nobody needs is given back (`Release`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.core import queue
from app.core.board import Board
from app.core.market import Choice
from app.core.model.job import JobState, StartRule
from app.core.model.node import Tier
from app.core.model.plan import STOP_AND_GO, ActionKind, Plan
from app.core.model.snapshot import JobView, RunView
from app.core.policies import reasons
from app.core.policies.plan_builder import PlanBuilder
from app.core.policy import PolicyConfig, PolicyState


class FixedThreshold:
    """See the module. Keeps no state of its own."""

    name = "fixed-threshold"
    uses = STOP_AND_GO
    moves_by_budget = True

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        desk = PlanBuilder(board, config)
        Threshold(desk, config.serverless_budget_ms).serve()
        desk.release_idle_after(config.idle_release_ms)
        return desk.plan(self.name, F_s=config.serverless_budget_ms / 1000), state


@dataclass(slots=True)
class _Coming:
    """A job that will want a serverful place soon. `may_rent`: worth renting a node for already."""

    job: JobView
    may_rent: bool


class Threshold:
    """Serves every job with the budget F (`budget_ms`): steps 1 to 4 of the module. Used once.

    `rents`: a node may be rented for every job that none covers; else somebody else sizes the fleet. `returns`: a job
    that was on serverless may go there again while it has budget left.
    """

    def __init__(self, desk: PlanBuilder, budget_ms: int, *, rents: bool = True, returns: bool = True) -> None:
        self.desk, self.board, self.outlook, self.now_ms = desk, desk.board, desk.outlook, desk.now_ms
        self.budget_ms, self.rents, self.returns = budget_ms, rents, returns
        self.coming: list[_Coming] = []

    def serve(self) -> None:
        self._demote_over_budget()
        self._foresee_saving()
        for job in self._without_place():
            self._place_serverful(job)
        for coming in sorted(self.coming, key=lambda item: queue.edf_key(item.job)):
            self._prepare(coming)

    # Serverless runs that used up F

    def _demote_over_budget(self) -> None:
        jobs = self.board.jobs
        for run in self._serverless_runs_by_deadline():
            riders = [jobs[job_id] for job_id in run.job_ids if job_id in jobs]
            movable = queue.is_running(run) and all(
                job.state == JobState.RUNNING and not (job.stays or self.board.is_moving(job.job_id)) for job in riders
            )
            if movable and self.outlook.may(ActionKind.DEMOTE):
                self._demote_if_over(run, riders)

    def _serverless_runs_by_deadline(self) -> list[RunView]:
        jobs = self.board.jobs
        known = [run for run in self.board.serverless_runs.values() if any(job in jobs for job in run.job_ids)]
        first = {run.run_id: min(queue.edf_key(jobs[job]) for job in run.job_ids if job in jobs) for run in known}
        return sorted(known, key=lambda run: (first[run.run_id], run.run_id))

    def _demote_if_over(self, run: RunView, riders: list[JobView]) -> None:
        longest = max(riders, key=lambda job: (queue.serverless_used_ms(job, run, self.now_ms), job.job_id))
        used_ms = queue.serverless_used_ms(longest, run, self.now_ms)
        if used_ms < self.budget_ms:
            if all(self.outlook.serverful_possible(job) for job in riders):
                self.desk.wake(queue.budget_ends_ms(longest, run, self.budget_ms, self.now_ms))
            return
        used = f"{reasons.duration(used_ms)}, budget F is {reasons.duration(self.budget_ms)}"
        stuck = next((job for job in riders if not self.outlook.serverful_possible(job)), None)
        if stuck is not None:
            why = self.outlook.nothing_serverful(stuck)
            self.desk.wait(longest, f"stays on serverless although it has run there for {used}: {why}")
            return
        goal = "a cheaper node" if self._saves_money(longest, run) else "a serverful node"
        self.desk.demote(run, longest, riders, f"has run on serverless for {used}: moves to {goal}")
        self.coming.extend(_Coming(job, may_rent=False) for job in riders)

    def _saves_money(self, job: JobView, run: RunView) -> bool:
        node, choice = self.board.nodes.get(run.node_id), self.outlook.serverful.choose(job)
        return node is not None and choice is not None and choice.offer.price_per_hour < node.price_per_hour

    def _foresee_saving(self) -> None:
        """Jobs that save to leave serverless want a node in a moment; one that pauses or ends then does not."""
        for job in self.board.saving.values():
            run = self.board.run_of(job.job_id)
            leaves = run is None or run.tier == Tier.SERVERLESS
            if not leaves or job.leaving or queue.has_spent_all(job):
                continue
            if queue.serverless_used_ms(job, run, self.now_ms) < self.budget_ms:
                self.desk.wake(queue.budget_ends_ms(job, run, self.budget_ms, self.now_ms))
            elif self.outlook.serverful_possible(job):
                self.coming.append(_Coming(job, may_rent=self.rents))

    # Jobs without a place

    def _without_place(self) -> list[JobView]:
        """Give out the serverless places; returns the jobs that are to have a serverful one, in order."""
        serverful = []
        for job in self.board.placeable():
            if queue.has_spent_all(job):
                self.desk.wait(job, reasons.nothing_to_spend(job))
                continue
            tier, choice = self._route(job)
            if job.not_before_ms > self.now_ms:
                self._back_off(job, serverful=tier == "serverful")
            elif tier == "serverful":
                serverful.append(job)
            elif choice is not None and self.desk.has_waited_enough(job):
                self.desk.start_now(job, choice)
            elif choice is not None:
                dear = "" if self._prefers_serverless(job) else ": no serverful node or offer could hold it"
                self.desk.start(job, choice, dear)
            else:
                self.desk.wait(job, self.outlook.nothing_at_all(job))
        return serverful

    def _route(self, job: JobView) -> tuple[Literal["serverless", "serverful"], Choice | None]:
        """Where the job goes, by preference and by what there is; the serverless offer when it goes there.

        With budget left it prefers serverless, but rather takes a serverful place than an offer that failed it.
        Without, it goes serverless only where no serverful place could ever hold it: better dear than never. One that
        is to run beside a job on a node goes there.
        """
        if self.desk.fleet.hosts(job):
            return "serverful", None
        choice = self.outlook.serverless.choose(job) if self.outlook.may_start() else None
        if self._prefers_serverless(job) and choice is not None and not self.desk.rather_rents(job, choice):
            return "serverless", choice
        if self.outlook.serverful_possible(job):
            return "serverful", None
        return "serverless", choice

    def _prefers_serverless(self, job: JobView) -> bool:
        if self.desk.has_waited_enough(job):
            return True
        if not self.returns and job.serverless_used_ms:
            return False
        if job.never_saves and job.start == StartRule.AUTO and (job.total_run_ms or 0) > self.budget_ms:
            return False  # it could not leave when F is used up
        return job.serverless_used_ms < self.budget_ms and job.start != StartRule.WHEN_CHEAP

    def _back_off(self, job: JobView, *, serverful: bool) -> None:
        self.desk.back_off(job)
        if serverful:
            self.coming.append(_Coming(job, may_rent=False))

    def _place_serverful(self, job: JobView) -> None:
        if self.rents or self.desk.has_waited_enough(job):
            self.desk.place_serverful(job)
            return
        ready = self.desk.ready_place(job)
        if ready is not None:
            self.desk.assign(job, ready)
        else:
            self.desk.hold_open(job)

    # Jobs that are about to come

    def _prepare(self, coming: _Coming) -> None:
        """Keep room on a node for the job, or rent one, without giving it anything yet."""
        job = coming.job
        place = self.desk.keep_room(job)
        if place is None and coming.may_rent and self.desk.provision(job):
            return
        if job.state == JobState.CHECKPOINTING and self.desk.config.explains:
            then = self.outlook.no_serverful_place(job, None) if place is None else self.outlook.counts_on(place)
            self.desk.wait(job, f"saves a checkpoint and leaves serverless; then: {then}")
