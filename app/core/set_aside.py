"""What was freed for a job that waits is kept for it: nobody else is decided onto it, and it begins there as soon as
whoever was evicted has left (ADR 0091). Pure.

A policy sees a world without the job and without what is kept for it, so that this holds for every policy. What is kept
is a number of GPUs of one place: a node of the job's project, or the GPUs of one kind on a host of a pool, of which a
node is cut for the job once they are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from app.core.market import is_for, offer_fits
from app.core.model.job import PLACEABLE_JOB_STATES
from app.core.model.node import NodeState, Tier
from app.core.model.offer import Offer
from app.core.model.plan import Assign, Migrate, Plan, Provision, Release
from app.core.model.snapshot import JobView, NodeView, Snapshot, versions_of

_WHY = "begins on what was freed for it"
_FREES = "its GPUs were freed for another job"

Claim = Assign | Provision | Release


@dataclass(frozen=True, slots=True)
class SetAside:
    """So many GPUs of a place are a job's: of a node, by its id, or of a host, as its offers name it."""

    job_id: str
    place: str
    gpus: int
    project_id: str = ""


@dataclass(frozen=True, slots=True)
class HostNode:
    """A node of a pool's host. `for_job_id`: whom it was cut for; `evicted_for`: for whom it is left, or was."""

    node_id: str
    host: str
    for_job_id: str | None = None
    evicted_for: str | None = None


@dataclass(frozen=True, slots=True)
class KeptForJobs:
    """The world as it is for all others, and what is to be done for those that something is kept for, in this order.
    `waiting`: which of them go on waiting. `for_gangs`: what is kept for jobs on several machines, which have all of
    theirs at once (`app.core.gangs`): they, and these places, are in the world still."""

    snapshot: Snapshot
    claims: tuple[Claim, ...] = ()
    waiting: frozenset[str] = frozenset()
    for_gangs: tuple[SetAside, ...] = ()


def keep(snapshot: Snapshot, asides: Sequence[SetAside], on_hosts: Sequence[HostNode]) -> KeptForJobs:
    """Take out of the snapshot what is set aside. Of a job that has a place, is paused, over, or not to be tried yet,
    nothing is kept any more. `on_hosts`: the nodes of the hosts that are meant."""
    if not asides:
        return KeptForJobs(snapshot)
    places = {aside.place for aside in asides}
    keeping = _Keeping(snapshot, [one for one in on_hosts if one.node_id not in places])  # those are another's
    jobs = {job.job_id: job for job in snapshot.jobs}
    held = {job_id for run in snapshot.runs for job_id in run.job_ids}
    for aside in sorted(asides, key=lambda one: (one.job_id, one.place)):
        job = jobs.get(aside.job_id)
        if job is None or job.job_id in held or job.state not in PLACEABLE_JOB_STATES or job.leaving:
            continue
        if job.resources.nodes > 1:
            keeping.keep_for_gang(job, aside)
        elif aside.place in keeping.nodes:
            keeping.keep_node(job, aside.place, aside.gpus)
        elif keeping.has_host(aside.place):
            keeping.keep_host(job, aside)
    return keeping.result()


def places_of(plan: Plan) -> frozenset[str]:
    """Where the plan puts something: what was free there when it was decided is not any more."""
    nodes = {one.node_id for one in plan.actions if isinstance(one, Assign | Migrate)}
    return frozenset(nodes | {one.offer.host for one in plan.actions if isinstance(one, Provision) and one.offer.host})


