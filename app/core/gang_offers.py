"""What a job on several machines could have: all that it lacks at one site, and what that costs. Pure.

Part of `app.core.gangs`, which decides who has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from app.core.billing import first_unit
from app.core.gang_sites import (
    GangRental,
    Site,
    by_switches,
    cheapest,
    domain_of,
    has_room,
    machines_in_words,
    place_in_words,
    site_of,
    why_not_all,
)
from app.core.host_ranking import HostOrder
from app.core.market import is_for, offer_fits
from app.core.model.job import ANY_NUMBER
from app.core.model.node import NodeState
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView, NodeView, Snapshot
from app.core.set_aside import SetAside, less
from app.core.topology import Domain, Seats, SwitchRule, choose, spread

COMING = frozenset({NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN})

MOST_NODES = 64  # of one job, whatever its row says


@dataclass(frozen=True, slots=True)
class GangNode:
    """A machine that was rented for a job on several. `joins`: its agent can take part in such a job. `leads`: the run
    on it that leads the job's, where its code says that all of them stop after the same step."""

    node_id: str
    job_id: str
    host: str = ""
    joins: bool = True
    leads: str = ""


@dataclass(frozen=True, slots=True)
class LackingGang:
    """A job that waits for machines, has none, and could not have all of them. `offers`: own hosts that have room for
    one of its machines now, each once at each site. `kept_hosts`: of those that are kept for jobs, its own. `domains`:
    rack and switch of own hosts, by their id, for one that may not have all under one."""

    job: JobView
    offers: tuple[Offer, ...] = ()
    kept_hosts: frozenset[str] = frozenset()
    domains: Mapping[str, Domain] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EmptyPool:
    """A pool of own hosts as it would be if nothing ran there: what they would offer, and how many GPUs may be used at
    once; None: all."""

    name: str
    offers: tuple[Offer, ...]
    most_gpus: int | None = None


