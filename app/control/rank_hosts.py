"""Machines of a plan are put on the hosts of pools that the chosen ranker puts first (ADR 0118)."""

from __future__ import annotations

import asyncio

from app.control.context import ControlContext
from app.core.host_ranking import NO_USE, HostOrder, HostRanker, is_cut, rank_hosts
from app.core.model.health import Chore
from app.core.model.plan import Plan
from app.core.model.snapshot import Snapshot
from app.db.pools.hosts import seen_hosts
from app.db.runs.host_use import host_use
from app.errors import Fenced, Unavailable


async def ranked_plan(context: ControlContext, snapshot: Snapshot, plan: Plan) -> Plan:
    """The plan as the setting has it. A ranker that fails stops nobody: then the hosts are those of the policy."""
    ranker = HostRanker(context.settings.host_ranker)
    if ranker is HostRanker.FEWEST_LEFT or not any(map(is_cut, plan.actions)):
        return plan
    now_ms = snapshot.now_ms
    try:
        async with context.database.statement() as connection:
            hosts = await seen_hosts(connection, now_ms=now_ms)
            use = await host_use(connection, now_ms=now_ms) if ranker is HostRanker.SPOTGPU else NO_USE
        jobs = {job.job_id: job for job in snapshot.jobs}
        return await asyncio.to_thread(rank_hosts, plan, snapshot.offers, jobs, hosts, ranker, use, now_ms)
    except (Fenced, Unavailable):
        raise
    except Exception as error:
        context.health.failed(Chore.DECIDE, "the ranker of hosts", error)
        return plan


async def host_order(context: ControlContext, snapshot: Snapshot) -> HostOrder | None:
    """For jobs on several machines; None where hosts come as they do by default, or where the ranker fails."""
    ranker = HostRanker(context.settings.host_ranker)
    if ranker is HostRanker.FEWEST_LEFT:
        return None
    now_ms = snapshot.now_ms
    async with context.database.statement() as connection:
        hosts = await seen_hosts(connection, now_ms=now_ms)
        use = await host_use(connection, now_ms=now_ms) if ranker is HostRanker.SPOTGPU else NO_USE
    jobs = {job.job_id: job for job in snapshot.jobs}
    return HostOrder(snapshot.offers, jobs, hosts, ranker, use, now_ms)
