"""One action of each kind that fails while it is enacted. A kind without a poison here fails a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from app.core.board import Board
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.merge import MergeMode
from app.core.model.node import NodeState, Tier
from app.core.model.plan import (
    Action,
    ActionKind,
    Assign,
    Demote,
    Merge,
    Migrate,
    Plan,
    Preempt,
    Provision,
    Release,
    Split,
    Start,
)
from app.core.model.run import RunState
from app.core.model.snapshot import JobView, NodeView, RunView
from app.core.policy import Policy
from benchmarks.poison_cases import Case, Mallory, NotReachedError
from benchmarks.poison_rows import allow_writes, refuse_writes

_WHY = "poison"
_ROUNDS = 4
_ON_IDLE = (ActionKind.ASSIGN, ActionKind.RELEASE, ActionKind.MIGRATE)  # machines, which the project's jobs share


def action_cases() -> list[Case]:
    """Each kind in two ways: its rows cannot be written, and its reason cannot be stored."""
    return [
        Case("action", f"{kind}: {how}", partial(inject, kind), _calm, rounds=_ROUNDS, shares=kind in _ON_IDLE,
             beside=_submit_two)
        for kind in FACTORIES
        for how, inject in (
            ("its events cannot be written", _refuse_events),
            ("its reason holds a NUL", _garble_reason),
        )
    ]  # fmt: skip


class Meddles:
    """A policy whose plan has one action more, for the poisoner; what it had for the same job is taken out."""

    def __init__(self, policy: Policy, kind: ActionKind, job_ids: frozenset[str], reason: str) -> None:
        self._policy = policy
        self._kind, self._job_ids, self._reason = kind, job_ids, reason
        self.name, self.uses, self.moves_by_budget = policy.name, policy.uses, policy.moves_by_budget
        self.times = 0

    def decide(self, board: Board, state: Any, config: Any) -> Any:
        plan, after = self._policy.decide(board, state, config)
        action = FACTORIES[self._kind](Hers.on(board, self._job_ids, _given_to_others(plan, self._job_ids)))
        if action is None:
            return plan, after
        self.times += 1
        return self._with(plan, replace(action, reason=self._reason)), after

    def _with(self, plan: Plan, action: Action) -> Plan:
        """Before the others: what fails comes first."""
        mine = {getattr(action, name, None) for name in ("job_id", "for_job_id", "node_id")} - {None}
        others = tuple(
            other
            for other in plan.actions
            if not mine & {getattr(other, name, None) for name in ("job_id", "for_job_id", "node_id")}
        )
        return replace(plan, actions=(action, *others))


def _given_to_others(plan: Plan, job_ids: frozenset[str]) -> set[str]:
    """Machines that a plan gives to jobs that are not hers: a policy gives none to two."""
    return {
        action.node_id
        for action in plan.actions
        if isinstance(action, Assign | Migrate) and action.job_id not in job_ids
    }


class Hers:
    """The poisoner's part of a board."""

    def __init__(self, jobs: list[JobView], runs: list[RunView], nodes: list[NodeView], board: Board) -> None:
        self.jobs, self.runs, self.nodes, self.board = jobs, runs, nodes, board

    @classmethod
    def on(cls, board: Board, job_ids: frozenset[str], taken: set[str]) -> Hers:
        jobs = [job for job in board.jobs.values() if job.job_id in job_ids]
        runs = [run for run in board.runs.values() if set(run.job_ids) <= job_ids]
        project_ids = {job.project_id for job in jobs}
        held = taken | {run.node_id for run in board.runs.values()} - {run.node_id for run in runs}
        nodes = [n for n in board.nodes.values() if n.project_id in project_ids and n.node_id not in held]
        return cls(jobs, runs, nodes, board)

    def waiting(self) -> list[JobView]:
        return [job for job in self.jobs if job.state in PLACEABLE_JOB_STATES]

    def running(self, *tiers: Tier) -> list[tuple[JobView, RunView]]:
        by_id = {job.job_id: job for job in self.jobs if job.state == JobState.RUNNING}
        return [(by_id[run.job_ids[0]], run) for run in self.runs
                if run.state == RunState.RUNNING and run.tier in tiers and run.job_ids[0] in by_id]  # fmt: skip

    def free(self) -> list[NodeView]:
        return [n for n in self.nodes if n.state == NodeState.READY and n.free_gpus and n.tier is not Tier.SERVERLESS]


_RENTED = (Tier.MARKETPLACE, Tier.CONVENTIONAL)
_EVERY = (Tier.SERVERLESS, *_RENTED)