class GangMarket:
    """What jobs on several machines may have in one decision: offers by site, less what they have been given of them.
    `again`: jobs that are offered what failed them lately, as there are no others. `kept_hosts`: by whose they are."""

    def __init__(
        self,
        snapshot: Snapshot,
        rented: Sequence[GangNode],
        domains: Mapping[str, Domain],
        asides: Sequence[SetAside],
        rule: SwitchRule,
        order: HostOrder | None,
    ) -> None:
        self._seen, self._domains, self._rule, self.order = snapshot, domains, rule, order
        self._asides = {one.place: one for one in asides}
        self.awaiting = {one.job_id for one in asides}
        self._host_of = {one.node_id: one.host for one in rented}  # as offers name it
        self._nodes = {node.node_id: node for node in snapshot.nodes}
        self._networked = {(it.provider, it.tier): it for it in snapshot.traits if it.is_networked}
        self.offers = list(snapshot.offers)
        self.by_site: dict[Site, list[Offer]] = {}
        for offer in self.offers:
            if (offer.provider, offer.tier) in self._networked:
                self.by_site.setdefault(site_of(offer), []).append(offer)
        for offers in self.by_site.values():
            offers.sort(key=lambda one: (one.price_per_hour.micros, one.gpu_count, one.shared_gpus, one.key))
        self.kept_hosts: dict[str, str] = {}
        self.again: set[str] = set()

    def take(self, offers: Sequence[Offer]) -> None:
        """They are given out, and with each the rest of its host."""
        hosts = {one.host for one in offers if one.host}
        if hosts:
            self.offers = [one for one in self.offers if one.host not in hosts]
            for site, there in self.by_site.items():
                self.by_site[site] = [one for one in there if one.host not in hosts]

    def best(self, job: JobView, own: Sequence[GangNode]) -> GangRental | None:
        found = (self.completed(job, own, site) for site in self._sites(job, own))
        return min((one for one in found if one is not None), key=lambda one: one.rank, default=None)

    def _sites(self, job: JobView, own: Sequence[GangNode]) -> list[Site]:
        """Where it could be: where it has machines already, or any that is on offer."""
        has = {site_of(self._nodes[one.node_id]) for one in own}
        offered = {site for site, offers in self.by_site.items() if any(self._suits(job, one) for one in offers)}
        return sorted(has or offered)

    def completed(
        self, job: JobView, own: Sequence[GangNode], site: Site, trains_on: Collection[str] = frozenset()
    ) -> GangRental | None:
        """What is to be rented there so that the job has all; None where that is not to be had. `trains_on`: those of
        its own that it uses, and will go on with."""
        here = [self._nodes[one.node_id] for one in own if site_of(self._nodes[one.node_id]) == site]
        here.sort(key=lambda node: node.node_id not in trains_on)
        useful = {one.node_id for one in own if one.joins}
        seats = Seats(job.most_under_one.by_level)
        able = (
            node
            for node in here
            if node.node_id in trains_on or node.state in COMING or self.is_useful(job, node, useful)
        )
        counts = [node for node in able if seats.take(self._domain_of(node))]
        missing = job.resources.nodes - len(counts)
        if missing > MOST_NODES:
            return None
        if missing <= 0:
            return GangRental(site, (), tuple(counts), sum(node.price_per_hour.micros for node in counts))
        hosts = {one.host for one in own if one.host}
        there = [one for one in self.by_site.get(site, ()) if self._suits(job, one) and one.host not in hosts]
        there.sort(key=lambda one: one.key in job.avoided_offers)
        if self.order is not None and job.job_id not in self.awaiting:  # what others have left comes as it did
            there = self.order.of(job, there)
        hosts_of = (self._host_of.get(one.node_id, "") for one in counts)
        has = Counter(domain_of(host, self._domains) for host in hosts_of if host)
        by = self._rule_for(job)
        chosen = by_switches(by, there, has, missing, self._domains, job.most_under_one)
        for taken, rule in ((chosen, by), (cheapest(there, missing, seats, self._domains), None)):
            hourly = sum(one.price_per_hour.micros for one in (*(taken or ()), *counts))
            if taken and self._may_pay(job, taken, hourly):
                under = has + Counter(domain_of(one.host, self._domains) for one in taken if one.host)
                return GangRental(site, tuple(taken), tuple(counts), hourly, spread(under), rule)
        return None

    def closest(self, job: JobView, nodes: Sequence[NodeView]) -> list[NodeView]:
        """As many of them as the job needs, as close as can be; none where they are not there. Neighbours by rank are
        under one switch."""
        by_switch: dict[Domain, list[NodeView]] = {}
        for node in nodes:
            by_switch.setdefault(self._domain_of(node), []).append(node)
        free, number = {switch: len(under) for switch, under in by_switch.items()}, job.resources.nodes
        taken = choose(self._rule_for(job), free, {}, number, job.most_under_one.by_level) or {}
        return [node for switch in sorted(taken) for node in by_switch[switch][: taken[switch]]]

    def reaches(self, node_id: str) -> bool:
        """Whether the machine reaches others of its site."""
        node = self._nodes[node_id]
        return (node.provider, node.tier) in self._networked

    def is_useful(self, job: JobView, node: NodeView, joins: Collection[str]) -> bool:
        return node.state is NodeState.READY and node.node_id in joins and has_room(job, node)

    def hosts_for(self, job: JobView, pool: EmptyPool) -> set[str]:
        """As many as it has machines, those with the most free GPUs now; none where it could not have all of them even
        if nothing ran there."""
        need = job.resources
        if pool.most_gpus is not None and need.nodes * need.gpus_min > pool.most_gpus:
            return set()
        fitting: dict[str, Offer] = {}
        for offer in sorted(pool.offers, key=lambda one: (one.gpu_count, one.key)):
            if self._suits(job, offer):
                fitting.setdefault(offer.host, offer)
        free: dict[str, int] = {}
        for offer in self.offers:
            if offer.host in fitting and not offer.spot_only:
                free[offer.host] = max(free.get(offer.host, 0), offer.shared_gpus)
        seats = Seats(job.most_under_one.by_level)
        ranked = sorted(fitting, key=lambda host: (-free.get(host, 0), host))
        hosts = list(islice((one for one in ranked if seats.take(domain_of(one, self._domains))), need.nodes))
        hourly = sum(fitting[host].price_per_hour.micros for host in hosts)
        if len(hosts) < need.nodes or not self._may_pay(job, [fitting[host] for host in hosts], hourly):
            return set()
        return set(hosts)

    def why_no_more(self, job: JobView, site: Site, missing: int) -> str:
        """Why a job that trains there cannot have so many machines more."""
        hosts = {one.host for one in self.by_site.get(site, ()) if self._suits(job, one)}
        machines = "1 more machine" if missing == 1 else f"{missing} more machines"
        lacks = f"it lacks {machines} with {job.resources.gpus_min} x {site[3]} at {place_in_words(site)}"
        if "" in hosts or len(hosts) >= missing:
            return f"{lacks}: they are there, and it may not have them now: its limits, or how far apart it is to be"
        return f"{lacks}: {len(hosts) or 'none'} of them {'is' if len(hosts) == 1 else 'are'} free now"

    def lacks(self, job: JobView) -> LackingGang:
        its = frozenset(host for host, job_id in self.kept_hosts.items() if job_id == job.job_id)
        here: dict[tuple[Site, str], Offer] = {}
        for offer in sorted(self.offers, key=lambda one: (one.gpu_count, one.key)):
            if offer.host and not offer.spot_only and self._suits(job, offer):
                here.setdefault((site_of(offer), offer.host), offer)
        domains = {} if job.most_under_one == ANY_NUMBER else self._domains
        return LackingGang(job, tuple(here.values()), its, domains)

    def for_others(self) -> Iterator[Offer]:
        for offer in self.offers:
            aside = self._asides.get(offer.host)
            left = offer if aside is None else less(offer, aside)
            if left is not None and offer.host not in self.kept_hosts:
                yield left

    def why_not(self, job: JobView) -> str:
        need = job.resources
        what = machines_in_words(need.nodes, need.gpus_min, need.gpu_type, job.most_under_one)
        fitting = [one for one in self.offers if offer_fits(need, one) and is_for(job, one)]
        suiting = [one for one in fitting if self._suits(job, one)]
        why = why_not_all(need.nodes, suiting or fitting, self._networked, job.most_under_one, self._domains)
        return f"waits for {what}: {why}"

    def _suits(self, job: JobView, offer: Offer) -> bool:
        return (
            (offer.provider, offer.tier) in self._networked
            and offer_fits(job.resources, offer)
            and is_for(job, offer)
            and (job.resources.base_image is None or self._networked[offer.provider, offer.tier].takes_images)
            and offer.key not in job.unreached_offers
            and (offer.key not in job.avoided_offers or job.job_id in self.again)
            and self.kept_hosts.get(offer.host, job.job_id) == job.job_id
            and self._is_left(job, offer)
        )

    def _is_left(self, job: JobView, offer: Offer) -> bool:
        """Whether what is kept of its host for another job leaves as much."""
        aside = self._asides.get(offer.host)
        return aside is None or aside.job_id == job.job_id or less(offer, aside) is not None

    def _may_pay(self, job: JobView, offers: Sequence[Offer], hourly_micros: int) -> bool:
        """Whether the job's own limits, and budgets, allow all of them together."""
        if not job.caps.allows_hourly(hourly_micros):
            return False
        rules = {(it.provider, it.tier): it.billing for it in self._seen.traits}
        least = [first_unit(rules[it.provider, it.tier], it.price_per_hour) for it in offers]
        total = sum(one.micros for one in least)
        if any(job.refused_by(offer.provider, one) is not None for offer, one in zip(offers, least, strict=True)):
            return False
        return job.caps.max_cost is None or job.spent.micros + total <= job.caps.max_cost.micros

    def _domain_of(self, node: NodeView) -> Domain:
        return domain_of(self._host_of.get(node.node_id, ""), self._domains)

    def _rule_for(self, job: JobView) -> SwitchRule:
        """The paper's knows no bounds."""
        return self._rule if job.most_under_one == ANY_NUMBER else SwitchRule.FEWEST
