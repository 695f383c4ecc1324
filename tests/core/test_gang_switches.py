"""A job on several machines has them under as few switches as can be."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.gangs import GangNode, GatheredGangs, gather
from app.core.model.job import Caps
from app.core.model.money import Money
from app.core.model.node import NodeState
from app.core.model.offer import Offer
from app.core.model.plan import AssignGang, ProvisionGang, Release
from app.core.topology import Domain, SwitchRule, allocate, entropy
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
