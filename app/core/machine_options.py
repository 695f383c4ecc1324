"""What a job could be on several machines of one site: its layout over all their GPUs, its time and its cost. Pure.

What `app.core.options` says of one machine, of several that reach each other (ADR 0112). Memory is each GPU's own: more
machines help where a layout spreads what it holds, which the built-in recipe does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from app.core.exchange import Exchange, Network, Runner, bytes_between
from app.core.gang_sites import Site, SiteRoom, by_switches, cheapest, domain_of, site_of
from app.core.machine_layouts import LaidOver, MachineLayouts
from app.core.memory import Estimate, Training, Verdict, verdict
from app.core.memory.calibration import Calibration, Calibrations
from app.core.memory.exact import ExactEstimate
from app.core.model.job import ANY_NUMBER, MostUnderOne
from app.core.model.money import Money
from app.core.model.node import Tier
from app.core.model.offer import X86_64, Offer
from app.core.options import VERDICTS, AskedJob
from app.core.throughput import StepTime, Throughput
from app.core.topology import Domain, Seats, SwitchRule

MOST_MACHINES = 64  # as of a job's template
MOST_OPTIONS = 100
_MOST_PLACES, _MOST_KINDS = 1_000, 100  # kinds of GPUs at sites, and kinds of GPUs, that are looked at
_MOST_GPUS = 64  # of a machine
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Sites:
    """What is known of where machines reach each other. `networked`: tiers of providers whose machines do, within one
    site; None: nobody has said it yet. `networks`: how fast, as it was measured or stated. `left_gpus`: how many more
    GPUs the limit of a pool lets be used, by launcher and name. `domains`: rack and switch of own hosts, by their id,
    which are chosen by `rule`."""

    networked: Collection[tuple[str, Tier]] | None = None
    networks: Mapping[Site, Network] = field(default_factory=dict)
    usual: Network = field(default_factory=Network)
    left_gpus: Mapping[tuple[str, str], int] = field(default_factory=dict)
    domains: Mapping[str, Domain] = field(default_factory=dict)
    rule: SwitchRule = SwitchRule.FEWEST

    def network(self, site: Site) -> Network:
        return self.networks.get(site, self.usual)


@dataclass(frozen=True, slots=True)
class MachineOption:
    """One kind of GPU, so many of each machine, at one site. `training`: the layout over all of them, the quickest that
    fits, or the one that needs least; `runner`: who can run it so.

    `machines`: how many are to be had there now; None: its provider tells no number. `hourly`: of all that are asked
    for; None where they are not to be had, and `why_not` says why. `computing` is a step without the network. `under`:
    how many would be under each switch; empty where nobody says which.
    """

    site: Site
    nodes: int
    gpu_count: int
    gpu_memory_bytes: int
    verdict: Verdict
    training: Training
    estimated: Estimate
    calibration: Calibration | None
    decided: ExactEstimate | None
    runner: Runner
    computing: StepTime | None
    exchange: Exchange
    machines: int | None
    offers: tuple[Offer, ...] = ()
    why_not: str | None = None
    duration_ms: int | None = None
    cost: Money | None = None
    in_time: bool | None = None
    steps_in_time: int | None = None
    under: Mapping[Domain, int] = field(default_factory=dict)

    @property
    def gpu_type(self) -> str:
        return self.site[3]

    @property
    def is_to_be_had(self) -> bool:
        return self.why_not is None

    @property
    def hourly(self) -> Money | None:
        return Money(sum(one.price_per_hour.micros for one in self.offers)) if self.is_to_be_had else None

    @property
    def startup_ms(self) -> int | None:
        """Until the last of them is there."""
        return max((one.startup_ms for one in self.offers), default=None)

    @property
    def step_ms(self) -> float | None:
        return None if self.computing is None else self.computing.ms + self.exchange.ms

    @property
    def is_slow(self) -> bool:
        """Whether a step waits longer for the network than it computes."""
        return self.computing is not None and self.exchange.ms > self.computing.ms

    @property
    def rank(self) -> tuple[int, bool, tuple[int, int, int], int, Site, int]:
        """Those that fit; of them those that are to be had; then in time before late before unknown, and the cheapest,
        of the late ones the soonest."""
        hourly = self.hourly.micros if self.hourly is not None else 0
        worth = (2, 0, hourly)
        if self.duration_ms is not None and self.cost is not None:
            worth = (1, self.duration_ms, hourly) if self.in_time is False else (0, self.cost.micros, hourly)
        gpus = self.nodes * self.gpu_count
        return VERDICTS.index(self.verdict), not self.is_to_be_had, worth, gpus, self.site, self.gpu_memory_bytes


def options_over(
    wish: AskedJob,
    nodes: int,
    offers: Iterable[Offer],
    sites: Sites,
    throughput: Throughput,
    calibrations: Calibrations,
    *,
    gpu_count: int | None = None,
    most: MostUnderOne = ANY_NUMBER,
) -> tuple[MachineOption, ...]:
    """On so many machines, the best first: each kind of GPU at each site, at most `MOST_OPTIONS`. A step's sequences
    have to be shared evenly by what a script runs on: it uses as many GPUs of each machine as do; empty where none
    do. `gpu_count`: only with so many of each machine; the built-in recipe has its own number. `most`: how many may be
    under one switch, and in one rack."""
    here = by_site(offers, sites.networked or ())
    count = gpu_count if wish.own is None else wish.own.gpus
    laying = MachineLayouts(wish, nodes, throughput, calibrations)
    found: list[MachineOption] = []
    kinds: set[tuple[str, int, int]] = set()
    for site, memory_bytes, each in list(_kinds(here, count))[:_MOST_PLACES]:
        kind = (site[3], each, memory_bytes)
        if kind not in kinds and len(kinds) == _MOST_KINDS:
            continue
        kinds.add(kind)
        laid = laying.on(kind, sites.network(site))
        if laid is not None:
            found.append(_option(wish, laid, nodes, (site, memory_bytes, each), here[site], sites, most))
    return tuple(sorted(found, key=lambda option: option.rank)[:MOST_OPTIONS])


def by_site(offers: Iterable[Offer], networked: Collection[tuple[str, Tier]]) -> Mapping[Site, tuple[Offer, ...]]:
    """What is on offer where machines reach each other, the cheapest first; what no job can use is left out."""
    found: dict[Site, list[Offer]] = {}
    for offer in offers:
        usable = offer.cpu_architecture == X86_64 and 0 < offer.gpu_count <= _MOST_GPUS and offer.gpu_memory_bytes > 0
        if usable and not offer.spot_only and (offer.provider, offer.tier) in networked:
            found.setdefault(site_of(offer), []).append(offer)
    return {
        site: tuple(sorted(here, key=lambda one: (one.price_per_hour.micros, one.gpu_count, one.shared_gpus, one.key)))
        for site, here in sorted(found.items())
    }


def _kinds(here: Mapping[Site, tuple[Offer, ...]], gpu_count: int | None) -> Iterator[tuple[Site, int, int]]:
    """Each size of memory with each number of GPUs of a machine."""
    for site, offers in here.items():
        if gpu_count is None:
            yield from sorted({(site, one.gpu_memory_bytes, one.gpu_count) for one in offers})
        else:
            enough = {one.gpu_memory_bytes for one in offers if one.gpu_count >= gpu_count}
            yield from ((site, memory_bytes, gpu_count) for memory_bytes in sorted(enough))


def _option(
    wish: AskedJob,
    laid: LaidOver,
    nodes: int,
    kind: tuple[Site, int, int],
    offers: Iterable[Offer],
    sites: Sites,
    most: MostUnderOne,
) -> MachineOption:
    site, memory_bytes, count = kind
    runner: Runner = "script" if wish.own is None else "recipe"
    there = [one for one in offers if one.gpu_count >= count and one.gpu_memory_bytes >= memory_bytes]
    room = SiteRoom.of({one.host for one in there}, nodes, most, sites.domains)
    taken = _taken(there, nodes, sites, most)
    under = Counter(domain_of(one.host, sites.domains) for one in taken if one.host)
    left = sites.left_gpus.get((site[0], site[2])) if site[1] is Tier.OWN else None
    found = MachineOption(
        site=site,
        nodes=nodes,
        gpu_count=count,
        gpu_memory_bytes=memory_bytes,
        verdict=verdict(laid.estimated, memory_bytes),
        training=laid.training,
        estimated=laid.estimated,
        calibration=laid.calibration,
        decided=laid.decided,
        runner=runner,
        computing=laid.computing,
        exchange=Exchange(bytes_between(wish.model, laid.training, nodes, runner), sites.network(site)),
        machines=room.free,
        offers=taken,
        why_not=_why_not(nodes, count, room, taken, left),
        under=under if any(any(domain) for domain in under) else {},
    )
    return _timed(wish, found)


def _taken(offers: Collection[Offer], nodes: int, sites: Sites, most: MostUnderOne) -> tuple[Offer, ...]:
    """What would be rented, as it is decided (`app.core.gangs`)."""
    rule = sites.rule if most == ANY_NUMBER else SwitchRule.FEWEST
    chosen = by_switches(rule, offers, {}, nodes, sites.domains, most)
    return tuple(chosen or cheapest(offers, nodes, Seats(most.by_level), sites.domains) or ())


def _why_not(nodes: int, count: int, room: SiteRoom, taken: Collection[Offer], left: int | None) -> str | None:
    """None: all of them are to be had now, as far as their listing says."""
    if not taken:
        return f"{room.free_in_words()}, of {nodes}"
    if left is not None and nodes * count > left:
        gpus = "1 more GPU" if left == 1 else f"{left} more GPUs"
        return f"the limit of the pool lets {gpus} be used, of {nodes * count}"
    return None


def _timed(wish: AskedJob, found: MachineOption) -> MachineOption:
    """Time and cost where it is sure to fit and to be had. The network is waited for in every step."""
    if found.computing is None or found.verdict != "fits" or found.hourly is None or found.startup_ms is None:
        return found
    step_ms = found.computing.ms + found.exchange.ms
    duration_ms = found.startup_ms + round(wish.steps * step_ms)
    timed = replace(found, duration_ms=duration_ms, cost=Money(found.hourly.micros * duration_ms // _HOUR_MS))
    if wish.time_left_ms is None:
        return timed
    in_time = duration_ms <= wish.time_left_ms if wish.steps_given else None
    done = max(wish.steps if in_time else 0, int((wish.time_left_ms - found.startup_ms) / step_ms))
    return replace(timed, in_time=in_time, steps_in_time=done)
