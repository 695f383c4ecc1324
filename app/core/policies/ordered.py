"""Cluster schedulers on rented nodes: `tiresias-l`, `sjf`, and both without preemption (`-np`).

A node is rented for every waiting job that none covers, up to the limit, and given back when nobody needs it; nothing
runs on serverless. At the limit the order decides who runs: `sjf` by the time left, `tiresias-l` by the GPU time that
a job has had, in three queues (Gu et al., "Tiresias", NSDI 2019: least attained service in two dimensions), within a
queue by arrival. With preemption, the last of those that run saves and goes back to the queue when a job that comes
before it has no place.
"""

from __future__ import annotations

from app.core import queue
from app.core.board import Board
from app.core.model.job import JobState
from app.core.model.node import SERVERFUL_TIERS
from app.core.model.plan import ActionKind, Plan
from app.core.model.snapshot import JobView, RunView
from app.core.policies.desk import Desk
from app.core.policy import PolicyConfig, PolicyState
from app.core.remaining import ran_ms, remaining_ms

QUEUE_LIMITS_GPU_MS = (3_250_000, 7_200_000)  # of the authors' own simulator, in GPU-milliseconds
Rank = tuple[int, int, str]
_NON_PREEMPTIVE = frozenset({ActionKind.ASSIGN, ActionKind.PROVISION, ActionKind.RELEASE})


class _Ordered:
    name = ""
    uses = _NON_PREEMPTIVE | {ActionKind.PREEMPT}
    preempts = True

    def rank(self, job: JobView, run: RunView | None, now_ms: int) -> Rank:
        """Lowest first."""
        raise NotImplementedError

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        desk = Desk(board, config)
        jobs = sorted(board.placeable(), key=lambda job: self.rank(job, None, board.now_ms))
        left_over = [job for job in jobs if not self._place(desk, job)]
        if self.preempts and desk.outlook.may(ActionKind.PREEMPT):
            self._preempt(desk, [job for job in left_over if desk.wants_node(job)])
        desk.release_idle_after(0)
        return desk.plan(self.name), state

    def _place(self, desk: Desk, job: JobView) -> bool:
        """Give the job a node, or room on a coming one; False if there is none for it."""
        if desk.holds_back(job):
            return True
        if not desk.outlook.serverful_possible(job):
            desk.wait(job, desk.outlook.nothing_serverful(job))
            return True
        place = desk.ready_place(job)
        if place is not None:
            desk.assign(job, place)
        elif (coming := desk.fleet.coming_place(job)) is not None:
            coming.take(job.resources)
            desk.wait(job, desk.outlook.counts_on(coming))
        elif not desk.provision(job):
            desk.hold_open(job)
            return False
        return True

    def _preempt(self, desk: Desk, waiting: list[JobView]) -> None:
        """Runs that come after the first of those that wait make room for it, last ones first."""
        board = desk.board
        if not waiting:
            return
        leaving = sum(job.resources.gpus_min for job in board.saving.values())
        runs = [run for run in board.runs.values() if run.tier in SERVERFUL_TIERS and queue.is_running(run)]
        ranked = sorted(
            ((self.rank(job, run, board.now_ms), run, job) for run in runs for job in _riders(board, run)),
            key=lambda one: one[0],
        )
        for job in waiting:
            need = job.resources.gpus_min
            if leaving >= need:
                leaving -= need
                continue
            before = self.rank(job, None, board.now_ms)
            freed = leaving
            while freed < need and ranked and self._comes_before(before, ranked[-1][0]):
                _, run, victim = ranked.pop()
                desk.preempt(run, victim, f"{job.job_id} comes before it and has no place")
                freed += victim.resources.gpus_min
            if freed < need:
                return
            leaving = freed - need

    def _comes_before(self, waiting: Rank, running: Rank) -> bool:
        return waiting < running


class Sjf(_Ordered):
    """Shortest remaining time first."""

    name = "sjf"

    def rank(self, job: JobView, run: RunView | None, now_ms: int) -> Rank:
        return remaining_ms(job, run, now_ms), job.submitted_ms, job.job_id


class SjfNp(Sjf):
    """Shortest job first: nothing that runs is stopped."""

    name = "sjf-np"
    uses = _NON_PREEMPTIVE
    preempts = False


class TiresiasL(_Ordered):
    """Least attained service, discretised."""

    name = "tiresias-l"

    def rank(self, job: JobView, run: RunView | None, now_ms: int) -> Rank:
        attained = ran_ms(job, run, now_ms) * job.resources.gpus_min
        level = sum(attained >= limit for limit in QUEUE_LIMITS_GPU_MS)
        return level, job.submitted_ms, job.job_id

    def _comes_before(self, waiting: Rank, running: Rank) -> bool:
        """Only a job of a better queue preempts: within a queue, what runs goes on."""
        return waiting[0] < running[0]


class TiresiasLNp(TiresiasL):
    """The same order, and nothing that runs is stopped."""

    name = "tiresias-l-np"
    uses = _NON_PREEMPTIVE
    preempts = False


def _riders(board: Board, run: RunView) -> list[JobView]:
    jobs = [board.jobs[job_id] for job_id in run.job_ids if job_id in board.jobs]
    return [job for job in jobs if job.state == JobState.RUNNING]