def _versions(*views: JobView | RunView | NodeView) -> tuple[tuple[str, int], ...]:
    ids = [(getattr(v, "job_id", None) or getattr(v, "run_id", None) or v.node_id, v.row_version) for v in views]  # type: ignore[union-attr]  # one of the three is there
    return tuple(sorted(ids))


def _start(hers: Hers) -> Action | None:
    offers = [offer for offer in hers.board.offers if offer.tier is Tier.SERVERLESS]
    for job in hers.waiting():
        return Start(job.job_id, offers[0], _WHY, _versions(job)) if offers else None
    return None


def _provision(hers: Hers) -> Action | None:
    offers = [offer for offer in hers.board.offers if offer.tier is Tier.MARKETPLACE]
    for job in hers.jobs:
        return Provision(job.project_id, job.job_id, offers[0], _WHY, _versions(job)) if offers else None
    return None


def _assign(hers: Hers) -> Action | None:
    for job, node in zip(hers.waiting(), hers.free(), strict=False):
        return Assign(job.job_id, node.node_id, node.free_gpus[:1], _WHY, _versions(job, node))
    return None


def _release(hers: Hers) -> Action | None:
    for node in hers.free():
        if len(node.free_gpus) == node.gpu_count:
            return Release(node.node_id, _WHY, _versions(node))
    return None


def _demote(hers: Hers) -> Action | None:
    for job, run in hers.running(Tier.SERVERLESS):
        return Demote(job.job_id, run.run_id, _WHY, _versions(job, run))
    return None


def _preempt(hers: Hers) -> Action | None:
    for job, run in hers.running(*_RENTED):
        return Preempt(job.job_id, run.run_id, _WHY, _versions(job, run))
    return None


def _migrate(hers: Hers) -> Action | None:
    for (job, run), node in zip(hers.running(*_EVERY), hers.free(), strict=False):
        gpus = node.free_gpus[:1]
        return Migrate(job.job_id, run.run_id, node.node_id, gpus, _WHY, _versions(job, run, node))
    return None


def _merge(hers: Hers) -> Action | None:
    if len(hers.jobs) < 2:
        return None
    lead, companion = hers.jobs[:2]
    mode = MergeMode.TOGETHER
    return Merge(lead.job_id, companion.job_id, mode, 1, 1.0, 1.0, _WHY, _versions(lead, companion))


def _split(hers: Hers) -> Action | None:
    if len(hers.jobs) < 2:
        return None
    lead, companion = hers.jobs[:2]
    return Split(lead.job_id, companion.job_id, "merge_none", _WHY, _versions(lead, companion))


# `resize` has no action yet.
FACTORIES: Mapping[ActionKind, Callable[[Hers], Action | None]] = {
    ActionKind.START: _start,
    ActionKind.PROVISION: _provision,
    ActionKind.ASSIGN: _assign,
    ActionKind.RELEASE: _release,
    ActionKind.DEMOTE: _demote,
    ActionKind.PREEMPT: _preempt,
    ActionKind.MIGRATE: _migrate,
    ActionKind.MERGE: _merge,
    ActionKind.SPLIT: _split,
}


async def _refuse_events(kind: ActionKind, mallory: Mallory) -> None:
    await _meddle(kind, mallory, _WHY)
    tables = ("node_events",) if kind is ActionKind.RELEASE else ("job_events",)
    mallory.notes["tables"] = tables
    for table in tables:
        await refuse_writes(mallory, table, await mallory.owned_ids())


async def _garble_reason(kind: ActionKind, mallory: Mallory) -> None:
    await _meddle(kind, mallory, "the host is called a\0b")


async def _meddle(kind: ActionKind, mallory: Mallory, reason: str) -> None:
    loop = mallory.place.control.loop
    await _submit_two(mallory)
    mallory.notes["policy"] = loop._policy
    loop._policy = Meddles(loop._policy, kind, frozenset(mallory.job_ids), reason)


async def _submit_two(mallory: Mallory) -> None:
    for number in range(2):
        await mallory.submit(f"meddled-{number}", {"training": {"steps": 300}})


async def _calm(mallory: Mallory) -> None:
    loop = mallory.place.control.loop
    meddler, loop._policy = loop._policy, mallory.notes.pop("policy")
    for table in mallory.notes.pop("tables", ()):
        await allow_writes(mallory, table)
    if isinstance(meddler, Meddles) and not meddler.times:
        raise NotReachedError("no such action was possible")
