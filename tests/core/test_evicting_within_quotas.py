"""A job that is within a quota of a pool has its GPUs in bounded time, however short the jobs of others are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core.board import Board
from app.core.borrowing import PoolQuotas, PoolUse
from app.core.evicting import EvictableRun, Evicting, evict
from app.core.eviction import EvictionRule
from app.core.host_spaces import host_spaces
from app.core.model.job import JobState, PriorityClass, Resources
from app.core.model.node import NodeState, Tier
from app.core.model.pool import Pool
from app.core.model.snapshot import JobView, NodeView
from tests.core.samples import NOW_MS, job, node, run, snapshot
from tests.core.test_evicting import MINUTE_MS, host, leaving, of_pool, waits

LAB = Pool("lab", quotas=(("proj_a", 1), ("proj_b", 1)))
WAITED_MS = NOW_MS - MINUTE_MS


def began(one: EvictableRun, seconds: int) -> EvictableRun:
    return replace(one, saving=replace(one.saving, started_ms=NOW_MS - 1_000 * seconds, saved_ms=None))


def machine(node_id: str, project: str, free: tuple[int, ...] = (), **changes: object) -> NodeView:
    made = node(node_id, Tier.OWN, project_id=project, provider="joined", region="lab", free_gpus=free)
    return replace(made, **changes)  # type: ignore[arg-type]


def found_for(
    line: list[JobView],
    runs: list[EvictableRun],
    nodes: list[NodeView],
    pool: Pool = LAB,
    rule: EvictionRule = EvictionRule.LOST_WORK,
) -> Evicting:
    """On a full host with a machine of one GPU for each of these nodes that is of the pool."""
    cut = [one.node_id for one in nodes if one.region == "lab"]
    uses = [
        PoolUse("lab", one.project_id, one.gpus, one.run_id, at)
        for at, one in enumerate(runs)
        if one.pool and not one.is_spot
    ]
    quotas = PoolQuotas.of([pool], uses)
    stays = {one.node_id for one in runs if not (one.is_spot or one.run_id in quotas.borrowed)}
    places = {node_id: ("host_a", (cut.index(node_id),)) for node_id in cut if node_id not in stays}
    spaces = host_spaces([pool], [host(*range(len(cut)), gpus=len(cut))], places, NOW_MS)
    held = [run(one.run_id, one.job_id, one.node_id, tier=Tier.OWN) for one in runs]
    classes = {True: PriorityClass.SPOT, False: PriorityClass.GUARANTEED}
    tenants = [job(one.job_id, JobState.RUNNING, priority_class=classes[one.is_spot]) for one in runs]
    board = Board.of(snapshot(jobs=[*tenants, *line], runs=held, nodes=nodes))
    waiting = {one.job_id for one in line}
    return evict(board, runs, spaces, waiting, quotas=quotas, least_run_ms=MINUTE_MS, rule=rule)


# Short jobs, one after the other: each has just begun


@pytest.mark.parametrize("is_spot", [True, False], ids=["spot", "borrowed"])
def test_who_began_after_it_had_to_wait_is_not_spared_for_longer_than_a_minimum_run_time(is_spot: bool) -> None:
    runs = [of_pool("b1", "proj_b"), began(of_pool("b2", "proj_b", is_spot=is_spot), 5)]
    nodes = [machine(one.node_id, "proj_b") for one in runs]
    newer, older = (waits(submitted_ms=WAITED_MS + more_ms) for more_ms in (1, 0))
    spared = found_for([newer], runs, nodes)
    assert (leaving(spared), spared.wake_at_ms) == ({}, NOW_MS + 1)
    assert leaving(found_for([older], runs, nodes)) == {"job_w": ["job_b2"]}


def test_what_its_project_has_waited_counts_for_the_first_of_its_line() -> None:
    """The one with the earlier deadline has come later: with another minute for it the line would never move."""
    runs = [of_pool("b1", "proj_b"), began(of_pool("b2", "proj_b"), 5)]
    nodes = [machine(one.node_id, "proj_b") for one in runs]
    line = [waits("job_urgent", submitted_ms=NOW_MS, deadline_ms=NOW_MS + 1), waits(submitted_ms=WAITED_MS)]
    assert leaving(found_for(line, runs, nodes)) == {"job_urgent": ["job_b2"]}
    spot = replace(line[1], priority_class=PriorityClass.SPOT)
    assert leaving(found_for([line[0], spot], runs, nodes)) == {}, "a spot job has no claim to wait for"


@pytest.mark.parametrize(
    "pool", [Pool("lab"), replace(LAB, quotas=(("proj_b", 1),))], ids=["no quotas", "no quota of its"]
)
def test_without_a_quota_everybody_is_spared_however_long_it_has_waited(pool: Pool) -> None:
    spot = began(of_pool("s", "proj_b", is_spot=True), 5)
    assert leaving(found_for([waits(submitted_ms=0)], [spot], [machine("node_s", "proj_b")], pool)) == {}


# Machines that nobody uses


@pytest.mark.parametrize("rule", [EvictionRule.LOST_WORK, EvictionRule.LITERAL], ids=str)
@pytest.mark.parametrize("owner", ["proj_a", "proj_b"])
def test_a_machine_that_nobody_uses_is_ended_at_once_and_nobody_leaves(owner: str, rule: EvictionRule) -> None:
    """Its own project's too: one of those that are too small for what waits."""
    runs = [of_pool("s", "proj_b", is_spot=True)]
    idle = machine("node_i", owner, free=(0,), cpus=0)  # too small for the job itself
    found = found_for([waits()], runs, [machine("node_s", "proj_b"), idle], rule=rule)
    assert leaving(found) == {"job_w": []}
    (one,) = found.evictions
    assert (one.asides[0].place, one.asides[0].gpus) == ("host_a/A100", 1)
    assert one.words[0] == "0 free and 1 freed are at least the 1 GPU that it needs there"
    assert "1 machine that nobody uses ends" in one.words


