"""Whom to end: feasible first, exact for one part, near the best for gangs; where the paper's rule goes wrong."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.eviction import (
    EvictionRule,
    GrowingCost,
    GuaranteedNeed,
    NodeRoom,
    NoVictims,
    Shrink,
    SpotJob,
    Victims,
    choose_victims,
)
from tests.core.eviction.makers import SECOND_US, cheapest_ending, fits, room, spot, worlds

NOW_MS = 20
rules = st.sampled_from(list(EvictionRule))
needs = st.builds(GuaranteedNeed, st.just("g"), st.tuples(st.sampled_from([1, 2, 4, 8])), st.integers(1, 3))
World = tuple[list[NodeRoom], list[SpotJob]]


def _chosen(need: GuaranteedNeed, world: World, rule: EvictionRule) -> Victims | NoVictims:
    draws = {job.job_id: Random(job.job_id).random() for job in world[1]}
    return choose_victims(need, world[0], world[1], rule, NOW_MS, draws)


@settings(max_examples=60, deadline=None)
@given(needs, worlds(), rules)
def test_whoever_ends_makes_it_fit(need: GuaranteedNeed, world: World, rule: EvictionRule) -> None:
    """Safety, under every rule: after the chosen jobs all parts fit on the named places; nobody ends within the minimum
    run time, and nobody at all where the job fits as it is."""
    chosen = _chosen(need, world, rule)
    if isinstance(chosen, NoVictims):
        return
    jobs = {job.job_id: job for job in world[1]}
    ended = [jobs[job_id] for job_id in chosen.ended]
    assert fits(need, world[0], ended)
    assert all(job.protected_until_ms <= NOW_MS for job in ended)
    assert sum(chosen.places.values()) == need.parts
    for node_id, parts in chosen.places.items():
        alone = [one for one in world[0] if one.node_id == node_id]
        assert fits(GuaranteedNeed("g", need.part, parts), alone, ended)
    assert not (ended and fits(need, world[0], []))


@settings(max_examples=60, deadline=None)
@given(needs, worlds())
def test_whatever_can_be_made_to_fit_is(need: GuaranteedNeed, world: World) -> None:
    """Liveness of ours: victims are found exactly where ending everybody who may be ended would be enough."""
    able = [job for job in world[1] if job.protected_until_ms <= NOW_MS]
    assert isinstance(_chosen(need, world, EvictionRule.LOST_WORK), Victims) == fits(need, world[0], able)


@settings(max_examples=60, deadline=None)
@given(needs, worlds())
def test_one_part_is_exact_and_no_victim_is_needless(need: GuaranteedNeed, world: World) -> None:
    """For one part the cost is that of trying every set of jobs; for gangs it is never below, and without any one of
    the victims the job would not fit."""
    chosen = _chosen(need, world, EvictionRule.LOST_WORK)
    if isinstance(chosen, NoVictims):
        return
    able = [job for job in world[1] if job.protected_until_ms <= NOW_MS]
    best = cheapest_ending(need, world[0], able, NOW_MS)
    assert best is not None
    assert chosen.cost_gpu_us >= best
    if need.parts == 1 and all(len(job.holds) == 1 for job in able):
        assert chosen.cost_gpu_us == best
    ended = [job for job in able if job.job_id in chosen.ended]
    for job in ended:
        assert not fits(need, world[0], [one for one in ended if one is not job])


def test_nobody_ends_for_a_job_that_would_not_fit() -> None:
    """Eleven jobs on eleven nodes of one GPU each, and a part that needs two: no eviction, with the reason in words."""
    jobs = [spot(f"j{number}", 1, node=f"n{number}") for number in range(11)]
    rooms = [room(f"n{number}") for number in range(11)]
    for rule in EvictionRule:
        chosen = _chosen(GuaranteedNeed("g", (2,)), (rooms, jobs), rule)
        assert chosen == NoVictims(("0 of 1 parts of 2 would fit if every spot job ended",))


def test_the_literal_rule_forgets_what_is_idle() -> None:
    """Four GPUs idle, two jobs of two: for six GPUs, the printed prefix finds too few; ours ends one. For four more
    that are idle anyway it would end both."""
    world = [room("n1", 4)], [spot("a", 2, 5), spot("b", 2, 9)]
    assert isinstance(_chosen(GuaranteedNeed("g", (6,)), world, EvictionRule.LITERAL), NoVictims)
    ours = _chosen(GuaranteedNeed("g", (6,)), world, EvictionRule.LOST_WORK)
    assert isinstance(ours, Victims)
    assert ours.ended == ("a",)


def test_the_literal_prefix_has_needless_victims() -> None:
    """By rising cost 1, 1 and 4 GPUs make the prefix for four; the job of four alone is enough, and cheaper."""
    jobs = [spot("a", 1, 10_000, saved_ms=10), spot("b", 1, 10_000, saved_ms=10), spot("c", 4, 15_000, saved_ms=15)]
    world = [room()], jobs
    literal, ours = (
        _chosen(GuaranteedNeed("g", (4,)), world, one) for one in (EvictionRule.LITERAL, EvictionRule.LOST_WORK)
    )
    assert isinstance(literal, Victims)
    assert isinstance(ours, Victims)
    assert (literal.ended, ours.ended) == (("a", "b", "c"), ("c",))
    assert ours.cost_gpu_us < literal.cost_gpu_us


def test_a_gang_that_is_ended_counts_with_all_its_nodes() -> None:
    """Its part here is small, its other part is lost as well: the job of one node is taken."""
    gang = SpotJob("gang", {"n1": (2,), "n2": (8,)}, 10, 0, 0, GrowingCost(10_000))
    alone = spot("alone", 2, 2_500, "n3")
    chosen = _chosen(
        GuaranteedNeed("g", (2,)), ([room("n1"), room("n2"), room("n3")], [gang, alone]), EvictionRule.LOST_WORK
    )
    assert isinstance(chosen, Victims)
    assert chosen.ended == ("alone",)


def test_a_gang_prefers_what_frees_several_parts_at_once() -> None:
    """Four parts of two: one job of eight at 10 is better than four of two at 3 each, which look cheaper one by one."""
    jobs = [spot("large", 8, 10, "n1"), *(spot(f"s{number}", 2, 3, "n2") for number in range(4))]
    chosen = _chosen(GuaranteedNeed("g", (2,), 4), ([room("n1"), room("n2")], jobs), EvictionRule.LOST_WORK)
    assert isinstance(chosen, Victims)
    assert chosen.ended == ("large",)


def test_elastic_jobs_shrink_first() -> None:
    """The elastic one gives four of its eight GPUs and goes on, though ending the other would cost less."""
    elastic = SpotJob("e", {"n1": (8,)}, 8, 0, 0, GrowingCost(5), shrinks=(Shrink({"n1": (4,)}, GrowingCost(99)),))
    world = [room("n1"), room("n2")], [elastic, spot("other", 8, 1, "n2")]
    chosen = _chosen(GuaranteedNeed("g", (4,)), world, EvictionRule.LOST_WORK)
    assert isinstance(chosen, Victims)
    assert (chosen.ended, list(chosen.shrunk), chosen.places) == ((), ["e"], {"n1": 1})


def test_a_job_that_has_shrunk_may_still_have_to_end() -> None:
    """Two parts of four on its node: first it shrinks, then that is not enough, and it ends: once, not twice."""
    elastic = SpotJob("e", {"n1": (8,)}, 8, 0, 0, GrowingCost(5), shrinks=(Shrink({"n1": (4,)}, GrowingCost(99)),))
    chosen = _chosen(GuaranteedNeed("g", (4,), 2), ([room("n1")], [elastic]), EvictionRule.LOST_WORK)
    assert isinstance(chosen, Victims)
    assert (chosen.ended, dict(chosen.shrunk), chosen.places) == (("e",), {}, {"n1": 2})


def test_within_the_minimum_run_time_nobody_ends() -> None:
    """At 999 ms of 1,000 it is spared, and the words say so; a millisecond later it ends."""
    need, world = GuaranteedNeed("g", (1,)), ([room()], [spot("young", 1, protected_until_ms=1_000)])
    early = choose_victims(need, *world, EvictionRule.LOST_WORK, 999)
    assert isinstance(early, NoVictims)
    assert early.words[0].endswith("; 1 spot jobs are within their minimum run time")
    assert isinstance(choose_victims(need, *world, EvictionRule.LOST_WORK, 1_000), Victims)


def test_newest_and_random_follow_their_orders() -> None:
    """The latest start; the lowest number drawn. A rule of chance without draws is refused."""
    jobs = [spot("old", 4, started_ms=1), spot("new", 4, started_ms=9), spot("lucky", 4, node="n2", started_ms=5)]
    world, need = ([room("n1"), room("n2")], jobs), GuaranteedNeed("g", (4,))
    newest = choose_victims(need, *world, EvictionRule.NEWEST, NOW_MS)
    drawn = choose_victims(need, *world, EvictionRule.RANDOM, NOW_MS, {"old": 0.5, "new": 0.9, "lucky": 0.7})
    assert isinstance(newest, Victims)
    assert isinstance(drawn, Victims)
    assert (newest.ended, drawn.ended) == (("new",), ("old",))
    with pytest.raises(KeyError):
        choose_victims(need, *world, EvictionRule.RANDOM, NOW_MS)


def test_the_words_have_the_inequality_and_the_runner_up() -> None:
    """What explains the decision: why it fits, what each victim costs, and which node comes next."""
    jobs = [spot("a", 4, 120 * SECOND_US, "n1"), spot("b", 4, 240 * SECOND_US, "n2")]
    chosen = choose_victims(GuaranteedNeed("g", (6,)), [room("n1", 3), room("n2", 3)], jobs, EvictionRule.LOST_WORK, 0)
    assert isinstance(chosen, Victims)
    assert chosen.words == (
        "n1: 3 free and 4 freed are at least the 6 needed",
        "a ends for 120 GPU-seconds",
        "by the rule lost-work, n1 at 120 GPU-seconds comes before n2 at 240 GPU-seconds",
    )


@pytest.mark.parametrize(("part", "parts"), [((0,), 1), ((-1,), 1), ((1,), 0), ((1,), -3)])
def test_needs_of_nothing_are_refused(part: tuple[int], parts: int) -> None:
    """No GPUs, fewer than none, no parts."""
    with pytest.raises(ValueError, match=r"no job|no need"):
        choose_victims(GuaranteedNeed("g", part, parts), [room("n1", 8)], [], EvictionRule.LOST_WORK, 0)


def test_an_empty_pool_has_no_victims() -> None:
    """No nodes, no jobs; and a job on a node that may not be used ends for nobody."""
    need = GuaranteedNeed("g", (1,))
    assert isinstance(choose_victims(need, [], [], EvictionRule.LOST_WORK, 0), NoVictims)
    assert isinstance(choose_victims(need, [], [spot("a", 8)], EvictionRule.LOST_WORK, 0), NoVictims)


def test_several_kinds_of_gpu_and_memory() -> None:
    """The kind that is needed is what counts: the cheap job holds another kind, or too little memory."""
    cheap = SpotJob("cheap", {"n1": (0, 4, 100)}, 4, 0, 0, GrowingCost(1))
    right = SpotJob("right", {"n1": (4, 0, 60)}, 4, 0, 0, GrowingCost(50))
    rooms = [NodeRoom("n1", (0, 0, 0))]
    only = choose_victims(GuaranteedNeed("g", (2, 0, 50)), rooms, [cheap, right], EvictionRule.LOST_WORK, 0)
    both = choose_victims(GuaranteedNeed("g", (2, 0, 80)), rooms, [cheap, right], EvictionRule.LOST_WORK, 0)
    assert isinstance(only, Victims)
    assert isinstance(both, Victims)
    assert (only.ended, both.ended) == (("right",), ("cheap", "right"))
