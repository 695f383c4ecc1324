"""Cluster schedulers on rented nodes: `tiresias-l`, `sjf`, and both without preemption (`-np`).

A node is rented for every waiting job that none covers, up to the limit, and given back when nobody needs it; nothing
runs on serverless. At the limit the order decides who runs: `sjf` by the time left, `tiresias-l` by the GPU time that
a job has had, in three queues (Gu et al., "Tiresias", NSDI 2019: least attained service in two dimensions), within a
queue by arrival. With preemption, the last of those that run saves and goes back to the queue when a job that comes
before it has no place.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core import queue
from app.core.board import Board
from app.core.market import kind_fits
from app.core.model.job import JobState, Resources
from app.core.model.node import SERVERFUL_TIERS, NodeState
from app.core.model.plan import ActionKind, Plan
from app.core.model.snapshot import JobView, NodeView, RunView
from app.core.policies.plan_builder import PlanBuilder
from app.core.policy import PolicyConfig, PolicyState
from app.core.remaining import LEAST_MS, ran_ms, remaining_ms
from app.core.spot_places import is_of_its_class

QUEUE_LIMITS_GPU_MS = (3_250_000, 7_200_000)  # of the authors' own simulator, in GPU-milliseconds
Rank = tuple[int, int, str]
_NON_PREEMPTIVE = frozenset({ActionKind.ASSIGN, ActionKind.PROVISION, ActionKind.RELEASE})


_Rider = tuple[Rank, RunView, JobView]


@dataclass(slots=True)
class RiddenNode:
    """A rented node: GPUs that are free or about to be, and the runs that could be stopped, in their order."""

    node: NodeView
    free: int
    runs: list[_Rider]

    def could_hold(self, job: JobView) -> bool:
        """Whether the job would fit if the node were empty."""
        node, need = self.node, job.resources
        return (
            node.project_id == job.project_id
            and is_of_its_class(job, node)
            and node.gpu_count >= need.gpus_min
            and kind_fits(need, node.gpu_type, node.gpu_memory_bytes)
        )


class Ordered:
    """Whoever has an order of jobs is one; `rank` says it."""

    name = ""
    uses = _NON_PREEMPTIVE | {ActionKind.PREEMPT}
    moves_by_budget = False
    preempts = True

    def rank(self, job: JobView, run: RunView | None, now_ms: int) -> Rank:
        """Lowest first."""
        raise NotImplementedError

    def decide(self, board: Board, state: PolicyState, config: PolicyConfig) -> tuple[Plan, PolicyState]:
        desk = PlanBuilder(board, config)
        jobs = board.in_turn(sorted(board.placeable(), key=lambda job: self.rank(job, None, board.now_ms)))
        left_over = [job for job in jobs if not self._place(desk, job)]
        for job in left_over:
            self._left_waiting(desk, job)
        if self.preempts and desk.outlook.may(ActionKind.PREEMPT):
            wanting = (job for job in left_over if desk.wants_node(job))
            self._preempt(desk, [job for job in wanting if self._may_have_others_stopped(desk, job)])
        desk.release_idle_after(0)
        return desk.plan(self.name), state

    def _place(self, desk: PlanBuilder, job: JobView) -> bool:
        """Give the job a node, or room on a coming one; False if there is none for it."""
        if desk.holds_back(job):
            return True
        if not desk.outlook.serverful_possible(job):
            desk.wait(job, desk.outlook.nothing_serverful(job))
            return True
        place = desk.ready_place(job)
        if place is not None:
            desk.assign(job, place)
        elif self._begin(desk, job):
            pass
        elif (coming := desk.coming_place(job)) is not None:
            coming.take(job)
            desk.wait(job, desk.outlook.counts_on(coming))
        elif not desk.provision(job):
            desk.hold_open(job)
            return False
        return True

    def _begin(self, _desk: PlanBuilder, _job: JobView) -> bool:
        """Whether it begins in a way of its own, before a node that comes or is rented."""
        return False

    def _left_waiting(self, desk: PlanBuilder, job: JobView) -> None:
        """There is nothing for it now."""

    def _may_have_others_stopped(self, _desk: PlanBuilder, _job: JobView) -> bool:
        return True

    def _preempt(self, desk: PlanBuilder, waiting: list[JobView]) -> None:
        """Runs that come after a job that waits make room for it on one node, last ones first, or none does."""
        if not waiting:
            return
        rooms = self._rooms(desk)
        hopeless: set[tuple[str, Resources]] = set()
        for job in waiting:
            kind = job.project_id, job.resources
            if kind not in hopeless and not self._make_room(desk, rooms, job):
                hopeless.add(kind)  # those of its kind behind it come after at least as many

    def _rooms(self, desk: PlanBuilder) -> list[RiddenNode]:
        board, now_ms = desk.board, desk.now_ms
        rooms = []
        for node in board.nodes.values():
            if node.tier not in SERVERFUL_TIERS or node.state != NodeState.READY:
                continue
            room = RiddenNode(node, desk.free_gpus(node), [])
            for run in board.runs_on(node.node_id):
                for job in filter(None, map(board.jobs.get, run.job_ids)):
                    if job.state == JobState.CHECKPOINTING:
                        room.free += job.resources.gpus_min
                    elif _may_be_preempted(board, job, run):
                        room.runs.append((self.rank(job, run, now_ms), run, job))
            room.runs.sort(key=lambda one: one[0])
            rooms.append(room)
        return rooms

    def _make_room(self, desk: PlanBuilder, rooms: list[RiddenNode], job: JobView) -> bool:
        rank, need = self.rank(job, None, desk.now_ms), job.resources.gpus_min
        best: tuple[RiddenNode, list[_Rider]] | None = None
        for room in rooms:
            victims = self._victims(room, rank, need) if room.could_hold(job) else None
            if victims is not None and (best is None or _earliest(victims) > _earliest(best[1])):
                best = room, victims
        if best is None:
            for room in rooms:
                if room.could_hold(job):
                    self._wake_when_it_comes_before(desk, rank, room)
            return False
        room, victims = best
        for _, run, victim in victims:
            desk.preempt(run, victim, f"{job.job_id} comes before it and has no place")
            room.free += victim.resources.gpus_min
        del room.runs[len(room.runs) - len(victims) :]
        room.free -= need
        return True

    def _victims(self, room: RiddenNode, rank: Rank, need: int) -> list[_Rider] | None:
        """Who has to leave the node; None if that would not be enough."""
        free, victims = room.free, []
        for rider in reversed(room.runs):
            if free >= need or not self._comes_before(rank, rider[0]):
                break
            victims.append(rider)
            free += rider[2].resources.gpus_min
        return victims if free >= need else None

    def _comes_before(self, waiting: Rank, running: Rank) -> bool:
        return waiting < running

    def _wake_when_it_comes_before(self, desk: PlanBuilder, rank: Rank, room: RiddenNode) -> None:
        """Time alone may put a run behind a job that waits."""
        for behind, run, job in room.runs:
            if run.trains_since_ms is None or self._comes_before(rank, behind):
                continue
            ran = self.ran_when_behind_ms(rank, job)
            if ran is not None:
                desk.wake(max(desk.now_ms, run.trains_since_ms) + ran - ran_ms(job, run, desk.now_ms))

    def ran_when_behind_ms(self, waiting: Rank, job: JobView) -> int | None:
        """How long a job that runs will have run when the one that waits comes before it; None: never by time alone."""
        raise NotImplementedError


class Sjf(Ordered):
    """Shortest remaining time first."""

    name = "sjf"

    def rank(self, job: JobView, run: RunView | None, now_ms: int) -> Rank:
        ran = ran_ms(job, run, now_ms)  # by the prediction to its end, as in the papers that it stands for
        left_ms = remaining_ms(job, run, now_ms) if job.total_run_ms is None else max(LEAST_MS, job.total_run_ms - ran)
        return left_ms, job.submitted_ms, job.job_id

    def ran_when_behind_ms(self, waiting: Rank, job: JobView) -> int | None:
        """Of a job of unknown length as much is left as it has run."""
        if job.total_run_ms is not None:
            return None
        left_ms = waiting[0] + (waiting[1:] >= (job.submitted_ms, job.job_id))
        return max(LEAST_MS + 1, left_ms)


class SjfNp(Sjf):
    """Shortest job first: nothing that runs is stopped."""

    name = "sjf-np"
    uses = _NON_PREEMPTIVE
    preempts = False


class TiresiasL(Ordered):
    """Least attained service, discretised."""

    name = "tiresias-l"

    def rank(self, job: JobView, run: RunView | None, now_ms: int) -> Rank:
        attained = ran_ms(job, run, now_ms) * job.resources.gpus_min
        level = sum(attained >= limit for limit in QUEUE_LIMITS_GPU_MS)
        return level, job.submitted_ms, job.job_id

    def _comes_before(self, waiting: Rank, running: Rank) -> bool:
        """Only a job of a better queue preempts: within a queue, what runs goes on."""
        return waiting[0] < running[0]

    def ran_when_behind_ms(self, waiting: Rank, job: JobView) -> int | None:
        """When it falls into the queue behind that of the one that waits."""
        if waiting[0] == len(QUEUE_LIMITS_GPU_MS):
            return None
        return -(-QUEUE_LIMITS_GPU_MS[waiting[0]] // job.resources.gpus_min)


class TiresiasLNp(TiresiasL):
    """The same order, and nothing that runs is stopped."""

    name = "tiresias-l-np"
    uses = _NON_PREEMPTIVE
    preempts = False


def _earliest(victims: list[_Rider]) -> tuple[bool, Rank]:
    """Whom it costs most to stop, of those that would be; nobody is better than anybody."""
    return (False, victims[-1][0]) if victims else (True, (0, 0, ""))


def _may_be_preempted(board: Board, job: JobView, run: RunView) -> bool:
    trains = job.state == JobState.RUNNING and queue.is_running(run)
    return trains and not (job.stays or board.is_moving(job.job_id))
