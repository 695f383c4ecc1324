"""Which jobs a defragmentation leaves where they are, and why."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from app.core import queue
from app.core.board import Board
from app.core.defragmentation.seen_fleet import HeldGpus, MoveHabits
from app.core.model.job import JobState
from app.core.model.run import RunPurpose
from app.core.model.snapshot import JobView, RunView
from app.core.remaining import remaining_ms

# A move may take at most this part of what a job has run where it is, and of what it is expected to run on.
WORTH = 10


class Stays(StrEnum):
    """Said of one job, after "it"."""

    NOT_TRAINING = "does not train now"
    MOVES = "is on the way to another machine already"
    SHARED = "shares a process with another job"
    GANG = "is on several machines"
    PINNED = "is locked to its machine"
    LEAVES = "is about to pause or to end"
    NEVER_SAVED = "has no checkpoint yet"
    CANNOT_SAVE = "does not save when it is asked to"
    REFUSED = "has checkpoints that are refused"
    RESIZED = "lends GPUs, or was resized"
    BESIDE = "is placed beside other jobs"
    SHARES_NODE = "shares its part of a host with another job"
    BEGAN = "began there, or came there, a short while ago"
    ENDS = "is expected to end before a move has paid"
    FAILED = "rests after a move that failed"
    KEPT = "is where something is kept for a job that waits"
    LIMIT = "could not be on two hosts at once within its pool's limit"
    COMING = "is on its way to this machine"
    LEAVES_ONE_BY_ONE = "is spread over switches, and does not say that all of its machines stop after one step"
    DUE = "is spread over switches, and would miss its deadline by the pause of a move"
    WAITED_FOR = "is spread over switches, and another job waits for what it could move to"
    NOTHING_CLOSER = "is spread over switches, and nothing closer is free"
    NOT_WORTH = "is spread over switches, and it is not known that a move would pay"
    BUDGET = "is spread over switches, and would take more moves than are left"


def why_it_stays(
    board: Board, job: JobView | None, run: RunView, held: HeldGpus | None, beside: Collection[str], habits: MoveHabits
) -> Stays | None:
    """None: it may be moved. `beside`: labels of jobs that others are placed beside."""
    if job is None or held is None or not queue.is_running(run) or run.purpose != RunPurpose.TRAIN:
        return Stays.NOT_TRAINING
    if len(run.job_ids) > 1 or job.job_id in board.merges:
        return Stays.SHARED
    if board.is_moving(job.job_id):
        return Stays.MOVES
    if board.run_of(job.job_id) is not run:
        return Stays.NOT_TRAINING
    if job.resources.nodes > 1:
        return Stays.GANG
    return why_it_may_not_leave(job, run, held, beside, board.now_ms, habits)


def why_it_may_not_leave(
    job: JobView, run: RunView, held: HeldGpus, beside: Collection[str], now_ms: int, habits: MoveHabits
) -> Stays | None:
    """Of a job that trains by this run, on one machine or, where this one leads it, on several."""
    return _by_its_kind(job, held, beside) or _by_its_time(job, run, now_ms, habits)


def _by_its_kind(job: JobView, held: HeldGpus, beside: Collection[str]) -> Stays | None:
    """The first that holds."""
    need, affinity = job.resources, job.affinity
    reasons = (
        (job.state != JobState.RUNNING, Stays.NOT_TRAINING),
        (job.leaving or queue.has_spent_all(job), Stays.LEAVES),
        (job.locked, Stays.PINNED),
        (job.checkpoint_step is None, Stays.NEVER_SAVED),
        (not job.saves, Stays.CANNOT_SAVE),
        (job.unsaved, Stays.REFUSED),
        (held.resized or held.gpus != need.gpus_min or need.nodes_wanted is not None, Stays.RESIZED),
        (bool(affinity.beside) or not affinity.own.isdisjoint(beside), Stays.BESIDE),
    )
    return next((why for holds, why in reasons if holds), None)


def _by_its_time(job: JobView, run: RunView, now_ms: int, habits: MoveHabits) -> Stays | None:
    if job.not_moved_before_ms > now_ms:
        return Stays.FAILED
    least_ms = WORTH * habits.cost_ms
    if run.running_since_ms is None or now_ms - run.running_since_ms < least_ms:
        return Stays.BEGAN
    if remaining_ms(job, run, now_ms) < least_ms + habits.prepare_ms:
        return Stays.ENDS
    return None