class _Keeping:
    def __init__(self, snapshot: Snapshot, on_hosts: Sequence[HostNode]) -> None:
        self._seen = snapshot
        self._occupied = {run.node_id for run in snapshot.runs}
        self._on_host: dict[str, list[HostNode]] = {}
        for one in sorted(on_hosts, key=lambda one: one.node_id):
            self._on_host.setdefault(one.host, []).append(one)
        self.nodes = {node.node_id: node for node in snapshot.nodes}
        self._offers = list(snapshot.offers)
        self._claims: list[Claim] = []
        self._claimed: set[str] = set()
        self._kept: set[str] = set()
        self._for_gangs: list[SetAside] = []
        self._coming: set[str] = set()  # nodes that are not there yet, and of which something is kept

    def keep_node(self, job: JobView, node_id: str, gpus: int) -> None:
        """The lowest free GPUs are the job's once there are enough of them; before that all that is free. A policy does
        not see a node that comes: it would end what comes for nobody that it knows of."""
        node = self.nodes[node_id]
        if node.tier is Tier.OWN and node.state is not NodeState.READY and node_id not in self._occupied:
            self._coming.add(node_id)
        self._kept.add(job.job_id)
        its, left = node.free_gpus[:gpus], node.free_gpus[gpus:]
        if len(its) == gpus and node.state is NodeState.READY and self._may_begin(job):
            self._claim(job, Assign(job.job_id, node_id, its, _WHY, versions_of(job, node)))
        need = job.resources
        self.nodes[node_id] = replace(
            node,
            free_gpus=left,
            idle_since_ms=None,
            cpus=max(0, node.cpus - need.cpus_min),
            memory_bytes=max(0, node.memory_bytes - need.memory_bytes_min),
        )

    def has_host(self, place: str) -> bool:
        return place in self._on_host or any(offer.host == place for offer in self._offers)

    def keep_host(self, job: JobView, aside: SetAside) -> None:
        self._kept.add(job.job_id)
        here = self._nodes_on(aside.place)
        cut = next((node for one, node in here if one.for_job_id == job.job_id and _could_hold(job, node)), None)
        idle = [node for _, node in here if self._is_idle(node)]
        cut = cut or next((node for node in idle if _could_hold(job, node)), None)
        if cut is not None:
            self.keep_node(job, cut.node_id, job.resources.gpus_min)
            return
        self._shut_left(job, here)
        fitting = [one for one in self._offers_of(aside.place) if offer_fits(job.resources, one) and is_for(job, one)]
        if fitting and self._may_begin(job):
            best = min(fitting, key=lambda one: (one.gpu_count, one.key))
            self._claim(job, Provision(job.project_id, job.job_id, best, _WHY, versions_of(job)))
        self._end_idle(job, aside, idle)
        self._offers = [one for one in (less(offer, aside) for offer in self._offers) if one is not None]

    def keep_for_gang(self, job: JobView, aside: SetAside) -> None:
        """Free the place; nothing is cut for the job before all of its machines can be."""
        here = self._nodes_on(aside.place)
        if any(one.for_job_id == job.job_id for one, _ in here):
            return  # its machine is there already
        self._shut_left(job, here)
        self._end_idle(job, aside, [node for _, node in here if self._is_idle(node)])
        self._for_gangs.append(aside)

    def result(self) -> KeptForJobs:
        snapshot = replace(
            self._seen,
            jobs=tuple(job for job in self._seen.jobs if job.job_id not in self._kept),
            nodes=tuple(self.nodes[node.node_id] for node in self._seen.nodes if node.node_id not in self._coming),
            offers=tuple(self._offers),
        )
        waiting = frozenset(self._kept - self._claimed)
        return KeptForJobs(snapshot, tuple(self._claims), waiting, tuple(self._for_gangs))

    def _nodes_on(self, place: str) -> list[tuple[HostNode, NodeView]]:
        named = [(one, self.nodes.get(one.node_id)) for one in self._on_host.get(place, ())]
        return [(one, node) for one, node in named if node is not None]

    def _offers_of(self, place: str) -> list[Offer]:
        return [one for one in self._offers if one.tier is Tier.OWN and one.host == place]

    def _shut_left(self, job: JobView, here: Iterable[tuple[HostNode, NodeView]]) -> None:
        for one, node in here:
            if one.evicted_for == job.job_id:
                self._shut(node)  # else others come to its free GPUs while it is being left

    def _end_idle(self, job: JobView, aside: SetAside, idle: Sequence[NodeView]) -> None:
        """Where what is free of the host is not enough, end nodes there that nobody is on."""
        offers = self._offers_of(aside.place)
        free = (one.shared_gpus for one in offers if not one.spot_only and is_for(job, one))
        missing = aside.gpus - max(free, default=0)
        for node in idle:
            if missing > 0:
                self._claims.append(Release(node.node_id, _FREES, versions_of(node)))
                self._shut(node)
                missing -= node.gpu_count

    def _shut(self, node: NodeView) -> None:
        self.nodes[node.node_id] = replace(self.nodes[node.node_id], free_gpus=(), idle_since_ms=None)

    def _is_idle(self, node: NodeView) -> bool:
        is_free = len(node.free_gpus) == node.gpu_count
        return node.state is NodeState.READY and is_free and node.node_id not in self._occupied

    def _may_begin(self, job: JobView) -> bool:
        return job.not_before_ms <= self._seen.now_ms

    def _claim(self, job: JobView, claim: Claim) -> None:
        self._claims.append(claim)
        self._claimed.add(job.job_id)


def _could_hold(job: JobView, node: NodeView) -> bool:
    """Whether the node, which is of the job's host, is its project's, and has room: one that was once cut for the job
    may be another's by now."""
    need = job.resources
    return (
        node.project_id == job.project_id
        and len(node.free_gpus) >= need.gpus_min
        and node.cpus >= need.cpus_min
        and node.memory_bytes >= need.memory_bytes_min
        and node.image == (need.base_image or "")
    )


def less(offer: Offer, aside: SetAside) -> Offer | None:
    """What others may have of an offer's host."""
    if offer.tier is not Tier.OWN or offer.host != aside.place:
        return offer
    left = offer.shared_gpus - aside.gpus
    return replace(offer, shared_gpus=left) if offer.gpu_count <= left else None
