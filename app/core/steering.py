"""How a job stands against its limits and its owner's wishes, and what an ended run means in that light. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.core.lifecycle import Outcome
from app.core.model.job import PLACEABLE_JOB_STATES, JobEnd, JobState, PauseReason
from app.core.model.money import Money
from app.core.model.run import RunEnd


@dataclass(frozen=True, slots=True)
class JobStanding:
    """A job, its limits and what it has used of them.

    `pause_reason` of a paused job is why it is; of any other job it is a wish: it pauses as soon as its run has ended.
    `first_running_ms`: when its code first ran, None before.
    """

    job_id: str
    state: JobState
    pause_reason: PauseReason | None = None
    spent: Money = Money(0)  # noqa: RUF009 - a frozen value
    max_cost: Money | None = None
    first_running_ms: int | None = None
    max_duration_ms: int | None = None

    def over_cost(self) -> bool:
        """Whether its ledger has reached the most its owner wants to pay."""
        return self.max_cost is not None and self.spent >= self.max_cost

    def over_duration(self, now_ms: int) -> bool:
        """Whether the time it may take, counted from when its code first ran, is used up."""
        if self.max_duration_ms is None or self.first_running_ms is None:
            return False
        return now_ms - self.first_running_ms >= self.max_duration_ms

    def nearest_limit(self) -> str:
        """The limit of which most is used up, in words."""
        if self.max_cost is not None and 10 * self.spent.micros >= 9 * self.max_cost.micros:
            return f"has cost {self.spent} of at most {self.max_cost}, and is paused there"
        return f"is cancelled when its max_duration of {(self.max_duration_ms or 0) // 1000} s is over"

    def resting_state(self) -> JobState:
        """The state of this job when it wants a place: a job whose code has run is waiting, another one queued."""
        return JobState.QUEUED if self.first_running_ms is None else JobState.WAITING


@dataclass(frozen=True, slots=True)
class ResumeRefusal:
    """Why a job is not resumed, and the field whose change would let it."""

    message: str
    param: str


def settle(outcome: Outcome, job: JobStanding, now_ms: int) -> Outcome:
    """What an ended run means for this job: `outcome`, unless the job would go on and must not.

    A job whose time is used up is cancelled; one that was asked to pause is paused. What is final stays final, and a
    run that was not asked to leave keeps its own reason for ending.
    """
    if outcome.job_state not in PLACEABLE_JOB_STATES:
        return outcome
    asked = outcome.run_end is RunEnd.DEMOTED
    if job.over_duration(now_ms):
        run_end = RunEnd.CAPPED if asked else outcome.run_end
        message = duration_used_up(job)
        return replace(
            outcome, run_end=run_end, job_state=JobState.CANCELLED, job_end=JobEnd.MAX_DURATION, message=message
        )
    if job.pause_reason is None:
        return outcome
    left = RunEnd.CAPPED if job.pause_reason is PauseReason.COST_CAP else RunEnd.PAUSED
    run_end = left if asked else outcome.run_end
    return replace(outcome, run_end=run_end, job_state=JobState.PAUSED, message=why_paused(job, job.pause_reason))


def duration_used_up(job: JobStanding) -> str:
    """The reason of a job that is ended by its `max_duration`."""
    return f"took longer than its max_duration of {(job.max_duration_ms or 0) // 1000} s"


def why_paused(job: JobStanding, reason: PauseReason) -> str:
    """Why the job is paused and what lets it go on."""
    if reason is PauseReason.USER:
        return "paused by its owner: goes on when it is resumed"
    if reason is PauseReason.INTERNAL_ERROR:
        return (
            "paused because the service failed to place it, again and again: an error of the service, not of the job; "
            "nothing is lost, and it is tried again when it is resumed"
        )
    if reason is PauseReason.DAY_LIMIT:
        return (
            "paused because the installation has spent at real providers what it may in a day: goes on by itself at "
            "00:00 UTC, or when an owner allows more (allpass limits set --per-day DOLLARS)"
        )
    if reason is PauseReason.BUDGET:
        return (
            "paused because a budget is used up: goes on by itself when its period is over, or when more is allowed "
            "(allpass budget)"
        )
    if job.over_cost():
        return f"has cost {job.spent} of at most {job.max_cost}: goes on when max_cost is raised and it is resumed"
    limit = "without a limit now" if job.max_cost is None else f"of at most {job.max_cost} now"
    return f"was paused by its cost limit; has cost {job.spent} {limit}: goes on when it is resumed"


def refuse_resume(job: JobStanding, now_ms: int) -> ResumeRefusal | None:
    """Why resuming the job would only stop it again; None when it may go on."""
    if job.over_cost():
        return ResumeRefusal(
            f"{job.job_id} has cost {job.spent} of at most {job.max_cost}: raise max_cost_usd above {job.spent}, "
            "or remove it, then resume",
            "max_cost_usd",
        )
    if job.over_duration(now_ms):
        assert job.first_running_ms is not None
        taken_s = (now_ms - job.first_running_ms) // 1000
        return ResumeRefusal(
            f"{job.job_id} first ran {taken_s} s ago and has a max_duration of {(job.max_duration_ms or 0) // 1000} s: "
            f"raise max_duration_s above {taken_s}, or remove it, then resume",
            "max_duration_s",
        )
    return None
