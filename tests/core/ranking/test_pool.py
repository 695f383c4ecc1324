"""A pool gives each pod the place that its ranker likes best, and never more than there is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.ranking import (
    NodeLeft,
    PodNeed,
    PodPlace,
    RankedPool,
    RankerName,
    Ranking,
    ranking_of,
    ways_to_place,
)
from tests.core.ranking.makers import node, nodes, pod, pods

_clusters = st.lists(nodes, min_size=1, max_size=6).map(
    lambda made: {f"n{number}": one for number, one in enumerate(made)}
)
_names = st.sampled_from(RankerName)
_streams = st.lists(pods, min_size=1, max_size=40)


def _pool(name: RankerName, cluster: dict[str, NodeLeft], expected: list[PodNeed]) -> RankedPool:
    return RankedPool(cluster, ranking_of(name, cluster.values(), expected))


def _play(pool: RankedPool, stream: list[PodNeed]) -> list[PodPlace | None]:
    found = []
    for need in stream:
        place = pool.find(need)
        if place is not None:
            pool.take(place)
        found.append(place)
    return found


def _best_of_all(rank: Ranking, left: dict[str, NodeLeft], need: PodNeed) -> str | None:
    """Every node and every way, one by one."""
    ways = [(rank(left[name], way), name) for name in left for way in ways_to_place(left[name], need)]
    return min(ways)[1] if ways else None


@settings(max_examples=150, deadline=None)
@given(_names, _clusters, _streams)
def test_no_node_gives_more_than_it_has(name: RankerName, cluster: dict[str, NodeLeft], stream: list[PodNeed]) -> None:
    pool = _pool(name, cluster, stream)
    places = _play(pool, stream)
    for node_id, left in pool.left().items():
        given_out = [need for need, place in zip(stream, places, strict=True) if place and place.node_id == node_id]
        whole = cluster[node_id]
        assert left.free_milli == whole.free_milli - sum(need.taken_milli for need in given_out)
        assert left.cpu_milli == whole.cpu_milli - sum(need.cpu_milli for need in given_out)
        assert left.memory_mib == whole.memory_mib - sum(need.memory_mib for need in given_out)
        assert min((*left.gpus_milli, left.cpu_milli, left.memory_mib)) >= 0
        assert all(not need.kinds or whole.kind in need.kinds for need in given_out)


@settings(max_examples=150, deadline=None)
@given(_names, _clusters, _streams)
def test_the_place_is_the_best_of_all_ways_at_every_step(
    name: RankerName, cluster: dict[str, NodeLeft], stream: list[PodNeed]
) -> None:
    rank = ranking_of(name, cluster.values(), stream)
    pool = RankedPool(cluster, rank)
    for need in stream:
        left = pool.left()
        place = pool.find(need)
        assert (place and place.node_id) == _best_of_all(rank, left, need)
        assert pool.find(need) == place, "asking changes nothing"
        assert pool.left() == left
        if place is not None:
            pool.take(place)


@settings(max_examples=80, deadline=None)
@given(_names, _clusters, _streams)
def test_the_order_in_which_nodes_and_expected_pods_are_named_is_nothing(
    name: RankerName, cluster: dict[str, NodeLeft], stream: list[PodNeed]
) -> None:
    turned = dict(reversed(cluster.items()))
    found = _play(_pool(name, cluster, stream), stream)
    assert _play(_pool(name, turned, stream), stream) == found
    fresh = RankedPool(turned, ranking_of(name, turned.values(), stream[::-1]))
    assert [place and place.node_id for place in _play(fresh, stream)] == [one and one.node_id for one in found]


def test_after_many_changes_the_pool_still_knows_the_best() -> None:
    cluster = {f"n{number}": node(cpus=500) for number in range(2)}
    stream = [pod(1, 100, cpus=1, memory_gib=1)] * 80 + [pod(0, cpus=2, memory_gib=1)] * 60
    rank = ranking_of(RankerName.BEST_FIT, cluster.values(), stream)
    pool = RankedPool(cluster, rank)
    for need in stream:
        place = pool.find(need)
        assert place is not None
        assert place.node_id == _best_of_all(rank, pool.left(), need)
        pool.take(place)


def test_first_fit_takes_the_first_by_name_and_the_tightest_gpu_on_it() -> None:
    pool = _pool(RankerName.FIRST_FIT, {"b": node((300,)), "a": node((1000, 500))}, [])
    assert (place := pool.find(pod(1, 300))) is not None
    assert place.node_id == "a"
    assert place.after.gpus_milli == (1000, 200)


def test_best_fit_and_idle_gpus_fill_the_fuller_node() -> None:
    cluster = {"a": node(), "b": node((1000, 0, 0, 0, 0, 0, 0, 0), cpus=20)}
    for name in (RankerName.BEST_FIT, RankerName.IDLE_GPUS):
        assert (place := _pool(name, cluster, []).find(pod())) is not None
        assert place.node_id == "b"


def test_the_gradient_keeps_whole_gpus_whole() -> None:
    cluster = {"a": node((1000,), cpus=8), "b": node((500,), cpus=8)}
    place = _pool(RankerName.GRADIENT, cluster, [pod(1), pod(1, 500)]).find(pod(1, 500, cpus=4))
    assert place is not None
    assert place.node_id == "b"


def test_ours_keeps_cpus_for_gpus_that_will_need_them() -> None:
    """Both nodes fit the next pod, so that the gradient sees no difference and takes the first."""
    cluster = {"a": node(cpus=96), "b": node((1000,) * 2, cpus=96)}
    expected = [pod(cpus=12)] * 9 + [pod(cpus=24)]
    heavy = pod(cpus=24)
    found = {name: _pool(name, cluster, expected).find(heavy) for name in (RankerName.GRADIENT, RankerName.OURS)}
    assert {name: place and place.node_id for name, place in found.items()} == {
        RankerName.GRADIENT: "a",
        RankerName.OURS: "b",
    }


def test_ours_leaves_a_kind_that_others_insist_on() -> None:
    cluster = {"a": node(kind="A"), "b": node(kind="B")}
    expected = [pod(kinds=("A",))] * 9 + [pod()]
    place = _pool(RankerName.OURS, cluster, expected).find(pod())
    assert place is not None
    assert place.node_id == "b"


@pytest.mark.parametrize("name", RankerName)
def test_a_pod_that_fits_nowhere_has_no_place(name: RankerName) -> None:
    assert _pool(name, {}, []).find(pod()) is None
    pool = _pool(name, {"a": node()}, [pod()])
    assert pool.find(pod(9)) is None
    assert pool.find(pod(1, cpus=1 << 40)) is None
    assert pool.find(pod(kinds=("none",))) is None


def test_a_pod_that_is_no_need_is_refused() -> None:
    with pytest.raises(ValueError, match="is no need"):
        _pool(RankerName.OURS, {"a": node()}, []).find(PodNeed(0, 0, 3, 500))
