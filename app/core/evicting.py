"""Which jobs leave so that a guaranteed job begins that a decision has left waiting (ADR 0091). Pure.

It looks at the places that are there: nodes of the job's project, and hosts of pools that the project may use. Whom to
end on them is `app.core.eviction`'s to say: nobody unless the job then fits, and whoever loses the least work. For a
job on several machines others leave as many hosts of a pool as it lacks, all of them or none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from app.core import queue
from app.core.board import Board
from app.core.borrowing import PoolQuotas
from app.core.eviction import (
    Amounts,
    EvictionRule,
    GrowingCost,
    GuaranteedNeed,
    NodeRoom,
    PoolHabits,
    Saving,
    SpotJob,
    Victims,
    choose_victims,
    cost_of_ending,
    literal_cost,
    pool_habits,
)
from app.core.eviction.words import gpu_seconds
from app.core.gang_offers import LackingGang
from app.core.gang_sites import domain_of
from app.core.host_spaces import HostSpace
from app.core.market import is_for, offer_fits
from app.core.model.job import PLACEABLE_JOB_STATES, StartRule
from app.core.model.node import SERVERFUL_TIERS, NodeState
from app.core.model.offer import Offer
from app.core.model.pool import JOINED
from app.core.model.snapshot import JobView, NodeView
from app.core.policies.placement import Fleet
from app.core.set_aside import SetAside
from app.core.topology import Seats

_MOST_AT_ONCE = 20  # of one decision; the next one follows when they have been asked
_MOST_OF_A_PROJECT = 20


@dataclass(frozen=True, slots=True)
class EvictableRun:
    """A run of one job whose code runs on a node that outlives it, and that nobody has asked to leave: a spot job's, or
    a guaranteed one's in a pool with quotas, which may be borrowing. `pool`: of its node; empty: none.
    `is_on_others_hosts`: a guaranteed one's, on hosts that are another project's quota."""

    run_id: str
    job_id: str
    node_id: str
    gpus: int
    saving: Saving
    project_id: str = ""
    is_spot: bool = True
    pool: str = ""
    is_on_others_hosts: bool = False


@dataclass(frozen=True, slots=True)
class Eviction:
    """These runs save and leave, for this job; none, where machines that nobody uses are ended for it. `asides`: what
    is kept for it: one place, or as many as it has machines. `words`: the inequality, and what each costs."""

    asides: tuple[SetAside, ...]
    runs: tuple[EvictableRun, ...]
    words: tuple[str, ...]

    @property
    def job_id(self) -> str:
        return self.asides[0].job_id


@dataclass(frozen=True, slots=True)
class Evicting:
    """`wake_at_ms`: when a job that could leave has had its minimum run time."""

    evictions: tuple[Eviction, ...] = ()
    wake_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Option:
    """A place, and whoever would leave it."""

    aside: SetAside
    pool: str
    kind: str  # of GPU
    hourly_micros: int
    runs: tuple[EvictableRun, ...]
    words: tuple[str, ...]
    cost_gpu_us: int
    is_node: bool  # of a host a node is cut first

    @property
    def rank(self) -> tuple[int, int, bool, str]:
        return self.cost_gpu_us, len(self.runs), not self.is_node, self.aside.place


@dataclass(frozen=True, slots=True)
class _GangOption:
    """Places for all machines of a job, and whoever would leave them."""

    pool: str
    asides: tuple[SetAside, ...]
    runs: tuple[EvictableRun, ...]
    words: tuple[str, ...]
    cost_gpu_us: int

    @property
    def rank(self) -> tuple[int, int, str]:
        return self.cost_gpu_us, len(self.runs), self.pool


def evict(
    board: Board,
    runs: Sequence[EvictableRun],
    hosts: Sequence[HostSpace],
    waiting: Collection[str],
    *,
    gangs: Sequence[LackingGang] = (),
    quotas: PoolQuotas | None = None,
    closed: Collection[str] = (),
    pools_left: Mapping[str, int] | None = None,
    least_run_ms: int,
    on_nodes: bool = True,
    rule: EvictionRule = EvictionRule.LOST_WORK,
) -> Evicting:
    """Who leaves now. `waiting`: the jobs that a decision on this board has left waiting. `gangs`: those on several
    machines. `closed`: places where something is kept for a job already: nobody else is evicted there until it has
    begun. `pools_left`: how many GPUs more of a pool may be used, where its owner has limited them. `least_run_ms`: for
    how long a job has run at least before it is asked to leave. `on_nodes`: nodes of the job's project are looked at as
    well. `rule`: whom of those that may leave; all else is as under any rule.

    In a pool with quotas a job within its project's has spot jobs leave, and where these are not enough what other
    projects have borrowed; any other job the spot jobs of its own project alone. A job within a quota does not wait for
    a machine of the pool that nobody uses, nor for room elsewhere that a policy keeps for another; and once it, or one
    like it, has waited for `least_run_ms`, nobody is spared because he has begun since."""
    sure = quotas or PoolQuotas.of((), ())
    search = _Search(board, runs, hosts, sure, set(closed), pools_left or {}, least_run_ms, on_nodes, rule)
    on_several = {gang.job.job_id: gang for gang in gangs}
    on_one = (job for job in map(board.jobs.get, waiting) if job is not None)
    known = sorted((*on_one, *(gang.job for gang in gangs)), key=queue.edf_key)
    waits_since: dict[tuple[object, ...], int] = {}
    for job in known:
        if is_guaranteed(job, board.now_ms):
            waits_since[_kind(job)] = min(job.submitted_ms, waits_since.get(_kind(job), job.submitted_ms))
    found: list[Eviction] = []
    hopeless = set()
    later_ms: list[int] = []
    asks: Counter[str] = Counter()  # by project: whoever asks for much of many kinds keeps nobody else waiting
    for job in known:
        if len(found) == _MOST_AT_ONCE or search.is_over():
            break
        kind = _kind(job)
        gang = on_several.get(job.job_id)
        is_entitled = search.is_entitled(job) if gang is None else is_guaranteed(job, board.now_ms)
        if asks[job.project_id] == _MOST_OF_A_PROJECT or kind in hopeless or not is_entitled:
            continue
        asks[job.project_id] += 1
        since_ms = waits_since[kind]
        one = search.evict_for(job, since_ms) if gang is None else search.evict_for_gang(gang, since_ms)
        if one is None:
            hopeless.add(kind)  # fewer spot jobs are left for those behind it
            if search.is_promised(job):
                later_ms.append(since_ms + least_run_ms)
        else:
            found.append(one)
    return Evicting(tuple(found), search.next_ms(later_ms) if asks else None)


def _kind(job: JobView) -> tuple[object, ...]:
    """What two jobs have in common where nobody leaves for the one if nobody does for the other."""
    return job.project_id, job.resources, job.caps, job.affinity, job.allowances, job.avoided_offers


def is_guaranteed(job: JobView, now_ms: int) -> bool:
    """Whether the job is one for which others leave, and may begin now."""
    return (
        not queue.is_spot(job)
        and job.state in PLACEABLE_JOB_STATES
        and job.not_before_ms <= now_ms
        and job.start is not StartRule.WHEN_CHEAP
        and not (job.leaving or queue.has_spent_all(job))
    )


class _Search:
    """The spot runs that are left to choose from, while one job after the other is served."""

    def __init__(
        self,
        board: Board,
        runs: Sequence[EvictableRun],
        hosts: Sequence[HostSpace],
        quotas: PoolQuotas,
        closed: set[str],
        pools_left: Mapping[str, int],
        least_run_ms: int,
        on_nodes: bool,
        rule: EvictionRule,
    ) -> None:
        self._on_nodes_too, self._rule = on_nodes, rule
        self._board, self._fleet, self._now_ms = board, Fleet(board), board.now_ms
        self._hosts, self._quotas, self._closed, self._least_run_ms = hosts, quotas, closed, least_run_ms
        self._pools_left = pools_left
        self._idle = {node.node_id for node in board.idle_nodes()}
        may_leave = (run for run in runs if run.is_spot or run.run_id in quotas.borrowed)
        self._runs = {run.job_id: run for run in may_leave if run.job_id in board.jobs}
        self._costs = _costs(list(self._runs.values()), board.now_ms, rule)
        self._on: dict[str, list[EvictableRun]] = {}
        for run in self._runs.values():
            self._on.setdefault(run.node_id, []).append(run)

    def is_over(self) -> bool:
        return not (self._runs or any(self._idle.intersection(space.nodes) for space in self._hosts))

    def is_entitled(self, job: JobView) -> bool:
        """Whether the job is guaranteed, and waits for room alone: for that of a pool whose quota it is within, also
        where there is some elsewhere, which a policy keeps for another."""
        return (
            is_guaranteed(job, self._now_ms)
            and job.job_id not in self._board.merges
            and job.job_id not in self._board.companions
            and (self._has_no_room(job) or self.is_promised(job))
            and self._fleet.coming_place(job) is None
        )

    def is_promised(self, job: JobView) -> bool:
        """Whether the job is within a quota of any pool, as `_is_promised_in` says."""
        return any(self._is_promised_in(pool, job) for pool in self._quotas.pools)

    def _has_no_room(self, job: JobView) -> bool:
        return self._fleet.ready_place(job) is None

    def _is_promised_in(self, pool: str, job: JobView) -> bool:
        """Whether the job is within a quota of the pool, and no machine of its project there has room for it."""
        if not self._quotas.is_promised(pool, job.project_id, job.resources.gpus_min * job.resources.nodes):
            return False
        places = self._fleet.ready_places(job, math.inf)
        ready = (self._board.nodes.get(place.place_id) for place in places)
        return not any(node is not None and (node.provider, node.region) == (JOINED, pool) for node in ready)

    def evict_for(self, job: JobView, since_ms: int) -> Eviction | None:
        has_no_room = self._has_no_room(job)
        for borrowed in (False, True):
            nodes = self._on_nodes(job, borrowed, since_ms) if self._on_nodes_too and has_no_room else ()
            hosts = self._on_hosts(job, borrowed, self._closed, since_ms)
            options = [*nodes, *(one for one in hosts if has_no_room or self._is_promised_in(one.pool, job))]
            best = min(options, key=lambda one: one.rank, default=None)
            if best is not None:
                return self._taken(job, best.pool, (best.aside,), best.runs, best.words)
        return None

    def evict_for_gang(self, gang: LackingGang, since_ms: int) -> Eviction | None:
        """Of each pool the hosts with room, and beside them those that cost least; the pool in which these cost least.
        What has room is kept, too, until the others have left."""
        job = gang.job
        for borrowed in (False, True):
            there: dict[tuple[str, str], list[_Option]] = {}
            for one in self._on_hosts(job, borrowed, self._closed - gang.kept_hosts, since_ms):
                there.setdefault((one.pool, one.kind), []).append(one)
            found = [self._beside_free(gang, *site, options) for site, options in sorted(there.items())]
            best = min((one for one in found if one is not None), key=lambda one: one.rank, default=None)
            if best is not None:
                return self._taken(job, best.pool, best.asides, best.runs, best.words)
        return None

    def _beside_free(self, gang: LackingGang, pool: str, kind: str, options: Sequence[_Option]) -> _GangOption | None:
        job = gang.job
        need, gpus = job.resources.nodes, job.resources.nodes * job.resources.gpus_min
        free = [one for one in gang.offers if (one.region, one.gpu_type) == (pool, kind) and one.provider == JOINED]
        free = [one for one in free if one.host not in self._closed - gang.kept_hosts]
        seats = Seats(job.most_under_one.by_level)
        free = [one for one in free if seats.take(domain_of(one.host, gang.domains))]
        if len(free) >= need:
            return None  # it waits for something else
        with_room, on = {one.host for one in free}, dict[str, _Option]()
        for one in sorted(options, key=lambda one: one.rank):
            if one.aside.place not in with_room:  # of a host of which a part is reserved there are two
                on.setdefault(one.aside.place, one)
        beside = (one for place, one in on.items() if seats.take(domain_of(place, gang.domains)))
        taken = list(islice(beside, need - len(free)))
        hourly = sum(one.price_per_hour.micros for one in free) + sum(one.hourly_micros for one in taken)
        freed = sum(run.gpus for one in taken for run in one.runs)
        if len(free) + len(taken) < need or not job.caps.allows_hourly(hourly):
            return None
        if self._pools_left.get(pool, gpus) + freed < gpus:
            return None
        kept = [SetAside(job.job_id, one.host, one.gpu_count) for one in free]
        room = "1 host has" if len(free) == 1 else f"{len(free)} hosts have"
        words = f"{room} room in {pool}, and {len(taken)} more are left for it: the {need} that it needs"
        return _GangOption(
            pool,
            tuple(sorted((*kept, *(one.aside for one in taken)), key=lambda one: one.place)),
            tuple(run for one in taken for run in one.runs),
            (words, *(word for one in taken for word in one.words)),
            sum(one.cost_gpu_us for one in taken),
        )

    def _taken(
        self,
        job: JobView,
        pool: str,
        asides: tuple[SetAside, ...],
        runs: tuple[EvictableRun, ...],
        words: tuple[str, ...],
    ) -> Eviction:
        for aside in asides:
            self._closed.add(aside.place)
            self._quotas.take(pool, job.project_id, aside.gpus)
        for run in runs:
            del self._runs[run.job_id]
            self._closed.add(run.node_id)
        return Eviction(asides, runs, words)

    def next_ms(self, later_ms: Collection[int]) -> int | None:
        """When the first of those that are spared for now has run long enough, or somebody has waited long enough."""
        spared = (self._spared_until_ms(run) for run in self._runs.values())
        return min((at_ms for at_ms in (*spared, *later_ms) if at_ms > self._now_ms), default=None)

    def _on_nodes(self, job: JobView, borrowed: bool, since_ms: int) -> Iterator[_Option]:
        hosts, need = self._fleet.hosts(job), job.resources
        part = need.gpus_min, need.cpus_min, need.memory_bytes_min
        for node_id in sorted(self._on.keys() - self._closed):  # whoever has been asked was on one that is closed
            node = self._board.nodes.get(node_id)
            if (
                node is None
                or node.project_id != job.project_id
                or not _takes_jobs(node)
                or (hosts and node_id not in hosts)
            ):
                continue
            place = self._fleet.place_on(node)
            if not place.could_fit(need) or not place.welcomes(job):
                continue
            free = len(place.free_gpus), place.free_cpus, place.free_memory_bytes
            pool = node.region if node.provider == JOINED else ""
            runs = self._leaving(job, pool, need.gpus_min, [node_id], borrowed)
            is_promised = self._quotas.is_promised(pool, job.project_id, need.gpus_min)
            since = since_ms if is_promised else None
            spot = [self._spot_job(run, node_id, self._held(run), since) for run in runs]
            aside = SetAside(job.job_id, node_id, need.gpus_min)
            yield from self._option(job, aside, (pool, node.gpu_type, 0), part, free, spot)

    def _on_hosts(self, job: JobView, borrowed: bool, closed: Collection[str], since_ms: int) -> Iterator[_Option]:
        if job.affinity.beside:
            return
        for space in self._hosts:
            if space.project_id not in ("", job.project_id):
                continue
            offer = min(
                (one for one in space.offers if self._may_have(job, one)),
                key=lambda one: (one.gpu_count, one.key),
                default=None,
            )
            if offer is None or space.place in closed or not self._closed.isdisjoint(space.nodes):
                continue
            gpus = offer.gpu_count * job.resources.nodes
            may_leave = self._leaving(job, offer.region, gpus, space.nodes, borrowed, space.is_reserved)
            is_promised = self._quotas.is_promised(offer.region, job.project_id, gpus)
            since = since_ms if is_promised else None
            units = [self._unit(space, node_id, may_leave, since) for node_id in space.nodes]
            spot = [one for one in units if one is not None]
            aside = SetAside(job.job_id, space.place, offer.gpu_count)
            where = offer.region, offer.gpu_type, offer.price_per_hour.micros
            yield from self._option(job, aside, where, (offer.gpu_count,), (space.free,), spot)

    def _idle_unit(self, space: HostSpace, node_id: str) -> SpotJob:
        """A node that nobody is on, and that costs nothing to end."""
        gpus = space.nodes[node_id]
        return SpotJob(node_id, {space.place: (gpus,)}, gpus, self._now_ms, self._now_ms, GrowingCost(0))

    def _unit(
        self, space: HostSpace, node_id: str, may_leave: Collection[EvictableRun], since_ms: int | None
    ) -> SpotJob | None:
        """A node is given back as a whole: all that is on it leaves, or nothing does. `since_ms`: since when the job
        waits for what its project is sure of, for which one that nobody is on is ended too."""
        runs = self._on.get(node_id, [])
        if not runs:
            return self._idle_unit(space, node_id) if since_ms is not None and node_id in self._idle else None
        if any(run not in may_leave for run in runs):
            return None
        return SpotJob(
            job_id=node_id,
            holds={space.place: (space.nodes[node_id],)},
            gpus=space.nodes[node_id],
            started_ms=min(run.saving.started_ms for run in runs),
            saved_ms=self._now_ms,
            cost=GrowingCost(sum(self._costs[run.job_id].at(self._now_ms) for run in runs)),
            protected_until_ms=0 if space.is_reserved else max(self._spared_until_ms(run, since_ms) for run in runs),
            unsaved_gpu_ms=sum(run.gpus * max(0, self._now_ms - _saved_ms(run)) for run in runs),
        )

    def _leaving(
        self, job: JobView, pool: str, gpus: int, node_ids: Collection[str], borrowed: bool, is_reserved: bool = False
    ) -> list[EvictableRun]:
        """Who there may be ended for the job, where it is to have so many GPUs. Of what its project has reserved that
        is every spot job, and of its quota of hosts what others have borrowed, too: they alone are among the runs."""
        is_sure = self._quotas.is_sure(pool, job.project_id, gpus)
        there = (run for node_id in node_ids for run in self._on.get(node_id, ()))
        if is_reserved:
            return [run for run in there if run.is_spot or (borrowed and run.project_id != job.project_id)]
        return [
            run
            for run in there
            if (run.is_spot and (is_sure or run.project_id == job.project_id))
            or (borrowed and is_sure and run.project_id != job.project_id)
        ]

    def _may_have(self, job: JobView, offer: Offer) -> bool:
        return (
            offer_fits(job.resources, offer)
            and is_for(job, offer)
            and job.caps.allows_hourly(offer.price_per_hour.micros)
            and job.may_run_at(offer.provider)
            and offer.key not in job.avoided_offers
        )

    def _option(
        self,
        job: JobView,
        aside: SetAside,
        where: tuple[str, str, int],
        part: Amounts,
        free: Amounts,
        spot: Sequence[SpotJob],
    ) -> Iterator[_Option]:
        place, gpus = aside.place, aside.gpus
        pool, kind, hourly_micros = where
        rooms = [NodeRoom(place, free)]
        found = choose_victims(GuaranteedNeed(job.job_id, part), rooms, spot, self._rule, self._now_ms)
        if not isinstance(found, Victims) or not found.ended:  # nobody: there is room, and it waits for something else
            return
        held = {one.job_id: one.holds[place][0] for one in spot}
        freed = sum(held[ended] for ended in found.ended)
        ended = [one for one in found.ended if one not in self._runs]  # nodes of a host, with whoever is on them
        left = (run for one in spot if one.job_id in ended for run in self._on.get(one.job_id, ()))
        runs = (*left, *(self._runs[one] for one in found.ended if one in self._runs))
        idle = sum(one not in self._on for one in ended)
        needs = f"{gpus} GPU{'s' * (gpus != 1)}"
        fits = f"{free[0]} free and {freed} freed are at least the {needs} that it needs there"
        quota = self._quotas.words(pool, job.project_id)
        told = [quota] if quota else []
        if self._rule is not EvictionRule.LOST_WORK:
            told.append(f"whom to end is chosen by the rule {self._rule}")
        if idle:
            told.append(f"{idle} machine{'s' * (idle != 1)} that nobody uses end{'s' * (idle == 1)}")
        words = (fits, *told, *(self._cost_of(run) for run in runs))
        yield _Option(aside, pool, kind, hourly_micros, runs, words, found.cost_gpu_us, place in self._board.nodes)

    def _cost_of(self, run: EvictableRun) -> str:
        cost = self._costs[run.job_id]
        return f"{run.job_id} ends for {gpu_seconds(cost.at(self._now_ms))}, that is {cost.words}"

    def _held(self, run: EvictableRun) -> Amounts:
        need = self._board.jobs[run.job_id].resources
        return run.gpus, need.cpus_min, need.memory_bytes_min

    def _spot_job(self, run: EvictableRun, place: str, held: Amounts, since_ms: int | None) -> SpotJob:
        return SpotJob(
            job_id=run.job_id,
            holds={place: held},
            gpus=run.gpus,
            started_ms=run.saving.started_ms,
            saved_ms=_saved_ms(run),
            cost=self._costs[run.job_id],
            protected_until_ms=self._spared_until_ms(run, since_ms),
        )

    def _spared_until_ms(self, run: EvictableRun, since_ms: int | None = None) -> int:
        """`since_ms`: since when the job waits that is sure of its place; else as short jobs follow one another, each
        with a minimum run time, it would wait for ever."""
        started_ms = run.saving.started_ms
        return (started_ms if since_ms is None else min(started_ms, since_ms)) + self._least_run_ms


def _takes_jobs(node: NodeView) -> bool:
    return node.state is NodeState.READY and node.tier in SERVERFUL_TIERS


def _saved_ms(run: EvictableRun) -> int:
    """Its last checkpoint, or its start where there is none."""
    return run.saving.started_ms if run.saving.saved_ms is None else run.saving.saved_ms


def _costs(runs: Sequence[EvictableRun], now_ms: int, rule: EvictionRule) -> dict[str, GrowingCost]:
    if rule is EvictionRule.LITERAL:
        return {run.job_id: literal_cost(run.saving, run.gpus, now_ms) for run in runs}
    habits: PoolHabits = pool_habits([run.saving for run in runs], now_ms)
    return {run.job_id: cost_of_ending(run.saving, run.gpus, habits, now_ms) for run in runs}
