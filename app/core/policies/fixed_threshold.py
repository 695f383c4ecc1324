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

from dataclasses import dataclass, field
from typing import Literal

from app.core.model.job import JobState, StartRule
from app.core.model.node import Tier
from app.core.model.plan import (
    STOP_AND_GO,
    ActionKind,
    Assign,
    Demote,
    Plan,
    Provision,
    Release,
    Start,
    Waiting,
)
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policies import queue, reasons
from app.core.policies.outlook import Outlook
from app.core.policies.placement import Choice, Place
from app.core.policy import PolicyConfig, PolicyState


class FixedThreshold:
    """See the module. Keeps no state of its own."""

    name = "fixed-threshold"
    uses = STOP_AND_GO

    def decide(self, snapshot: Snapshot, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        return _Decision(snapshot, config).plan(self.name), state


@dataclass(slots=True)
class _Coming:
    """A job that will want a serverful place soon. `may_rent`: worth renting a node for already."""

    job: JobView
    may_rent: bool


@dataclass(slots=True)
class _Actions:
    starts: list[Start] = field(default_factory=list)
    assigns: list[Assign] = field(default_factory=list)
    demotes: list[Demote] = field(default_factory=list)
    provisions: list[Provision] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)


class _Decision:
    """The working space of one decision; used once."""

    def __init__(self, snapshot: Snapshot, config: PolicyConfig) -> None:
        self.snapshot, self.config, self.now_ms = snapshot, config, snapshot.now_ms
        self.outlook = Outlook(snapshot, config)
        self.fleet = self.outlook.fleet
        self.nodes = {node.node_id: node for node in snapshot.nodes}
        self.run_of = {job_id: run for run in snapshot.runs for job_id in run.job_ids}
        self.jobs = sorted(snapshot.jobs, key=queue.edf_key)
        self.serverless_nodes = sum(node.tier == Tier.SERVERLESS for node in snapshot.nodes)
        self.actions = _Actions()
        self.waiting: dict[str, str] = {}
        self.wakes: list[int] = []
        self.coming: list[_Coming] = []

    def plan(self, policy: str) -> Plan:
        self._demote_over_budget()
        self._foresee_saving()
        for job in self._without_place():
            self._place_serverful(job)
        for coming in sorted(self.coming, key=lambda item: queue.edf_key(item.job)):
            self._prepare(coming)
        self._release_unneeded()
        done = self.actions
        return Plan(
            policy=policy,
            actions=(*done.starts, *done.assigns, *done.demotes, *done.provisions, *done.releases),
            waiting=tuple(Waiting(job_id, reason) for job_id, reason in sorted(self.waiting.items())),
            signals=self._signals(),
            wake_at_ms=min(self.wakes, default=None),
        )

    # Serverless runs that used up F

    def _demote_over_budget(self) -> None:
        jobs = {job.job_id: job for job in self.snapshot.jobs}
        for run in self._serverless_runs_by_deadline(jobs):
            riders = [jobs[job_id] for job_id in run.job_ids if job_id in jobs]
            movable = queue.is_running(run) and all(job.state == JobState.RUNNING for job in riders)
            if movable and self.outlook.may(ActionKind.DEMOTE):
                self._demote_if_over(run, riders)

    def _serverless_runs_by_deadline(self, jobs: dict[str, JobView]) -> list[RunView]:
        known = [run for run in self.snapshot.runs if run.tier == Tier.SERVERLESS and set(run.job_ids) & set(jobs)]
        first = {run.run_id: min(queue.edf_key(jobs[job]) for job in run.job_ids if job in jobs) for run in known}
        return sorted(known, key=lambda run: (first[run.run_id], run.run_id))

    def _demote_if_over(self, run: RunView, riders: list[JobView]) -> None:
        budget_ms = self.config.serverless_budget_ms
        longest = max(riders, key=lambda job: (queue.serverless_used_ms(job, run, self.now_ms), job.job_id))
        used_ms = queue.serverless_used_ms(longest, run, self.now_ms)
        stuck = next((job for job in riders if not self.outlook.serverful_possible(job)), None)
        if used_ms < budget_ms:
            if stuck is None:
                self._wake(queue.budget_ends_ms(longest, run, budget_ms, self.now_ms))
            return
        used = f"{reasons.duration(used_ms)}, budget F is {reasons.duration(budget_ms)}"
        if stuck is not None:
            why = self.outlook.nothing_serverful(stuck)
            self.waiting[longest.job_id] = f"stays on serverless although it has run there for {used}: {why}"
            return
        goal = "a cheaper node" if self._saves_money(longest, run) else "a serverful node"
        versions = _versions(run, *riders)
        reason = f"has run on serverless for {used}: moves to {goal}"
        self.actions.demotes.append(Demote(longest.job_id, run.run_id, reason, versions))
        self.coming.extend(_Coming(job, may_rent=False) for job in riders)

    def _saves_money(self, job: JobView, run: RunView) -> bool:
        node, choice = self.nodes.get(run.node_id), self.outlook.serverful.choose(job)
        return node is not None and choice is not None and choice.offer.price_per_hour < node.price_per_hour

    def _foresee_saving(self) -> None:
        """Jobs that save to leave serverless want a node in a moment; one that pauses or ends then does not."""
        for job in self.jobs:
            run = self.run_of.get(job.job_id)
            leaves = run is None or run.tier == Tier.SERVERLESS
            if job.state != JobState.CHECKPOINTING or not leaves or job.leaving or queue.cost_cap_reached(job):
                continue
            if queue.serverless_used_ms(job, run, self.now_ms) < self.config.serverless_budget_ms:
                self._wake(queue.budget_ends_ms(job, run, self.config.serverless_budget_ms, self.now_ms))
            elif self.outlook.serverful_possible(job):
                self.coming.append(_Coming(job, may_rent=True))

    # Jobs without a place

    def _without_place(self) -> list[JobView]:
        """Give out the serverless places; returns the jobs that are to have a serverful one, in order."""
        serverful = []
        for job in self.jobs:
            if not queue.is_placeable(job):
                continue
            if queue.cost_cap_reached(job):
                self.waiting[job.job_id] = (
                    f"has cost {job.spent} of at most {job.caps.max_cost}: is paused until max_cost is raised"
                )
                continue
            tier, choice = self._route(job)
            if job.not_before_ms > self.now_ms:
                self._back_off(job, serverful=tier == "serverful")
            elif tier == "serverful":
                serverful.append(job)
            elif choice is not None:
                self._start(job, choice)
            else:
                self.waiting[job.job_id] = self.outlook.nothing_at_all(job)
        return serverful

    def _route(self, job: JobView) -> tuple[Literal["serverless", "serverful"], Choice | None]:
        """Where the job goes, by preference and by what there is; the serverless offer when it goes there.

        With budget left it prefers serverless, but rather takes a serverful place than an offer that failed it.
        Without, it goes serverless only where no serverful place could ever hold it: better dear than never.
        """
        choice = self.outlook.serverless.choose(job) if self.outlook.may_start() else None
        if (
            self._prefers_serverless(job)
            and choice is not None
            and not (choice.again and self.outlook.serverful_fresh(job))
        ):
            return "serverless", choice
        if self.outlook.serverful_possible(job):
            return "serverful", None
        return "serverless", choice

    def _prefers_serverless(self, job: JobView) -> bool:
        return job.serverless_used_ms < self.config.serverless_budget_ms and job.start == StartRule.NOW

    def _back_off(self, job: JobView, *, serverful: bool) -> None:
        left_ms = job.not_before_ms - self.now_ms
        self.waiting[job.job_id] = f"its last start failed: tries again in {reasons.duration(left_ms)}"
        self._wake(job.not_before_ms)
        if serverful:
            self.coming.append(_Coming(job, may_rent=False))

    def _start(self, job: JobView, choice: Choice) -> None:
        limit = self.config.serverless_limit
        if self.serverless_nodes >= limit:
            self.waiting[job.job_id] = f"waits for a serverless place: {self.serverless_nodes} of {limit} are taken"
            return
        self.serverless_nodes += 1
        reason = f"starts on {reasons.offer(choice.offer)}, {_best_of(choice)}"
        if not self._prefers_serverless(job):
            reason += ": no serverful node or offer could hold it"
        self.actions.starts.append(Start(job.job_id, choice.offer, reason, _versions(job)))

    def _place_serverful(self, job: JobView) -> None:
        """A ready node, else a coming one, else a new one; else the reason why not."""
        ready = self.fleet.ready_place(job)
        if ready is not None and ready.node is not None:
            self._assign(job, ready, ready.node)
            return
        coming = self.fleet.coming_place(job)
        if coming is not None:
            coming.take(job.resources)
            self.waiting[job.job_id] = self.outlook.counts_on(coming)
        elif not self._provision(job):
            held = self.fleet.hold_open(job)
            self.waiting[job.job_id] = self.outlook.no_serverful_place(job, held)

    def _assign(self, job: JobView, place: Place, node: NodeView) -> None:
        free = len(place.free_gpus)
        taken = place.take(job.resources)
        reason = (
            f"goes on {reasons.node(node)}, the cheapest ready node that fits: takes {len(taken)} of {free} free GPUs"
        )
        self.actions.assigns.append(Assign(job.job_id, node.node_id, taken, reason, _versions(job, node)))

    def _provision(self, job: JobView) -> bool:
        choice = self.outlook.serverful.choose(job) if self.outlook.may_rent() else None
        if choice is None or self.outlook.fleet_is_full():
            return False
        offer = choice.offer
        ready = f"ready in about {reasons.duration(offer.startup_ms)}"
        reason = f"rents {reasons.offer(offer)}, {_best_of(choice)}, {ready}: no node of the project has room"
        versions = _versions(job)
        self.actions.provisions.append(Provision(job.project_id, job.job_id, offer, reason, versions))
        self.fleet.add(job, offer, self.now_ms)
        return True

    # Jobs that are about to come

    def _prepare(self, coming: _Coming) -> None:
        """Keep room on a node for the job, or rent one, without giving it anything yet."""
        job = coming.job
        place = self.fleet.ready_place(job) or self.fleet.coming_place(job)
        if place is not None:
            place.take(job.resources)
        elif coming.may_rent and self._provision(job):
            return
        if job.state == JobState.CHECKPOINTING:
            then = self.outlook.no_serverful_place(job, None) if place is None else self.outlook.counts_on(place)
            self.waiting[job.job_id] = f"saves a checkpoint and leaves serverless; then: {then}"

    # What nobody needs

    def _release_unneeded(self) -> None:
        if not self.outlook.may(ActionKind.RELEASE):
            return
        keep_ms = self.config.idle_release_ms
        for node in self.fleet.unneeded():
            if node.idle_since_ms is None:
                continue
            idle_ms = self.now_ms - node.idle_since_ms
            if idle_ms < keep_ms:
                self._wake(node.idle_since_ms + keep_ms)
                continue
            idle = f"idle for {reasons.duration(max(0, idle_ms))}, kept for {reasons.duration(keep_ms)}"
            reason = f"ends the rent of {reasons.node(node)}: {idle}, and no job needs it"
            self.actions.releases.append(Release(node.node_id, reason, _versions(node)))

    def _wake(self, at_ms: int | None) -> None:
        if at_ms is not None:
            self.wakes.append(at_ms)

    def _signals(self) -> tuple[tuple[str, float], ...]:
        waiting = sum(queue.is_placeable(job) for job in self.snapshot.jobs)
        by_tier = [(f"nodes_{tier}", sum(node.tier == tier for node in self.snapshot.nodes)) for tier in Tier]
        signals = [("F_s", self.config.serverless_budget_ms / 1000), ("jobs_waiting", waiting), *by_tier]
        return tuple((name, float(value)) for name, value in signals)


def _best_of(choice: Choice) -> str:
    rank = f"the cheapest of {choice.rivals}" if choice.rivals > 1 else "the only one of the"
    text = f"{rank} {choice.offer.tier} offers that fit"
    if choice.again:
        return f"{text} (tried again: each of them failed this job recently)"
    return f"{text} (left out, as they failed this job recently: {choice.left_out})" if choice.left_out else text


def _versions(*rows: JobView | RunView | NodeView) -> tuple[tuple[str, int], ...]:
    """The rows whose change would make an action wrong, as (id, row_version), sorted by id."""
    return tuple(sorted((_row_id(row), row.row_version) for row in rows))


def _row_id(row: JobView | RunView | NodeView) -> str:
    if isinstance(row, JobView):
        return row.job_id
    return row.run_id if isinstance(row, RunView) else row.node_id
