"""Where a job on several machines can be: those that reach each other, and what of them would do (ADR 0100). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from app.core.market import kind_fits
from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView, NodeView
from app.core.topology import Domain, SwitchRule, choose

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


def cheapest(offers: Iterable[Offer], missing: int) -> list[Offer] | None:
    """The first of each host, and of a cloud as many as it takes; None where they are not there."""
    taken: list[Offer] = []
    hosts: set[str] = set()
    for offer in offers:
        if offer.host in hosts:
            continue
        hosts |= {offer.host} - {""}
        taken += [offer] * (1 if offer.host else missing)
        if len(taken) >= missing:
            return taken[:missing]
    return None


def by_switches(
    rule: SwitchRule,
    offers: Iterable[Offer],
    has: Mapping[Domain, int],
    missing: int,
    domains: Mapping[str, Domain],
) -> list[Offer] | None:
    """Of hosts under the switches that the rule chooses, each once; under each switch the first that are offered.
    `has`: how many machines the job has under each. None where there is nothing to choose: no host says where it is."""
    by_switch: dict[Domain, dict[str, Offer]] = {}
    for offer in offers:
        if offer.host:
            by_switch.setdefault(domain_of(offer.host, domains), {}).setdefault(offer.host, offer)
    if not domains or len(by_switch) < 2:
        return None
    taken = choose(rule, {switch: len(hosts) for switch, hosts in by_switch.items()}, has, missing)
    if taken is None:
        return None
    return [offer for switch, number in taken.items() for offer in [*by_switch[switch].values()][:number]]


def domain_of(host: str, domains: Mapping[str, Domain]) -> Domain:
    """Of a host as offers name it; hosts of which nobody says it are taken to be under one switch."""
    return domains.get(host.partition("/")[0], _UNSAID)


def machines_in_words(nodes: int, gpus: int, gpu_type: str | None) -> str:
    """What a job on several machines asks for."""
    return f"{nodes} machines with {gpus} x {gpu_type or 'GPU'} each, on one private network"


def place_in_words(site: Site) -> str:
    """A pool by its name, what is rented by its company and region."""
    provider, tier, region, _ = site
    return f"pool {region}" if tier is Tier.OWN and region else f"{provider} {region}".strip()


def why_not_all(nodes: int, fitting: Iterable[Offer], networked: Collection[tuple[str, Tier]]) -> str:
    """Why so many machines are not to be had together. `fitting`: every offer that could be one of them; `networked`:
    the tiers of providers whose machines of one site reach each other."""
    by_site: dict[Site, set[str]] = {}
    apart: set[str] = set()
    for offer in fitting:
        if (offer.provider, offer.tier) in networked:
            by_site.setdefault(site_of(offer), set()).add(offer.host)
        else:
            apart.add(f"{offer.provider} {offer.tier.value}")
    if not by_site:
        return f"those of {', '.join(sorted(apart))} do not reach each other" if apart else "none is to be had now"
    if any(len(hosts) >= nodes or "" in hosts for hosts in by_site.values()):
        return "enough are there, and it may not have them now: its limits, its image, or what failed it before"
    counts = sorted((-len(hosts), place_in_words(site), site[3]) for site, hosts in by_site.items())
    told = [f"{place} has {-count} of them free now ({gpu_type})" for count, place, gpu_type in counts[:_MOST_NAMED]]
    if len(counts) > _MOST_NAMED:
        told.append(f"{len(counts) - _MOST_NAMED} other places have no more")
    return ", ".join(told)
