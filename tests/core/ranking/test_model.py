"""The ways to put a pod on a node leave exactly what it does not take."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from app.core.ranking import NodeLeft, PodNeed, ways_to_place
from app.core.ranking.model import checked
from tests.core.ranking.makers import node, nodes, pod, pods


def test_whole_gpus_are_taken_from_those_that_nobody_shares() -> None:
    (left,) = ways_to_place(node((1000, 1000, 400)), pod(2, cpus=10, memory_gib=100))
    assert left == node((400, 0, 0), cpus=86, memory_gib=284)
    assert ways_to_place(node((1000, 999)), pod(2)) == ()


def test_a_part_of_a_gpu_fits_on_each_that_has_it_the_tightest_first() -> None:
    found = [way.gpus_milli for way in ways_to_place(node((1000, 1000, 700, 300, 200)), pod(1, 300))]
    assert found == [(1000, 1000, 700, 200, 0), (1000, 1000, 400, 300, 200), (1000, 700, 700, 300, 200)]


def test_what_has_no_gpus_left_still_holds_pods_that_need_none() -> None:
    assert ways_to_place(node((0, 0)), pod(0, cpus=96)) == (node((0, 0), cpus=0, memory_gib=352),)


@pytest.mark.parametrize("need", [pod(cpus=97), pod(memory_gib=385), pod(9), pod(kinds=("B",)), pod(1 << 40)])
def test_nothing_is_placed_where_anything_is_lacking(need: PodNeed) -> None:
    assert ways_to_place(node(), need) == ()


def test_a_pod_that_names_kinds_takes_any_of_them() -> None:
    assert ways_to_place(node(kind="B"), pod(kinds=("A", "B")))


@pytest.mark.parametrize(
    "need",
    [
        PodNeed(-1, 0, 1, 1000),
        PodNeed(0, -1, 1, 1000),
        PodNeed(0, 0, -1, 1000),
        PodNeed(0, 0, 2, 500),
        PodNeed(0, 0, 1, 0),
        PodNeed(0, 0, 1, 1001),
        PodNeed(0, 0, 1, -5),
        PodNeed(0, 0, 0, 1000),
    ],
)
def test_what_is_no_need_is_refused_with_its_numbers(need: PodNeed) -> None:
    with pytest.raises(ValueError, match=r"give amounts of at least 0, and whole GPUs"):
        checked(need)


@settings(max_examples=200, deadline=None)
@given(nodes, pods)
def test_every_way_takes_what_the_pod_needs_and_nothing_below_zero(left: NodeLeft, need: PodNeed) -> None:
    for way in ways_to_place(left, need):
        assert left.free_milli - way.free_milli == need.taken_milli
        assert left.cpu_milli - way.cpu_milli == need.cpu_milli
        assert left.memory_mib - way.memory_mib == need.memory_mib
        assert min((*way.gpus_milli, way.cpu_milli, way.memory_mib)) >= 0
        assert list(way.gpus_milli) == sorted(way.gpus_milli, reverse=True)
