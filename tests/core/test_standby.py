"""Who stands by is out of everybody's sight, and comes back to GPUs that nobody else has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.market import is_for
from app.core.model.job import JobState, PriorityClass, Resources
from app.core.model.node import NodeState, Tier
from app.core.model.plan import Assign, Release
from app.core.model.pool import HostGpu, OwnHost, Pool
from app.core.pools import free_of, offers_of, used_gpus
from app.core.standby import PATIENCE_MS, SETTLED_MS, Holder, StandbyView, out_of_sight, stand_by
from tests.core.samples import NOW_MS, job, node, run, snapshot

WAITS = {"state": JobState.WAITING, "resources": Resources(2, 2)}
MACHINE: dict[str, Any] = {"gpu_count": 2, "free_gpus": (0, 1)}
HOLDER = Holder("node_spot", 1, NodeState.READY, ("job_spot",))


def standby(**changes: Any) -> StandbyView:
    given: dict[str, Any] = {"until_ms": NOW_MS + 1, "left_ms": NOW_MS - 10, "lent_gpus": 2}
    return StandbyView("stby_a", "job_a", "node_a", **(given | changes))


def world(jobs: Any = None, nodes: Any = None, **more: Any) -> Any:
    owner = job("job_a", **WAITS)
    machine = node("node_a", Tier.OWN, **MACHINE)
    return snapshot(jobs=jobs or [owner, job("job_b")], nodes=nodes or [machine, node("node_spot", Tier.OWN)], **more)


def test_until_its_window_is_over_nobody_sees_it_and_its_machine_has_nothing_free() -> None:
    found = stand_by(world(), [standby(holders=(HOLDER,))])
    assert [one.job_id for one in found.snapshot.jobs] == ["job_b"]
    machine, spot = found.snapshot.nodes
    assert (machine.free_gpus, machine.idle_since_ms, spot.spot_only) == ((), None, True)
    assert (found.calls, found.clears, found.claims, found.wake_at_ms) == ((), (), (), NOW_MS + 1)
    assert dict(found.waits)["job_a"].startswith("stands by: spot jobs use 1 of its 2 GPUs, until 1970-01-01 00:16 UTC")


def test_when_it_is_over_it_is_called_and_then_others_are_asked_and_then_it_begins() -> None:
    over = standby(until_ms=NOW_MS, holders=(HOLDER,))
    assert stand_by(world(), [over]).calls == (over,)
    called = replace(over, called_ms=NOW_MS)
    found = stand_by(world(), [called])
    assert (found.calls, found.clears, found.claims) == ((), (called,), ())
    (claim,) = stand_by(world(), [replace(called, holders=())]).claims
    assert isinstance(claim, Assign)
    assert (claim.job_id, claim.node_id, claim.gpu_indices) == ("job_a", "node_a", (0, 1))
    assert claim.versions == (("job_a", 1), ("node_a", 1))


def test_an_owner_calls_before() -> None:
    found = stand_by(world(), [standby(until_ms=NOW_MS + 99, called_ms=NOW_MS)])
    assert [type(one) for one in found.claims] == [Assign]


@pytest.mark.parametrize("state", [NodeState.TERMINATING, NodeState.DRAINING, NodeState.FAILED])
def test_where_its_machine_is_gone_it_is_a_job_like_any_other(state: NodeState) -> None:
    found = stand_by(world(nodes=[node("node_a", Tier.OWN, state=state, **MACHINE)]), [standby()])
    assert [one.standby.job_id for one in found.over] == ["job_a"]
    assert "job_a" in {one.job_id for one in found.snapshot.jobs}


def test_one_that_is_silent_for_a_moment_is_waited_for() -> None:
    """Its machine may come back; nothing begins there, and nothing is concluded, until patience is over."""
    silent = [node("node_a", Tier.OWN, state=NodeState.UNREACHABLE, **MACHINE)]
    found = stand_by(world(nodes=silent), [standby(called_ms=NOW_MS)])
    assert (found.claims, found.over, found.given_up) == ((), (), ())
    late = stand_by(world(nodes=silent), [standby(called_ms=NOW_MS - PATIENCE_MS)])
    assert [one.standby.job_id for one in late.given_up] == ["job_a"]
    assert "job_a" in {one.job_id for one in late.snapshot.jobs}
    assert all(one.free_gpus == () for one in late.snapshot.nodes), "what may be others' is not given out"


def test_a_machine_to_which_nobody_comes_back_ends() -> None:
    found = stand_by(world(), [standby(over_why="its job is paused", called_ms=NOW_MS)])
    (claim,) = found.claims
    assert isinstance(claim, Release)
    assert claim.node_id == "node_a"
    assert found.snapshot.nodes[0].free_gpus == ()
    assert "job_a" in {one.job_id for one in found.snapshot.jobs}


def test_it_is_back_once_it_has_made_a_step_or_has_run_for_a_while() -> None:
    held = [run("run_a", "job_a", "node_a", tier=Tier.OWN)]
    begun = standby(called_ms=NOW_MS - 5, left_step=60, running_ms=NOW_MS - 1)

    def over_at(step: int, one: StandbyView) -> tuple[bool, ...]:
        jobs = [job("job_a", state=JobState.RUNNING, step=step)]
        return tuple(it.is_back for it in stand_by(world(jobs=jobs, runs=held), [one]).over)

    assert over_at(60, begun) == ()
    assert over_at(61, begun) == (True,)
    assert over_at(60, replace(begun, running_ms=NOW_MS - SETTLED_MS)) == (True,)
    assert over_at(60, replace(begun, running_ms=None)) == ()


def test_one_that_was_resized_meanwhile_goes_where_there_is_room() -> None:
    jobs = [job("job_a", state=JobState.WAITING, resources=Resources(3, 3))]
    found = stand_by(world(jobs=jobs), [standby(called_ms=NOW_MS)])
    assert [one.why for one in found.given_up] == ["it wants 3 GPUs now, and its machine has 2"]
    assert "job_a" in {one.job_id for one in found.snapshot.jobs}


def test_what_cannot_be_decided_on_is_out_of_sight() -> None:
    seen = out_of_sight(world(), [standby()])
    assert [one.job_id for one in seen.jobs] == ["job_b"]
    assert seen.nodes[0].free_gpus == ()


@st.composite
def standbys(draw: st.DrawFn) -> tuple[Any, list[StandbyView]]:
    """Any number of them in any moment of their lives, on machines in any state."""
    jobs, nodes, runs, found = [], [], [], []
    for number in range(draw(st.integers(1, 5))):
        job_id, node_id = f"job_{number}", f"node_{number}"
        state = draw(st.sampled_from([JobState.WAITING, JobState.RUNNING, JobState.PAUSED, JobState.CHECKPOINTING]))
        if draw(st.booleans()):
            jobs.append(
                job(job_id, state=state, resources=Resources(2, 2), not_before_ms=draw(st.integers(0, 2)) * NOW_MS)
            )
        if draw(st.booleans()):
            nodes.append(node(node_id, Tier.OWN, state=draw(st.sampled_from(NodeState)), **MACHINE))
        if state is JobState.RUNNING and draw(st.booleans()):
            runs.append(run(f"run_{number}", job_id, draw(st.sampled_from([node_id, "node_else"])), tier=Tier.OWN))
        maybe = st.none() | st.integers(NOW_MS - 2 * PATIENCE_MS, NOW_MS)
        holders = draw(st.lists(st.sampled_from([HOLDER, Holder("node_idle", 1, NodeState.READY)]), max_size=2))
        found.append(
            StandbyView(
                f"stby_{number}",
                job_id,
                node_id,
                draw(st.integers(NOW_MS - 5, NOW_MS + 5)),
                left_ms=draw(maybe),
                called_ms=draw(maybe),
                over_why=draw(st.none() | st.just("paused")),
                lent_gpus=2,
                holders=tuple(holders),
                running_ms=draw(maybe),
            )
        )
    return snapshot(jobs=jobs, nodes=nodes, runs=runs), found


@given(standbys())
def test_whatever_the_moment_what_is_lent_is_given_to_nobody_twice(case: tuple[Any, list[StandbyView]]) -> None:
    """No job begins on GPUs that others are on; no machine that was lent has anything free for others; a job is hidden
    only while something is still to come of its standby; each standby has at most one thing done to it."""
    seen, every = case
    found = stand_by(seen, every)
    by_job = {one.job_id: one for one in every}
    free = {one.node_id for one in found.snapshot.nodes if one.free_gpus}
    placed = {job_id for one in seen.runs for job_id in one.job_ids}
    for claim in found.claims:
        one = (
            by_job[claim.job_id]
            if isinstance(claim, Assign)
            else next(it for it in every if it.node_id == claim.node_id)
        )
        assert one.left_ms is not None
        if isinstance(claim, Assign):
            assert one.holders == () and one.called_ms is not None and one.job_id not in placed
        else:
            assert one.over_why is not None
    gone = {one.standby.standby_id for one in found.over}
    for one in every:
        if one.left_ms is not None and one.standby_id not in gone and one.job_id not in placed:
            assert one.node_id not in free
    hidden = {one.job_id for one in seen.jobs} - {one.job_id for one in found.snapshot.jobs}
    assert hidden <= {job_id for job_id, _ in found.waits}
    given_up = {one.standby.standby_id for one in found.given_up}
    assert not gone & given_up
    assert not {by_job[job_id].standby_id for job_id in hidden} & (gone | given_up)
    lists = (found.calls, found.clears)
    assert all(len({it.standby_id for it in some}) == len(some) for some in lists)


# What is offered of lent GPUs


def host(**changes: Any) -> OwnHost:
    gpus = tuple(HostGpu(index, "A100", 2**35) for index in range(4))
    return OwnHost("host_a", "lab", 32, 2**38, gpus, **changes)


@given(
    taken=st.sets(st.integers(0, 3)),
    lent=st.sets(st.integers(0, 3)),
    awaited=st.integers(0, 2),
    most=st.none() | st.integers(1, 4),
)
def test_lent_gpus_are_offered_to_spot_jobs_alone(
    taken: set[int], lent: set[int], awaited: int, most: int | None
) -> None:
    one = host(
        taken=tuple(sorted(taken)), lent=tuple(sorted(lent)), awaited={"host_a/A100": awaited} if awaited else {}
    )
    offers = offers_of([Pool("lab", most_gpus=most)], [one], NOW_MS)
    guaranteed, spot = job("job_g"), job("job_s", priority_class=PriorityClass.SPOT)
    for_all = [it for it in offers if is_for(guaranteed, it)]
    assert all(not it.spot_only for it in for_all)
    assert max((it.gpu_count for it in for_all), default=0) <= 4 - len(taken | lent)
    assert max((it.gpu_count for it in offers if is_for(spot, it)), default=0) <= 4 - len(taken)
    assert len({it.key for it in offers}) == len(offers)
    if most is not None:
        used = used_gpus([one])["lab"]
        assert all(used + it.gpu_count - len(lent - taken) <= max(most, used) for it in offers)
        assert all(used + it.gpu_count <= most for it in for_all)


def test_spot_jobs_take_what_is_lent_before_what_is_free() -> None:
    one = host(lent=(2, 3))
    assert [gpu.index for gpu in free_of(one, "A100", for_spot=True)] == [2, 3, 0, 1]
    assert [gpu.index for gpu in free_of(one, "A100")] == [0, 1]
    spot, first = sorted(
        (it for it in offers_of([Pool("lab")], [one], NOW_MS) if it.gpu_count == 1), key=lambda it: it.startup_ms
    )
    assert (spot.spot_only, first.spot_only) == (True, False)