def test_beside_what_is_idle_only_as_many_leave_as_are_needed() -> None:
    runs = [of_pool("s1", "proj_b", is_spot=True), of_pool("s2", "proj_b", is_spot=True)]
    nodes = [machine(one.node_id, "proj_b") for one in runs]
    pool = replace(LAB, quotas=(("proj_a", 2),))
    found = found_for([waits(gpus=2)], runs, [*nodes, machine("node_i", "proj_b", free=(0,))], pool)
    assert [len(one) for one in leaving(found).values()] == [1]


def test_nothing_is_ended_for_a_job_beyond_its_quota_or_in_a_pool_without() -> None:
    idle = machine("node_i", "proj_b", free=(0,))
    own = replace(of_pool("a1", "proj_a"), is_spot=False)
    held = machine("node_a1", "proj_a")
    assert leaving(found_for([waits()], [own], [held, idle])) == {}
    assert leaving(found_for([waits()], [], [idle], Pool("lab"))) == {}
    assert leaving(found_for([waits()], [], [idle])) == {"job_w": []}


@pytest.mark.parametrize(
    "changes",
    [{"state": NodeState.BOOTING}, {"state": NodeState.DRAINING}, {"free_gpus": ()}],
    ids=["comes", "goes", "is lent"],
)
def test_a_machine_that_is_not_idle_is_left_alone(changes: dict[str, object]) -> None:
    idle = replace(machine("node_i", "proj_b", free=(0,)), **changes)  # type: ignore[arg-type]
    assert leaving(found_for([waits()], [], [idle])) == {}


# Room elsewhere


def test_room_that_a_policy_keeps_elsewhere_for_another_is_no_place() -> None:
    """A rented machine has a free GPU, and the decision has left the job waiting all the same."""
    spot = of_pool("s", "proj_b", is_spot=True)
    rented = node("node_r", gpu_count=4, free_gpus=(1,))
    nodes = [machine("node_s", "proj_b"), rented]
    assert leaving(found_for([waits()], [spot], nodes)) == {"job_w": ["job_s"]}
    assert leaving(found_for([waits()], [spot], nodes, Pool("lab"))) == {}, "without a quota there is no claim"


def test_room_on_a_machine_of_its_project_in_the_pool_is_its_projects_to_give() -> None:
    """What is free there is of its quota, too: for whom it is kept is a matter of the project's own order."""
    spot = of_pool("s", "proj_b", is_spot=True)
    own = machine("node_o", "proj_a", free=(1,), gpu_count=2)
    held = [machine("node_s", "proj_b"), own]
    assert leaving(found_for([waits()], [spot], held)) == {}


def test_for_the_sake_of_room_elsewhere_nobody_leaves_a_rented_machine() -> None:
    """The claim is to the pool: on machines of its project its own order holds."""
    rented = replace(of_pool("s", "proj_a", is_spot=True), pool="")
    assert leaving(found_for([waits()], [rented], [node("node_s", gpu_count=2, free_gpus=(1,))])) == {}


def test_one_for_which_a_machine_comes_has_nobody_leave() -> None:
    spot = of_pool("s", "proj_b", is_spot=True)
    coming = node("node_r", state=NodeState.BOOTING, expected_ready_ms=NOW_MS + 1)
    assert leaving(found_for([waits()], [spot], [machine("node_s", "proj_b"), coming])) == {}


def test_a_job_that_is_larger_than_the_quota_waits_for_the_room_elsewhere() -> None:
    spot = of_pool("s", "proj_b", is_spot=True)
    rented = node("node_r", gpu_count=4, free_gpus=(0, 1))
    large = waits(resources=Resources(2, 2))
    assert leaving(found_for([large], [spot], [machine("node_s", "proj_b"), rented])) == {}
