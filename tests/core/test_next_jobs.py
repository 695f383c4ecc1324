"""What a node is told to fetch ahead: jobs that it could be given, of its own project, in the order they are served."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.model.job import Caps, JobState
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.snapshot import JobView, NodeView, Snapshot
from app.core.next_jobs import next_jobs
from app.core.policies.placement import Fleet
from app.core.queue import edf_key
from tests.core.samples import GIB, NOW_MS, images, job, needs, node, projects

STATES = st.sampled_from([JobState.QUEUED, JobState.WAITING, JobState.RUNNING, JobState.PAUSED])
JOBS = st.lists(
    st.builds(
        job,
        st.uuids().map(lambda one: f"job_{one}"),
        STATES,
        project_id=projects,
        deadline_ms=st.integers(0, 5),
        submitted_ms=st.integers(0, 2),
        resources=needs,
        leaving=st.booleans(),
        not_before_ms=st.sampled_from([0, NOW_MS, NOW_MS + 1]),
    ),
    max_size=12,
    unique_by=lambda one: one.job_id,
)
NODES = st.builds(
    node,
    st.just("node_a"),
    st.sampled_from(Tier),
    st.sampled_from([NodeState.READY, NodeState.DRAINING, NodeState.BOOTING]),
    gpu_count=st.integers(1, 4),
    gpu_memory_bytes=st.sampled_from([40 * GIB, 80 * GIB]),
    gpu_type=st.sampled_from(["A100", "H100"]),
    image=images,
)


@given(NODES, JOBS)
def test_a_job_is_told_exactly_where_placement_would_put_it_on_the_node_alone(
    node_: NodeView, jobs: list[JobView]
) -> None:
    """Whoever is told could be placed there now, were it empty; nobody else is; who is served first is told first."""
    empty = replace(node_, free_gpus=tuple(range(node_.gpu_count)))
    told = next_jobs(replace(empty, free_gpus=()), jobs, NOW_MS)

    def placeable(one: JobView) -> bool:
        fleet = Fleet(Board.of(Snapshot(now_ms=NOW_MS, jobs=(one,), nodes=(empty,))))
        waits = one.state in (JobState.QUEUED, JobState.WAITING) and not one.leaving and one.not_before_ms <= NOW_MS
        return waits and fleet.ready_place(one) is not None

    assert told == sorted(filter(placeable, jobs), key=edf_key)


@pytest.mark.parametrize("tier", list(Tier))
def test_only_nodes_that_outlive_their_run_are_told(tier: Tier) -> None:
    """A serverless one is given back with it."""
    assert bool(next_jobs(node("node_a", tier), [job()], NOW_MS)) == (tier is not Tier.SERVERLESS)


def test_a_job_that_may_spend_no_more_is_not_told() -> None:
    """It gets no place until its cap is raised."""
    capped = job(caps=Caps(max_cost=Money(5)), spent=Money(5))
    assert next_jobs(node("node_a"), [capped], NOW_MS) == []
