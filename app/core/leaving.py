"""Where the runs of machines that end by themselves go on: a target for each, chosen while it can be prepared.

The places are those of the policies (`PlanBuilder`: idle nodes, the two markets, their limits); of those that come in
time, the cheapest. All of them let the job train on until it moves, so none makes it late where another does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.core import queue
from app.core.board import Board
from app.core.market import Choice
from app.core.model.job import JobState
from app.core.model.plan import Migrate, MoveOut
from app.core.model.snapshot import JobView, RunView
from app.core.policies import reasons
from app.core.policies.placement import Place
from app.core.policies.plan_builder import PlanBuilder
from app.core.policy import PolicyConfig
from app.core.remaining import predicted_ms, remaining_ms

# A job is left where it is when by its prediction it ends in this part of the time that its machine has.
_SURELY_DONE = 2


@dataclass(frozen=True, slots=True)
class EndingNode:
    """A machine that ends in `left_ms`.

    `margin_ms` before its end it is to be empty, and `saving_ms` before it its runs save wherever they go: the last
    part of the margin, kept for the final save.
    """

    node_id: str
    left_ms: int
    margin_ms: int
    saving_ms: int


def ending_node(node_id: str, *, left_ms: int, margin_ms: int, save_ms: int) -> EndingNode:
    """`save_ms`: what saving may take, with the grace of the process. A third of the margin is kept for it at least,
    and all of it at most."""
    return EndingNode(node_id, left_ms, margin_ms, min(margin_ms, max(save_ms, margin_ms // 3)))


def leave_ending(board: Board, config: PolicyConfig, ending: Sequence[EndingNode]) -> tuple[Migrate | MoveOut, ...]:
    """A move for each run that should leave now and has none. The board shows none of these nodes as ready."""
    desk, moves = PlanBuilder(board, config), []
    for node in sorted(ending, key=lambda one: (one.left_ms, one.node_id)):
        for run in board.runs_on(node.node_id):
            job = _movable(board, run)
            if job is not None and not _ends_first(job, run, node, board.now_ms):
                moves.append(_move(desk, job, run, node))
    return tuple(move for move in moves if move is not None)


def _movable(board: Board, run: RunView) -> JobView | None:
    """The job of a run that trains, alone, and neither moves nor is to leave for good, and has something to move."""
    if not queue.is_running(run) or len(run.job_ids) != 1 or board.is_moving(run.job_ids[0]):
        return None
    job = board.jobs.get(run.job_ids[0])
    if job is None or job.state != JobState.RUNNING or job.leaving or queue.has_spent_all(job):
        return None
    if job.has_never_saved or job.resources.nodes > 1:
        return None  # it would begin again, or is on several machines: it saves and leaves all of them in time
    return job if job.not_moved_before_ms <= board.now_ms else None


def _ends_first(job: JobView, run: RunView, node: EndingNode, now_ms: int) -> bool:
    """Whether the job will be over long before its machine is."""
    known = predicted_ms(job, run, now_ms) is not None
    return known and _SURELY_DONE * remaining_ms(job, run, now_ms) <= node.left_ms - node.saving_ms


@dataclass(frozen=True, slots=True)
class _Candidate:
    share_micros: int  # per hour, of the GPUs that the job takes
    startup_ms: int
    place: Place | Choice

    @property
    def rank(self) -> tuple[int, int]:
        return self.share_micros, self.startup_ms


def _move(desk: PlanBuilder, job: JobView, run: RunView, node: EndingNode) -> Migrate | MoveOut | None:
    prepare_ms = desk.config.moves.prepare_ms
    in_time = [one for one in _candidates(desk, job) if one.startup_ms + prepare_ms + node.saving_ms <= node.left_ms]
    best = min(in_time, key=lambda one: one.rank, default=None)
    if best is None or node.left_ms > best.startup_ms + prepare_ms + node.margin_ms:
        return None  # nothing comes in time, or there is more than enough of it
    why = f"its machine ends in {reasons.duration(node.left_ms)}"
    if isinstance(best.place, Place):
        return desk.migrate(run, job, best.place, why)
    return desk.move_out(run, job, best.place, why)


def _candidates(desk: PlanBuilder, job: JobView) -> Iterable[_Candidate]:
    gpus = job.resources.gpus_min
    ready = desk.ready_place(job)
    if ready is not None:
        yield _Candidate(ready.share_micros(job.resources), 0, ready)
    if job.not_before_ms > desk.now_ms:
        return  # the last machine that was rented for it could not be had
    for choice in desk.choices(job):
        offer = choice.offer
        whole = offer.price_per_hour.micros
        yield _Candidate(whole * gpus // offer.gpu_count, offer.startup_ms, choice)
