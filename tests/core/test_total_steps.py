"""The number of steps that a job's code tells: what of it is believed, and what a policy does once it is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.invariants import plan_breaches
from app.core.model.money import Money
from app.core.model.snapshot import Snapshot
from app.core.model.times import LONGEST_MS
from app.core.policies import policy_named, policy_names
from app.core.policy import PolicyState
from app.core.predicting import with_prediction
from app.core.progress import believed_total
from app.core.remaining import remaining_ms
from tests.core.plans import F_MS, running
from tests.core.samples import ALL_ACTIONS, CONFIG, NOW_MS, node

EVERYTHING = replace(CONFIG, capabilities=ALL_ACTIONS)
STEP_MS = 1_000.0
DONE = 2 * F_MS // 1_000  # steps, of a run that has used up twice its time on serverless

counts = st.integers(1, 10**12)


@pytest.mark.parametrize(
    ("stated", "told", "step", "total"),
    [
        (None, None, 5, None),
        (None, 250, 5, 250),
        (None, 250, 250, 250),
        (None, 250, 251, None),
        (400, 250, 5, 400),
        (400, 250, 401, 400),
        (400, 900, 401, 900),
        (400, None, 401, 400),
    ],
)
def test_the_template_counts_until_a_step_beyond_it(
    stated: int | None, told: int | None, step: int, total: int | None
) -> None:
    """Then the code's word does; one that is passed itself counts for nothing."""
    assert believed_total(stated, told, step) == total


@given(st.none() | counts, st.none() | counts, st.integers(0, 10**12))
def test_asked_again_with_its_own_answer_it_says_the_same(stated: int | None, told: int | None, step: int) -> None:
    """What is kept is heard together with what is told next: nothing is written twice for it."""
    total = believed_total(stated, told, step)
    assert believed_total(stated, told or total, step) == total
    assert total is None or total in (stated, told)


def seen(total_steps: int | None, step: int = DONE) -> Snapshot:
    """A run on serverless that has measured a second per step, a cheaper node that stands ready."""
    found = running(2 * F_MS, total_steps=total_steps, step=step, deadline_ms=NOW_MS + 360_000_000)
    (job,), (run,) = found.jobs, found.runs
    job = with_prediction(job, run, found.now_ms, step_ms=STEP_MS, usual_run_ms=None)
    nodes = sorted((node("node_c", price_per_hour=Money(5)), *found.nodes), key=lambda one: one.node_id)
    return replace(found, jobs=(job,), nodes=tuple(nodes))


def decided(name: str, snapshot: Snapshot) -> list[str]:
    plan = policy_named(name).decide(Board.of(snapshot), PolicyState(), EVERYTHING)[0]
    assert plan_breaches(snapshot, plan, EVERYTHING) == []
    return [action.kind.value for action in plan.actions]


def test_what_is_left_is_known_from_then_on() -> None:
    """Without a number as much is left as has been: a job that is nearly done was moved for nothing."""
    assert "migrate" in decided("allpass", seen(None))
    assert "migrate" in decided("allpass", seen(100 * DONE))
    assert "migrate" not in decided("allpass", seen(DONE + 3))


@pytest.mark.parametrize("name", policy_names())
@given(st.lists(st.none() | counts, min_size=1, max_size=4), st.integers(0, 10**9))
def test_a_number_that_jumps_breaks_no_plan(name: str, told: list[int | None], step: int) -> None:
    """Whatever is told, and whatever was told before: plans keep their invariants, what is left is within ten years."""
    for one in told:
        snapshot = seen(believed_total(None, one, step), step)
        assert 0 < remaining_ms(snapshot.jobs[0], snapshot.runs[0], snapshot.now_ms) <= LONGEST_MS + 2 * F_MS
        assert set(decided(name, snapshot)) <= {"migrate", "provision", "demote", "release", "preempt", "assign"}


def test_another_job_is_decided_as_if_it_had_told_nothing() -> None:
    """A number that cannot be is its own job's affair: beside it the next one is treated as before."""
    wild, tame = seen(10**12), seen(None)
    for snapshot in (wild, tame):
        (job,), (run,) = snapshot.jobs, snapshot.runs
        other, its_run = (
            replace(job, job_id="job_b", total_run_ms=None),
            replace(run, run_id="run_b", job_ids=("job_b",)),
        )
        place = replace(next(one for one in snapshot.nodes if one.node_id == run.node_id), node_id="node_b")
        its_run = replace(its_run, node_id="node_b")
        nodes = sorted(
            (*(one for one in snapshot.nodes if one.node_id != "node_c"), place), key=lambda one: one.node_id
        )
        both = replace(snapshot, jobs=(job, other), runs=(run, its_run), nodes=tuple(nodes))
        plan = policy_named("allpass").decide(Board.of(both), PolicyState(), EVERYTHING)[0]
        of_other = [action.kind.value for action in plan.actions if getattr(action, "for_job_id", None) == "job_b"]
        if snapshot is wild:
            expected = of_other
        else:
            assert of_other == expected
