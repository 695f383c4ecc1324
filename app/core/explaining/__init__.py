"""Why a job is where it is, in words that are made of what is on record and of nothing else. Pure.

Every sentence carries the numbers and names it was made of. What the record does not tell is said to be unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.explaining.because import because_of
from app.core.explaining.facts import Facts, Remark
from app.core.explaining.upcoming import upcoming
from app.core.model.job import TERMINAL_JOB_STATES, JobState
from app.core.policies.reasons import duration


@dataclass(frozen=True, slots=True)
class Forecast:
    """`finish_ms`: estimated, or when the job ended; None when that is not known."""

    text: str
    at_ms: int
    given: bool
    finish_ms: int | None
    slack_ms: int | None


@dataclass(frozen=True, slots=True)
class JobExplanation:
    state: JobState
    headline: str
    because: tuple[Remark, ...]
    next: tuple[Remark, ...]
    deadline: Forecast


def explain(facts: Facts) -> JobExplanation:
    """The job's present in words."""
    because = tuple(because_of(facts)) or (Remark("no reason for this is on record"),)
    return JobExplanation(facts.job.state, _headline(facts), because, tuple(upcoming(facts)), _deadline(facts))


def _headline(facts: Facts) -> str:
    state = facts.job.state
    if state in TERMINAL_JOB_STATES:
        if facts.ended_ms is None:
            return state.value
        return f"{state} {duration(max(0, facts.ended_ms - facts.submitted_ms))} after it was submitted"
    words = "saving a checkpoint" if state is JobState.CHECKPOINTING else state.value
    lasting = "" if facts.since_ms is None else f" for {duration(max(0, facts.now_ms - facts.since_ms))}"
    where = f" on {facts.machine.words()}" if facts.machine is not None else ""
    return f"{words}{lasting}{where}"


def _deadline(facts: Facts) -> Forecast:
    left_ms = facts.deadline_ms - facts.now_ms
    kind = "the deadline" if facts.deadline_given else "the default deadline"
    when = f"{kind} is in {duration(left_ms)}" if left_ms >= 0 else f"{kind} was {duration(-left_ms)} ago"
    estimated_ms = None if facts.finish is None else facts.finish.at_ms
    finish_ms = estimated_ms if facts.ended_ms is None else facts.ended_ms
    if finish_ms is None:
        text = f"{when}; when it will be done is not known: {_why_unknown(facts)}"
        return Forecast(text, facts.deadline_ms, facts.deadline_given, None, None)
    slack_ms = facts.deadline_ms - finish_ms
    distance = f"{duration(abs(slack_ms))} {'before' if slack_ms >= 0 else 'after'}"
    if facts.ended_ms is not None:
        text = f"ended {distance} {kind}"
    else:
        text = f"{when}; at its present speed it is done {distance} it{_or_else(facts, slack_ms)}"
    return Forecast(text, facts.deadline_ms, facts.deadline_given, finish_ms, slack_ms)


def _or_else(facts: Facts, slack_ms: int) -> str:
    """Where the bounds of the estimate lie on both sides of the deadline."""
    if facts.finish is None:
        return ""
    left = facts.finish.left
    if slack_ms >= 0 and left.last_ms > facts.deadline_ms:
        return f", or up to {duration(left.last_ms - facts.deadline_ms)} after it"
    if slack_ms < 0 and left.first_ms <= facts.deadline_ms:
        return f", or up to {duration(facts.deadline_ms - left.first_ms)} before it"
    return ""


def _why_unknown(facts: Facts) -> str:
    if facts.total_steps is None:
        return "neither its template nor its code says how many steps it has, and no curve of its losses tells"
    if facts.job.state is not JobState.RUNNING:
        return "it is not running"
    return "its present run has not measured two steps yet"
