"""Pods arrive until they have asked for so much, in an order of the seed, and none is placed beyond what there is."""

from __future__ import annotations

from collections import Counter

import pytest

from app.core.ranking import RankerName
from app.errors import InvalidInput
from app.simulator.placing import PlacementWorkload, arrivals, generate_workload, play
from tests.core.ranking.makers import node, pod

_SMALL = PlacementWorkload("small", {"a": node((1000, 1000)), "b": node((1000, 1000))}, (pod(1), pod(2), pod(0)))


@pytest.mark.parametrize("asked", [0.2, 0.5, 1.0, 1.3, 3.0])
def test_pods_ask_for_as_much_as_is_said_and_hardly_more(asked: float) -> None:
    pods = arrivals(_SMALL, asked, 1)
    milli = sum(one.taken_milli for one in pods)
    assert asked * 4_000 <= milli < asked * 4_000 + 2_000


def test_the_same_seed_gives_the_same_order_and_another_one_another() -> None:
    workload = generate_workload(20, 1)
    assert arrivals(workload, 1.3, 5) == arrivals(workload, 1.3, 5) != arrivals(workload, 1.3, 6)


def test_pods_are_the_workload_s_own_with_some_again() -> None:
    workload = generate_workload(20, 1)
    asked = sum(one.taken_milli for one in workload.pods) / workload.gpu_milli
    more = Counter(arrivals(workload, asked + 0.3, 1))
    assert Counter(workload.pods) <= more
    assert Counter(arrivals(workload, asked - 0.3, 1)) < Counter(workload.pods)


def test_without_a_pod_that_asks_for_a_gpu_nothing_can_be_asked_for() -> None:
    with pytest.raises(InvalidInput, match="give a workload with some that do"):
        arrivals(PlacementWorkload("none", _SMALL.nodes, (pod(0),)), 1.0, 1)


def test_a_pod_that_fits_nowhere_is_passed_over_and_the_next_is_placed() -> None:
    filled = play(_SMALL, RankerName.OURS, [pod(1), pod(1), pod(4), pod(2), pod(1)], [0.5, 2.0])
    assert filled.allocated == {0.5: 0.5, 2.0: 1.0}
    assert (filled.passed_over, filled.decisions) == (1, 4), "the last point is reached with the fourth pod"


def test_a_point_that_is_never_reached_has_what_the_end_came_to() -> None:
    assert play(_SMALL, RankerName.OURS, [pod(1)], [0.1, 0.9]).allocated == {0.1: 0.25, 0.9: 0.25}
    assert play(_SMALL, RankerName.OURS, [], [1.0]).allocated == {1.0: 0.0}


@pytest.mark.parametrize("name", RankerName)
def test_no_ranker_gives_out_more_than_there_is_or_was_asked_for(name: RankerName) -> None:
    workload = generate_workload(14, 2)
    filled = play(workload, name, arrivals(workload, 1.3, 3), (0.5, 1.0, 1.3))
    values = [filled.allocated[point] for point in (0.5, 1.0, 1.3)]
    assert values == sorted(values)
    assert 0.45 < values[0] < 0.55
    assert values[-1] <= 1.0


def test_what_knows_the_pods_fills_more_than_what_takes_the_first_that_fits() -> None:
    workload = generate_workload(70, 1)
    pods = arrivals(workload, 1.3, 1)
    found = {name: play(workload, name, pods, [1.0]).allocated[1.0] for name in RankerName}
    assert found[RankerName.OURS] > found[RankerName.FIRST_FIT]
    assert found[RankerName.OURS] > found[RankerName.BEST_FIT]
