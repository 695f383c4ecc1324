"""When a job whose own code failed is begun again, and the words for it."""

from __future__ import annotations

import pytest

from app.core.begin_again import MOST_BACK_OFF_MS, Tries, back_off_ms, begin_again
from app.core.lifecycle import Outcome
from app.core.model.job import JobEnd, JobState
from app.core.model.run import RunEnd

FAILED = Outcome(RunEnd.FAILED, JobState.FAILED, JobEnd.USER_CODE_FAILED, False, "exit code 1: ValueError")


def tries(**changes: int | None) -> Tries:
    given = {"allowed": 3, "used": 0, "failed_step": None, "step": 40, "kept_step": 30}
    return Tries(**(given | changes))  # type: ignore[arg-type]  # by name


@pytest.mark.parametrize("allowed", [None, 0])
def test_nobody_begins_again_who_was_not_asked_to(allowed: int | None) -> None:
    """As ever: a failure of the code is the end, and its words are the code's."""
    assert begin_again(FAILED, tries(allowed=allowed)) == FAILED


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "is begun again from step 30, at once (retry 1 of 3)"),
        ({"used": 1, "failed_step": 35}, "is begun again from step 30, in 10 s (retry 2 of 3)"),
        ({"kept_step": None}, "is begun again from its beginning, as it has no checkpoint, at once (retry 1 of 3)"),
        ({"used": 2, "step": 0, "failed_step": 0}, "is begun again from step 30, in 20 s (retry 3 of 3)"),
        ({"used": 1, "step": 20, "failed_step": 40}, "is begun again from step 30, in 10 s (retry 2 of 3)"),
    ],
)
def test_it_goes_on_while_retries_are_left(given: dict[str, int | None], words: str) -> None:
    """From its newest checkpoint, with a growing wait; no fault is counted, for it is nobody's but its own."""
    meant = begin_again(FAILED, tries(**given))
    assert (meant.job_state, meant.job_end, meant.fault) == (JobState.WAITING, None, False)
    assert meant.message == f"exit code 1: ValueError; {words}"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"used": 3}, "it is not begun again (3 of 3 retries used)"),
        ({"used": 5}, "it is not begun again (5 of 3 retries used)"),
        (
            {"used": 1, "failed_step": 40},
            "the second time at step 40, so that it is not begun again (1 of 3 retries used)",
        ),
    ],
)
def test_it_fails_when_they_are_used_up_or_are_of_no_use(given: dict[str, int | None], words: str) -> None:
    """It stays what it was, a failure of the code, with what came of the retries."""
    meant = begin_again(FAILED, tries(**given))
    assert (meant.job_state, meant.job_end) == (JobState.FAILED, JobEnd.USER_CODE_FAILED)
    assert meant.message == f"exit code 1: ValueError; {words}"


def test_waits_grow_to_some_minutes() -> None:
    """The first try is at once; a hundredth one waits no longer than a person would."""
    waits = [back_off_ms(used) for used in range(101)]
    assert waits[:4] == [0, 10_000, 20_000, 40_000]
    assert waits == sorted(waits)
    assert waits[-1] == MOST_BACK_OFF_MS
