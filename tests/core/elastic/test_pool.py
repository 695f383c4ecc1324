"""Who holds how many GPUs: allocation, partial preemption, and what must never happen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.elastic.pool import ElasticJob, ElasticPool
from app.core.elastic.profile import SpeedProfile
from app.core.elastic.queues import PriorityQueue
from app.core.elastic.rules import LITERAL, MENDED, ElasticRules

Q1, Q2, Q3 = PriorityQueue


def known(request: int, *speeds: float, elastic: bool = True) -> SpeedProfile:
    """A profile that has measured 1, 2, ... GPUs."""
    profile = SpeedProfile(request, elastic=elastic)
    for gpus, speed in enumerate(speeds, start=1):
        profile = profile.with_batches(gpus, (1 / speed,) * 5)
    return profile


def linear(request: int) -> SpeedProfile:
    return known(request, *(float(gpus) for gpus in range(1, 2 * request + 1)))


def job(name: str, queue: PriorityQueue, profile: SpeedProfile, **more: float) -> ElasticJob:
    return ElasticJob(name, queue, profile, int(more.pop("service_class", 0)), **more)


def pool_of(capacity: int, *jobs: ElasticJob, rules: ElasticRules = MENDED) -> ElasticPool:
    pool = ElasticPool(capacity, rules)
    for one in jobs:
        pool.add(one)
        pool.settle()
    return pool


def sizes(pool: ElasticPool, *names: str) -> tuple[int, ...]:
    return tuple(pool.holds(name) for name in names)


@pytest.mark.parametrize("rules", [MENDED, LITERAL], ids=lambda one: one.name)
def test_an_interactive_job_gets_its_whole_request_from_batch_jobs(rules: ElasticRules) -> None:
    """A batch job that has grown gives parts, and goes on."""
    pool = pool_of(8, job("batch", Q2, linear(4)), job("people", Q1, linear(5)), rules=rules)
    assert sizes(pool, "batch", "people") == (3, 5)


@pytest.mark.parametrize("rules", [MENDED, LITERAL], ids=lambda one: one.name)
def test_an_interactive_job_is_never_preempted(rules: ElasticRules) -> None:
    """A second one gets what is left, and the rest when the first has ended."""
    pool = pool_of(8, job("first", Q1, linear(6)), job("second", Q1, linear(6)), rules=rules)
    assert sizes(pool, "first", "second") == (6, 2)
    pool.remove("first")
    pool.settle()
    assert pool.holds("second") == 6


def test_the_last_queue_gives_way_first() -> None:
    pool = pool_of(8, job("batch", Q2, linear(2)), job("long", Q3, linear(2)), job("people", Q1, linear(3)))
    assert pool.holds("people") == 3
    assert pool.holds("long") < pool.holds("batch")


def test_among_linear_jobs_the_largest_holder_gives_way() -> None:
    """The paper's own order among equals, for preemption."""
    pool = pool_of(12, job("large", Q2, linear(4)), job("small", Q2, linear(2)))
    before = sizes(pool, "large", "small")
    assert before == (8, 4)
    pool.add(job("people", Q1, linear(2)))
    pool.settle()
    assert sizes(pool, "large", "small", "people") == (6, 4, 2)


def test_a_job_that_gains_little_gives_way_where_the_literal_rule_cannot_see_it() -> None:
    """Points 1 and 2: a job that gains 5 % for each GPU has the S of one that gains 100 %."""
    flat = known(2, 1.0, 1.05, 1.10, 1.15)
    steep = known(2, 1.0, 2.0, 2.99, 3.97)
    shares = {}
    for rules in (MENDED, LITERAL):
        pool = pool_of(8, job("flat", Q2, flat), job("steep", Q2, steep), job("people", Q1, linear(2)), rules=rules)
        shares[rules.name] = sizes(pool, "flat", "steep")
    assert shares["mended"] == (2, 4)
    assert shares["literal"] == (4, 2)


def test_the_loss_decides_and_not_the_next_gain() -> None:
    """Point 2: a job at its knee would lose much and gain nothing; the literal rule takes it for the cheapest."""
    knee = known(2, 1.0, 2.0, 2.5)
    steady = known(2, 1.0, 1.9, 2.8, 3.7)
    for rules, expected in ((MENDED, (2, 1)), (LITERAL, (1, 2))):
        pool = ElasticPool(4, rules)
        pool.add(job("knee", Q2, knee))
        pool.add(job("steady", Q2, steady, remaining_s=0.0) if rules is MENDED else job("steady", Q2, steady))
        pool.settle()
        pool.add(job("people", Q1, linear(1)))
        pool.settle()
        assert pool.holds("people") == 1
        assert sum(sizes(pool, "knee", "steady")) == 3
        assert sizes(pool, "knee", "steady") == expected


def test_of_equals_the_least_served_goes_first_and_may_preempt() -> None:
    """Point 3; the literal rule is first come first served."""
    served = job("served", Q2, linear(1), service_class=3)
    for rules, expected in ((MENDED, (0, 1)), (LITERAL, (1, 0))):
        pool = pool_of(1, served, job("new", Q2, linear(1)), rules=rules)
        assert sizes(pool, "served", "new") == expected


