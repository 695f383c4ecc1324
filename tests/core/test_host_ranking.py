"""On which host of a pool a machine is cut: by the ranker that was chosen, and at nobody's cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.eviction import DecayedCount
from app.core.eviction.placing import HALF_LIFE_MS
from app.core.host_ranking import HostRanker, HostUse, rank_hosts
from app.core.judging import sound_part
from app.core.model.job import PriorityClass, Resources
from app.core.model.money import Money
from app.core.model.offer import Offer
from app.core.model.plan import Plan, Provision, Start
from app.core.model.pool import HostGpu, OwnHost, Pool
from app.core.model.snapshot import JobView
from app.core.policies import policy_named
from app.core.policy import PolicyState
from app.core.pools import offers_of
from tests.core.samples import CONFIG, GIB, NOW_MS, job, snapshot

LAB = Pool("lab", price=Money.usd("1"))
NOBODY = HostUse({}, {})
RANKERS = [one for one in HostRanker if one is not HostRanker.FEWEST_LEFT]


def host(name: str, free: int, gpus: int = 8, **changes: Any) -> OwnHost:
    every = tuple(HostGpu(index, "A100", 80 * GIB) for index in range(gpus))
    made = OwnHost(f"host_{name}", "lab", 64, 512 * GIB, every, tuple(range(gpus - free)))
    return replace(made, **changes)


def asks(name: str, gpus: int = 1, *, spot: bool = False, **changes: Any) -> JobView:
    kind = PriorityClass.SPOT if spot else PriorityClass.GUARANTEED
    return job(name, **({"resources": Resources(gpus, gpus), "priority_class": kind} | changes))


def offered(hosts: list[OwnHost], pool: Pool = LAB) -> list[Offer]:
    return offers_of([pool], hosts, NOW_MS)


def on(hosts: list[OwnHost], name: str, gpus: int) -> Offer:
    place = f"host_{name}/A100"
    return next(one for one in offered(hosts) if one.host == place and one.gpu_count == gpus and "~" not in one.key)


def start(one: JobView, offer: Offer) -> Start:
    return Start(one.job_id, offer, "there is room", ())


def ranked(
    hosts: list[OwnHost], placed: list[tuple[JobView, str]], ranker: HostRanker, use: HostUse = NOBODY, *others: JobView
) -> list[tuple[str, str]]:
    """By job, on which host it is now, and why."""
    actions = tuple(start(one, on(hosts, name, one.resources.gpus_min)) for one, name in placed)
    jobs = {one.job_id: one for one in (*(one for one, _ in placed), *others)}
    plan = rank_hosts(Plan("p", actions), offered(hosts), jobs, hosts, ranker, use, NOW_MS)
    found = []
    for action in plan.actions:
        assert isinstance(action, Start)
        found.append((action.offer.host.removeprefix("host_").partition("/")[0], action.reason))
    return found


def names(found: list[tuple[str, str]]) -> list[str]:
    return [name for name, _ in found]


def test_by_default_the_plan_stays_as_it_is_to_the_byte() -> None:
    hosts = [host("a", 2), host("b", 4)]
    plan = Plan("p", (start(asks("job_a"), on(hosts, "b", 1)),))
    jobs = {"job_a": asks("job_a")}
    assert rank_hosts(plan, offered(hosts), jobs, hosts, HostRanker.FEWEST_LEFT, NOBODY, NOW_MS) is plan


@pytest.mark.parametrize("ranker", RANKERS, ids=str)
def test_where_one_host_alone_has_room_it_is_the_one_and_nothing_is_told(ranker: HostRanker) -> None:
    hosts = [host("a", 1), host("b", 4)]
    assert ranked(hosts, [(asks("job_a", 2), "b")], ranker) == [("b", "there is room")]


# The paper's three criteria, each of which breaks the ties of the one before


def test_first_where_the_least_stays_idle() -> None:
    hosts = [host("a", 4), host("b", 2), host("c", 3)]
    use = HostUse({"host_a": 1, "host_c": 5}, {"host_c": DecayedCount(9.0, NOW_MS)})
    for spot in (True, False):
        ((name, why),) = ranked(hosts, [(asks("job_a", 2, spot=spot), "a")], HostRanker.SPOTGPU, use)
        assert name == "b"
    assert why == (
        "there is room; by the ranker spotgpu on host_b, of 3 hosts of lab: 0 GPUs stay idle there, beside 0 "
        "guaranteed jobs, after 0.00 evictions"
    )


def test_then_guaranteed_jobs_beside_guaranteed_ones_and_spot_jobs_where_there_are_none() -> None:
    hosts = [host("a", 2), host("b", 2)]
    use = HostUse({"host_b": 1}, {"host_a": DecayedCount(9.0, NOW_MS)})
    assert names(ranked(hosts, [(asks("job_a"), "a")], HostRanker.SPOTGPU, use)) == ["b"]
    assert names(ranked(hosts, [(asks("job_a", spot=True), "b")], HostRanker.SPOTGPU, use)) == ["a"]


def test_then_spot_jobs_where_fewest_were_evicted_and_guaranteed_ones_where_most_were() -> None:
    hosts = [host("a", 2), host("b", 2)]
    use = HostUse({}, {"host_a": DecayedCount(1.0, NOW_MS)})
    assert names(ranked(hosts, [(asks("job_a", spot=True), "a")], HostRanker.SPOTGPU, use)) == ["b"]
    alike = HostUse({"host_a": 1, "host_b": 1}, {"host_b": DecayedCount(1.0, NOW_MS)})
    assert names(ranked(hosts, [(asks("job_a"), "a")], HostRanker.SPOTGPU, alike)) == ["b"]


def test_what_was_evicted_long_ago_counts_less_each_day() -> None:
    """Eight evictions four days ago are half of one; the one today counts more."""
    hosts = [host("a", 2), host("b", 2)]
    use = HostUse({}, {"host_a": DecayedCount(8.0, NOW_MS - 4 * HALF_LIFE_MS), "host_b": DecayedCount(1.0, NOW_MS)})
    ((name, why),) = ranked(hosts, [(asks("job_a", spot=True), "b")], HostRanker.SPOTGPU, use)
    assert (name, "after 0.50 evictions" in why) == ("a", True)


def test_jobs_of_one_plan_see_each_other() -> None:
    """Once the guaranteed job is there, two GPUs are free on both: the spot job goes where it is not."""
    hosts = [host("a", 3), host("b", 2)]
    first = asks("job_a", avoided_offers=frozenset({"joined/host_b-1xA100"}))
    line = [(first, "a"), (asks("job_b", spot=True), "a")]
    assert names(ranked(hosts, line, HostRanker.SPOTGPU)) == ["a", "b"]
    line = [(first, "a"), (asks("job_b"), "b")]
    assert names(ranked(hosts, line, HostRanker.SPOTGPU)) == ["a", "a"]


# Rankers by what is left


def test_best_fit_counts_processors_too() -> None:
    """The policy sees GPUs alone: three are left on both; of one that is rich in processors more of them stay idle."""
    hosts = [host("a", 4, cpus=192), host("b", 4, cpus=32)]
    ((name, why),) = ranked(hosts, [(asks("job_a"), "a")], HostRanker.BEST_FIT)
    assert (name, "0.44 of the largest host's CPUs and GPUs stay free there, together" in why) == ("b", True)


def test_the_gradient_keeps_whole_what_expected_jobs_could_use() -> None:
    """Fewest GPUs left would break the four that jobs ask for; five stay four."""
    hosts = [host("a", 4), host("b", 5)]
    large = [asks(f"job_{n}", 4) for n in range(9)]
    ((name, why),) = ranked(hosts, [(asks("job_a"), "a")], HostRanker.GRADIENT, NOBODY, *large)
    assert (name, "GPUs that the jobs there are could not use grow by" in why) == ("b", True)
    small = [asks(f"job_{n}", 1) for n in range(9)]
    assert names(ranked(hosts, [(asks("job_a"), "a")], HostRanker.GRADIENT, NOBODY, *small)) == ["a"]


def test_jobs_that_could_never_be_there_are_not_expected() -> None:
    hosts = [host("a", 4), host("b", 5)]
    others = [asks(f"job_{n}", resources=Resources(4, 4, gpu_type="H100")) for n in range(9)]
    assert names(ranked(hosts, [(asks("job_a"), "a")], HostRanker.GRADIENT, NOBODY, *others)) == ["a"]


# Nobody loses a place


@pytest.mark.parametrize("ranker", RANKERS, ids=str)
def test_what_the_plan_takes_of_a_host_later_is_left_to_it(ranker: HostRanker) -> None:
    """By itself the first job would go to the host that only just holds the second."""
    hosts = [host("a", 2), host("b", 4)]
    large = [asks(f"job_{n}", 4) for n in range(9)]
    assert names(ranked(hosts, [(asks("job_a", 2), "b")], ranker, NOBODY, *large)) == ["a"]
    line = [(asks("job_a", 2), "b"), (asks("job_b", 2), "a")]
    assert names(ranked(hosts, line, ranker, NOBODY, *large))[0] == "b"


@pytest.mark.parametrize(
    "changes",
    [
        {"avoided_offers": frozenset({"joined/host_a-1xA100"})},
        {"unreached_offers": frozenset({"joined/host_a-1xA100"})},
        {"resources": Resources(cpus_min=12)},
    ],
    ids=str,
)
def test_a_host_that_the_job_may_not_have_or_that_is_too_small_is_none(changes: dict[str, Any]) -> None:
    hosts = [host("a", 1), host("b", 4, cpus=128)]
    assert names(ranked(hosts, [(asks("job_a", **changes), "b")], HostRanker.SPOTGPU)) == ["b"]


def test_other_pools_kinds_and_what_is_kept_or_lent_are_left_alone() -> None:
    lent = host("a", 4, lent=(7,))
    hosts = [lent, host("b", 1)]
    held = next(one for one in offered(hosts) if one.spot_only and one.gpu_count == 1)
    spot = asks("job_s", spot=True)
    plan = Plan("p", (start(spot, held),))
    args = offered(hosts), {"job_s": spot}, hosts, HostRanker.SPOTGPU, NOBODY, NOW_MS
    assert rank_hosts(plan, *args) is plan
    dear = Pool("dear", price=Money.usd("2"))
    elsewhere = replace(host("c", 1), pool="dear")
    both = offers_of([LAB, dear], [*hosts, elsewhere], NOW_MS)
    one = asks("job_a")
    mine = Plan("p", (start(one, next(it for it in both if it.host == "host_c/A100")),))
    assert rank_hosts(mine, both, {"job_a": one}, [*hosts, elsewhere], HostRanker.SPOTGPU, NOBODY, NOW_MS) == mine


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[OwnHost], list[JobView], HostUse]:
    hosts = [
        host(f"{n}", draw(st.integers(0, 8)), cpus=draw(st.sampled_from([16, 64, 128])), awaited={"host": 0})
        for n in range(draw(st.integers(1, 5)))
    ]
    line = [
        asks(
            f"job_{n}",
            draw(st.sampled_from([1, 1, 2, 3, 4, 8])),
            spot=draw(st.booleans()),
            deadline_ms=draw(st.integers(1, 10**7)),
        )
        for n in range(draw(st.integers(0, 8)))
    ]
    use = HostUse(
        {one.host_id: draw(st.integers(0, 3)) for one in hosts},
        {one.host_id: DecayedCount(float(draw(st.integers(0, 3))), NOW_MS) for one in hosts},
    )
    return hosts, line, use


@given(worlds(), st.sampled_from(RANKERS), st.sampled_from(["allpass", "cheapest-first", "fixed-threshold"]))
def test_every_job_that_had_a_place_has_one_on_as_good_a_machine(
    world: tuple[list[OwnHost], list[JobView], HostUse], ranker: HostRanker, policy: str
) -> None:
    """Whatever the policy: the same jobs, sizes, kinds and prices in the same order, and the judge of plans refuses
    nothing of it."""
    hosts, line, use = world
    seen = snapshot(jobs=line, offers=offered(hosts))
    plan, _ = policy_named(policy).decide(Board.of(seen), PolicyState(), CONFIG)
    jobs = {one.job_id: one for one in seen.jobs}
    found = rank_hosts(plan, seen.offers, jobs, hosts, ranker, use, NOW_MS)
    assert [without_host(one) for one in found.actions] == [without_host(one) for one in plan.actions]
    before, after = sound_part(seen, plan, CONFIG), sound_part(seen, found, CONFIG)
    assert len(after.refusals) == len(before.refusals) == 0
    assert rank_hosts(plan, seen.offers, jobs, hosts, ranker, use, NOW_MS) == found


def without_host(action: object) -> object:
    if not isinstance(action, Start | Provision):
        return action
    offer = replace(action.offer, host="", offer_id="", cpus=0, memory_bytes=0, shared_gpus=0)
    return replace(action, offer=offer, reason="")
