"""The nodes and tasks of a defragmentation, made of what decisions see."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from app.core.board import Board
from app.core.defragmentation.model import PackedNode, PackedTask
from app.core.defragmentation.seen_fleet import Goal, SeenFleet
from app.core.defragmentation.staying import Stays, why_it_stays
from app.core.machine_lives import weighed_micros
from app.core.market import is_for, kind_fits, offer_fits
from app.core.model.money import MS_PER_HOUR
from app.core.model.node import NodeState, Tier
from app.core.model.pool import JOINED, OwnHost, Pool
from app.core.model.snapshot import JobView, NodeView, RunView
from app.core.pools import cut_of, free_of, gives, kinds_of, shared_host, used_gpus
from app.core.remaining import remaining_ms

_RENTED = (Tier.MARKETPLACE, Tier.CONVENTIONAL)
_COMING = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.UNKNOWN)
_Shape = tuple[str, str, int, int, int, tuple[int, ...]]
_NOBODY = "nobody"  # a label that no node has


@dataclass(frozen=True, slots=True)
class OwnPlace:
    """GPUs of one kind on a host of a pool."""

    pool: Pool
    host: OwnHost
    kind: str


@dataclass(frozen=True, slots=True)
class Packing:
    """`stays`: why tasks are locked, by their id, which is that of the job; of what has none yet, of its run or node.
    `names`: what people call the nodes. `places`: those that are parts of hosts. `groups`: of nodes that may have the
    same tasks, as far as their kind goes."""

    nodes: tuple[PackedNode, ...]
    tasks: tuple[PackedTask, ...]
    stays: Mapping[str, Stays]
    names: Mapping[str, str]
    places: Mapping[str, OwnPlace]
    groups: Mapping[str, str]

    def named(self, text: str) -> str:
        """A text about nodes in the names that people know."""
        for node_id, name in self.names.items():
            text = text.replace(node_id, name)
        return text


def pack(seen: SeenFleet, goal: Goal, pool: str | None = None) -> Packing:
    """What may be vacated for this goal. `pool`: of own pools, this one alone."""
    packer = _Packer(seen)
    if goal is Goal.POOLS:
        packer.pack_pools(pool)
    else:
        packer.pack_rented()
    return packer.packing()


@dataclass(frozen=True, slots=True)
class _Occupant:
    task: PackedTask
    job: JobView | None = None


class _Packer:
    def __init__(self, seen: SeenFleet) -> None:
        self._seen, self._board = seen, Board.of(seen.snapshot)
        self._now_ms = seen.snapshot.now_ms
        self._beside = frozenset().union(*(job.affinity.beside for job in seen.snapshot.jobs))
        self._nodes: list[PackedNode] = []
        self._occupants: list[_Occupant] = []
        self._stays: dict[str, Stays] = {}
        self._names: dict[str, str] = {}
        self._places: dict[str, OwnPlace] = {}
        self._groups: dict[str, str] = {}
        self._shapes: dict[str, _Shape] = {}

    def packing(self) -> Packing:
        tasks, nodes = self._with_classes()
        return Packing(nodes, tasks, self._stays, self._names, self._places, self._groups)

    def pack_pools(self, name: str | None) -> None:
        """A node is the GPUs of one kind on a host, a task what has been cut from it. Processors and memory are cut
        with the GPUs, in proportion: that a cut of the same size suffices elsewhere is a label."""
        seen, used = self._seen, used_gpus(self._seen.hosts)
        pools = {one.name: one for one in seen.pools if one.launcher == JOINED and gives(one, self._now_ms)}
        cuts: dict[str, list[NodeView]] = {}
        for node in seen.snapshot.nodes:
            facts = seen.facts.get(node.node_id)
            if facts is not None and facts.place:
                cuts.setdefault(facts.place, []).append(node)
        for host in seen.hosts:
            pool = pools.get(host.pool)
            if pool is None or not host.is_open or not host.gpus or name not in (None, pool.name):
                continue
            left = None if pool.most_gpus is None else pool.most_gpus - used.get(pool.name, 0)
            for kind in kinds_of(host):
                place = shared_host(host.host_id, kind)
                self._pack_host(OwnPlace(pool, host, kind), place, cuts.get(place, ()), left)

    def pack_rented(self) -> None:
        for node in self._seen.snapshot.nodes:
            if node.state == NodeState.READY and node.tier in _RENTED:
                self._pack_node(node)

    def _pack_host(self, place: OwnPlace, name: str, cuts: Sequence[NodeView], left: int | None) -> None:
        host, is_kept = place.host, self._seen.is_kept(name)
        occupants = [one for node in cuts for one in self._on_cut(node, name, is_kept, left)]
        gpus = len(free_of(host, place.kind)) + sum(one.task.gpus for one in occupants)
        kinds = f" ({place.kind})" if len(kinds_of(host)) > 1 else ""
        self._groups[name] = f"{place.pool.name}/{place.kind}"
        self._names[name] = self._seen.names.get(host.host_id, host.host_id) + kinds
        if not is_kept:
            self._places[name] = place
            self._shapes[name] = _shape_of(place)
        self._nodes.append(PackedNode(name, gpus, 0, 0))
        self._occupants += occupants

    def _on_cut(self, node: NodeView, place: str, is_kept: bool, left: int | None) -> Iterator[_Occupant]:
        runs = self._board.runs_on(node.node_id)
        size = node.gpu_count
        if not runs:
            if node.state in _COMING:
                yield self._locked(node.node_id, place, size, Stays.COMING)
            return  # else it is idle, and given back: its GPUs are neither taken nor free
        job = self._board.jobs.get(runs[0].job_ids[0])
        why = self._why(runs[0], job, node, is_kept)
        if why is None and len(runs) > 1:
            why = Stays.SHARES_NODE
        if why is None and left is not None and size > left:
            why = Stays.LIMIT
        if why is not None or job is None:
            yield self._locked(self._task_id(runs[0]), place, size, why or Stays.NOT_TRAINING)
        else:
            task = self._task(job, runs[0], node, place, size)
            yield _Occupant(replace(task, cpus_milli=0, memory_bytes=0), job)

    def _pack_node(self, node: NodeView) -> None:
        facts, is_kept, now_s = (
            self._seen.facts.get(node.node_id),
            self._seen.is_kept(node.node_id),
            self._now_ms // 1000,
        )
        occupants = []
        for run in self._board.runs_on(node.node_id):
            held = self._seen.held.get(run.run_id)
            gpus = node.gpu_count if held is None else held.gpus
            job = self._board.jobs.get(run.job_ids[0])
            why = self._why(run, job, node, is_kept)
            if why is not None or job is None:
                occupants.append(self._locked(self._task_id(run), node.node_id, gpus, why or Stays.NOT_TRAINING, job))
            else:
                occupants.append(_Occupant(self._task(job, run, node, node.node_id, gpus), job))
        self._occupants += occupants
        self._groups[node.node_id] = f"{node.project_id}/{node.gpu_type}/{node.image}"
        paid_ms = self._now_ms if facts is None else facts.owed_until_ms(self._now_ms)
        self._nodes.append(
            PackedNode(
                id=node.node_id,
                gpus=len(node.free_gpus) + sum(one.task.gpus for one in occupants),
                cpus_milli=1000 * node.cpus,
                memory_bytes=node.memory_bytes,
                version=node.row_version,
                price_micros_per_hour=node.price_per_hour.micros,
                paid_until_s=max(now_s, -(-paid_ms // 1000)),
            )
        )

    def _why(self, run: RunView, job: JobView | None, node: NodeView, is_kept: bool) -> Stays | None:
        if is_kept:
            return Stays.KEPT
        if node.state != NodeState.READY:
            return Stays.NOT_TRAINING
        held = self._seen.held.get(run.run_id)
        return why_it_stays(self._board, job, run, held, self._beside, self._seen.habits)

    def _task_id(self, run: RunView) -> str:
        """A run that is not the one which holds its job has its own id: the job is elsewhere."""
        job_id = run.job_ids[0]
        return job_id if self._board.run_of(job_id) is run else run.run_id

    def _locked(self, id_: str, place: str, gpus: int, why: Stays, job: JobView | None = None) -> _Occupant:
        self._stays[id_] = why
        need = None if job is None else job.resources
        cpus, memory = (0, 0) if need is None else (1000 * need.cpus_min, need.memory_bytes_min)
        run = None if job is None else self._board.run_of(job.job_id)
        ends_s = 0 if job is None else (self._now_ms + remaining_ms(job, run, self._now_ms)) // 1000
        return _Occupant(PackedTask(id_, place, gpus, cpus, memory, locked=True, ends_s=ends_s), job)

    def _task(self, job: JobView, run: RunView, node: NodeView, place: str, gpus: int) -> PackedTask:
        share = node.price_per_hour.micros * gpus // max(1, node.gpu_count)
        return PackedTask(
            id=job.job_id,
            node_id=place,
            gpus=gpus,
            cpus_milli=1000 * job.resources.cpus_min,
            memory_bytes=job.resources.memory_bytes_min,
            version=job.row_version,
            ends_s=(self._now_ms + remaining_ms(job, run, self._now_ms)) // 1000,
            move_cost_micros=share * self._seen.habits.cost_ms // MS_PER_HOUR,
        )

    # What takes what, as labels: tasks that may have the same places are of one class

    def _with_classes(self) -> tuple[tuple[PackedTask, ...], tuple[PackedNode, ...]]:
        classes: dict[tuple[object, ...], str] = {}
        labels: dict[str, set[str]] = {node.id: set() for node in self._nodes}
        apart = _apart(one.job for one in self._occupants if one.job is not None)
        tasks = []
        for one in self._occupants:
            word = None if one.job is None else apart.get(one.job.job_id)
            if one.job is None or one.task.locked:
                tasks.append(replace(one.task, requires=frozenset({_NOBODY}), apart=word))
                continue
            key = self._class_of(one.job, one.task)
            if key not in classes:
                classes[key] = f"takes {len(classes)}"
                fits: dict[_Shape, bool] = {}
                for node in self._nodes:
                    if self._takes(node.id, one.job, one.task, fits):
                        labels[node.id].add(classes[key])
            tasks.append(replace(one.task, requires=frozenset({classes[key]}), apart=word))
        return tuple(tasks), tuple(replace(node, labels=frozenset(labels[node.id])) for node in self._nodes)

    def _class_of(self, job: JobView, task: PackedTask) -> tuple[object, ...]:
        place = self._places.get(task.node_id)
        where = place.pool.name if place is not None else self._gpu_price(task.node_id)
        return job.project_id, job.resources, job.caps.max_hourly, job.allowances, where, task.gpus

    def _takes(self, node_id: str, job: JobView, task: PackedTask, fits: dict[_Shape, bool]) -> bool:
        """Whether the node, if it had room, could have the job, at no higher price than where it is. `fits`: what was
        found for hosts of the same shape."""
        if self._seen.is_shut(node_id):
            return False
        place = self._places.get(node_id)
        if place is not None:
            source = self._places.get(task.node_id)
            if source is None or source.pool is not place.pool:
                return False
            shape = self._shapes[node_id]
            if shape not in fits:
                fits[shape] = own_cut_fits(place, job, task.gpus)
            return fits[shape]
        node, need = self._board.nodes[node_id], job.resources
        return (
            node.project_id == job.project_id
            and kind_fits(need, node.gpu_type, node.gpu_memory_bytes)
            and node.image == (need.base_image or "")
            and self._gpu_price(node_id) <= self._gpu_price(task.node_id)
            and job.may_run_at(node.provider)
        )

    def _gpu_price(self, node_id: str) -> float:
        node = self._board.nodes[node_id]
        return weighed_micros(node) / node.gpu_count


def _shape_of(place: OwnPlace) -> _Shape:
    """All that a cut of the host depends on but its name: hosts are many, and their shapes are few."""
    host, memory = place.host, tuple(gpu.memory_bytes for gpu in kinds_of(place.host)[place.kind])
    return place.pool.name, place.kind, len(host.gpus), host.cpus, host.memory_bytes, memory


def own_cut_fits(place: OwnPlace, job: JobView, gpus: int) -> bool:
    """Whether a cut of so many GPUs of the host would be enough for the job, and may be its project's."""
    every = kinds_of(place.host)[place.kind]
    if gpus > len(every):
        return False
    offer = cut_of(place.pool, place.host, place.kind, gpus, every, gpus)
    return (
        offer_fits(job.resources, offer)
        and is_for(job, offer)
        and job.caps.allows_hourly(offer.price_per_hour.micros)
        and job.may_run_at(offer.provider)
    )


def _apart(jobs: Iterable[JobView]) -> dict[str, str]:
    """A word for each job that has to be apart from others: no two with the same word share a node. Who is apart from
    whom is closed under "and so is": that may keep two apart that need not be, and never puts two together."""
    concerned = {job.job_id: job.affinity for job in jobs if job.affinity.apart or job.affinity.own}
    wanted = frozenset().union(*(one.apart for one in concerned.values()))
    labels = {job_id: sorted(one.apart | (one.own & wanted)) for job_id, one in concerned.items()}
    above: dict[str, str] = {}

    def group(label: str) -> str:
        while above.get(label, label) != label:
            label = above[label]
        return label

    for _, mine in sorted(labels.items()):
        for label in mine[1:]:
            above[group(label)] = group(mine[0])
    return {job_id: group(mine[0]) for job_id, mine in labels.items() if mine}
