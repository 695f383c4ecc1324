"""Placement: the index gives what the algorithm gives, node by node, and nothing is given twice."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.model.node import Tier
from app.core.placement import Cluster, ClusterNode, GpuNeed, NodeShare, Ranker, machine_of_node, machine_of_offer
from app.core.placement.sorted_keys import SortedKeys
from tests.core.placement.transcription import literal, ours
from tests.core.samples import GIB, node, offer

SIZES = (16, 24, 40, 80)
machines_ = st.lists(
    st.builds(
        ClusterNode,
        node_id=st.sampled_from([f"node_{name}" for name in "abcdefghijklmnop"]),
        memory_bytes=st.sampled_from(SIZES),
        idle=st.integers(0, 8),
        gpu_type=st.sampled_from(["A", "B"]),
        price_micros=st.integers(1, 3),
        place=st.sampled_from([None, "cloud/east", "cloud/west"]),
    ),
    max_size=16,
    unique_by=lambda machine: machine.node_id,
)
needs_ = st.builds(
    GpuNeed,
    gpus=st.integers(1, 16),
    memory_bytes=st.sampled_from((12, 16, 20, 38, 44, 70, 100)),
    gpu_type=st.sampled_from([None, None, "A"]),
)
typeless = st.lists(needs_.map(lambda need: replace(need, gpu_type=None)), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(machines_, st.lists(typeless, min_size=1, max_size=6))
def test_literal_equals_the_transcription(machines: list[ClusterNode], jobs: list[list[GpuNeed]]) -> None:
    """Job after job, on clusters of any mixture: the same plan, the same nodes in the same order, the same counts."""
    cluster = Cluster(machines, Ranker.LITERAL)
    for plans in jobs:
        now = [replace(machine, idle=cluster.idle(machine.node_id)) for machine in machines]
        expected, found = literal(now, plans), cluster.find(plans)
        assert (None if found is None else (found.need, found.shares)) == expected
        if found is not None:
            cluster.take(found.shares)


@settings(max_examples=150, deadline=None)
@given(machines_, st.lists(needs_, min_size=1, max_size=8), st.data())
def test_ours_equals_plain_sorting(machines: list[ClusterNode], needs: list[GpuNeed], data: st.DataObject) -> None:
    """The same over our order, with types, places and prices, while jobs come and go."""
    cluster = Cluster(machines, Ranker.OURS)
    held: list[tuple[NodeShare, ...]] = []
    for need in needs:
        if held and data.draw(st.booleans()):
            cluster.give(held.pop(data.draw(st.integers(0, len(held) - 1))))
        now = [replace(machine, idle=cluster.idle(machine.node_id)) for machine in machines]
        found = cluster.find([need])
        assert (None if found is None else found.shares) == ours(now, need)
        if found is not None:
            assert sum(share.gpus for share in found.shares) == need.gpus
            cluster.take(found.shares)
            held.append(found.shares)
    for shares in held:
        cluster.give(shares)
    assert {one.node_id: one.idle for one in machines} == {one.node_id: cluster.idle(one.node_id) for one in machines}


def test_the_mended_line_takes_the_exact_fit() -> None:
    """A node of exactly the memory that is asked for is the first choice; as printed it would be left out."""
    found = Cluster([ClusterNode("big", 80, 1), ClusterNode("exact", 40, 1)], Ranker.LITERAL).find([GpuNeed(1, 40)])
    assert found is not None
    assert found.shares == (NodeShare("exact", 1),)


def test_where_the_rankers_differ() -> None:
    """The fewest idle GPUs first, or the smallest memory first."""
    nodes = [ClusterNode("node_a", 80, 1), ClusterNode("node_b", 24, 4, price_micros=2), ClusterNode("node_c", 24, 4)]
    for ranker, taken in ((Ranker.LITERAL, "node_a"), (Ranker.OURS, "node_c")):
        found = Cluster(nodes, ranker).find([GpuNeed(1, 20)])
        assert found is not None
        assert found.shares == (NodeShare(taken, 1),)


def test_several_nodes_only_where_they_share_a_network() -> None:
    """Eight GPUs on two nodes of one region; never of two regions, and never of hosts that belong to strangers."""
    apart = [ClusterNode("node_a", 80, 4, place="cloud/east"), ClusterNode("node_b", 80, 4, place="cloud/west")]
    strangers = [ClusterNode("node_c", 80, 4), ClusterNode("node_d", 80, 4)]
    cluster = Cluster([*apart, *strangers], Ranker.OURS)
    assert cluster.find([GpuNeed(8, 80)]) is None
    cluster.add(ClusterNode("node_e", 80, 5, place="cloud/west"))
    found = cluster.find([GpuNeed(8, 80)])
    assert found is not None
    assert found.shares == (NodeShare("node_e", 5), NodeShare("node_b", 3))
    cluster.remove("node_e")
    found = cluster.find([GpuNeed(8, 80), GpuNeed(4, 40)])
    assert found is not None
    assert (found.need, len(found.shares)) == (GpuNeed(4, 40), 1)


def test_what_is_not_idle_cannot_be_taken() -> None:
    """A decision on an old view is refused whole: no GPU is given twice."""
    cluster = Cluster([ClusterNode("node_a", 80, 2), ClusterNode("node_b", 80, 1)], Ranker.OURS)
    found = cluster.find([GpuNeed(2, 80)])
    assert found is not None
    cluster.take(found.shares)
    with pytest.raises(ValueError, match="node_a has 0 idle GPUs, not 2"):
        cluster.take([NodeShare("node_b", 1), *found.shares])
    assert cluster.idle("node_b") == 1
    with pytest.raises(ValueError, match="cannot be added"):
        cluster.add(ClusterNode("node_a", 80, 2))


def test_nodes_and_offers_become_machines() -> None:
    """Partial nodes count with what is free; only conventional regions share a network."""
    partly = machine_of_node(node("node_a", Tier.CONVENTIONAL, gpu_count=4, free_gpus=(1, 3), region="east"))
    assert (partly.idle, partly.place) == (2, "local/east")
    host = machine_of_offer(replace(offer("host"), tier=Tier.MARKETPLACE, region="eu", gpu_count=2))
    assert (host.idle, host.place, host.memory_bytes) == (2, None, offer("host").gpu_memory_bytes)
    assert host.price_micros == offer("host").price_per_hour.micros // 2
    assert machine_of_node(node("node_b", gpu_memory_bytes=GIB)).place is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3000), unique=True, max_size=2500), st.randoms(use_true_random=False))
def test_a_shelf_is_a_sorted_set(numbers: list[int], chance: Random) -> None:
    """Whatever comes and goes in whatever order, first and last are those of a sorted list."""
    shelf, keys = SortedKeys(), [(number % 3, f"{number:05d}") for number in numbers]
    for key in keys:
        shelf.add(key)
    left = set(keys)
    chance.shuffle(keys)
    for key in keys[::2]:
        shelf.remove(key)
        left.discard(key)
        assert bool(shelf) == bool(left)
        if left and len(left) % 50 == 0:
            assert (shelf.first, shelf.last) == (min(left), max(left))
    with pytest.raises(KeyError):
        shelf.remove((9, "nobody"))


def test_a_shelf_of_many_blocks() -> None:
    """Five thousand keys in, from both ends, and out again."""
    shelf, keys = SortedKeys(), [(0, f"{number:05d}") for number in range(5000)]
    for low, high in zip(keys[:2500], reversed(keys[2500:]), strict=True):
        shelf.add(high)
        shelf.add(low)
    for key in keys:
        assert (shelf.first, shelf.last) == (key, keys[-1])
        shelf.remove(key)
    assert not shelf
