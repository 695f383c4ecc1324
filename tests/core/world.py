"""A small world in memory on virtual time: it observes, decides and enacts as the live loop does, without any I/O.

Deterministic: the same jobs, offers, settings and faults give the same history. Every plan is held against
`app.core.invariants` before it is enacted, and every bill against the ledger when its node is gone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from app.core import billing
from app.core.board import Board
from app.core.invariants import plan_breaches, snapshot_breaches
from app.core.lifecycle import JOB_TRANSITIONS, NODE_TRANSITIONS, RUN_TRANSITIONS
from app.core.model.job import TERMINAL_JOB_STATES, JobState
from app.core.model.money import Money, total
from app.core.model.node import BillingRule, BillingStart, NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Action, Assign, Demote, Provision, Start
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, RunView, Snapshot
from app.core.policy import Policy, PolicyConfig, PolicyState

RULES = {
    Tier.SERVERLESS: BillingRule(unit_ms=1_000, starts=BillingStart.REQUEST),
    Tier.MARKETPLACE: BillingRule(unit_ms=1_000, starts=BillingStart.REQUEST, minimum_ms=10_000),
    Tier.CONVENTIONAL: BillingRule(unit_ms=60_000, starts=BillingStart.REQUEST),
}
MAX_DECISIONS_AT_ONCE = 10


@dataclass(frozen=True, slots=True)
class Task:
    """A job to come: its view at submission, and how long its code has to run in all."""

    view: JobView
    work_ms: int


@dataclass(slots=True)
class _Node:
    view: NodeView
    offer: Offer
    meter: billing.Meter
    held: list[billing.Occupancy] = field(default_factory=list)
    lines: list[billing.LedgerLine] = field(default_factory=list)
    gone: bool = False


@dataclass(slots=True)
class _Run:
    view: RunView
    gpus: tuple[int, ...]
    offer_key: str


@dataclass(slots=True)
class World:
    """`failing_boots` / `failing_runs`: how many of the machines to come never start, or die 5 s into a run."""

    policy: Policy
    config: PolicyConfig
    offers: tuple[Offer, ...]
    tasks: tuple[Task, ...]
    failing_boots: int = 0
    failing_runs: int = 0
    save_ms: int = 2_000
    restore_ms: int = 500
    backoff_ms: int = 3_000
    meter_ms: int = 31_000
    now_ms: int = 0
    state: PolicyState = field(default_factory=PolicyState)
    jobs: dict[str, JobView] = field(default_factory=dict)
    left_ms: dict[str, int] = field(default_factory=dict)
    runs: dict[str, _Run] = field(default_factory=dict)
    nodes: dict[str, _Node] = field(default_factory=dict)
    history: list[str] = field(default_factory=list)
    finished_ms: dict[str, int] = field(default_factory=dict)
    _agenda: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def play(self, *, until_ms: int) -> World:
        """Run until nothing is left to happen or the time is over; returns itself."""
        for task in self.tasks:
            self._at(task.view.submitted_ms, lambda task=task: self._submit(task))
        self._at(0, self._read_meters)
        while self._agenda and self._agenda[0][0] <= until_ms:
            self.now_ms = self._agenda[0][0]
            while self._agenda and self._agenda[0][0] == self.now_ms:
                heapq.heappop(self._agenda)[2]()
            self._tick()
        return self

    def observe(self) -> Snapshot:
        """What a policy sees of this world now."""
        return Snapshot(
            now_ms=self.now_ms,
            jobs=tuple(job for _, job in sorted(self.jobs.items()) if job.state not in TERMINAL_JOB_STATES),
            runs=tuple(run.view for _, run in sorted(self.runs.items())),
            nodes=tuple(node.view for _, node in sorted(self.nodes.items()) if not node.gone),
            offers=self.offers,
        )

    @property
    def unfinished(self) -> list[str]:
        submitted = [job.job_id for job in self.jobs.values() if job.state not in TERMINAL_JOB_STATES]
        return submitted + [task.view.job_id for task in self.tasks if task.view.job_id not in self.jobs]

    @property
    def rented(self) -> list[str]:
        return [node.view.node_id for node in self.nodes.values() if not node.gone]

    @property
    def bill(self) -> Money:
        """What the providers ask for the nodes that are gone: their own rule at their own times."""
        return total(
            billing.cost(RULES[node.view.tier], node.view.price_per_hour, node.meter.billed_from_ms, ended)
            for node in self.nodes.values()
            if node.gone and (ended := node.meter.metered_until_ms) is not None
        )

    @property
    def ledger(self) -> Money:
        return total(line.amount for node in self.nodes.values() for line in node.lines)

    # One decision, as the live loop takes it

    def _tick(self) -> None:
        for _ in range(MAX_DECISIONS_AT_ONCE):
            snapshot = self.observe()
            assert snapshot_breaches(snapshot) == []
            plan, self.state = self.policy.decide(Board.of(snapshot), self.state, self.config)
            assert plan_breaches(snapshot, plan, self.config) == []
            if plan.wake_at_ms is not None:
                assert plan.wake_at_ms > self.now_ms, "a policy asked to be woken at once: it would spin"
                self._at(plan.wake_at_ms, lambda: None)
            for action in plan.actions:
                self._enact(action)
            if not plan.actions:
                return
        raise AssertionError(f"{MAX_DECISIONS_AT_ONCE} decisions at {self.now_ms} ms and still something to do")

    def _enact(self, action: Action) -> None:
        self._tell(f"{action.kind} {action.reason}")
        if isinstance(action, Start):
            node = self._rent(self.jobs[action.job_id].project_id, action.job_id, action.offer)
            self._begin(action.job_id, node, tuple(range(action.offer.gpu_count)))
        elif isinstance(action, Provision):
            self._rent(action.project_id, action.for_job_id, action.offer)
        elif isinstance(action, Assign):
            run = self._begin(action.job_id, self.nodes[action.node_id], action.gpu_indices)
            self._after(self.restore_ms, lambda: self._running(run))
        elif isinstance(action, Demote):
            self._move_run(action.run_id, RunState.STOPPING)
            self._move_job(action.job_id, JobState.CHECKPOINTING)
            self._after(self.save_ms, lambda: self._leave(action.run_id))
        else:
            self._end_node(action.node_id)

    # Machines

    def _rent(self, project_id: str, job_id: str, offer: Offer) -> _Node:
        view = NodeView(
            node_id=self._new_id("node"),
            project_id=project_id,
            provider=offer.provider,
            tier=offer.tier,
            state=NodeState.BOOTING,
            row_version=1,
            gpu_type=offer.gpu_type,
            gpu_count=offer.gpu_count,
            gpu_memory_bytes=offer.gpu_memory_bytes,
            cpus=offer.cpus,
            memory_bytes=offer.memory_bytes,
            free_gpus=tuple(range(offer.gpu_count)),
            price_per_hour=offer.price_per_hour,
            requested_ms=self.now_ms,
            expected_ready_ms=self.now_ms + offer.startup_ms,
            image=self.jobs[job_id].resources.base_image or "",
        )
        meter = billing.Meter(
            RULES[offer.tier], offer.price_per_hour, offer.gpu_count, self.now_ms, rented_for_job_id=job_id
        )
        node = self.nodes[view.node_id] = _Node(view, offer, meter)
        if self.failing_boots > 0:
            self.failing_boots -= 1
            self._after(offer.startup_ms, lambda: self._boot_failed(node, job_id))
        else:
            self._after(offer.startup_ms, lambda: self._ready(node))
        return node

    def _ready(self, node: _Node) -> None:
        if node.gone:
            return  # given back while it booted
        self._move_node(node, NodeState.READY)
        node.meter = replace(node.meter, ready_ms=self.now_ms)
        on_it = [run_id for run_id, run in self.runs.items() if run.view.node_id == node.view.node_id]
        for run_id in on_it:
            self._running(run_id)
        if not on_it:
            node.view = replace(node.view, idle_since_ms=self.now_ms)

    def _boot_failed(self, node: _Node, job_id: str) -> None:
        job = self.jobs[job_id]
        backed_off = self.now_ms + self.backoff_ms
        self.jobs[job_id] = replace(job, avoided_offers=job.avoided_offers | {node.offer.key}, not_before_ms=backed_off)
        self._lose(node)

    def _lose(self, node: _Node) -> None:
        """The machine is dead: its runs end, their jobs go on from what they had saved."""
        if node.view.state in (NodeState.BOOTING, NodeState.READY):
            self._close(node, NodeState.FAILED)
        for run_id, run in list(self.runs.items()):
            if run.view.node_id == node.view.node_id:
                self._end_run(run_id, JobState.WAITING, progress=False)

    def _end_node(self, node_id: str) -> None:
        node = self.nodes[node_id]
        self._move_node(node, NodeState.TERMINATING)
        self._after(1_300, lambda: self._close(node, NodeState.TERMINATED))

    def _close(self, node: _Node, state: NodeState) -> None:
        self._move_node(node, state)
        self._read(node, final=True)
        node.gone = True

    # Runs

    def _begin(self, job_id: str, node: _Node, gpus: tuple[int, ...]) -> str:
        view = RunView(
            self._new_id("run"), (job_id,), node.view.node_id, node.view.tier, RunState.ASSIGNED, 1, self.now_ms
        )
        self.runs[view.run_id] = _Run(view, gpus, node.offer.key)
        node.held.append(billing.Occupancy(view.run_id, job_id, len(gpus), self.now_ms))
        free = tuple(index for index in node.view.free_gpus if index not in gpus)
        node.view = replace(node.view, free_gpus=free, idle_since_ms=None, row_version=node.view.row_version + 1)
        self._move_job(job_id, JobState.STARTING)
        return view.run_id

    def _running(self, run_id: str) -> None:
        if run_id not in self.runs:
            return
        run = self.runs[run_id]
        self._move_run(run_id, RunState.RUNNING)
        run.view = replace(run.view, running_since_ms=self.now_ms)
        job_id = run.view.job_ids[0]
        self._move_job(job_id, JobState.RUNNING)
        if self.failing_runs > 0 and self.left_ms[job_id] > 5_000:
            self.failing_runs -= 1
            self._after(5_000, lambda: self._lose(self.nodes[run.view.node_id]))
        self._after(self.left_ms[job_id], lambda: self._finish(run_id))

    def _finish(self, run_id: str) -> None:
        if run_id in self.runs and self.runs[run_id].view.state is RunState.RUNNING:
            self.finished_ms[self.runs[run_id].view.job_ids[0]] = self.now_ms
            self._end_run(run_id, JobState.SUCCEEDED, progress=True)

    def _leave(self, run_id: str) -> None:
        if run_id in self.runs:
            self._end_run(run_id, JobState.WAITING, progress=True)

    def _end_run(self, run_id: str, job_state: JobState, *, progress: bool) -> None:
        self._move_run(run_id, RunState.ENDED)
        run = self.runs.pop(run_id)
        node, job_id = self.nodes[run.view.node_id], run.view.job_ids[0]
        ran_ms = 0 if run.view.running_since_ms is None else self.now_ms - run.view.running_since_ms
        if progress:
            self.left_ms[job_id] = max(0, self.left_ms[job_id] - ran_ms)
        if run.view.tier is Tier.SERVERLESS:
            used_ms = self.jobs[job_id].serverless_used_ms + ran_ms
            self.jobs[job_id] = replace(self.jobs[job_id], serverless_used_ms=used_ms)
        self._move_job(job_id, job_state)
        node.held = [replace(h, to_ms=self.now_ms) if h.run_id == run_id else h for h in node.held]
        free = tuple(sorted({*node.view.free_gpus, *run.gpus}))
        idle = self.now_ms if len(free) == node.view.gpu_count else None
        node.view = replace(node.view, free_gpus=free, idle_since_ms=idle, row_version=node.view.row_version + 1)
        if node.view.tier is Tier.SERVERLESS and node.view.state is NodeState.READY:
            self._end_node(node.view.node_id)

    # Money

    def _read_meters(self) -> None:
        for node in self.nodes.values():
            if not node.gone:
                self._read(node, final=False)
        if self._agenda:
            self._after(self.meter_ms, self._read_meters)

    def _read(self, node: _Node, *, final: bool) -> None:
        reading = billing.split(node.meter, node.held, until_ms=self.now_ms, final=final)
        assert reading.overmetered == Money(0)
        node.lines.extend(reading.lines)
        node.meter = replace(node.meter, metered=reading.metered, metered_until_ms=reading.metered_until_ms)
        for line in reading.lines:
            if line.job_id is not None:
                job = self.jobs[line.job_id]
                self.jobs[line.job_id] = replace(job, spent=job.spent + line.amount)

    # The books

    def _submit(self, task: Task) -> None:
        self.jobs[task.view.job_id] = task.view
        self.left_ms[task.view.job_id] = task.work_ms

    def _move_job(self, job_id: str, to: JobState) -> None:
        job = self.jobs[job_id]
        assert to in JOB_TRANSITIONS[job.state], f"{job_id}: {job.state} -> {to}"
        self.jobs[job_id] = replace(job, state=to, row_version=job.row_version + 1)
        self._tell(f"{job_id} {to}")

    def _move_run(self, run_id: str, to: RunState) -> None:
        view = self.runs[run_id].view
        assert to in RUN_TRANSITIONS[view.state], f"{run_id}: {view.state} -> {to}"
        self.runs[run_id].view = replace(view, state=to, row_version=view.row_version + 1)

    def _move_node(self, node: _Node, to: NodeState) -> None:
        assert to in NODE_TRANSITIONS[node.view.state], f"{node.view.node_id}: {node.view.state} -> {to}"
        node.view = replace(node.view, state=to, row_version=node.view.row_version + 1)
        self._tell(f"{node.view.node_id} {to}")

    def _tell(self, what: str) -> None:
        self.history.append(f"{self.now_ms} {what}")

    def _at(self, at_ms: int, then: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (at_ms, self._count, then))

    def _after(self, delay_ms: int, then: Callable[[], None]) -> None:
        self._at(self.now_ms + delay_ms, then)

    def _new_id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count:06d}"
