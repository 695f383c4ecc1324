"""Where a job goes is the same as if every place were looked at, whatever the plan has put there before."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.board import Board
from app.core.model.job import Affinity, Caps, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.snapshot import JobView
from app.core.policies.placement import Fleet, Place
from tests.core.samples import GIB, NOW_MS, job, node, offer, snapshot

GPUS = st.integers(1, 4)
NODES = st.builds(
    dict,
    gpu_type=st.sampled_from(["A100", "T4"]),
    gpu_count=GPUS,
    cpus=st.sampled_from([4, 16]),
    price=st.integers(1, 3),
    image=st.sampled_from(["", "", "own:1"]),
    ready_in_ms=st.sampled_from([None, None, 5, 9]),
    taken=st.integers(0, 4),
)
JOBS = st.builds(
    dict,
    gpus=GPUS,
    gpu_type=st.sampled_from([None, None, "A100"]),
    cpus=st.sampled_from([1, 3]),
    image=st.sampled_from([None, None, "own:1"]),
    label=st.sampled_from([None, None, "x"]),
    hourly=st.sampled_from([None, None, Money(2)]),
    most=st.sampled_from([math.inf, math.inf, 1.0]),
    then=st.sampled_from(["take", "take", "leave", "hold", "rent"]),
)


def a_node(number: int, told: dict[str, Any]) -> Any:
    comes = told["ready_in_ms"] is not None
    return node(
        f"node_{number}",
        Tier.MARKETPLACE,
        NodeState.BOOTING if comes else NodeState.READY,
        gpu_type=told["gpu_type"],
        gpu_count=told["gpu_count"],
        free_gpus=tuple(range(min(told["taken"], told["gpu_count"]), told["gpu_count"])),
        cpus=told["cpus"],
        memory_bytes=64 * GIB,
        price_per_hour=Money(told["price"]),
        image=told["image"],
        expected_ready_ms=NOW_MS + (told["ready_in_ms"] or 0),
    )


def a_job(number: int, told: dict[str, Any]) -> JobView:
    need = Resources(told["gpus"], gpu_type=told["gpu_type"], cpus_min=told["cpus"], base_image=told["image"])
    label = told["label"]
    apart = Affinity(frozenset({label}), frozenset(), frozenset({label})) if label else Affinity()
    return replace(job(f"job_{number}", resources=need), affinity=apart, caps=Caps(max_hourly=told["hourly"]))


def first_of(places: list[Place], rank: str, wants: JobView, most: float) -> Place | None:
    """By looking at every one."""
    suitable = [p for p in places if p.free_gpus and p.takes(wants) and p.share_micros(wants.resources) <= most]
    return min(suitable, key=lambda place: getattr(place, rank), default=None)


@settings(max_examples=300, deadline=None)
@given(st.lists(NODES, max_size=7), st.lists(JOBS, min_size=1, max_size=12))
def test_it_finds_what_looking_at_every_place_finds(nodes: list[dict[str, Any]], jobs: list[dict[str, Any]]) -> None:
    views = [a_node(number, told) for number, told in enumerate(nodes)]
    seen = Fleet(Board.of(snapshot(nodes=views)))
    ready = [seen._place(view) for view in views if view.state == NodeState.READY]
    coming = [seen._place(view) for view in views if view.state == NodeState.BOOTING]
    for number, told in enumerate(jobs):
        wants = a_job(number, told)
        here, later = seen.ready_place(wants, told["most"]), seen.coming_place(wants, told["most"])
        new = [place for places in seen._new.values() for place in places]
        assert here is first_of(ready, "rank", wants, told["most"])
        assert later is first_of([*coming, *new], "coming_rank", wants, told["most"])
        assert seen.has_room() is any(place.free_gpus for place in (*ready, *coming, *new))
        found = here or later
        if told["then"] == "take" and found is not None:
            found.take(wants)
        elif told["then"] == "hold":
            seen.hold_open(wants)
        elif told["then"] == "rent":
            seen.add(wants, offer("new", Tier.MARKETPLACE, gpu_count=4, cpus=16, startup_ms=7), NOW_MS)


def test_two_places_that_are_rented_for_one_job_can_be_told_apart() -> None:
    """Equal in all that they are ordered by: the first of them is taken."""
    seen = Fleet(Board.of(snapshot()))
    for _ in range(2):
        seen.add(job(), offer("new", Tier.MARKETPLACE, gpu_count=2, cpus=16), NOW_MS)
    found = [seen.coming_place(job()) for _ in range(2)]
    assert found[0] is found[1] is seen._new["proj_a"][0]
