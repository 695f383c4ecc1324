"""Cluster schedulers on rented nodes: `tiresias-l`, `sjf`, and both without preemption (`-np`).

A node is rented for every waiting job that none covers, up to the limit, and given back when nobody needs it; nothing
runs on serverless. At the limit the order decides who runs: `sjf` by the time left, `tiresias-l` by the GPU time that
a job has had, in three queues (Gu et al., "Tiresias", NSDI 2019: least attained service in two dimensions), within a
queue by arrival. With preemption, the last of those that run saves and goes back to the queue when a job that comes
before it has no place.
"""

from __future__ import annotations

from app.core.board import Board
from app.core.model.plan import ActionKind, Plan
from app.core.model.snapshot import JobView, RunView
from app.core.policies.plan_builder import PlanBuilder
from app.core.policies.stopping import REST_MS, Rank, Rider, Stopping
from app.core.policy import PolicyConfig, PolicyState
from app.core.remaining import LEAST_MS, ran_ms, remaining_ms

QUEUE_LIMITS_GPU_MS = (3_250_000, 7_200_000)  # of the authors' own simulator, in GPU-milliseconds
_NON_PREEMPTIVE = frozenset({ActionKind.ASSIGN, ActionKind.PROVISION, ActionKind.RELEASE})


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

    def _may_have_others_stopped(self, _desk: PlanBuilder, job: JobView) -> bool:
        """Not the one for whom an elastic job is about to leave GPUs."""
        return not job.helped

    def _preempt(self, desk: PlanBuilder, waiting: list[JobView]) -> None:
        """Runs that come after a job that waits make room for it on one node, last ones first, or none does."""
        if not waiting:
            return
        stopping = Stopping(self, desk)
        hopeless: set[tuple[object, ...]] = set()
        for job in waiting:
            kind = job.project_id, job.resources, job.priority_class, job.affinity, job.caps, job.allowances
            if kind not in hopeless and not stopping.make_room(job):
                hopeless.add(kind)  # those of its kind behind it come after at least as many
        for rank, rider in stopping.left_in_vain():
            if rider.run.trains_since_ms is not None and not self.comes_before(rank, rider.rank):
                self._wake_when_it_comes_before(desk, rank, rider)

    def comes_before(self, waiting: Rank, running: Rank) -> bool:
        """Whether a run is stopped for a job that waits."""
        return waiting < running

    def rests_until_ms(self, _job: JobView, _run: RunView) -> int:
        """Until when a run is stopped for nobody."""
        return 0

    def _wake_when_it_comes_before(self, desk: PlanBuilder, rank: Rank, rider: Rider) -> None:
        """Time alone may put a run behind a job that waits."""
        ran, job, run = self.ran_when_behind_ms(rank, rider.job), rider.job, rider.run
        if ran is not None and run.trains_since_ms is not None:
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

    def rests_until_ms(self, job: JobView, run: RunView) -> int:
        """Of two jobs of unknown length each would come before the other one as soon as that has run for longer."""
        if job.total_run_ms is not None or run.trains_since_ms is None:
            return 0
        return run.trains_since_ms + REST_MS

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

    def comes_before(self, waiting: Rank, running: Rank) -> bool:
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
