"""Nodes are vacated so that a job on several machines that waits can begin, close together, at what the moves cost."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.defragmentation import (
    Deciding,
    Goal,
    PlannedRelease,
    ReleaseState,
    SeenFleet,
    is_wanted,
    next_steps,
    pack,
    plan_for,
)
from app.core.defragmentation.gang_room import GangWish
from app.core.defragmentation.model import PackedNode, PackedTask, SearchBounds
from app.core.defragmentation.packed_fleet import PackedFleet
from app.core.defragmentation.planning import rooms_for_gangs
from app.core.model.job import Caps, JobState, MostUnderOne, Resources
from app.core.model.money import Money
from app.core.model.snapshot import JobView
from app.core.topology import Domain, Seats
from tests.core.defragmentation.test_live import NOW_MS, Fleet, job_view


def gang(job_id: str = "job_g", nodes: int = 2, gpus: int = 4, **more: Any) -> JobView:
    need = {"resources": Resources(gpus, gpus, nodes=nodes), "state": JobState.QUEUED}
    return job_view(job_id, gpus, **(need | more))


def lab(**switches: str) -> tuple[Fleet, dict[str, Domain]]:
    """Hosts of four GPUs: `s1="ab"` are under s1, each with a job of one GPU; a capital is free."""
    fleet, domains = Fleet(), dict[str, Domain]()
    for name, hosts in switches.items():
        for host in hosts:
            fleet.host(host)
            domains[host] = ("", *name.split("_"))[-2:]
            if host.islower():
                fleet.trains(job_view(f"job_{host}", 1), host)
    return fleet, domains


def seen(fleet: Fleet, domains: dict[str, Domain], *waiting: JobView, **more: Any) -> SeenFleet:
    found = fleet.seen()
    snapshot = replace(found.snapshot, jobs=(*found.snapshot.jobs, *waiting))
    return replace(found, snapshot=snapshot, domains=domains, **more)


def planned(fleet: SeenFleet, most_moves: int = 100) -> list[PlannedRelease]:
    return list(plan_for(fleet, Goal.POOLS, None, most_moves).releases)


def vacated(releases: list[PlannedRelease]) -> str:
    return "".join(sorted(one.name.partition("/")[0] for one in releases))


def test_hosts_under_one_switch_are_vacated_for_it_and_those_that_are_free_count() -> None:
    """By fewest tasks and by name it would be `a` and `b`, which are under two switches."""
    fleet, domains = lab(s1="a", s2="b", s3="cD", s4="ef")
    plan = plan_for(seen(fleet, domains, gang()), Goal.POOLS, None, 100)
    (release,) = plan.releases
    assert (vacated([release]), release.for_job_id) == ("c", "job_g")
    assert release.reason == (
        "all 4 GPUs of c are free after 1 move of 1 GPUs in all, and job_g can have its 2 machines under s3"
    )
    assert plan.held == (("job_g", ("D/A100",)),)
    assert release.steps[0].target != "D/A100", "what counts as free stays free"
    assert not plan.settled


def test_nothing_else_is_vacated_beside_it() -> None:
    fleet, domains = lab(s1="ab", s2="cdef")
    assert vacated(planned(seen(fleet, domains))) != ""
    assert len(planned(seen(fleet, domains, gang()))) == 2


def test_closeness_may_cost_twice_as_much_and_not_more() -> None:
    """Under s1 a job of three GPUs has to move, too; anywhere, two of one GPU would do."""
    for large, where in ((2, "in pool lab"), (1, "under s1")):
        fleet, domains = lab(s1="AB", s2="c", s3="d", s4="efgh")
        fleet.trains(job_view("job_large", large + 1), "A")
        fleet.trains(job_view("job_locked", 3, locked=True), "h")
        fleet.trains(job_view("job_also", 2), "B") if large == 2 else fleet.trains(job_view("job_also", 1), "B")
        for host in "efg":
            fleet.trains(job_view(f"job_pinned_{host}", 1, locked=True), host)
        (*_, last) = planned(seen(fleet, domains, gang()))
        assert last.reason.endswith(where), (large, last.reason)


def test_one_rack_where_no_switch_would_do() -> None:
    fleet, domains = lab(r1_s1="a", r2_s2="b", r2_s3="c", r3_s4="d")
    releases = planned(seen(fleet, domains, gang()))
    assert vacated(releases) == "bc"
    assert releases[0].reason.endswith("in rack r2")


def test_machines_that_have_to_be_apart_are_vacated_apart() -> None:
    fleet, domains = lab(r1_s1="ab", r2_s2="c", r2_s3="d")
    apart = gang(most_under_one=MostUnderOne(rack=1))
    hosts = vacated(planned(seen(fleet, domains, apart)))
    assert sorted(domains[host][0] for host in hosts) == ["r1", "r2"]
    nowhere = gang(nodes=3, most_under_one=MostUnderOne(rack=1))
    assert all(one.for_job_id is None for one in planned(seen(fleet, domains, nowhere)))


@pytest.mark.parametrize(
    "more",
    [
        {"leaving": True},
        {"not_before_ms": NOW_MS + 1},
        {"state": JobState.RUNNING},
    ],
    ids=lambda more: next(iter(more)),
)
def test_only_a_job_that_waits_for_room_has_hosts_vacated(more: dict[str, Any]) -> None:
    fleet, domains = lab(s1="ab", s2="cdef")
    assert all(one.for_job_id is None for one in planned(seen(fleet, domains, gang(**more))))


def test_its_hourly_limit_counts_all_machines() -> None:
    fleet, domains = lab(s1="ab", s2="cdef")
    fleet.pool = replace(fleet.pool, price=Money.usd("1"))
    for usd, wanted in (("7.99", 0), ("8", 2)):
        asks = gang(caps=Caps(max_hourly=Money.usd(usd)))
        assert len([one for one in planned(seen(fleet, domains, asks)) if one.for_job_id]) == wanted


def test_one_that_has_machines_or_could_begin_has_nothing_vacated() -> None:
    fleet, domains = lab(s1="ab", s2="cdef")
    assert all(one.for_job_id is None for one in planned(seen(fleet, domains, gang(), provided=frozenset({"job_g"}))))
    free, where = lab(s1="Ab", s2="Cdef")
    assert all(one.for_job_id is None for one in planned(seen(free, where, gang())))
    fleet.pool = replace(fleet.pool, most_gpus=9)
    assert all(one.for_job_id is None for one in planned(seen(fleet, domains, gang()))), "three GPUs are left"


def test_hosts_that_are_kept_for_it_are_its_own_and_those_of_others_are_not() -> None:
    """Whoever is on one that is kept for it may leave; nobody comes there."""
    fleet, domains = lab(s1="ab", s2="cd", s3="ef")
    own = {"c/A100": "job_g", "d/A100": "job_g"}
    releases = planned(seen(fleet, domains, gang(), kept_hosts={"a/A100": "job_h", "b/A100": "job_h", **own}))
    assert vacated(releases) in ("cd", "ef")
    assert not {step.target for one in releases for step in one.steps} & {"a/A100", "b/A100", "c/A100", "d/A100"}


def test_two_that_wait_never_count_on_the_same_host() -> None:
    fleet, domains = lab(s1="ab", s2="cd", s3="efgh")
    plan = plan_for(seen(fleet, domains, gang("job_f"), gang("job_g")), Goal.POOLS, None, 100)
    by_job = Counter(one.for_job_id for one in plan.releases)
    assert by_job == {"job_f": 2, "job_g": 2}
    assert len({one.node_id for one in plan.releases}) == 4


def test_it_is_wanted_by_schedule() -> None:
    """Also where enough is free, and not where it may be had together."""
    fleet, domains = lab(s1="ABc", s2="defg")
    apart = gang(most_under_one=MostUnderOne(switch=1))
    assert is_wanted(seen(fleet, domains, apart))
    assert not is_wanted(seen(fleet, domains, gang()))
    blocked, where = lab(s1="ab", s2="cdef")
    assert is_wanted(seen(blocked, where, gang()))
    assert not is_wanted(seen(blocked, where, gang(), provided=frozenset({"job_g"})))


def test_what_is_vacated_in_vain_is_dropped() -> None:
    """The job begins elsewhere, or another of its hosts is not to be vacated any more."""
    fleet, domains = lab(s1="ab", s2="cdef")
    releases = planned(seen(fleet, domains, gang()))
    packing = pack(seen(fleet, domains, gang()), Goal.POOLS)
    waits = Deciding(Goal.POOLS, NOW_MS, NOW_MS, 5, waiting=frozenset({"job_g"}))
    assert next_steps(releases, packing, waits).begin
    gone = next_steps(releases, packing, replace(waits, waiting=frozenset()))
    assert gone.begin == () and set(gone.drop.values()) == {"job_g does not wait any more"}
    half = [replace(releases[0], state=ReleaseState.DROPPED), releases[1]]
    dropped = next_steps(half, packing, waits)
    assert dropped.drop == {1: "not all that job_g needs could be vacated"} and dropped.begin == ()


def test_a_budget_that_is_too_small_for_all_of_it_moves_nobody_for_it() -> None:
    fleet, domains = lab(s1="ab", s2="cdef")
    assert all(one.for_job_id is None for one in planned(seen(fleet, domains, gang()), most_moves=1))


_NODES = st.lists(
    st.tuples(
        st.sampled_from(["r1", "r2", ""]),
        st.sampled_from(["s", "t", ""]),
        st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=3),
    ),
    min_size=2,
    max_size=9,
)


@settings(max_examples=200, deadline=None)
@given(
    _NODES,
    st.integers(2, 4),
    st.integers(1, 4),
    st.none() | st.integers(1, 3),
    st.none() | st.integers(1, 3),
    st.integers(0, 12),
)
def test_whatever_the_fleet_the_job_has_its_machines_afterwards_and_every_step_is_within_capacity(
    drawn: list[tuple[str, str, list[tuple[int, bool]]]],
    machines: int,
    gpus: int,
    rack: int | None,
    switch: int | None,
    most_moves: int,
) -> None:
    """None of the moves fills a node beyond what it has, with each job at both places; locked ones stay; who needs no
    moves has none; bounds hold."""
    nodes = [PackedNode(f"n{number}", 4, 0, 0) for number in range(len(drawn))]
    tasks, domains = list[PackedTask](), dict[str, Domain]()
    for node, (in_rack, under, sizes) in zip(nodes, drawn, strict=True):
        domains[node.id] = (in_rack, under)
        free = node.gpus
        for size, locked in sizes:
            if size <= free:
                free -= size
                tasks.append(PackedTask(f"t{len(tasks)}", node.id, size, 0, 0, locked=locked and size > 2))
    most = MostUnderOne(rack, switch)
    wish = GangWish("job_g", machines, gpus, domains, "pool lab", most)
    fleet = PackedFleet(nodes, tasks)
    free_before = {node.id: fleet.free_gpus[index] for index, node in enumerate(nodes)}
    found = rooms_for_gangs(fleet, [[wish]], SearchBounds(max_moves=most_moves, moves_per_release=16))
    could = _together(wish, {one for one, left in free_before.items() if left >= gpus})
    if not found:
        assert fleet.log == []
        return
    assert could < machines, "it would have begun"
    ((room, releases),) = found
    moves = [move for one in releases for move in one.moves]
    assert 0 < len(moves) <= most_moves
    free, where = dict(free_before), {task.id: task.node_id for task in tasks}
    sizes_of = {task.id: task.gpus for task in tasks}
    for move in moves:
        assert where[move.task_id] == move.source_id
        assert free[move.target_id] >= sizes_of[move.task_id]
        free[move.target_id] -= sizes_of[move.task_id]
        free[move.source_id] += sizes_of[move.task_id]
        where[move.task_id] = move.target_id
    assert not {move.task_id for move in moves} & {task.id for task in tasks if task.locked}
    its = {nodes[index].id for index in room.nodes}
    assert len(its) == machines and all(free[one] >= gpus for one in its)
    assert _together(wish, its) == machines
    assert all(free[one.node_id] == 4 for one in releases)


def _together(wish: GangWish, node_ids: set[str]) -> int:
    seats = Seats(wish.most.by_level)
    return min(wish.nodes, sum(seats.take(wish.nodes_there[one]) for one in sorted(node_ids)))


def test_a_pool_of_many_hosts_is_looked_at_in_a_moment() -> None:
    """Ten thousand hosts under three hundred switches."""
    nodes = [PackedNode(f"n{number}", 8, 0, 0) for number in range(10_000)]
    tasks = [PackedTask(f"t{number}", node.id, 2, 0, 0, locked=number % 3 == 0) for number, node in enumerate(nodes)]
    domains: dict[str, Domain] = {node.id: (f"r{n // 320}", f"s{n // 32}") for n, node in enumerate(nodes)}
    wishes = [[GangWish(f"job_{number}", 16, 8, domains, "pool lab")] for number in range(3)]
    began_s = time.process_time()
    found = rooms_for_gangs(PackedFleet(nodes, tasks), wishes)
    assert [room.where.partition(" ")[0] for room, _ in found] == ["under"] * 3
    assert time.process_time() - began_s < 8
