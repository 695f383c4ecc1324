"""Reservations: GPUs are kept for those whose window is open, and spot jobs leave them when these have a job for them.

Before each decision: what is kept is settled first, so that a decision sees it; then who is on it leaves for jobs of
the project that would fit. All that is known is in rows: whoever leads next goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from app.control.context import ControlContext, as_ms
from app.control.each import each, each_by_itself
from app.control.evict import quota_uses, small
from app.control.observe import Observation
from app.core.board import Board
from app.core.borrowing import PoolQuotas
from app.core.evicting import EvictableRun, Eviction, evict
from app.core.eviction import EvictionRule
from app.core.host_spaces import HostSpace, reserved_spaces
from app.core.left_out import any_waits, left_out
from app.core.model.health import Chore
from app.core.model.pool import JOINED, Pool
from app.core.model.snapshot import Snapshot
from app.db.connection import Connection
from app.db.jobs.set_asides import START_MS
from app.db.pools.hosts import seen_hosts
from app.db.pools.pools import read_pools
from app.db.reservations.kept_gpus import nodes_of_quotas, nodes_on_kept, untold
from app.db.reservations.reservations import ReservationRow, begun_reservations, next_begin_ms
from app.db.runs.evictable_runs import evictable_runs, host_nodes, runs_on
from app.services.evictions.evict_for_job import evict_for_job
from app.services.reservations.settle import KeptChange, apply_change, changes_of, close_if_over, tell_job


class ReservationKeeper:
    """One per control loop."""

    def __init__(self, context: ControlContext) -> None:
        self._context = context
        self._projects: frozenset[str] = frozenset()  # for which something is kept
        self.wake_at_ms: int | None = None  # when a window begins or ends

    async def settle(self) -> None:
        """Close what is over, and keep GPUs for what is open. What fails of one is its own, and tried again."""
        context, now_ms = self._context, self._context.clock.now_ms()
        async with context.database.statement() as connection:
            begun = await begun_reservations(connection, now_ms=now_ms)
            begins_ms = await next_begin_ms(connection, now_ms=now_ms)
        now_open = [row for row in begun if row.reservation.until_ms > now_ms]
        edges = [row.reservation.until_ms for row in now_open]
        self.wake_at_ms = min((at_ms for at_ms in (begins_ms, *edges) if at_ms is not None), default=None)
        self._projects = frozenset(row.reservation.project_id for row in now_open)
        over = [row for row in begun if row.reservation.until_ms <= now_ms]

        async def close(connection: Connection, row: ReservationRow) -> bool:
            return await close_if_over(connection, row, now_ms=now_ms)

        await each(context, Chore.RESERVE, over, close, named=lambda row: row.reservation_id)
        if now_open:
            await each_by_itself(context, Chore.RESERVE, [now_open], lambda it: self._keep(it, now_ms), named=_all)

    async def _keep(self, now_open: Sequence[ReservationRow], now_ms: int) -> None:
        context = self._context
        async with context.database.statement() as connection:
            changes = await changes_of(connection, now_open, now_ms=now_ms)

        async def apply(connection: Connection, change: KeptChange) -> bool:
            return await apply_change(connection, change, now_ms=now_ms)

        await each(context, Chore.RESERVE, changes, apply, named=lambda it: it.reservation.reservation_id)
        async with context.database.statement() as connection:
            jobs = await untold(connection)
        await each(
            context,
            Chore.RESERVE,
            jobs,
            lambda connection, one: tell_job(connection, one, now_ms=now_ms),
            named=lambda one: one.job_id,
        )

    async def close_to_others(self, seen: Observation) -> Observation:
        """The world in which nothing guaranteed begins on nodes that are on what others have reserved. Where these
        cannot be read nothing is decided."""
        if not self._projects:
            return seen
        async with self._context.database.statement() as connection:
            shut = await nodes_on_kept(connection)
        nodes = tuple(replace(one, spot_only=True) if one.node_id in shut else one for one in seen.snapshot.nodes)
        return replace(seen, snapshot=replace(seen.snapshot, nodes=nodes)) if shut else seen

    async def clear(self, seen: Observation, closed: frozenset[str]) -> bool:
        """Have spot jobs leave what a project has reserved, for its jobs that wait and find nothing free of any pool;
        whether any was asked. `closed`: where something is kept for a job already."""
        if not any_waits(seen.snapshot, self._projects):
            return False
        waiting = await asyncio.to_thread(left_out, seen.snapshot, self._projects)
        if not waiting:
            return False
        found = await each_by_itself(
            self._context, Chore.RESERVE, [waiting], lambda it: self._clear(seen.snapshot, it, closed), named=_those
        )
        return any(found)

    async def _clear(self, snapshot: Snapshot, waiting: Collection[str], closed: frozenset[str]) -> bool:
        context, now_ms = self._context, snapshot.now_ms
        async with context.database.statement() as connection:
            pools = [row.pool for row in await read_pools(connection) if row.pool.launcher == JOINED]
            runs, borrowed = await self._may_leave(connection, pools)
            spaces = await self._spaces(connection, pools, runs, now_ms) if runs else []
        if not spaces:
            return False
        board = Board.of(small(snapshot, runs, waiting))
        found = await asyncio.to_thread(
            evict,
            board,
            runs,
            spaces,
            waiting,
            quotas=PoolQuotas({}, borrowed=borrowed),
            closed=closed,
            least_run_ms=0,
            on_nodes=False,
            rule=EvictionRule(context.settings.eviction_rule),
        )
        usual_ms = as_ms(context.settings.stop_grace_s)
        graces = {pool.name: pool.grace_ms for pool in pools if pool.grace_ms is not None}

        async def act(connection: Connection, eviction: Eviction) -> bool:
            until_ms = now_ms + max(graces.get(run.pool, usual_ms) for run in eviction.runs) + START_MS
            return await evict_for_job(connection, eviction, now_ms=now_ms, until_ms=until_ms)

        return any(await each(context, Chore.RESERVE, found.evictions, act, named=lambda one: one.job_id))

    async def _may_leave(self, connection: Connection, pools: Sequence[Pool]) -> tuple[list[EvictableRun], set[str]]:
        """Spot jobs; and what others have of quotas of hosts, all of which is borrowed, and of these alone leaves: its
        runs."""
        with_hosts = {pool.name for pool in pools if pool.host_quotas}
        runs = await evictable_runs(connection, with_hosts)
        if not with_hosts:
            return runs, set()
        quotas = PoolQuotas.of(pools, await quota_uses(connection, with_hosts))
        whose = await nodes_of_quotas(connection)
        borrowed = {
            run.run_id
            for run in runs
            if run.run_id in quotas.borrowed and whose.get(run.node_id, run.project_id) != run.project_id
        }
        others = [replace(run, is_on_others_hosts=True) for run in runs if run.run_id in borrowed]
        return [*(run for run in runs if run.is_spot), *others], borrowed

    async def _spaces(
        self, connection: Connection, pools: Sequence[Pool], runs: Sequence[EvictableRun], now_ms: int
    ) -> list[HostSpace]:
        """Of nodes on which all could leave."""
        nodes = await host_nodes(connection, {run.node_id for run in runs})
        all_on = await runs_on(connection, nodes.keys())
        may_leave = Counter(run.node_id for run in runs)
        whole = {node_id: it for node_id, it in nodes.items() if 0 < may_leave[node_id] == all_on.get(node_id)}
        return reserved_spaces(pools, await seen_hosts(connection, now_ms=now_ms), whole, now_ms)


def _all(_: Sequence[ReservationRow]) -> str:
    return "what is kept for reservations"


def _those(_: Collection[str]) -> str:
    return "what spot jobs leave to those who have reserved it"
