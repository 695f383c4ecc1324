"""Limits and wishes of owners: what they make of an ended run, and when a job may go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.lifecycle import JOB_TRANSITIONS, Outcome
from app.core.model.job import PLACEABLE_JOB_STATES, TERMINAL_JOB_STATES, JobEnd, JobState, PauseReason
from app.core.model.money import Money
from app.core.model.run import RunEnd
from app.core.steering import JobStanding, refuse_resume, settle, why_paused

NOW_MS = 1_000_000
SAVED = Outcome(RunEnd.DEMOTED, JobState.WAITING, None, False, "saved and left when asked to stop")
LOST = Outcome(RunEnd.NODE_LOST, JobState.WAITING, None, True, "silent")
DONE = Outcome(RunEnd.FINISHED, JobState.SUCCEEDED, JobEnd.FINISHED, False, "exit code 0")
BROKEN = Outcome(RunEnd.FAILED, JobState.FAILED, JobEnd.USER_CODE_FAILED, False, "exit code 1")
SAVING = JobStanding("job_a", JobState.CHECKPOINTING, first_running_ms=0)
PAUSING = replace(SAVING, pause_reason=PauseReason.USER)
CAPPED = replace(SAVING, pause_reason=PauseReason.COST_CAP, spent=Money.usd("1.01"), max_cost=Money.usd("1"))
TIMED = replace(SAVING, max_duration_ms=NOW_MS)


@pytest.mark.parametrize(
    ("outcome", "job", "run_end", "state", "job_end"),
    [
        (SAVED, SAVING, RunEnd.DEMOTED, JobState.WAITING, None),
        (SAVED, PAUSING, RunEnd.PAUSED, JobState.PAUSED, None),
        (SAVED, CAPPED, RunEnd.CAPPED, JobState.PAUSED, None),
        (SAVED, TIMED, RunEnd.CAPPED, JobState.CANCELLED, JobEnd.MAX_DURATION),
        (SAVED, replace(TIMED, pause_reason=PauseReason.USER), RunEnd.CAPPED, JobState.CANCELLED, JobEnd.MAX_DURATION),
        (LOST, PAUSING, RunEnd.NODE_LOST, JobState.PAUSED, None),
        (LOST, TIMED, RunEnd.NODE_LOST, JobState.CANCELLED, JobEnd.MAX_DURATION),
        (DONE, PAUSING, RunEnd.FINISHED, JobState.SUCCEEDED, JobEnd.FINISHED),
        (BROKEN, TIMED, RunEnd.FAILED, JobState.FAILED, JobEnd.USER_CODE_FAILED),
    ],
)
def test_what_an_ended_run_makes_of_its_job(outcome, job, run_end, state, job_end) -> None:
    """What is final stays; a job that would go on is cancelled when its time is used up, else paused when asked to."""
    settled = settle(outcome, job, NOW_MS)
    assert (settled.run_end, settled.job_state, settled.job_end) == (run_end, state, job_end)
    assert settled.fault == outcome.fault


amounts = st.integers(0, 10).map(Money)
moments = st.none() | st.integers(0, 2 * NOW_MS)
standings = st.builds(
    JobStanding,
    job_id=st.just("job_a"),
    state=st.sampled_from([JobState.STARTING, JobState.CHECKPOINTING]),
    pause_reason=st.none() | st.sampled_from(PauseReason),
    spent=amounts,
    max_cost=st.none() | amounts,
    first_running_ms=moments,
    max_duration_ms=moments,
)


@given(standings, st.sampled_from([SAVED, LOST, DONE, BROKEN]))
def test_the_settled_state_can_be_entered_and_an_end_has_a_reason(job: JobStanding, outcome: Outcome) -> None:
    """The state machine has an arrow for every verdict, and a job's end is named exactly when it is over."""
    settled = settle(outcome, job, NOW_MS)
    assert settled.job_state in JOB_TRANSITIONS[job.state]
    assert (settled.job_end is not None) == (settled.job_state in TERMINAL_JOB_STATES)
    assert settled.message


@given(standings)
def test_a_job_goes_on_only_when_nothing_holds_it(job: JobStanding) -> None:
    """It wants a place again exactly when it was not asked to pause and its time is not used up."""
    goes_on = settle(SAVED, job, NOW_MS).job_state in PLACEABLE_JOB_STATES
    assert goes_on == (job.pause_reason is None and not job.over_duration(NOW_MS))


@given(standings)
def test_a_job_is_resumed_exactly_when_no_limit_would_stop_it(job: JobStanding) -> None:
    """A refusal names the field to change; where there is none, both limits hold."""
    refusal = refuse_resume(job, NOW_MS)
    assert (refusal is None) == (not job.over_cost() and not job.over_duration(NOW_MS))
    if refusal is not None:
        assert refusal.param in refusal.message


def test_a_refusal_names_what_was_spent_the_limit_and_what_to_do() -> None:
    """In the units that the field takes."""
    told = refuse_resume(CAPPED, NOW_MS)
    assert told is not None
    assert told.message == (
        "job_a has cost $1.01 of at most $1.00: raise max_cost_usd above $1.01, or remove it, then resume"
    )
    late = refuse_resume(replace(TIMED, max_duration_ms=60_000), NOW_MS)
    assert late is not None
    assert late.message == (
        "job_a first ran 1000 s ago and has a max_duration of 60 s: raise max_duration_s above 1000, or remove it, "
        "then resume"
    )


def test_the_reason_of_a_pause_follows_the_limit() -> None:
    """It says what lets the job go on now, not what would have when it was paused."""
    assert why_paused(PAUSING, PauseReason.USER) == "paused by its owner: goes on when it is resumed"
    assert "raised and it is resumed" in why_paused(CAPPED, PauseReason.COST_CAP)
    raised = why_paused(replace(CAPPED, max_cost=Money.usd("2")), PauseReason.COST_CAP)
    assert raised.endswith("has cost $1.01 of at most $2.00 now: goes on when it is resumed")
    assert "without a limit now" in why_paused(replace(CAPPED, max_cost=None), PauseReason.COST_CAP)
