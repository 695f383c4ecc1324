"""On which hosts of a pool the machines of a job on several are, by the ranker that was chosen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.core.eviction import DecayedCount
from app.core.gangs import GatheredGangs, gather
from app.core.host_ranking import HostOrder, HostRanker, HostUse
from app.core.model.job import PriorityClass
from app.core.model.offer import Offer
from app.core.model.plan import ProvisionGang
from app.core.model.pool import OwnHost, Pool
from app.core.model.snapshot import JobView
from app.core.set_aside import SetAside
from app.core.topology import Domain
from tests.core.samples import NOW_MS
from tests.core.test_gangs import gang, in_cloud, seen
from tests.core.test_host_ranking import LAB, NOBODY, RANKERS, host, offered


def gathered(
    hosts: list[OwnHost],
    job: JobView,
    ranker: HostRanker | None,
    use: HostUse = NOBODY,
    domains: dict[str, Domain] | None = None,
    asides: tuple[SetAside, ...] = (),
    more: tuple[Offer, ...] = (),
    pool: Pool = LAB,
) -> GatheredGangs:
    offers = [*offered(hosts, pool), *more]
    order = HostOrder(offers, {job.job_id: job}, hosts, ranker, use, NOW_MS) if ranker is not None else None
    return gather(seen(jobs=[job], offers=offers), (), domains=domains, asides=asides, order=order)


def hosts_of(found: GatheredGangs) -> list[str]:
    return [
        one.host.removeprefix("host_").partition("/")[0]
        for claim in found.claims
        if isinstance(claim, ProvisionGang)
        for one in claim.offers
    ]


def test_the_papers_criteria_hold_for_each_of_its_machines() -> None:
    """Guaranteed jobs beside guaranteed ones; spot jobs where there are none, and where fewest were evicted."""
    hosts = [host(name, 2) for name in "abcd"]
    use = HostUse({"host_c": 1, "host_d": 2}, {"host_a": DecayedCount(3.0, NOW_MS)})
    guaranteed = gathered(hosts, gang(nodes=3), HostRanker.SPOTGPU, use)
    assert hosts_of(guaranteed) == ["c", "d", "a"], "of the other two the one with more evictions"
    assert hosts_of(gathered(hosts, gang(nodes=2, priority_class=PriorityClass.SPOT), HostRanker.SPOTGPU, use)) == [
        "b",
        "a",
    ]
    assert hosts_of(gathered(hosts, gang(nodes=2), None, use)) == ["a", "b"], "by default by name"
    (claim,) = guaranteed.claims
    assert isinstance(claim, ProvisionGang)
    assert claim.reason == "rents 3 machines at once; of hosts that are alike by the ranker spotgpu"


def test_first_of_all_the_least_stays_idle() -> None:
    hosts = [host("a", 5), host("b", 2), host("c", 8), host("d", 3)]
    for ranker in (HostRanker.SPOTGPU, HostRanker.BEST_FIT):
        assert hosts_of(gathered(hosts, gang(gpus=2), ranker)) == ["b", "d"]


def test_gpus_that_jobs_could_not_use_grow_least_by_the_gradient() -> None:
    """Of what waits all need four GPUs: on a host with five free one more job of one costs nothing."""
    hosts = [host("a", 4), host("b", 5), host("c", 5)]
    one = gang(gpus=1)
    large = {f"job_{number}": gang(f"job_{number}", gpus=4) for number in range(9)}
    offers = offered(hosts)
    order = HostOrder(offers, {**large, one.job_id: one}, hosts, HostRanker.GRADIENT, NOBODY, NOW_MS)
    assert hosts_of(gather(seen(jobs=[one], offers=offers), (), order=order)) == ["b", "c"]
    assert hosts_of(gather(seen(jobs=[one], offers=offers), ())) == ["a", "b"]


def test_switches_come_first_and_the_ranker_chooses_under_them() -> None:
    hosts = [host(name, 2) for name in "abcde"]
    domains = {f"host_{name}": ("", "leaf-1" if name in "ab" else "leaf-2") for name in "abcde"}
    use = HostUse({"host_b": 5, "host_d": 1, "host_e": 1}, {})
    assert hosts_of(gathered(hosts, gang(nodes=2), None, use, domains)) == ["a", "b"]
    assert hosts_of(gathered(hosts, gang(nodes=3), HostRanker.SPOTGPU, use, domains)) == ["d", "e", "c"]
    assert hosts_of(gathered(hosts, gang(nodes=2), HostRanker.SPOTGPU, use, domains)) == ["b", "a"]


def test_what_others_have_left_for_it_is_not_ranked() -> None:
    hosts = [host(name, 2) for name in "abc"]
    use = HostUse({"host_c": 1}, {})
    asides = tuple(SetAside("job_g", f"host_{name}/A100", 1) for name in "ab")
    assert hosts_of(gathered(hosts, gang(nodes=2), HostRanker.SPOTGPU, use, asides=asides)) == ["a", "b"]


def test_no_ranker_has_a_say_in_what_is_rented_of_a_company() -> None:
    for ranker in RANKERS:
        found = gathered([], gang(), ranker, more=(in_cloud("east", "3"), in_cloud("west", "2")))
        (claim,) = found.claims
        assert isinstance(claim, ProvisionGang)
        assert ([one.region for one in claim.offers], claim.reason) == (["west"] * 2, "rents 2 machines at once")


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=6),
    st.integers(2, 4),
    st.integers(1, 4),
    st.sampled_from(RANKERS),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_a_ranker_changes_nothing_but_the_hosts(
    free: list[int], nodes: int, gpus: int, ranker: HostRanker, used: list[int]
) -> None:
    """As many machines, of one size, each on a host of its own with room, for the same money; or it waits as it did."""
    hosts = [host(str(number), left) for number, left in enumerate(free)]
    use = HostUse({f"host_{number}": count for number, count in enumerate(used)}, {})
    job = gang(nodes=nodes, gpus=gpus)
    plain, by_ranker = gathered(hosts, job, None, use), gathered(hosts, job, ranker, use)
    assert len(plain.claims) == len(by_ranker.claims)
    assert plain.waiting == by_ranker.waiting
    for before, after in zip(plain.claims, by_ranker.claims, strict=True):
        assert isinstance(before, ProvisionGang) and isinstance(after, ProvisionGang)
        assert len({one.host for one in after.offers}) == nodes
        assert all(one.gpu_count <= one.shared_gpus for one in after.offers)
        assert [(it.gpu_count, it.price_per_hour) for it in before.offers] == [
            (it.gpu_count, it.price_per_hour) for it in after.offers
        ]
