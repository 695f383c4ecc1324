"""Jobs leave for guaranteed jobs that wait, and what they leave is kept for these.

Before a decision: what is kept for a job is taken out of what policies see, and the job begins there once it is free.
After it: whom it has left waiting for want of room may have some freed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from app.control.context import ControlContext, as_ms
from app.control.each import each, each_by_itself, in_batches
from app.control.enact import enact_apart
from app.control.failed_actions import due, note_outcomes
from app.control.observe import Observation
from app.core import queue
from app.core.board import Board
from app.core.borrowing import PoolQuotas, PoolUse
from app.core.evicting import EvictableRun, Eviction, evict, is_guaranteed
from app.core.eviction import EvictionRule
from app.core.gang_offers import LackingGang
from app.core.host_spaces import HostSpace, host_spaces
from app.core.model.health import Chore
from app.core.model.node import NodeState
from app.core.model.plan import Plan, Waiting
from app.core.model.pool import JOINED, OwnHost
from app.core.model.snapshot import Snapshot
from app.core.pools import used_gpus
from app.core.set_aside import KeptForJobs, SetAside, keep, places_of
from app.db.connection import Connection
from app.db.decisions.enactment import set_wait_reasons
from app.db.jobs.set_asides import START_MS, nodes_on, set_asides
from app.db.pools.hosts import seen_hosts
from app.db.pools.pools import read_pools
from app.db.runs.evictable_runs import evictable_runs, host_nodes, pool_uses, runs_on
from app.db.standby.standbys import standby_uses
from app.services.evictions.evict_for_job import evict_for_job

_AT_ONCE = 100
_WAITS = "begins as soon as the GPUs that are kept for it are free"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What evictions are decided on."""

    runs: list[EvictableRun] = field(default_factory=list)
    hosts: list[HostSpace] = field(default_factory=list)
    quotas: PoolQuotas | None = None
    graces: Mapping[str, int] = field(default_factory=dict)  # of pools that have one of their own, in milliseconds
    pools_left: Mapping[str, int] = field(default_factory=dict)  # GPUs that may be used yet, where that is limited


