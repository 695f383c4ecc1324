"""What the rented nodes have room for: the working copy of one decision.

Every taking of GPUs is written down at once, so that no two jobs of a plan are given the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter

from app.core.board import Board, Shape
from app.core.job_prices import job_micros
from app.core.machine_lives import weighed_micros
from app.core.model.job import NO_AFFINITY, Affinity, Resources
from app.core.model.money import Money
from app.core.model.node import NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.snapshot import JobView, NodeView
from app.core.policies.room import Lasting, Room, shape_fits
from app.core.spot_places import is_of_its_class


@dataclass(slots=True)
class Place:
    """A serverful node, or one that this plan rents (`node` None), with what the plan has left of it."""

    place_id: str
    gpu_type: str
    gpu_memory_bytes: int
    price_per_hour: Money
    weighed_micros: int  # per hour of work: more where machines fail
    expected_ready_ms: int
    gpu_count: int
    cpus: int
    memory_bytes: int
    free_gpus: tuple[int, ...]
    free_cpus: int
    free_memory_bytes: int
    node: NodeView | None
    image: str = ""
    provider: str = ""
    offer: Offer | None = None  # of one that this plan rents
    tenants: list[Affinity] = field(default_factory=list)  # of those that are there, or come by this plan
    needed: bool = False

    @property
    def is_ready(self) -> bool:
        return self.node is not None and self.node.state == NodeState.READY

    @property
    def rank(self) -> tuple[int, int, str]:
        """Cheapest first, then the fullest, then by id."""
        return self.weighed_micros, len(self.free_gpus), self.place_id

    @property
    def coming_rank(self) -> tuple[int, int, str]:
        """Soonest first, then the cheapest, then by id."""
        return self.expected_ready_ms, self.weighed_micros, self.place_id

    def share_micros(self, resources: Resources) -> int:
        """What the GPUs of the job cost there per hour, in micro-dollars."""
        return self.price_per_hour.micros * resources.gpus_min // self.gpu_count

    def weighed_share_micros(self, job: JobView) -> int:
        """What an hour of work costs the job there, in micro-dollars, once it is there."""
        micros = self.weighed_micros if job.saves and job.speeds is None else job_micros(self.one, job)
        return micros * job.resources.gpus_min // self.gpu_count

    @property
    def one(self) -> Offer | NodeView:
        """What it is, or will be."""
        known = self.offer if self.node is None else self.node
        if known is None:
            raise ValueError(f"{self.place_id} is neither a node nor rented")
        return known

    @property
    def shape(self) -> Shape:
        return self.gpu_type, self.gpu_memory_bytes, self.gpu_count, self.cpus, self.memory_bytes, self.image

    @property
    def lasting(self) -> Lasting:
        """Of two places of one shape and this, the one that costs less is worth a move wherever the other is."""
        one = self.one
        return one.mean_life_ms, one.arrival_ms, one.arrival_micros, one.spot_only

    def could_fit(self, resources: Resources) -> bool:
        """Whether the job would fit if the node were empty: one with another image is never for it."""
        return shape_fits(resources, self.shape)

    def fits(self, resources: Resources) -> bool:
        """Whether the job fits beside what is there and what the plan has put there."""
        return (
            len(self.free_gpus) >= resources.gpus_min
            and self.free_cpus >= resources.cpus_min
            and self.free_memory_bytes >= resources.memory_bytes_min
            and self.could_fit(resources)
        )

    def takes(self, job: JobView) -> bool:
        """Whether the job fits, and none that is there is to be apart from it."""
        return self.fits(job.resources) and self.welcomes(job)

    def welcomes(self, job: JobView) -> bool:
        """Whether the job may pay for its GPUs there, none that is there is to be apart from it, and it is of the class
        that the place is for."""
        if not is_of_its_class(job, self.one):
            return False
        return self.is_paid_for(job) and not any(job.affinity.forbids(tenant) for tenant in self.tenants)

    def is_paid_for(self, job: JobView) -> bool:
        """Whether the job's limit per hour, and budgets, allow it the place."""
        return job.caps.allows_hourly(self.share_micros(job.resources)) and job.may_run_at(self.provider)

    def take(self, job: JobView) -> tuple[int, ...]:
        """Hold the lowest free GPUs, and CPUs and memory, for a job that fits; returns the GPUs."""
        resources = job.resources
        taken, self.free_gpus = self.free_gpus[: resources.gpus_min], self.free_gpus[resources.gpus_min :]
        self.free_cpus -= resources.cpus_min
        self.free_memory_bytes -= resources.memory_bytes_min
        if job.affinity != NO_AFFINITY:
            self.tenants.append(job.affinity)
        self.needed = True
        return taken


_RANK, _COMING_RANK = attrgetter("rank"), attrgetter("coming_rank")


