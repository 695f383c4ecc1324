"""What fits where: offers that could be rented, and nodes that are there or coming.

`Fleet` is the working copy of one decision: every taking of GPUs is written down in it at once, so that no two jobs
of a plan are given the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from app.core.billing import first_unit
from app.core.model.job import Resources
from app.core.model.money import ZERO, Money
from app.core.model.node import SERVERFUL_TIERS, NodeState, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView, NodeView, Snapshot

# A create call whose outcome is unknown may well have made the machine: it is looked up before anything is retried.
COMING_NODE_STATES = frozenset({NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN})
# A silent node may come back, but nothing new is placed there and nobody counts on it.
LASTING_NODE_STATES = COMING_NODE_STATES | {NodeState.READY, NodeState.UNREACHABLE}


@dataclass(frozen=True, slots=True)
class Choice:
    """The offer to take, out of `rivals` of its tier that fit (itself included).

    `left_out` others would come first but failed this job recently. `again`: so did this one, as did all that fit.
    """

    offer: Offer
    rivals: int
    left_out: int
    again: bool


@dataclass(frozen=True, slots=True)
class TooDear:
    """Of the offers that fit, the one whose first billing unit (`least`) is cheapest; no cap of the job allows it."""

    offer: Offer
    least: Money


class Market:
    """The offers of one group of tiers, answered per need and cheapest first.

    `traits` say how they are billed: an offer whose first billing unit costs more than a job may still spend is not
    for that job.
    """

    def __init__(
        self, offers: Iterable[Offer], tiers: tuple[Tier, ...], traits: tuple[ProviderTraits, ...] = ()
    ) -> None:
        self._rules = {(trait.provider, trait.tier): trait.billing for trait in traits}
        rank = {tier: place for place, tier in enumerate(tiers)}
        self.offers = tuple(
            sorted(
                (offer for offer in offers if offer.tier in rank),
                key=lambda offer: (rank[offer.tier], offer.price_per_hour, offer.startup_ms, offer.key),
            )
        )
        self._fitting: dict[Resources, tuple[Offer, ...]] = {}

    def choose(self, job: JobView) -> Choice | None:
        """The first tier's cheapest fitting offer, then the quickest to start, then by key.

        Offers that failed the job recently are passed over; when all that fit did, the best of them is tried again.
        Those that the job's cap does not allow are never taken.
        """
        fitting = tuple(offer for offer in self._fits(job) if self._may_pay(job, offer))
        if not fitting:
            return None
        fresh = tuple(offer for offer in fitting if offer.key not in job.avoided_offers)
        best = (fresh or fitting)[0]
        rivals = sum(offer.tier == best.tier for offer in fresh or fitting)
        return Choice(best, rivals, fitting.index(best), again=not fresh)

    def too_dear(self, job: JobView) -> TooDear | None:
        """What stands in the way when offers fit and the job's cap allows none of them; None otherwise."""
        fitting = self._fits(job)
        if not fitting or any(self._may_pay(job, offer) for offer in fitting):
            return None
        least, offer = min(((self._least(offer), offer) for offer in fitting), key=lambda pair: (pair[0], pair[1].key))
        return TooDear(offer, least)

    def _fits(self, job: JobView) -> tuple[Offer, ...]:
        fitting = self._fitting.get(job.resources)
        if fitting is None:
            fitting = tuple(offer for offer in self.offers if offer_fits(job.resources, offer))
            self._fitting[job.resources] = fitting
        return fitting

    def _may_pay(self, job: JobView, offer: Offer) -> bool:
        return job.caps.max_cost is None or job.spent + self._least(offer) <= job.caps.max_cost

    def _least(self, offer: Offer) -> Money:
        rule = self._rules.get((offer.provider, offer.tier))
        return ZERO if rule is None else first_unit(rule, offer.price_per_hour)


def offer_fits(resources: Resources, offer: Offer) -> bool:
    """Whether one machine of this offer could hold the job."""
    return (
        offer.gpu_count >= resources.gpus_min
        and _kind_fits(resources, offer.gpu_type, offer.gpu_memory_bytes)
        and offer.cpus >= resources.cpus_min
        and offer.memory_bytes >= resources.memory_bytes_min
    )


@dataclass(slots=True)
class Place:
    """A serverful node, or one that this plan rents (`node` None), with what the plan has left of it."""

    place_id: str
    project_id: str
    gpu_type: str
    gpu_memory_bytes: int
    price_per_hour: Money
    expected_ready_ms: int
    gpu_count: int
    cpus: int
    memory_bytes: int
    free_gpus: tuple[int, ...]
    free_cpus: int
    free_memory_bytes: int
    node: NodeView | None
    needed: bool = False

    def could_fit(self, resources: Resources) -> bool:
        """Whether the job would fit if the node were empty."""
        return (
            self.gpu_count >= resources.gpus_min
            and _kind_fits(resources, self.gpu_type, self.gpu_memory_bytes)
            and self.cpus >= resources.cpus_min
            and self.memory_bytes >= resources.memory_bytes_min
        )

    def fits(self, resources: Resources) -> bool:
        """Whether the job fits beside what is there and what the plan has put there."""
        return (
            len(self.free_gpus) >= resources.gpus_min
            and self.free_cpus >= resources.cpus_min
            and self.free_memory_bytes >= resources.memory_bytes_min
            and self.could_fit(resources)
        )

    def take(self, resources: Resources) -> tuple[int, ...]:
        """Hold the lowest free GPUs, and CPUs and memory, for a job that fits; returns the GPUs."""
        taken, self.free_gpus = self.free_gpus[: resources.gpus_min], self.free_gpus[resources.gpus_min :]
        self.free_cpus -= resources.cpus_min
        self.free_memory_bytes -= resources.memory_bytes_min
        self.needed = True
        return taken


