"""A job that asks for a range of GPUs begins on the largest piece of a pool that nobody else waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.invariants import plan_breaches
from app.core.model.job import Caps, JobState, Resources, StartRule
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.plan import Start
from app.core.model.snapshot import JobView
from app.core.policies import policy_names
from tests.core.plans import ask
from tests.core.samples import OFFERS, job, offer
from tests.core.test_allpass import ALL, CALM, NOW_MS, at_now, decide
from tests.core.test_own_nodes import host, own


def asks(name: str, least: int = 1, most: int = 8, **changes: Any) -> JobView:
    values = {"start": StartRule.NOW, "submitted_ms": NOW_MS, "resources": Resources(least, most)}
    return job(f"job_{name}", **(values | changes))


def begins(jobs: list[JobView], offers: list[Any], policy: str = "allpass") -> dict[str, int]:
    """GPUs by job, of those that begin on the pool. Whatever is decided breaks no law."""
    seen = at_now(jobs=jobs, offers=[*OFFERS, *offers])
    plan, _ = ask(policy, seen, ALL, CALM)
    assert plan_breaches(seen, plan, ALL) == []
    return {
        one.job_id.removeprefix("job_"): one.offer.gpu_count
        for one in plan.actions
        if isinstance(one, Start) and one.offer.tier is Tier.OWN
    }


@pytest.mark.parametrize(("free", "begun"), [(8, 8), (5, 4), (3, 2), (1, 1)])
def test_it_begins_on_the_largest_piece_that_is_free(free: int, begun: int) -> None:
    """`host` offers one, two, four and eight; it never waits for more than it needs."""
    assert begins([asks("a")], host(free)) == {"a": begun}


def test_it_says_what_it_asked_for_and_what_it_got() -> None:
    (start,) = decide(at_now(jobs=[asks("a", 2, 4)], offers=[*OFFERS, *host(8)])).actions
    assert "of the 2 to 4 GPUs that it asks for it begins on 4: the largest piece that is free" in start.reason


def test_it_never_begins_on_less_or_more_than_it_asks_for() -> None:
    assert begins([asks("a", 1, 4)], host(8)) == {"a": 4}
    assert begins([asks("a", 4, 8)], host(3)) == {}
    assert begins([asks("a", 1, 1)], host(8)) == {"a": 1}


def test_the_host_with_the_larger_piece_is_taken() -> None:
    """Though the other one has fewer left, and would be filled first."""
    assert begins([asks("a")], [*host(2, "x"), *host(8, "y")]) == {"a": 8}
    assert begins([asks("a", 1, 2)], [*host(2, "x"), *host(8, "y")]) == {"a": 2}


def test_who_comes_with_it_is_placed_first_and_ranges_share_what_is_left() -> None:
    """Whoever is first in the line: each has the least it asks for before anybody has more."""
    jobs = [asks("a"), asks("b"), asks("c", 4, 4)]
    assert begins(jobs, host(8)) == {"a": 2, "b": 2, "c": 4}


def test_what_is_left_is_kept_for_who_waits_for_that_kind() -> None:
    """A job that finds no place is not kept from one by another's second GPU."""
    large = asks("z", 8, 8, start=StartRule.WHEN_CHEAP, deadline_ms=NOW_MS + 10**9)
    only_own = [asks("a"), large]
    pool = host(5)
    seen = at_now(jobs=only_own, offers=pool)
    (start,) = [one for one in decide(seen).actions if isinstance(one, Start)]
    assert (start.job_id, start.offer.gpu_count) == ("job_a", 1)
    other = replace(large, resources=Resources(8, 8, gpu_type="H100"))
    (start,) = [one for one in decide(at_now(jobs=[asks("a"), other], offers=pool)).actions if isinstance(one, Start)]
    assert (start.job_id, start.offer.gpu_count) == ("job_a", 4)


def test_it_takes_no_more_than_it_may_pay_for() -> None:
    """A pool with an owner's price: by the hour, and in all."""
    priced = [replace(one, price_per_hour=Money.usd(one.gpu_count)) for one in host(8)]
    offers = [*OFFERS, *priced]
    for caps, most in ((Caps(max_hourly=Money.usd(4)), 4), (Caps(), 8)):
        (start,) = decide(at_now(jobs=[asks("a", caps=caps)], offers=offers)).actions
        assert isinstance(start, Start)
        assert start.offer.gpu_count == most


def test_of_other_pools_and_kinds_nothing_is_taken() -> None:
    """Their owner asks another price, or for another order."""
    offers = [*host(2, "x", region="near"), *[replace(one, region="far") for one in host(8, "y", startup_ms=900)]]
    assert begins([asks("a")], offers) == {"a": 2}
    kinds = [*host(2, "x"), *[replace(one, gpu_type="H100") for one in host(8, "y", startup_ms=900)]]
    assert begins([asks("a")], kinds) == {"a": 2}


def test_a_piece_that_failed_the_job_is_left_out() -> None:
    failed = own(8).key
    assert begins([asks("a", avoided_offers=frozenset({failed}))], host(8)) == {"a": 4}


def test_what_is_rented_is_as_small_as_what_it_needs() -> None:
    """More GPUs of a company are paid for: that is not asked for by a range."""
    four = offer("four", Tier.SERVERLESS, "8.40", gpu_count=4)
    (start,) = decide(at_now(jobs=[asks("a")], offers=[*OFFERS, four])).actions
    assert isinstance(start, Start)
    assert start.offer.gpu_count == 1


ranges = st.tuples(st.integers(1, 4), st.integers(0, 7)).map(lambda pair: (pair[0], min(8, sum(pair))))


@given(st.lists(ranges, max_size=5), st.lists(st.integers(1, 8), max_size=3), st.sampled_from(sorted(policy_names())))
def test_no_gpu_is_given_twice_and_nobody_goes_without_for_it(
    wanted: list[tuple[int, int]], free: list[int], policy: str
) -> None:
    """Whatever is asked for, on whichever hosts: who has a place without the ranges has one with them."""
    jobs = [asks(str(number), *pair) for number, pair in enumerate(wanted)]
    offers = [one for number, left in enumerate(free) for one in host(left, f"h{number}")]
    plain = [replace(one, resources=replace(one.resources, gpus_max=one.resources.gpus_min)) for one in jobs]
    wide, narrow = (begins(some, offers, policy=policy) for some in (jobs, plain))
    assert wide.keys() == narrow.keys()
    for name, gpus in wide.items():
        least, most = wanted[int(name)]
        assert max(least, narrow[name]) <= gpus <= max(most, narrow[name])
    assert sum(wide.values()) <= sum(free)
    assert all(one.state is JobState.QUEUED for one in jobs)