class Evictor:
    """One per control loop."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._asides: list[SetAside] = []  # what is kept for jobs,
        self._closed: frozenset[str] = frozenset()  # and where
        self.for_gangs: tuple[SetAside, ...] = ()  # what of it is for jobs on several machines
        self.wake_at_ms: int | None = None  # when to look again, whatever happens

    async def keep(self, seen: Observation) -> Observation:
        """The world without what is kept for jobs, and without these. What fails of it is this chore's alone: then
        everybody sees everything."""
        found = await each_by_itself(self._context, Chore.EVICT, [seen], self._keep, named=_kept)
        return found[0] if found else seen

    @property
    def closed(self) -> frozenset[str]:
        """Where something is kept for a job."""
        return self._closed

    async def follow(
        self,
        snapshot: Snapshot,
        plan: Plan,
        helped: Collection[str],
        lacking: Collection[LackingGang] = (),
        kept_hosts: frozenset[str] = frozenset(),
    ) -> None:
        """Ask spot jobs to leave for guaranteed ones that this decision has left waiting. `helped`: jobs that are lent
        something already. `lacking`: jobs on several machines that wait. `kept_hosts`: those that are kept for jobs."""
        self.wake_at_ms = None
        waiting = {one.job_id for one in plan.waiting} - set(helped)
        held = {one.job_id for one in self._asides}
        gangs = [one for one in lacking if is_guaranteed(one.job, snapshot.now_ms) and one.job.job_id not in held]
        if waiting or gangs:
            await each_by_itself(
                self._context,
                Chore.EVICT,
                [waiting],
                lambda it: self._evict(snapshot, plan, it, gangs, kept_hosts),
                named=_freed,
            )

    async def _keep(self, seen: Observation) -> Observation:
        context, now_ms = self._context, seen.snapshot.now_ms
        async with context.database.statement() as connection:
            asides = await set_asides(connection, now_ms=now_ms)
            places = {one.place for one in asides}
            on_hosts = await nodes_on(connection, places) if places else []
        self._asides, self.for_gangs = asides, ()
        self._closed = frozenset(places | {one.node_id for one in on_hosts})
        kept = keep(seen.snapshot, asides, on_hosts)
        self.for_gangs = kept.for_gangs
        if kept.claims:
            await self._claim(seen, kept)
        told = [Waiting(job_id, _WAITS) for job_id in sorted(kept.waiting)]
        await in_batches(context, Chore.EVICT, told, set_wait_reasons, at_once=_AT_ONCE)
        return replace(seen, snapshot=kept.snapshot)

    async def _claim(self, seen: Observation, kept: KeptForJobs) -> None:
        context, now_ms = self._context, seen.snapshot.now_ms
        claims = due(kept.claims, seen.failures, now_ms)
        layouts = await context.layouts.of(seen.snapshot, claims)
        dropped = await enact_apart(context, claims, now_ms=now_ms, layouts=layouts, at_once=_AT_ONCE)
        await note_outcomes(context, claims, dropped, seen.failures)

    async def _evict(
        self,
        snapshot: Snapshot,
        plan: Plan,
        waiting: Collection[str],
        gangs: Sequence[LackingGang],
        kept_hosts: frozenset[str],
    ) -> None:
        context, now_ms = self._context, snapshot.now_ms
        entitled = {job.job_id for job in snapshot.jobs if job.job_id in waiting and not queue.is_spot(job)}
        if not (entitled or gangs):
            return
        closed = self._closed | places_of(plan) | kept_hosts
        idle = idle_on_hosts(snapshot) - closed
        async with context.database.statement() as connection:
            seen = await self._see(connection, idle, now_ms)
        if not (seen.runs or seen.hosts):
            return
        least_run_ms = as_ms(context.settings.spot_min_run_s)
        board = Board.of(small(snapshot, seen.runs, entitled, idle))
        found = await asyncio.to_thread(
            evict,
            board,
            seen.runs,
            seen.hosts,
            entitled,
            gangs=gangs,
            quotas=seen.quotas,
            closed=closed,
            pools_left=seen.pools_left,
            least_run_ms=least_run_ms,
            rule=EvictionRule(context.settings.eviction_rule),
        )
        self.wake_at_ms = found.wake_at_ms
        usual_ms = as_ms(context.settings.stop_grace_s)

        async def act(connection: Connection, eviction: Eviction) -> bool:
            grace_ms = max((seen.graces.get(run.pool, usual_ms) for run in eviction.runs), default=0)
            until_ms = now_ms + grace_ms + START_MS
            return await evict_for_job(connection, eviction, now_ms=now_ms, until_ms=until_ms)

        await each(context, Chore.EVICT, found.evictions, act, named=lambda one: one.job_id)

    async def _see(self, connection: Connection, idle: Collection[str], now_ms: int) -> _Seen:
        """Who could leave, and what is whose of pools. Of hosts, nodes on which all could. `idle`: nodes of hosts that
        nobody is on: in pools with quotas these may be ended."""
        pools = [row.pool for row in await read_pools(connection) if row.pool.launcher == JOINED]
        with_quotas = {pool.name for pool in pools if pool.has_quotas}
        graces = {pool.name: pool.grace_ms for pool in pools if pool.grace_ms is not None}
        runs = await evictable_runs(connection, with_quotas)
        unused = set(idle) if with_quotas else set()
        if not (runs or unused):
            return _Seen()
        nodes = await host_nodes(connection, {run.node_id for run in runs} | unused)
        if not nodes:
            return _Seen(runs, graces=graces)
        hosts = await seen_hosts(connection, now_ms=now_ms)
        uses = await quota_uses(connection, with_quotas) if with_quotas else []
        quotas = PoolQuotas.of(pools, [*uses, *self._promised(hosts, nodes)])
        all_on = await runs_on(connection, nodes.keys())
        may_leave = Counter(run.node_id for run in runs if run.is_spot or run.run_id in quotas.borrowed)
        whole = {
            node_id: it
            for node_id, it in nodes.items()
            if may_leave[node_id] == all_on.get(node_id, 0) and (may_leave[node_id] or node_id in unused)
        }
        used = used_gpus(hosts)
        left = {pool.name: pool.most_gpus - used.get(pool.name, 0) for pool in pools if pool.most_gpus is not None}
        return _Seen(runs, host_spaces(pools, hosts, whole, now_ms), quotas, graces, left)

    def _promised(self, hosts: Collection[OwnHost], nodes: Mapping[str, tuple[str, Sequence[int]]]) -> list[PoolUse]:
        """What is kept for jobs that have not begun counts as theirs."""
        pools = {host.host_id: host.pool for host in hosts}
        on = {node_id: host_id for node_id, (host_id, _) in nodes.items()}
        found = []
        for one in self._asides:
            pool = pools.get(on.get(one.place, one.place.partition("/")[0]))
            if pool is not None:
                found.append(PoolUse(pool, one.project_id, one.gpus))
        return found


async def quota_uses(connection: Connection, pools: Collection[str]) -> list[PoolUse]:
    """What a job stands by for is its project's all the while."""
    return [*await pool_uses(connection, pools), *await standby_uses(connection, pools)]


def idle_on_hosts(snapshot: Snapshot) -> set[str]:
    """Nodes of hosts that are ready, and that nobody is on."""
    occupied = {run.node_id for run in snapshot.runs}
    return {
        node.node_id
        for node in snapshot.nodes
        if (node.provider, node.state) == (JOINED, NodeState.READY)
        and len(node.free_gpus) == node.gpu_count
        and node.idle_since_ms is not None
        and node.node_id not in occupied
    }


def small(
    snapshot: Snapshot, runs: Collection[EvictableRun], entitled: Collection[str], idle: Collection[str] = ()
) -> Snapshot:
    """What matters of it: who waits, the nodes of their projects, those of spot jobs and those that are `idle`, and who
    is there."""
    projects = {job.project_id for job in snapshot.jobs if job.job_id in entitled}
    with_spot = {*idle, *(run.node_id for run in runs)}
    nodes = tuple(node for node in snapshot.nodes if node.project_id in projects or node.node_id in with_spot)
    node_ids = {node.node_id for node in nodes}
    live = tuple(run for run in snapshot.runs if run.node_id in node_ids)
    concerned = {*entitled, *(job_id for run in live for job_id in run.job_ids)}
    jobs = tuple(job for job in snapshot.jobs if job.job_id in concerned)
    return replace(snapshot, jobs=jobs, runs=live, nodes=nodes, offers=())


def _kept(_: Observation) -> str:
    return "what is kept for guaranteed jobs"


def _freed(_: Collection[str]) -> str:
    return "what spot jobs leave to guaranteed jobs"