def test_nobody_grows_beyond_twice_its_request_and_the_end_is_reached() -> None:
    """Point 6: GPUs may be left over, and there may be nobody left to preempt."""
    for rules in (MENDED, LITERAL):
        pool = pool_of(100, job("batch", Q2, linear(3)), job("exact", Q2, SpeedProfile(5, elastic=False)), rules=rules)
        assert sizes(pool, "batch", "exact") == (6, 5)
        assert pool.free == 89
        pool = pool_of(4, job("people", Q1, linear(9)), rules=rules)
        assert pool.holds("people") == 4


def test_an_inelastic_job_has_all_or_nothing() -> None:
    """It is no victim of a part; where all of it is needed, it waits."""
    pool = pool_of(4, job("exact", Q3, SpeedProfile(4, elastic=False)), job("people", Q1, linear(1)))
    assert sizes(pool, "exact", "people") == (0, 1)
    pool.remove("people")
    assert [(one.job_id, one.before, one.after) for one in pool.settle()] == [("exact", 0, 4)]


def test_nothing_is_taken_for_a_job_that_would_not_fit_all_the_same() -> None:
    pool = pool_of(
        4, job("long", Q3, linear(1)), job("people", Q1, linear(2)), job("exact", Q2, SpeedProfile(4, elastic=False))
    )
    assert sizes(pool, "people", "exact") == (2, 0)
    assert pool.holds("long") == 2


def test_a_resize_has_to_be_worth_its_cost() -> None:
    """Point 8: 100 s more at twice the speed saves 50 s, which pays for a pause of 10 s and not for one of 60 s."""
    for cost_s, expected in ((0.0, 2), (10.0, 2), (60.0, 1)):
        pool = pool_of(2, job("batch", Q2, linear(1), remaining_s=100.0, resize_cost_s=cost_s))
        assert pool.holds("batch") == expected
    literal = pool_of(2, job("batch", Q2, linear(1), remaining_s=100.0, resize_cost_s=60.0), rules=LITERAL)
    assert literal.holds("batch") == 2


def test_sizes_follow_the_logical_shards() -> None:
    """Point 9: with 4 shards a third process brings nothing, and is not given."""
    pool = pool_of(3, job("batch", Q2, SpeedProfile(4, shards=4)))
    assert (pool.holds("batch"), pool.free) == (2, 1)


def test_gangs_come_and_go_whole() -> None:
    pool = pool_of(7, job("gang", Q2, SpeedProfile(4, unit=2)))
    assert pool.holds("gang") == 6
    pool.add(job("people", Q1, linear(2)))
    pool.settle()
    assert sizes(pool, "gang", "people") == (4, 2)


def test_wrong_calls_are_told() -> None:
    pool = pool_of(1, job("one", Q2, linear(1)))
    with pytest.raises(ValueError, match="already"):
        pool.add(job("one", Q2, linear(1)))
    with pytest.raises(KeyError):
        pool.remove("other")
    with pytest.raises(ValueError, match="-1"):
        ElasticPool(-1, MENDED)
    assert pool_of(0, job("one", Q1, linear(1))).holds("one") == 0


profiles = st.builds(
    lambda replicas, unit, shards, elastic: SpeedProfile(replicas * unit, unit, shards, elastic),
    st.integers(1, 6),
    st.sampled_from((1, 1, 2)),
    st.sampled_from((None, 1, 4, 12)),
    st.booleans(),
)
Drawn = tuple[PriorityQueue, SpeedProfile, int]
jobs_drawn = st.tuples(st.sampled_from(list(PriorityQueue)), profiles, st.integers(0, 4))
steps = st.lists(st.one_of(jobs_drawn, st.integers(0, 30)), min_size=1, max_size=16)


@settings(max_examples=60)
@given(st.integers(0, 20), steps, st.sampled_from((MENDED, LITERAL)))
def test_whatever_comes_and_goes(capacity: int, script: list[Drawn | int], rules: ElasticRules) -> None:
    """Safety: no GPU is held twice, sizes are those of the job, interactive jobs lose nothing, exact ones are exact.
    Liveness: no GPU is idle while a waiting job could begin on it; and when all others have gone, each has its turn."""
    pool, here = ElasticPool(capacity, rules), dict[int, ElasticJob]()
    for number, step in enumerate(script):
        before = {one: pool.holds(one) for one in here}
        if isinstance(step, int):
            gone = sorted(here)[step % len(here)] if here else None
            if gone is not None:
                pool.remove(gone)
                del here[gone], before[gone]
        else:
            queue, profile, served = step
            here[number] = ElasticJob(number, queue, profile, served)
            pool.add(here[number])
        changes = pool.settle()
        held = {one: pool.holds(one) for one in here}
        assert sum(held.values()) + pool.free == capacity
        assert pool.free >= 0
        assert {one.job_id: one.after for one in changes}.items() <= held.items()
        for name, gpus in held.items():
            assert gpus == 0 or gpus in here[name].profile.sizes()
            if here[name].queue is Q1:
                assert gpus >= before.get(name, 0)
            assert gpus > 0 or here[name].profile.sizes()[0] > pool.free
        assert pool.settle() == []
    last = min(here, default=None)
    for other in here:
        if other != last:
            pool.remove(other)
    pool.settle()
    if last is not None:
        assert pool.holds(last) > 0 or here[last].profile.sizes()[0] > capacity
