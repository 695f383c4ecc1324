"""Whom a guaranteed job on several machines has leave: as many hosts of one pool as it lacks, or nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.board import Board
from app.core.borrowing import PoolQuotas, PoolUse
from app.core.evicting import EvictableRun, Evicting, evict
from app.core.eviction import Saving
from app.core.gang_offers import LackingGang
from app.core.gangs import gather
from app.core.host_spaces import host_spaces
from app.core.model.job import Caps, JobState, MostUnderOne, PriorityClass, Resources, StartRule
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.plan import ProvisionGang, Release
from app.core.model.pool import HostGpu, OwnHost, Pool
from app.core.model.snapshot import JobView, NodeView, Snapshot
from app.core.pools import offers_of, used_gpus
from app.core.set_aside import HostNode, SetAside, keep
from tests.core.samples import GIB, NOW_MS, job, node, run, snapshot

MINUTE_MS = 60_000
RULE = BillingRule(1_000, BillingStart.READY)
TRAITS = (ProviderTraits("joined", Tier.OWN, RULE, 1, 60_000, 1, False, True, is_networked=True),)


def gang(name: str = "job_g", nodes: int = 2, gpus: int = 1, **changes: object) -> JobView:
    return job(name, **({"resources": Resources(gpus, gpus, nodes=nodes), "submitted_ms": NOW_MS} | changes))


class Lab:
    """Pools of hosts; on some, spot jobs of another project, each on a node of its own."""

    def __init__(self, *pools: Pool) -> None:
        self.pools = pools or (Pool("lab"),)
        self.hosts: list[OwnHost] = []
        self.nodes: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.runs: list[EvictableRun] = []
        self.stays: set[str] = set()
        self.quotas: PoolQuotas | None = None

    def host(self, name: str, *spot: int, gpus: int = 1, pool: str = "lab", minutes: int = 1, ran: int = 10) -> Lab:
        """`spot`: how many GPUs each spot job has there; it saved so many minutes ago, and has run for `ran`."""
        first = 0
        for number, count in enumerate(spot):
            of = f"{name}{number}"
            self.nodes[f"node_{of}"] = (f"host_{name}", tuple(range(first, first + count)))
            saving = Saving(started_ms=NOW_MS - ran * MINUTE_MS, saved_ms=NOW_MS - minutes * MINUTE_MS)
            self.runs.append(EvictableRun(f"run_{of}", f"job_{of}", f"node_{of}", count, saving, "proj_b"))
            first += count
        has = tuple(HostGpu(index, "A100", 80 * GIB) for index in range(gpus))
        taken = tuple(range(first))
        self.hosts.append(OwnHost(f"host_{name}", pool, 8 * gpus, 2**36 * gpus, has, taken, is_open=True))
        return self

    def keeps(self, name: str) -> Lab:
        """The job there is guaranteed."""
        self.stays.add(f"job_{name}")
        return self

    def seen(self, *line: JobView) -> Snapshot:
        tenants = [
            job(one.job_id, JobState.RUNNING, resources=Resources(one.gpus, one.gpus), project_id="proj_b")
            for one in self.runs
        ]
        spot = [one if one.job_id in self.stays else replace(one, priority_class=PriorityClass.SPOT) for one in tenants]
        held = [run(one.run_id, one.job_id, one.node_id, tier=Tier.OWN) for one in self.runs]
        nodes = [self._node(node_id, host, taken) for node_id, (host, taken) in self.nodes.items()]
        made = snapshot(jobs=[*spot, *line], runs=held, nodes=nodes, offers=self.offers())
        return replace(made, traits=TRAITS)

    def offers(self) -> list:
        return offers_of(self.pools, self.hosts, NOW_MS)

    def _node(self, node_id: str, host: str, taken: tuple[int, ...]) -> NodeView:
        pool = next(one.pool for one in self.hosts if one.host_id == host)
        made = node(node_id, Tier.OWN, project_id="proj_b", gpu_count=len(taken), free_gpus=(), region=pool)
        return replace(made, provider="joined")

    def lacking(self, *line: JobView) -> tuple[LackingGang, ...]:
        return gather(self.seen(*line), ()).lacking

    def asked(self, *line: JobView, closed: tuple[str, ...] = (), lacking: tuple[LackingGang, ...] = ()) -> Evicting:
        runs = [one for one in self.runs if one.job_id not in self.stays]
        cut = {one.node_id: self.nodes[one.node_id] for one in runs}
        used = used_gpus(self.hosts)
        return evict(
            Board.of(self.seen(*(one for one in line if one.resources.nodes == 1))),
            runs,
            host_spaces(self.pools, self.hosts, cut, NOW_MS),
            {one.job_id for one in line if one.resources.nodes == 1},
            gangs=lacking or self.lacking(*line),
            quotas=self.quotas,
            closed=closed,
            pools_left={one.name: one.most_gpus - used.get(one.name, 0) for one in self.pools if one.most_gpus},
            least_run_ms=5 * MINUTE_MS,
        )


def left(found: Evicting) -> dict[str, tuple[list[str], list[str]]]:
    """Of each job: who leaves for it, and what is kept for it."""
    return {
        one.job_id: (sorted(run.job_id for run in one.runs), [aside.place for aside in one.asides])
        for one in found.evictions
    }


def test_the_hosts_whose_jobs_lose_least_are_left_and_what_is_free_is_kept_too() -> None:
    lab = Lab().host("a", 1, minutes=5).host("b", 1).host("c").host("d", 1, minutes=3)
    assert left(lab.asked(gang())) == {"job_g": (["job_b0"], ["host_b/A100", "host_c/A100"])}
    assert left(lab.asked(gang(nodes=3))) == {
        "job_g": (["job_b0", "job_d0"], ["host_b/A100", "host_c/A100", "host_d/A100"])
    }
    (one,) = lab.asked(gang(nodes=3)).evictions
    assert one.words[0] == "1 host has room in lab, and 2 more are left for it: the 3 that it needs"


def test_nobody_leaves_where_not_all_of_it_could_be_had() -> None:
    lab = Lab().host("a", 1).host("b", 1).host("c", 1).keeps("c0")
    assert lab.asked(gang(nodes=3)) == Evicting()
    assert left(lab.asked(gang(nodes=2))) != {}


def test_nobody_leaves_where_it_has_room_already() -> None:
    lab = Lab().host("a").host("b").host("c", 1)
    assert lab.lacking(gang()) == ()
    assert lab.asked(gang(), lacking=(LackingGang(gang(), tuple(lab.offers())),)) == Evicting()


def test_machines_are_never_of_two_pools_or_of_two_kinds() -> None:
    lab = Lab(Pool("lab"), Pool("other")).host("a", 1).host("b", 1, pool="other")
    assert lab.asked(gang()) == Evicting()
    mixed = Lab().host("a", 1).host("b", 1)
    mixed.hosts[1] = replace(mixed.hosts[1], gpus=(HostGpu(0, "H100", 80 * GIB),))
    assert mixed.asked(gang()) == Evicting()


def test_of_two_pools_the_one_where_less_is_lost() -> None:
    lab = Lab(Pool("lab"), Pool("other"))
    lab.host("a", 1, minutes=9).host("b", 1, minutes=9).host("c", 1, pool="other").host("d", 1, pool="other")
    assert left(lab.asked(gang()))["job_g"][0] == ["job_c0", "job_d0"]


def test_as_few_of_a_hosts_jobs_as_will_do() -> None:
    lab = Lab().host("a", 1, 1, 2, gpus=4).host("b", 4, gpus=4, minutes=0)
    assert left(lab.asked(gang(gpus=2)))["job_g"][0] == ["job_a2", "job_b0"] or left(lab.asked(gang(gpus=2)))["job_g"][
        0
    ] == ["job_a0", "job_a1", "job_b0"]
    assert len(lab.asked(gang(gpus=4)).evictions[0].runs) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"priority_class": PriorityClass.SPOT},
        {"start": StartRule.WHEN_CHEAP},
        {"not_before_ms": NOW_MS + 1},
        {"caps": Caps(max_cost=Money.usd("1")), "spent": Money.usd("1")},
        {"resources": Resources(2, 2, nodes=2)},
        {"resources": Resources(gpu_type="H100", nodes=2)},
    ],
    ids=str,
)
def test_nobody_leaves_for_one_that_is_not_entitled_or_could_not_begin(changes: dict[str, object]) -> None:
    asks = gang(**changes)
    assert Lab().host("a", 1).host("b", 1).asked(asks, lacking=(LackingGang(asks),)) == Evicting()


def test_its_hourly_limit_holds_for_all_of_its_machines() -> None:
    lab = Lab(Pool("lab", price=Money.usd("1"))).host("a", 1).host("b", 1)
    assert lab.asked(gang(caps=Caps(max_hourly=Money.usd("1.5")))) == Evicting()
    assert left(lab.asked(gang(caps=Caps(max_hourly=Money.usd("2"))))) != {}


def test_the_pools_limit_holds_for_all_of_its_machines() -> None:
    """Two more may be used; the third that it needs is one that leaves."""
    lab = Lab(Pool("lab", most_gpus=3)).host("a", 1).host("b").host("c")
    assert lab.lacking(gang(nodes=3)) != ()
    assert left(lab.asked(gang(nodes=3))) != {}
    lab = Lab(Pool("lab", most_gpus=2)).host("a", 1).host("b").host("c")
    assert lab.asked(gang(nodes=3)) == Evicting()


def test_its_quota_holds_for_all_of_its_machines() -> None:
    lab = Lab(Pool("lab", quotas=(("proj_a", 2),))).host("a", 1).host("b", 1).host("c", 1)
    lab.quotas = PoolQuotas.of(lab.pools, ())
    assert left(lab.asked(gang())) != {}
    assert lab.asked(gang(nodes=3)) == Evicting()
    lab.quotas = PoolQuotas.of(lab.pools, [PoolUse("lab", "proj_a", 1)])
    assert lab.asked(gang()) == Evicting()


def test_nobody_leaves_for_machines_that_it_may_not_have_together() -> None:
    """At most one under a switch: the host with room that is under the same switch does not count, nor do its jobs."""
    domains = {"host_a": ("", "s1"), "host_b": ("", "s1"), "host_c": ("", "s2"), "host_d": ("", "s3")}
    asks = gang(nodes=3, most_under_one=MostUnderOne(switch=1))
    lab = Lab().host("a").host("b", 1).host("c", 1, minutes=9).host("d", 1, minutes=9)
    lacking = (replace(lab.lacking(asks)[0], domains=domains),)
    assert left(lab.asked(asks, lacking=lacking)) == {
        "job_g": (["job_c0", "job_d0"], ["host_a/A100", "host_c/A100", "host_d/A100"])
    }
    together = (replace(lacking[0], domains={**domains, "host_d": ("", "s2")}),)
    assert lab.asked(asks, lacking=together) == Evicting()
    assert gather(lab.seen(asks), (), domains=domains).lacking[0].domains == domains


def test_one_that_has_just_begun_is_spared_and_asked_later() -> None:
    lab = Lab().host("a", 1, ran=2).host("b", 1)
    found = lab.asked(gang())
    assert (found.evictions, found.wake_at_ms) == ((), NOW_MS + 3 * MINUTE_MS)


def test_two_in_one_decision_never_count_on_the_same_host() -> None:
    lab = Lab().host("a", 1).host("b", 1).host("c", 1).host("d")
    line = [gang("job_g", deadline_ms=1), gang("job_h", deadline_ms=2), job("job_s", deadline_ms=3)]
    found = left(lab.asked(*line))
    places = [place for _, its in found.values() for place in its]
    assert len(places) == len(set(places)) == 4
    assert set(found) == {"job_g", "job_h"}, "what has room counts for the first alone, and for one GPU it is on offer"


def test_what_is_kept_for_others_is_left_alone_and_what_is_kept_for_itself_is_not() -> None:
    lab = Lab().host("a", 1).host("b", 1)
    assert lab.asked(gang(), closed=("host_a/A100",)) == Evicting()
    own = LackingGang(gang(), (), frozenset({"host_a/A100"}))
    assert left(lab.asked(gang(), closed=("host_a/A100",), lacking=(own,))) != {}


# What is kept until all have left


ASIDES = [SetAside("job_g", "host_a/A100", 1), SetAside("job_g", "host_b/A100", 1)]


def test_until_all_have_left_nobody_else_gets_any_of_it_and_nothing_is_rented() -> None:
    lab = Lab().host("a", 1).host("b")
    seen = lab.seen(gang(), gang("job_h"), job("job_s"))
    kept = keep(seen, ASIDES, [HostNode("node_a0", "host_a/A100", evicted_for="job_g")])
    assert kept.for_gangs == tuple(ASIDES)
    gathered = gather(kept.snapshot, (), asides=kept.for_gangs)
    assert gathered.claims == () and gathered.snapshot.offers == ()
    assert gathered.waiting["job_g"] == "begins as soon as the GPUs that are kept for it are free"
    assert gathered.waiting["job_h"].startswith("waits for 2 machines")


def test_once_all_have_left_it_is_rented_all_of_it_and_another_one_is_not() -> None:
    lab = Lab().host("a").host("b")
    first = gang("job_f", deadline_ms=1)
    kept = keep(lab.seen(first, gang(deadline_ms=2)), ASIDES, [])
    gathered = gather(kept.snapshot, (), asides=kept.for_gangs)
    assert [one.job_id for one in gathered.claims if isinstance(one, ProvisionGang)] == ["job_g"]


def test_a_node_that_was_left_is_ended_so_that_its_gpus_are_the_hosts_again() -> None:
    lab = Lab().host("a", 1).host("b")
    empty = [replace(one, free_gpus=(0,)) for one in lab.seen().nodes]
    seen = replace(lab.seen(gang()), nodes=tuple(empty), runs=())
    kept = keep(seen, ASIDES, [HostNode("node_a0", "host_a/A100", evicted_for="job_g")])
    assert [one.node_id for one in kept.claims if isinstance(one, Release)] == ["node_a0"]


def test_what_has_become_its_machine_is_kept_no_more() -> None:
    lab = Lab().host("a", 1).host("b")
    kept = keep(lab.seen(gang()), ASIDES, [HostNode("node_a0", "host_a/A100", for_job_id="job_g")])
    assert [one.place for one in kept.for_gangs] == ["host_b/A100"] and kept.claims == ()


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 2), max_size=2), st.integers(0, 9), st.booleans()), max_size=6),
    st.lists(st.tuples(st.integers(2, 4), st.integers(1, 4)), min_size=1, max_size=3),
)
def test_whoever_leaves_does_not_leave_in_vain(
    hosts: list[tuple[list[int], int, bool]], asks: list[tuple[int, int]]
) -> None:
    """What is kept for a job is enough for all of its machines once those who were asked have left, on as many hosts;
    no host counts for two jobs, no guaranteed job leaves, and nobody whose leaving changes nothing."""
    lab = Lab()
    for number, (spot, minutes, stays) in enumerate(hosts):
        lab.host(str(number), *spot, gpus=4, minutes=minutes)
        if stays and spot:
            lab.keeps(f"{number}0")
    line = [gang(f"job_g{n}", nodes, gpus, deadline_ms=n) for n, (nodes, gpus) in enumerate(asks)]
    found = lab.asked(*line)
    gone = {run.node_id for one in found.evictions for run in one.runs}
    assert not {run.job_id for one in found.evictions for run in one.runs} & lab.stays
    places = [aside.place for one in found.evictions for aside in one.asides]
    assert len(places) == len(set(places))
    held = {one.host_id: set(one.taken) for one in lab.hosts}
    for node_id in gone:
        host, taken = lab.nodes[node_id]
        held[host] -= set(taken)
    for one in found.evictions:
        job_ = next(it for it in line if it.job_id == one.job_id)
        assert len(one.asides) == job_.resources.nodes
        hosts_of_it = {aside.place.partition("/")[0] for aside in one.asides}
        assert all(4 - len(held[host]) >= job_.resources.gpus_min for host in hosts_of_it)
        assert {lab.nodes[run.node_id][0] for run in one.runs} <= hosts_of_it
        for run_ in one.runs:
            host, taken = lab.nodes[run_.node_id]
            assert 4 - len(held[host] | set(taken)) < job_.resources.gpus_min, "it need not have left"