class Fleet:
    """The serverful nodes of a snapshot, by project."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._places: dict[str, list[Place]] = {}
        self.rented = 0
        held = _held_by_node(snapshot)
        occupied = {run.node_id for run in snapshot.runs}
        for node in snapshot.nodes:
            if node.tier in SERVERFUL_TIERS:
                self.rented += 1
                place = _place_of(node, *held.get(node.node_id, (0, 0)))
                # A node that a live run is on is never given back, whatever its free GPUs say.
                place.needed = node.node_id in occupied
                self._places.setdefault(node.project_id, []).append(place)

    def could_fit(self, job: JobView) -> bool:
        """Whether some node of the job's project, there or coming, is large enough for it."""
        return any(_lasts(place) and place.could_fit(job.resources) for place in self._of(job))

    def ready_place(self, job: JobView) -> Place | None:
        """The cheapest ready node with room for the job; then the fullest, so that others stay or fall empty."""
        fitting = (place for place in self._of(job) if _is_ready(place) and place.fits(job.resources))
        return min(fitting, key=lambda p: (p.price_per_hour, len(p.free_gpus), p.place_id), default=None)

    def coming_place(self, job: JobView) -> Place | None:
        """The coming node with room for the job that is expected first."""
        fitting = (place for place in self._of(job) if _is_coming(place) and place.fits(job.resources))
        return min(fitting, key=lambda p: (p.expected_ready_ms, p.price_per_hour, p.place_id), default=None)

    def hold_open(self, job: JobView) -> Place | None:
        """Keep what is free on the ready node that is nearest to having room for the job, and return it.

        Without this, a stream of later and smaller jobs would take each GPU as it falls free, and a large one
        would never start.
        """
        large = (place for place in self._of(job) if _is_ready(place) and place.could_fit(job.resources))
        place = min(large, key=lambda p: (-len(p.free_gpus), p.price_per_hour, p.place_id), default=None)
        if place is not None:
            place.free_gpus = ()
        return place

    def add(self, job: JobView, offer: Offer, now_ms: int) -> None:
        """A node rented in this plan, for this job; what it leaves is there for others of the project."""
        self.rented += 1
        place = Place(
            place_id=f"rented for {job.job_id}",
            project_id=job.project_id,
            gpu_type=offer.gpu_type,
            gpu_memory_bytes=offer.gpu_memory_bytes,
            price_per_hour=offer.price_per_hour,
            expected_ready_ms=now_ms + offer.startup_ms,
            gpu_count=offer.gpu_count,
            cpus=offer.cpus,
            memory_bytes=offer.memory_bytes,
            free_gpus=tuple(range(offer.gpu_count)),
            free_cpus=offer.cpus,
            free_memory_bytes=offer.memory_bytes,
            node=None,
        )
        place.take(job.resources)
        self._of(job).append(place)

    def unneeded(self) -> list[NodeView]:
        """Ready nodes that are wholly free and that nothing in this plan counts on; dearest first."""
        found = [
            place.node
            for places in self._places.values()
            for place in places
            if place.node is not None and _is_ready(place) and not place.needed
        ]
        whole = [node for node in found if len(node.free_gpus) == node.gpu_count]
        return sorted(whole, key=lambda node: (-node.price_per_hour.micros, node.node_id))

    def _of(self, job: JobView) -> list[Place]:
        return self._places.setdefault(job.project_id, [])


def _held_by_node(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    """CPUs and bytes of memory that live runs hold, by node."""
    jobs = {job.job_id: job for job in snapshot.jobs}
    held: dict[str, tuple[int, int]] = {}
    for run in snapshot.runs:
        for job_id in run.job_ids:
            if job_id in jobs:
                cpus, memory_bytes = held.get(run.node_id, (0, 0))
                need = jobs[job_id].resources
                held[run.node_id] = (cpus + need.cpus_min, memory_bytes + need.memory_bytes_min)
    return held


def _place_of(node: NodeView, held_cpus: int, held_memory_bytes: int) -> Place:
    return Place(
        place_id=node.node_id,
        project_id=node.project_id,
        gpu_type=node.gpu_type,
        gpu_memory_bytes=node.gpu_memory_bytes,
        price_per_hour=node.price_per_hour,
        expected_ready_ms=node.expected_ready_ms,
        gpu_count=node.gpu_count,
        cpus=node.cpus,
        memory_bytes=node.memory_bytes,
        free_gpus=tuple(sorted(node.free_gpus)),
        free_cpus=node.cpus - held_cpus,
        free_memory_bytes=node.memory_bytes - held_memory_bytes,
        node=node,
    )


def _kind_fits(resources: Resources, gpu_type: str, gpu_memory_bytes: int) -> bool:
    asked = resources.gpu_type
    return gpu_memory_bytes >= resources.gpu_memory_bytes_min and (asked is None or _plain(asked) == _plain(gpu_type))


def _plain(gpu_type: str) -> str:
    """`RTX 4090`, `rtx-4090` and `RTX4090` name one GPU."""
    return "".join(letter for letter in gpu_type.casefold() if letter.isalnum())


def _is_ready(place: Place) -> bool:
    return place.node is not None and place.node.state == NodeState.READY


def _is_coming(place: Place) -> bool:
    return place.node is None or place.node.state in COMING_NODE_STATES


def _lasts(place: Place) -> bool:
    return place.node is None or place.node.state in LASTING_NODE_STATES
