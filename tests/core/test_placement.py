"""What rented nodes have room for, while one plan gives it out."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.board import Board
from app.core.model.job import JobState, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.snapshot import Snapshot
from app.core.policies.placement import Fleet
from tests.core.samples import GIB, MARKET, NOW_MS, job, needs, node, offer, run, snapshot, snapshots

FOUR = Resources(gpus_min=4)


def fleet(*nodes: Any, **parts: Any) -> Fleet:
    return Fleet(Board.of(snapshot(nodes=nodes, **parts)))


def coming(name: str, in_ms: int, **changes: Any) -> Any:
    return node(name, state=NodeState.BOOTING, expected_ready_ms=NOW_MS + in_ms, **changes)


def test_the_cheapest_ready_node_then_the_fullest() -> None:
    """Price, then fewest free GPUs, then id."""
    seen = fleet(
        node("node_a", price_per_hour=Money(9)),
        node("node_b", gpu_count=4, price_per_hour=Money(7)),
        node("node_c", gpu_count=4, free_gpus=(2, 3), price_per_hour=Money(7)),
        node("node_d", gpu_count=4, free_gpus=(2, 3), price_per_hour=Money(7)),
    )
    place = seen.ready_place(job())
    assert place is not None
    assert (place.place_id, place.take(job()), place.free_gpus) == ("node_c", (2,), (3,))
    again = seen.ready_place(job())
    assert again is place  # what is taken is written down


def test_room_is_gpus_cpus_and_memory() -> None:
    """What live runs hold, and what this plan has given, is not there twice."""
    held = job("job_h", JobState.RUNNING, resources=Resources(cpus_min=6, memory_bytes_min=30 * GIB))
    place = node("node_a", gpu_count=4, free_gpus=(1, 2, 3), cpus=16, memory_bytes=64 * GIB)
    seen = fleet(place, jobs=[held], runs=[run("run_h", "job_h", "node_a", tier=Tier.MARKETPLACE)])
    hungry = job(resources=Resources(cpus_min=6))
    first = seen.ready_place(hungry)
    assert first is not None
    assert (first.free_cpus, first.free_memory_bytes) == (10, 34 * GIB)
    first.take(hungry)
    assert seen.ready_place(hungry) is None
    assert seen.ready_place(job(resources=Resources(cpus_min=4))) is first
    assert seen.ready_place(job(resources=Resources(memory_bytes_min=35 * GIB))) is None
    assert seen.could_fit(hungry)
    assert not seen.could_fit(job(resources=Resources(gpus_min=5)))


def test_projects_do_not_share() -> None:
    """Ready, coming and new nodes serve their own project only."""
    seen = fleet(node("node_a"), coming("node_b", 5))
    seen.add(job(), MARKET, NOW_MS)
    other = job(project_id="proj_b")
    assert (seen.ready_place(other), seen.coming_place(other), seen.could_fit(other)) == (None, None, False)


def test_the_coming_node_that_is_expected_first() -> None:
    """Then the cheaper, then by id; one that is rented in this plan is as good as one that boots."""
    seen = fleet(coming("node_a", 50), coming("node_b", 40), coming("node_c", 40, price_per_hour=Money(1)))
    order = []
    while (place := seen.coming_place(job())) is not None:
        order.append(place.place_id)
        place.take(job())
    assert order == ["node_c", "node_b", "node_a"]
    seen.add(job("job_x"), offer("big", Tier.MARKETPLACE, gpu_count=2, cpus=16, startup_ms=10), NOW_MS)
    place = seen.coming_place(job())
    assert place is not None
    assert (place.place_id, place.expected_ready_ms, place.free_gpus) == ("rented for job_x", NOW_MS + 10, (1,))


def test_holding_open_keeps_the_node_that_is_nearest() -> None:
    """The large node with most free GPUs is kept for a large job; one that could never hold it is not touched."""
    large = job(resources=FOUR)
    seen = fleet(
        node("node_a", gpu_count=4, free_gpus=(0,)),
        node("node_b", gpu_count=4, free_gpus=(0, 1)),
        node("node_c", gpu_count=2, free_gpus=(0, 1)),
    )
    held = seen.hold_open(large)
    assert held is not None
    assert held.place_id == "node_b"
    assert [place.place_id for place in [seen.ready_place(job(resources=Resources(2)))] if place] == ["node_c"]
    full = fleet(node("node_a", gpu_count=4, free_gpus=()), node("node_b", free_gpus=(0,)))
    held = full.hold_open(large)
    assert held is not None
    assert held.place_id == "node_a"
    assert fleet(node("node_b")).hold_open(large) is None


def test_a_node_takes_only_jobs_of_its_own_image() -> None:
    """Ready, coming, or kept open: whatever has another image, ours included, is no place for the job."""
    own, plain = job(resources=Resources(base_image="own:1")), job()
    seen = fleet(node("node_a", image="own:2"), node("node_b"), coming("node_c", 9))
    assert (seen.ready_place(own), seen.coming_place(own), seen.hold_open(own), seen.could_fit(own)) == (
        None,
        None,
        None,
        False,
    )
    found = seen.ready_place(plain)
    assert found is not None
    assert found.place_id == "node_b"
    seen = fleet(node("node_a", image="own:1"), coming("node_c", 9, image="own:1"))
    places = seen.ready_place(own), seen.coming_place(own)
    assert [place.place_id for place in places if place] == ["node_a", "node_c"]
    assert seen.could_fit(own)
    assert not seen.could_fit(plain)


def test_a_node_that_only_its_image_keeps_from_a_job_is_named() -> None:
    """Of those with room, the first by id; none when every node has the job's image, or no room either."""
    own = job(resources=Resources(base_image="own:1"))
    seen = fleet(node("node_c"), node("node_b"), node("node_a", free_gpus=()), node("node_d", image="own:1"))
    named = seen.ready_with_other_image(own)
    assert named is not None
    assert named.node_id == "node_b"
    assert fleet(node("node_a", image="own:1")).ready_with_other_image(own) is None
    assert fleet(node("node_a")).ready_with_other_image(job(resources=Resources(2, base_image="own:1"))) is None


