"""What rankers weigh: fragments, GPUs that lack the rest, and kinds that are short."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.ranking import NodeLeft, PodNeed
from app.core.ranking.fragments import Fragments
from app.core.ranking.scarcity import MOST, scarcity_of
from app.core.ranking.stranding import Stranding
from tests.core.ranking.makers import node, nodes, pod, pods


def _fragments_as_written(left: NodeLeft, expected: list[PodNeed]) -> float:
    """Section 3 of the paper, pod by pod."""
    asking = [one for one in expected if one.gpus]
    found = 0.0
    for one in asking:
        there = [milli for milli in left.gpus_milli if milli >= one.gpu_milli]
        fits = len(there) >= one.gpus and left.cpu_milli >= one.cpu_milli and (not one.kinds or left.kind in one.kinds)
        found += left.free_milli - (sum(there) if fits else 0)
    return found / len(asking)


@settings(max_examples=200, deadline=None)
@given(nodes, st.lists(st.integers(0, 1000), max_size=8), st.lists(pods, min_size=1, max_size=12))
def test_fragments_are_those_of_the_paper(left: NodeLeft, free: list[int], expected: list[PodNeed]) -> None:
    left = left._replace(gpus_milli=tuple(sorted(free, reverse=True)))
    if any(one.gpus for one in expected):
        assert Fragments(expected).of(left) == pytest.approx(_fragments_as_written(left, expected), abs=1e-6)


def test_a_gpu_of_which_half_is_free_is_a_fragment_for_those_that_need_it_whole() -> None:
    fragments = Fragments([pod(1), pod(1, 500), pod(0)])
    assert fragments.of(node((1000, 500))) == pytest.approx(250)
    assert fragments.of(node((1000, 500), cpus=7)) == pytest.approx(1500), "no pod finds CPUs"
    assert fragments.of(node((0, 0))) == 0


def test_without_expected_pods_nothing_is_stranded_and_all_is_a_fragment() -> None:
    assert Fragments([pod(0)]).of(node((1000,))) == 1000
    assert Stranding([]).of(node((1000,) * 8)) == pytest.approx(0, abs=1)


def test_gpus_are_stranded_once_the_cpus_for_them_are_gone() -> None:
    stranding = Stranding([pod(1, cpus=12), pod(1, cpus=12)])
    assert stranding.of(node(cpus=100)) == pytest.approx(0, abs=1)
    assert stranding.of(node(cpus=30)) == pytest.approx(6_000, abs=1)
    assert stranding.of(node(cpus=0)) == pytest.approx(8_000, abs=1)
    assert stranding.of(node(memory_gib=70)) == pytest.approx(6_000, abs=1), "memory counts as well"


@given(nodes, st.lists(pods, max_size=6), st.integers(0, 200))
def test_more_cpus_never_strand_more(left: NodeLeft, expected: list[PodNeed], cpus: int) -> None:
    stranding = Stranding(expected)
    more = left._replace(cpu_milli=left.cpu_milli + cpus * 1_000)
    assert stranding.of(more) <= stranding.of(left) + 1e-6
    assert 0 <= stranding.of(left) <= left.free_milli + 1e-6


def test_a_kind_is_short_by_what_pods_insist_on() -> None:
    expected = [pod(kinds=("A",))] * 3 + [pod()] * 7
    assert scarcity_of(expected, {"A": 30, "B": 70}) == pytest.approx({"A": 1.0, "B": 0.0})
    assert scarcity_of(expected, {"A": 60, "B": 40}) == pytest.approx({"A": 0.5, "B": 0.0})


def test_pods_that_name_several_kinds_fill_the_emptier_first() -> None:
    expected = [pod(kinds=("A",))] * 2 + [pod(kinds=("B", "A"))] * 2 + [pod()] * 6
    assert scarcity_of(expected, {"A": 20, "B": 20, "C": 60}) == pytest.approx({"A": 1.0, "B": 1.0, "C": 0.0})
    assert scarcity_of(expected, {"A": 20, "B": 80}) == pytest.approx({"A": 1.0, "B": 0.25})


def test_scarcity_is_bounded_and_kinds_that_nobody_has_are_left_out() -> None:
    assert scarcity_of([pod(kinds=("A",))], {"A": 1, "B": 1_000_000, "C": 0}) == pytest.approx({"A": MOST, "B": 0.0})
    assert scarcity_of([pod(kinds=("none",))], {"A": 4}) == {"A": 0.0}
    assert scarcity_of([], {"A": 4}) == {"A": 0.0}
    assert scarcity_of([pod(kinds=("A",))], {}) == {}


@given(st.lists(pods, max_size=20), st.dictionaries(st.sampled_from("ABC"), st.integers(0, 10**6), max_size=3))
def test_scarcity_depends_on_no_order(expected: list[PodNeed], gpus_by_kind: dict[str, int]) -> None:
    found = scarcity_of(expected, gpus_by_kind)
    again = scarcity_of(expected[::-1], dict(reversed(gpus_by_kind.items())))
    assert found == again
    assert all(0 <= one <= MOST and math.isfinite(one) for one in found.values())
