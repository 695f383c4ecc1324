"""Pairs that train side by side, as decisions see them: one job and one run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.merging.joined import joined
from app.core.merging.side_by_side import as_one, in_pairs
from app.core.model.job import PLACEABLE_JOB_STATES, JobState
from app.core.model.merge import MergeMode
from app.core.model.run import RunState
from tests.core.merging.mergeable import merge_of, mergeable
from tests.core.samples import job, run

TOGETHER = merge_of("job_a", "job_b", MergeMode.TOGETHER)


def pair(lead: JobState, companion: JobState) -> tuple[Any, ...]:
    return mergeable("job_a", lead), mergeable("job_b", companion), job("job_c")


def test_the_lead_stands_for_both_and_one_run_for_two() -> None:
    """The companion's run is not seen, its job is: as it is, and not to be placed."""
    lead, companion, other = pair(JobState.RUNNING, JobState.RUNNING)
    first, second = run("run_a", "job_a", "node_a"), run("run_b", "job_b", "node_a")
    beside = run("run_c", "job_c", "node_c")
    jobs, runs = as_one((lead, companion, other), (first, second, beside), (TOGETHER,))
    assert jobs == (joined(lead, companion, TOGETHER), companion, other)
    assert [(seen.run_id, seen.job_ids) for seen in runs] == [("run_a", ("job_a", "job_b")), ("run_c", ("job_c",))]


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.WAITING])
def test_a_pair_waits_until_both_have_left(state: JobState) -> None:
    """While the companion still has a run, that is the pair's, and the lead is not to be placed."""
    lead, companion, _ = pair(state, JobState.CHECKPOINTING)
    last = run("run_b", "job_b", "node_a", RunState.STOPPING)
    (seen, _), (held,) = as_one((lead, companion), (last,), (TOGETHER,))
    assert seen.state == JobState.CHECKPOINTING
    assert (held.run_id, held.job_ids, held.state) == ("run_b", ("job_a", "job_b"), RunState.STOPPING)
    (seen, _), held_after = as_one(pair(state, JobState.WAITING)[:2], (), (TOGETHER,))
    assert (seen.state, held_after) == (state, ())


def test_in_turn_nothing_is_joined() -> None:
    """The companion waits by itself, and the lead runs by itself."""
    lead, companion, _ = pair(JobState.RUNNING, JobState.QUEUED)
    merge, held = merge_of("job_a", "job_b", MergeMode.IN_TURN), run("run_a", "job_a", "node_a")
    assert as_one((lead, companion), (held,), (merge,)) == ((lead, companion), (held,))
    assert in_pairs((merge,)) == frozenset()
    assert in_pairs((merge, TOGETHER)) == {"job_a", "job_b"}


@given(
    states=st.tuples(st.sampled_from(JobState), st.sampled_from(JobState)),
    held=st.sets(st.sampled_from(["job_a", "job_b", "job_c"])),
)
def test_no_job_or_place_is_lost(states: tuple[JobState, JobState], held: set[str]) -> None:
    """Every job is shown once, in its order; a job that has a place has one; and a pair with a run is not placeable."""
    jobs = pair(*states)
    runs = tuple(run(f"run_{name[-1]}", name, "node_a") for name in sorted(held))
    shown, seen = as_one(jobs, runs, (TOGETHER,))
    assert [one.job_id for one in shown] == ["job_a", "job_b", "job_c"]
    assert shown[1:] == jobs[1:]
    holders = [job_id for one in seen for job_id in one.job_ids]
    assert len(holders) == len(set(holders))
    assert held <= set(holders)
    assert {"job_a", "job_b"} & held <= set(holders)
    if "job_a" not in held and "job_b" in held and states[1] not in PLACEABLE_JOB_STATES:
        assert shown[0].state not in PLACEABLE_JOB_STATES