def test_a_node_rented_in_this_plan_has_the_image_of_its_job() -> None:
    """What it leaves is for jobs of that image alone."""
    seen = fleet()
    own = job("job_o", resources=Resources(base_image="own:1"))
    seen.add(own, offer("ask", Tier.MARKETPLACE, gpu_count=4), NOW_MS)
    assert seen.coming_place(own) is not None
    assert seen.coming_place(job("job_p")) is None


def test_who_is_not_needed_dearest_first() -> None:
    """Idle nodes that this plan counts on are left out; so are those with a run or a held GPU."""
    seen = fleet(
        node("node_a", price_per_hour=Money(5)),
        node("node_b", price_per_hour=Money(9)),
        node("node_c", price_per_hour=Money(9)),
        node("node_d", gpu_count=2, free_gpus=(1,), price_per_hour=Money(99)),
        node("node_e", free_gpus=(), price_per_hour=Money(1)),
        coming("node_f", 9, price_per_hour=Money(8)),
        coming("node_g", 8, price_per_hour=Money(8)),
        jobs=[job("job_e", JobState.RUNNING)],
        runs=[run("run_e", "job_e", "node_e", tier=Tier.MARKETPLACE)],
    )
    place, next_place = seen.ready_place(job(resources=Resources(cpus_min=8))), seen.coming_place(job())
    assert place is not None
    assert next_place is not None
    place.take(job())
    next_place.take(job())
    assert [one.node_id for one in seen.unneeded()] == ["node_b", "node_c"]
    assert [one.node_id for one in seen.unneeded_coming()] == ["node_f"]


def test_room_left_at_all() -> None:
    """A free GPU on any node that is there, comes, or is rented in this plan."""
    assert not fleet(node("node_a", free_gpus=())).has_room()
    assert fleet(node("node_a", gpu_count=2, free_gpus=(1,))).has_room()
    assert fleet(coming("node_a", 5)).has_room()
    assert not fleet(node("node_a", state=NodeState.UNREACHABLE)).has_room()
    seen = fleet()
    seen.add(job(), MARKET, NOW_MS)
    assert not seen.has_room()
    seen.add(job(), offer("big", Tier.MARKETPLACE, gpu_count=2, cpus=16), NOW_MS)
    assert seen.has_room()


@settings(max_examples=60)
@given(seen=snapshots(), wants=st.lists(needs, max_size=8), project=st.sampled_from(["proj_a", "proj_b"]))
def test_nothing_is_given_twice(seen: Snapshot, wants: list[Resources], project: str) -> None:
    """However many ask: GPUs of ready nodes are given once, only free ones, and as many as were asked for."""
    board = Board.of(seen)
    nodes = {one.node_id: one for one in seen.nodes}
    given_out: set[tuple[str, int]] = set()
    ready = Fleet(board)
    for need in wants:
        asking = job(resources=need, project_id=project)
        place = ready.ready_place(asking)
        if place is None:
            continue
        assert ready.could_fit(asking)
        gpus = {(place.place_id, gpu) for gpu in place.take(asking)}
        assert len(gpus) == need.gpus_min
        assert not gpus & given_out
        assert {gpu for _, gpu in gpus} <= set(nodes[place.place_id].free_gpus)
        given_out |= gpus
    assert {name for name, _ in given_out}.isdisjoint(one.node_id for one in ready.unneeded())
