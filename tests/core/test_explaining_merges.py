"""What `explain` says of a job that is trained with another one."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.explaining import explain
from app.core.explaining.facts import Merged, Said
from app.core.model.job import JobState
from app.core.model.merge import MergeMode
from tests.core.test_explaining import NOW_MS, facts, machine, texts

WHY = "job_a and job_b are trained together on 2 GPUs (score 0.90, 30% faster expected)"


def merged(mode: MergeMode, **changes: Any) -> Merged:
    values: dict[str, Any] = {
        "leads": False, "other": "job_b", "reason": WHY, "begun_ms": 5, "fruitless_epochs": 0, "most_epochs": 2,
    }  # fmt: skip
    return Merged(mode, **(values | changes))


@pytest.mark.parametrize(
    ("view", "then"),
    [
        (
            merged(MergeMode.TOGETHER, leads=True),
            "if its own or the other's validation does not improve in 2 more epochs, each is trained by itself",
        ),
        (
            merged(MergeMode.TOGETHER, fruitless_epochs=1),
            "if its own or the other's validation does not improve in 1 more epoch, each is trained by itself",
        ),
        (
            merged(MergeMode.IN_TURN, leads=True),
            "when it ends, job_b goes on in its place, from what it has learned",
        ),
        (
            merged(MergeMode.IN_TURN, other=None),
            "starts when a job of another project ends, in its place, from what that has learned\n"
            "if its own validation does not improve in 2 more epochs, each is trained by itself",
        ),
    ],
    ids=["together", "one epoch in vain", "leads", "comes after"],
)
def test_with_whom_why_and_what_follows(view: Merged, then: str) -> None:
    """The reason of the decision, and what ends the merge; a job of another project is not named."""
    told = explain(facts(JobState.WAITING, merged=view, wait_reason="waits"))
    because, upcoming = texts(told)
    assert because.startswith(f"{WHY}\nwaits")
    assert upcoming.startswith(then)
    assert told.because[0].data == {"merge_mode": view.mode.value, "merged_with": view.other, "merged_ms": 5}


def test_a_split_is_told_until_the_job_ends() -> None:
    """Why a job is trained by itself again, and since when; nothing of it once it is over."""
    split = Said(NOW_MS - 90_000, "is trained apart again: its validation has not improved for 2 epochs")
    because, _ = texts(explain(facts(machine=machine(), split=split)))
    assert because == "is trained apart again: its validation has not improved for 2 epochs (since 90 s)"
    over = texts(explain(facts(JobState.SUCCEEDED, split=split, merged=merged(MergeMode.TOGETHER))))
    assert over == ("no reason for this is on record", "")
