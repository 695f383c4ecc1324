"""A job on several machines has them under as few switches as can be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.gang_offers import EmptyPool, GangNode
from app.core.gangs import RESERVE_AFTER_MS, GatheredGangs, gather
from app.core.model.job import Caps, MostUnderOne
from app.core.model.money import Money
from app.core.model.node import NodeState
from app.core.model.offer import Offer
from app.core.model.plan import AssignGang, ProvisionGang, Release
from app.core.model.snapshot import JobView
from app.core.topology import Domain, Seats, SwitchRule, allocate, entropy
from tests.core.samples import NOW_MS
from tests.core.test_gangs import gang, in_cloud, machine, of_host, rented, seen


def under(**switches: str) -> dict[str, Domain]:
    """`s1="ab"`: hosts a and b are under switch s1; `r1_s1="ab"`: which is in rack r1."""
    return {host: ("", *name.split("_"))[-2:] for name, hosts in switches.items() for host in hosts}


def hosts_of(found: list[str]) -> str:
    return "".join(sorted(one.partition("-")[0] for one in found))


def chosen_by(found: GatheredGangs) -> list[str | None]:
    return [claim.chosen_by for claim in found.claims if isinstance(claim, ProvisionGang)]


def offers(hosts: str) -> tuple[Offer, ...]:
    return tuple(of_host(host) for host in hosts)


def test_one_switch_where_one_has_room_the_tightest() -> None:
    switches = under(s1="abcd", s2="efg", s3="h")
    gathered = gather(seen(jobs=[gang(nodes=3)], offers=offers("abcdefgh")), (), domains=switches)
    assert hosts_of(rented(gathered)) == "efg"


def test_the_largest_first_and_a_tight_rest() -> None:
    switches = under(s1="abcd", s2="efg", s3="hi")
    gathered = gather(seen(jobs=[gang(nodes=6)], offers=offers("abcdefghi")), (), domains=switches)
    assert hosts_of(rented(gathered)) == "abcdhi"


def test_the_paper_s_rule_takes_the_small_switches_first_where_it_is_asked_for() -> None:
    """And the claim says by which rule, where there was something to choose."""
    switches = under(s1="a", s2="bcdefghi", s3="jklmn")
    world = seen(jobs=[gang(nodes=13)], offers=offers("abcdefghijklmn"))
    fewest, literal = (gather(world, (), domains=switches, rule=rule) for rule in SwitchRule)
    assert hosts_of(rented(fewest)) == "bcdefghijklmn"
    assert hosts_of(rented(literal)) == "abcdefghijklm"
    assert chosen_by(fewest) == [SwitchRule.FEWEST]
    assert chosen_by(literal) == [SwitchRule.LITERAL]
    alone = gather(seen(jobs=[gang()], offers=offers("ab")), (), domains=under(s1="ab"), rule=SwitchRule.LITERAL)
    assert rented(alone) and chosen_by(alone) == [None], "there is one switch"


def test_the_paper_s_rule_counts_what_the_job_has() -> None:
    its = [GangNode("node_c", "job_g", "c/A100"), GangNode("node_d", "job_g", "d/A100")]
    world = seen(jobs=[gang(nodes=3)], nodes=[machine("node_c"), machine("node_d")], offers=offers("abe"))
    assert rented(gather(world, its, domains=under(s1="ab", s2="cde"), rule=SwitchRule.LITERAL)) == ["e-1"]


def test_two_jobs_at_once_have_a_switch_each() -> None:
    """By the names of their hosts each would have a half of both."""
    switches = under(s1="ac", s2="bd")
    jobs = [gang("job_1"), gang("job_2")]
    gathered = gather(seen(jobs=jobs, offers=offers("abcd")), (), domains=switches)
    assert hosts_of(rented(gathered)[:2]) in ("ac", "bd")
    assert hosts_of(rented(gathered)) == "abcd"


def test_one_rack_where_one_has_room_though_switches_of_two_are_larger() -> None:
    domains = under(r1_s1="abc", r1_s2="d", r2_s3="ef", r2_s4="gh")
    gathered = gather(seen(jobs=[gang(nodes=4)], offers=offers("abcdefgh")), (), domains=domains)
    assert hosts_of(rented(gathered)) == "abcd"
    larger = gather(seen(jobs=[gang(nodes=6)], offers=offers("abcdefgh")), (), domains=domains)
    assert hosts_of(rented(larger))[:4] in ("abcd", "efgh"), "all of one rack, and the rest from one switch"


def test_a_lost_machine_is_replaced_in_the_rack_of_the_others() -> None:
    """Where nothing is left under their switch."""
    its = [GangNode("node_c", "job_g", "c/A100"), GangNode("node_d", "job_g", "d/A100")]
    world = seen(jobs=[gang(nodes=3)], nodes=[machine("node_c"), machine("node_d")], offers=offers("abe"))
    assert rented(gather(world, its, domains=under(r1_s1="ab", r2_s2="cd", r2_s3="e"))) == ["e-1"]


def test_a_lost_machine_is_replaced_under_under_the_switch_of_the_others() -> None:
    its = [GangNode("node_c", "job_g", "c/A100"), GangNode("node_d", "job_g", "d/A100")]
    world = seen(jobs=[gang(nodes=3)], nodes=[machine("node_c"), machine("node_d")], offers=offers("abe"))
    assert rented(gather(world, its, domains=under(s1="ab", s2="cde"))) == ["e-1"]


def test_hosts_that_say_no_switch_are_taken_to_be_under_one() -> None:
    switches = under(s1="ab")
    gathered = gather(seen(jobs=[gang(nodes=3)], offers=offers("abcde")), (), domains=switches)
    assert hosts_of(rented(gathered)) == "cde"


def test_where_nothing_is_said_the_order_is_as_it_was() -> None:
    world = seen(jobs=[gang()], offers=offers("dcba"))
    assert rented(gather(world, ())) == rented(gather(world, (), domains={"elsewhere": ("", "s1")})) == ["a-1", "b-1"]
    cloud = seen(jobs=[gang()], offers=(in_cloud(),))
    assert rented(gather(cloud, (), domains=under(s1="ab"))) == ["vm-east", "vm-east"]


def test_a_budget_that_one_switch_would_break_lets_it_be_spread() -> None:
    """Under s2 only larger parts are left, which cost more."""
    dear = tuple(of_host(host, 8, price_per_hour=Money(8_000_000)) for host in "cd")
    cheap = tuple(of_host(host, price_per_hour=Money(1_000_000)) for host in "ab")
    switches = under(s1="a", s3="b", s2="cd")
    world = seen(jobs=[gang()], offers=(*cheap, *dear))
    assert rented(gather(world, (), domains=switches)) == ["c-8", "d-8"]
    thrifty = gang(caps=Caps(max_hourly=Money(3_000_000)))
    spread = gather(seen(jobs=[thrifty], offers=(*cheap, *dear)), (), domains=switches)
    assert rented(spread) == ["a-1", "b-1"]
    assert chosen_by(spread) == [None], "no rule of switches did"


def test_neighbours_by_rank_are_under_one_switch() -> None:
    names = [f"node_{host}" for host in "abcd"]
    its = [GangNode(name, "job_g", f"{name[-1]}/A100") for name in names]
    world = seen(jobs=[gang(nodes=4)], nodes=[machine(name) for name in names])
    claim = gather(world, its, domains=under(s1="bd", s2="ac")).claims[0]
    assert isinstance(claim, AssignGang)
    assert "".join(place.node_id[-1] for place in claim.places) == "bdac"


def test_a_machine_too_many_is_the_one_under_another_switch() -> None:
    """It was waited for while another one came: the job begins on those that are close to each other."""
    names = [f"node_{host}" for host in "abc"]
    its = [GangNode(name, "job_g", f"{name[-1]}/A100") for name in names]
    world = seen(jobs=[gang(nodes=2)], nodes=[machine(name, state=NodeState.READY) for name in names])
    claims = gather(world, its, domains=under(s1="a", s2="bc")).claims
    assert isinstance(claims[0], AssignGang)
    assert [place.node_id for place in claims[0].places] == ["node_b", "node_c"]
    assert not [one for one in claims if isinstance(one, Release) and one.node_id != "node_a"]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(["s1", "s2", "s3", "s4", ""]), min_size=2, max_size=12), st.integers(2, 6))
def test_no_choice_of_hosts_is_less_spread(named: list[str], nodes: int) -> None:
    """Whatever the switches, and all of them or none."""
    hosts = [f"host{number:02}" for number in range(len(named))]
    switches: dict[str, Domain] = {host: ("", switch) for host, switch in zip(hosts, named, strict=True) if switch}
    world = seen(jobs=[gang(nodes=nodes)], offers=tuple(of_host(host) for host in hosts))
    found = [one.rpartition("-")[0] for one in rented(gather(world, (), domains=switches))]
    best = allocate(Counter(named), nodes)
    if best is None:
        assert found == []
        return
    assert len(set(found)) == nodes
    spread = entropy(Counter(switches.get(host, ("", "")) for host in found).values())
    assert spread <= entropy(best.values()) + 1e-9 if switches else found == hosts[:nodes]


# No more than so many under one switch, and in one rack


def apart(nodes: int = 4, switch: int | None = None, rack: int | None = None, **changes: Any) -> JobView:
    return gang(nodes=nodes, most_under_one=MostUnderOne(rack, switch), **changes)


def test_no_more_than_so_many_are_under_one_switch() -> None:
    """Though one has room for all, and otherwise as close as can be."""
    switches = under(s1="abcdef", s2="gh", s3="ij")
    gathered = gather(seen(jobs=[apart(switch=2)], offers=offers("abcdefghij")), (), domains=switches)
    assert Counter(switches[host] for host in hosts_of(rented(gathered))).most_common(2)[0][1] == 2
    assert len(rented(gathered)) == 4
    assert chosen_by(gathered) == [SwitchRule.FEWEST]


def test_each_in_a_rack_of_its_own() -> None:
    domains = under(r1_s1="ab", r1_s2="c", r2_s3="de", r3_s4="f", r4_s5="g")
    gathered = gather(seen(jobs=[apart(rack=1)], offers=offers("abcdefg")), (), domains=domains)
    assert sorted(domains[host][0] for host in hosts_of(rented(gathered))) == ["r1", "r2", "r3", "r4"]


def test_one_that_cannot_have_its_machines_apart_now_waits_holds_nothing_and_is_told_why() -> None:
    switches = under(s1="abcd", s2="e")
    gathered = gather(seen(jobs=[apart(switch=2)], offers=offers("abcdefg")), (), domains=switches)
    assert len(rented(gathered)) == 4, "those of which nobody says it count as under one"
    without = gather(seen(jobs=[apart(switch=1)], offers=offers("abcdefg")), (), domains=switches)
    assert without.claims == ()
    assert without.waiting["job_g"] == (
        "waits for 4 machines with 1 x GPU each, on one private network, at most 1 under one switch: pool lab has 7 of "
        "them free now (A100), and a job may have 3 of them together: nobody says which switch 2 of these are under "
        "(allpass pool label)"
    )
    assert len(without.snapshot.offers) == 7, "others may have them"


def test_a_cloud_that_says_no_switch_is_under_one() -> None:
    cloud = seen(jobs=[apart(nodes=2, rack=1)], offers=(in_cloud(),))
    gathered = gather(cloud, ())
    assert gathered.claims == ()
    assert "has as many of them as it takes (A100), and a job may have 1 of them together" in gathered.waiting["job_g"]
    assert rented(gather(seen(jobs=[apart(nodes=2, rack=2)], offers=(in_cloud(),)), ())) == ["vm-east", "vm-east"]


def test_what_it_has_counts_and_a_lost_machine_is_replaced_elsewhere() -> None:
    its = [GangNode("node_c", "job_g", "c/A100"), GangNode("node_d", "job_g", "d/A100")]
    world = seen(jobs=[apart(3, switch=2)], nodes=[machine("node_c"), machine("node_d")], offers=offers("abe"))
    assert rented(gather(world, its, domains=under(s1="ab", s2="cde"))) == ["a-1"]


def test_labels_that_change_on_the_way_let_go_of_what_is_too_much() -> None:
    """Else it would wait for ever, with all of its machines: they are ready, and may not be together any more."""
    names = [f"node_{host}" for host in "abc"]
    its = [GangNode(name, "job_g", f"{name[-1]}/A100") for name in names]
    world = seen(jobs=[apart(3, switch=2)], nodes=[machine(name) for name in names], offers=offers("de"))
    begun = gather(world, its, domains=under(s1="ab", s2="c")).claims
    assert [type(one) for one in begun] == [AssignGang]
    changed = gather(world, its, domains=under(s1="abcd", s2="e"))
    assert rented(changed) == ["e-1"]
    assert [one.node_id for one in changed.claims if isinstance(one, Release)] == ["node_c"]
    nowhere = gather(replace(world, offers=()), its, domains=under(s1="abcd"))
    assert {one.node_id for one in nowhere.claims if isinstance(one, Release)} == set(names)
    assert nowhere.given_up == {"job_g"}


def test_hosts_are_kept_only_where_it_may_have_them_together() -> None:
    long_ago_ms = NOW_MS - RESERVE_AFTER_MS
    waits = apart(2, switch=1, submitted_ms=long_ago_ms)
    pools = [EmptyPool("lab", offers("abc"))]
    world = seen(jobs=[waits], offers=offers("ab"))
    kept = gather(world, (), pools=pools, domains=under(s1="ab", s2="c")).kept_hosts
    assert len(kept) == 2 and "c/A100" in kept
    assert gather(world, (), pools=pools, domains=under(s1="abc")).kept_hosts == {}


_DOMAINS_DRAWN = st.lists(st.tuples(st.sampled_from(["r1", "r2", ""]), st.sampled_from("stuv")), min_size=1, max_size=9)


@settings(max_examples=150, deadline=None)
@given(_DOMAINS_DRAWN, st.integers(2, 5), st.integers(1, 3), st.integers(1, 3), st.sampled_from(SwitchRule))
def test_whatever_the_switches_bounds_hold_and_nobody_waits_who_need_not(
    named: list[Domain], nodes: int, rack: int, switch: int, rule: SwitchRule
) -> None:
    hosts = {f"host{number}": domain for number, domain in enumerate(named)}
    world = seen(jobs=[apart(nodes, switch, rack)], offers=tuple(of_host(host) for host in hosts))
    gathered = gather(world, (), domains=hosts, rule=rule)
    seats = Seats((rack, switch))
    could = sum(seats.take(domain) for domain in named)
    under_each = [hosts[one.rpartition("-")[0]] for one in rented(gathered)]
    assert len(under_each) == (nodes if could >= nodes else 0)
    assert not under_each or max(Counter(domain for domain in under_each).values()) <= switch
    assert not under_each or max(Counter(domain[0] for domain in under_each).values()) <= rack
    assert ("job_g" in gathered.waiting) == (could < nodes)