class Fleet:
    """The rented nodes of a board, by project, and what one plan has left of them. Used once.

    Only the nodes that the plan looks at become a `Place`; what it takes is written down there.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._places: dict[str, Place] = {}
        self._new: dict[str, list[Place]] = {}
        self._left: list[NodeView] | None = None  # where a GPU was left when it was last looked for
        self._new_left: list[Place] = []
        self._open: dict[str, Room] = {}  # by project, once it was looked for
        self._coming: dict[str, Room] = {}
        self._cheap_coming: dict[str, Room] = {}  # the same by price
        self.rented = board.serverful_nodes

    def has_room(self) -> bool:
        """Whether a GPU is left on any node that is there or comes."""
        if self._left is None:
            self._left = [*self._board.all_open(), *self._board.all_coming()]
        while self._left and not self._place(self._left[-1]).free_gpus:
            self._left.pop()  # within a plan what is full stays full
        while self._new_left and not self._new_left[-1].free_gpus:
            self._new_left.pop()
        return bool(self._left or self._new_left)

    def could_fit(self, job: JobView) -> bool:
        """Whether some node of the job's project, there or coming, is large enough for it, and not too dear."""
        need, new = job.resources, self._new.get(job.project_id, ())
        if job.caps.max_hourly is not None or job.allowances:  # shapes have neither price nor provider
            places = [*map(self._place, self._board.lasting_nodes(job.project_id)), *new]
            return any(
                place.could_fit(need) and place.is_paid_for(job) and is_of_its_class(job, place.one) for place in places
            )
        if any(shape_fits(need, shape) for shape in self._board.shapes(job.project_id)):
            return True
        places = [*map(self._place, self._board.spot_only_nodes(job.project_id)), *new]
        return any(place.could_fit(need) and is_of_its_class(job, place.one) for place in places)

    def ready_place(self, job: JobView, most_micros: float = math.inf) -> Place | None:
        """The cheapest ready node with room for the job; then the fullest, so that others stay or fall empty.

        `most_micros`: of those where its GPUs cost at most so much per hour.
        """
        hosts = self.hosts(job)
        if not hosts:
            return self._open_room(job.project_id).cheapest(job, most_micros)
        nodes = self._board.open_nodes(job.project_id)
        return Room((self._place(nodes[one]) for one in hosts & nodes.keys()), _RANK).cheapest(job, most_micros)

    def ready_places(self, job: JobView, most_micros: float) -> Iterator[Place]:
        """Ready nodes with room for the job, the best of each shape that last alike; none where it may not go
        anywhere."""
        return iter(()) if self.hosts(job) else self._open_room(job.project_id).heads(job, most_micros)

    def coming_places(self, job: JobView, most_micros: float) -> Iterator[Place]:
        """Likewise of those that come: those that come soonest."""
        return iter(()) if self.hosts(job) else self._coming_room(job.project_id).heads(job, most_micros)

    def cheapest_coming_places(self, job: JobView, most_micros: float) -> Iterator[Place]:
        """Likewise those that cost least."""
        return iter(()) if self.hosts(job) else self._cheap_coming_room(job.project_id).heads(job, most_micros)

    def coming_place(self, job: JobView, most_micros: float = math.inf) -> Place | None:
        """The coming node with room for the job that is expected first. `most_micros`: as for ready ones."""
        return None if self.hosts(job) else self._coming_room(job.project_id).first(job, most_micros)

    def ready_with_other_image(self, job: JobView) -> NodeView | None:
        """The first ready node, by id, that has room for the job and is not for it because of its image."""
        need = job.resources
        if all(image == (need.base_image or "") for *_, image in self._board.shapes(job.project_id)):
            return None
        others = (
            node
            for node in self._board.open_nodes(job.project_id).values()
            if node.image != (need.base_image or "") and self._place(node).fits(replace(need, base_image=node.image))
        )
        return min(others, key=lambda node: node.node_id, default=None)

    def hold_open(self, job: JobView) -> Place | None:
        """Keep what is free on the ready node that is nearest to having room for the job, and return it.

        Without this, a stream of later and smaller jobs would take each GPU as it falls free, and a large one
        would never start.
        """
        hosts = self.hosts(job)
        for nodes in (self._board.open_nodes(job.project_id), self._board.ready_nodes(job.project_id)):
            places = (self._place(node) for node in nodes.values() if not hosts or node.node_id in hosts)
            large = (place for place in places if place.could_fit(job.resources) and place.welcomes(job))
            place = min(large, key=lambda p: (-len(p.free_gpus), p.price_per_hour, p.place_id), default=None)
            if place is not None:
                place.free_gpus = ()
                return place
        return None

    def hosts(self, job: JobView) -> frozenset[str]:
        """The rented nodes to one of which the job has to go, because of who is there; empty: it may go anywhere."""
        beside = job.affinity.beside
        if not beside:
            return frozenset()
        ready = self._board.ready_nodes(job.project_id)
        return frozenset(
            node_id for node_id in ready if any(not beside.isdisjoint(one.own) for one in self._tenants(node_id, job))
        )

    def add(self, job: JobView, offer: Offer, now_ms: int) -> None:
        """A node rented in this plan, for this job; what it leaves is there for others of the project."""
        self.rented += offer.tier != Tier.OWN
        place = Place(
            place_id=f"rented for {job.job_id}",
            gpu_type=offer.gpu_type,
            gpu_memory_bytes=offer.gpu_memory_bytes,
            price_per_hour=offer.price_per_hour,
            weighed_micros=weighed_micros(offer),
            expected_ready_ms=now_ms + offer.startup_ms,
            gpu_count=offer.gpu_count,
            cpus=offer.cpus,
            memory_bytes=offer.memory_bytes,
            free_gpus=tuple(range(offer.gpu_count)),
            free_cpus=offer.cpus,
            free_memory_bytes=offer.memory_bytes,
            node=None,
            image=job.resources.base_image or "",
            provider=offer.provider,
            offer=offer,
        )
        place.take(job)
        self._new.setdefault(job.project_id, []).append(place)
        self._new_left.append(place)
        for rooms in (self._coming, self._cheap_coming):
            if job.project_id in rooms:
                rooms[job.project_id].add(place)

    def place_on(self, node: NodeView) -> Place:
        """The node, with what the plan has left of it."""
        return self._place(node)

    def nodes_of(self, project_id: str) -> int:
        """How many nodes of the project are there or come, those of this plan included."""
        return self._board.nodes_of(project_id) + len(self._new.get(project_id, ()))

    def unneeded(self) -> list[NodeView]:
        """Ready nodes that are wholly free and that nothing in this plan counts on; dearest first."""
        idle = [node for node in self._board.idle_nodes() if not self._is_needed(node.node_id)]
        return sorted(idle, key=lambda node: (-weighed_micros(node), node.node_id))

    def unneeded_coming(self) -> list[NodeView]:
        """Nodes that boot, that hold nothing yet and that nothing in this plan counts on; dearest first."""
        coming = (node for node in self._board.all_coming() if not self._board.is_occupied(node.node_id))
        idle = [node for node in coming if not self._is_needed(node.node_id)]
        return sorted(idle, key=lambda node: (-weighed_micros(node), node.node_id))

    def _open_room(self, project_id: str) -> Room:
        room = self._open.get(project_id)
        if room is None:
            places = map(self._place, self._board.open_nodes(project_id).values())
            room = self._open[project_id] = Room(places, _RANK)
        return room

    def _coming_room(self, project_id: str) -> Room:
        if project_id not in self._coming:
            self._coming[project_id] = Room(self._all_coming(project_id), _COMING_RANK)
        return self._coming[project_id]

    def _cheap_coming_room(self, project_id: str) -> Room:
        if project_id not in self._cheap_coming:
            self._cheap_coming[project_id] = Room(self._all_coming(project_id), _RANK)
        return self._cheap_coming[project_id]

    def _all_coming(self, project_id: str) -> list[Place]:
        places = [self._place(node) for node in self._board.coming_nodes(project_id).values()]
        return [*places, *self._new.get(project_id, ())]

    def _is_needed(self, node_id: str) -> bool:
        place = self._places.get(node_id)
        return place is not None and place.needed

    def _place(self, node: NodeView) -> Place:
        place = self._places.get(node.node_id)
        if place is None:
            place = self._places[node.node_id] = _place_of(node, *self._held(node.node_id))
            place.tenants = self._tenants(node.node_id)
        return place

    def _tenants(self, node_id: str, but: JobView | None = None) -> list[Affinity]:
        """Of those that live runs hold the node for, where they have labels or rules."""
        tenants = (self._board.jobs.get(job_id) for run in self._board.runs_on(node_id) for job_id in run.job_ids)
        return [
            one.affinity
            for one in tenants
            if one is not None and one.affinity != NO_AFFINITY and (but is None or one.job_id != but.job_id)
        ]

    def _held(self, node_id: str) -> tuple[int, int]:
        """CPUs and bytes of memory that live runs hold on the node."""
        cpus = memory_bytes = 0
        for run in self._board.runs_on(node_id):
            for job in filter(None, map(self._board.jobs.get, run.job_ids)):
                cpus += job.resources.cpus_min
                memory_bytes += job.resources.memory_bytes_min
        return cpus, memory_bytes


def _place_of(node: NodeView, held_cpus: int, held_memory_bytes: int) -> Place:
    return Place(
        place_id=node.node_id,
        gpu_type=node.gpu_type,
        gpu_memory_bytes=node.gpu_memory_bytes,
        price_per_hour=node.price_per_hour,
        weighed_micros=weighed_micros(node),
        expected_ready_ms=node.expected_ready_ms,
        gpu_count=node.gpu_count,
        cpus=node.cpus,
        memory_bytes=node.memory_bytes,
        free_gpus=tuple(sorted(node.free_gpus)),
        free_cpus=node.cpus - held_cpus,
        free_memory_bytes=node.memory_bytes - held_memory_bytes,
        node=node,
        image=node.image,
        provider=node.provider,
    )
