"""Where a job on several machines can be: those that reach each other, and what of them would do (ADR 0100). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from app.core.market import kind_fits
from app.core.model.job import ANY_NUMBER, MostUnderOne
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView, NodeView
from app.core.topology import Domain, Seats, SwitchRule, choose

Site = tuple[str, Tier, str, str]  # provider, tier, region, kind of GPU
_TIERS = (Tier.OWN, Tier.MARKETPLACE, Tier.CONVENTIONAL)
_MOST_NAMED = 4
_UNSAID: Domain = ("", "")


@dataclass(frozen=True, slots=True)
class GangRental:
    """What is rented at a site, beside what the job has there, so that it has all of its machines."""

    site: Site
    offers: tuple[Offer, ...]
    has: tuple[NodeView, ...]
    hourly_micros: int
    spread: float = 0.0  # over racks and switches (`app.core.topology.spread`)
    chosen_by: SwitchRule | None = None  # None: there was nothing to choose, or the cheapest were taken

    @property
    def rank(self) -> tuple[int, int, int, float, Site]:
        """Where it has most already; then own machines, then the cheapest, then the least spread."""
        return -len(self.has), _TIERS.index(self.site[1]), self.hourly_micros, round(self.spread, 9), self.site


def site_of(machine: Offer | NodeView) -> Site:
    """Machines of one site reach each other, where their provider says that of its own."""
    return machine.provider, machine.tier, machine.region, machine.gpu_type


def has_room(job: JobView, node: NodeView) -> bool:
    """Whether the node could be one of the job's machines."""
    need = job.resources
    return (
        node.project_id == job.project_id
        and not node.spot_only
        and len(node.free_gpus) >= need.gpus_min
        and node.cpus >= need.cpus_min
        and node.memory_bytes >= need.memory_bytes_min
        and kind_fits(need, node.gpu_type, node.gpu_memory_bytes)
        and node.image == (need.base_image or "")
    )


def cheapest(
    offers: Iterable[Offer], missing: int, seats: Seats | None = None, domains: Mapping[str, Domain] | None = None
) -> list[Offer] | None:
    """The first of each host, and of a cloud as many as it takes; None where they are not there. `seats`: where no more
    may be under one switch or in one rack, further ones are passed over."""
    seats = seats or Seats(())
    taken: list[Offer] = []
    hosts: set[str] = set()
    for offer in offers:
        if offer.host in hosts:
            continue
        domain = domain_of(offer.host, domains or {})
        while len(taken) < missing and seats.take(domain):
            taken.append(offer)
            if offer.host:
                hosts.add(offer.host)
                break
        if len(taken) == missing:
            return taken
    return None


def by_switches(
    rule: SwitchRule,
    offers: Iterable[Offer],
    has: Mapping[Domain, int],
    missing: int,
    domains: Mapping[str, Domain],
    most: MostUnderOne = ANY_NUMBER,
) -> list[Offer] | None:
    """Of hosts under the switches that the rule chooses, each once; under each switch the first that are offered.
    `has`: how many machines the job has under each. None where there is nothing to choose: no host says where it is.
    `most`: how many it may have under one."""
    by_switch: dict[Domain, dict[str, Offer]] = {}
    for offer in offers:
        if offer.host:
            by_switch.setdefault(domain_of(offer.host, domains), {}).setdefault(offer.host, offer)
    if not domains or len(by_switch) < 2:
        return None
    taken = choose(rule, {switch: len(hosts) for switch, hosts in by_switch.items()}, has, missing, most.by_level)
    if taken is None:
        return None
    return [offer for switch, number in taken.items() for offer in [*by_switch[switch].values()][:number]]


def domain_of(host: str, domains: Mapping[str, Domain]) -> Domain:
    """Of a host as offers name it; hosts of which nobody says it are taken to be under one switch."""
    return domains.get(host.partition("/")[0], _UNSAID)


def machines_in_words(nodes: int, gpus: int, gpu_type: str | None, most: MostUnderOne = ANY_NUMBER) -> str:
    """What a job on several machines asks for."""
    apart = f", {most.in_words()}" if most.in_words() else ""
    return f"{nodes} machines with {gpus} x {gpu_type or 'GPU'} each, on one private network{apart}"


def place_in_words(site: Site) -> str:
    """A pool by its name, what is rented by its company and region."""
    provider, tier, region, _ = site
    return f"pool {region}" if tier is Tier.OWN and region else f"{provider} {region}".strip()


def why_not_all(
    nodes: int,
    fitting: Iterable[Offer],
    networked: Collection[tuple[str, Tier]],
    most: MostUnderOne = ANY_NUMBER,
    domains: Mapping[str, Domain] | None = None,
) -> str:
    """Why so many machines are not to be had together. `fitting`: every offer that could be one of them; `networked`:
    the tiers of providers whose machines of one site reach each other; `most`, `domains`: as of `by_switches`."""
    by_site: dict[Site, set[str]] = {}
    apart: set[str] = set()
    for offer in fitting:
        if (offer.provider, offer.tier) in networked:
            by_site.setdefault(site_of(offer), set()).add(offer.host)
        else:
            apart.add(f"{offer.provider} {offer.tier.value}")
    if not by_site:
        return f"those of {', '.join(sorted(apart))} do not reach each other" if apart else "none is to be had now"
    rooms = {site: SiteRoom.of(hosts, nodes, most, domains or {}) for site, hosts in by_site.items()}
    if any(room.together >= nodes for room in rooms.values()):
        return "enough are there, and it may not have them now: its limits, its image, or what failed it before"
    ranked = sorted(rooms, key=lambda site: (-rooms[site].together, place_in_words(site), site[3]))
    told = [rooms[site].in_words(place_in_words(site), site[3]) for site in ranked[:_MOST_NAMED]]
    if len(ranked) > _MOST_NAMED:
        told.append(f"{len(ranked) - _MOST_NAMED} other places have no more")
    return ", ".join(told)


@dataclass(frozen=True, slots=True)
class SiteRoom:
    """Of what is free at a site: how many machines, how many of them one job may have together, and of how many nobody
    says the switch. `free` is None of a cloud, which has as many as it takes."""

    free: int | None
    together: int
    unsaid: int

    @classmethod
    def of(cls, hosts: Collection[str], nodes: int, most: MostUnderOne, domains: Mapping[str, Domain]) -> SiteRoom:
        seats, is_cloud = Seats(most.by_level), "" in hosts
        under = [domain_of(host, domains) for host in sorted(hosts) if host] + [_UNSAID] * (nodes * is_cloud)
        free = None if is_cloud else len(hosts)
        return cls(free, sum(seats.take(domain) for domain in under), under.count(_UNSAID))

    def in_words(self, place: str, gpu_type: str) -> str:
        free = "as many of them as it takes" if self.free is None else f"{self.free} of them free now"
        return f"{place} has {free} ({gpu_type}){self._together_in_words()}"

    def free_in_words(self) -> str:
        have = "1 such machine is" if self.free == 1 else f"{self.free} such machines are"
        told = "as many such machines as it takes are there" if self.free is None else f"{have} free now"
        return f"{told}{self._together_in_words()}"

    def _together_in_words(self) -> str:
        if self.free == self.together:
            return ""
        why = f": nobody says which switch {self.unsaid} of these are under (allpass pool label)" if self.unsaid else ""
        if self.free is None:
            why = ": nobody says which switches these are under"
        return f", and a job may have {self.together} of them together{why}"
