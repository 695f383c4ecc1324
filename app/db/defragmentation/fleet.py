"""What a defragmentation is decided on beside the snapshot: GPUs of runs, parts of hosts, and how moves have gone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.defragmentation import HeldGpus, MoveHabits, MoveNow, NodeFacts
from app.core.foreign import read_as
from app.core.model.move import MoveState
from app.core.model.node import GONE_NODE_STATES, BillingRule, BillingStart, Tier
from app.core.model.pool import JOINED
from app.core.model.run import RunState
from app.db.arrays import is_one_of
from app.db.tables import allocations, hosts, moves, nodes, run_jobs, runs

_NEWEST_MOVES = 100
_FEWEST_MOVES = 5  # measured, before what was configured is not believed any more
_DOUBT = 20  # moves that are added to those on record, of which one has failed


async def held_gpus_of_runs(connection: AsyncConnection) -> dict[str, HeldGpus]:
    """Of each live run on a machine that outlives it."""
    rows = await connection.execute(
        select(runs.c.id, runs.c.wanted_gpus, allocations.c.gpu_indices)
        .join(allocations, (allocations.c.run_id == runs.c.id) & allocations.c.to_ms.is_(None))
        .where(runs.c.state != RunState.ENDED, runs.c.tier != Tier.SERVERLESS)
    )
    return {row.id: HeldGpus(len(row.gpu_indices), row.wanted_gpus not in (None, len(row.gpu_indices))) for row in rows}


async def node_facts(connection: AsyncConnection) -> dict[str, NodeFacts]:
    """Of each node that is not gone and outlives its runs."""
    of = nodes.c
    rows = await connection.execute(
        select(
            *(of.id, of.provider, of.host, of.billed_from_ms),
            *(of.billing_unit_ms, of.billing_starts, of.billing_minimum_ms),
        ).where(of.state.not_in(GONE_NODE_STATES), of.tier != Tier.SERVERLESS)
    )
    return {row.id: _facts(row) for row in rows}


def _facts(row: Any) -> NodeFacts:
    rule = BillingRule(row.billing_unit_ms, read_as(BillingStart, row.billing_starts), row.billing_minimum_ms)
    return NodeFacts(row.host if row.provider == JOINED else "", rule, row.billed_from_ms)


async def host_names(connection: AsyncConnection) -> dict[str, str]:
    """As those that are in a pool call themselves."""
    rows = await connection.execute(select(hosts.c.id, hosts.c.name).where(hosts.c.left_ms.is_(None)))
    return {row.id: row.name for row in rows}


async def move_habits(connection: AsyncConnection, *, pause_ms: int, prepare_ms: int) -> MoveHabits:
    """Of the newest moves that are over. Where too few were measured, what is given counts."""
    of = moves.c
    newest = (
        select(of.pause_ms, of.not_before_ms, (of.saving_ms - of.begun_ms).label("prepare_ms"))
        .where(of.ended_ms.is_not(None))
        .order_by(of.ended_ms.desc())
        .limit(_NEWEST_MOVES)
        .subquery()
    )
    middle = func.percentile_cont(0.5)
    row = (
        await connection.execute(
            select(
                func.count().label("number"),
                func.count(newest.c.pause_ms).label("measured"),
                func.count().filter(newest.c.not_before_ms > 0).label("failed"),
                middle.within_group(newest.c.pause_ms).label("pause_ms"),
                middle.within_group(newest.c.prepare_ms).label("prepare_ms"),
            )
        )
    ).one()
    known = row.measured >= _FEWEST_MOVES
    return MoveHabits(
        pause_ms=max(1_000, round(row.pause_ms)) if known else pause_ms,
        prepare_ms=prepare_ms if row.prepare_ms is None or not known else round(row.prepare_ms),
        failed_share=(row.failed + 1) / (row.number + _DOUBT),
    )


async def moves_now(connection: AsyncConnection, move_ids: Collection[str]) -> Mapping[str, MoveNow]:
    of = moves.c
    rows = await connection.execute(select(of.id, of.state, of.end_message).where(is_one_of(of.id, sorted(move_ids))))
    return {row.id: MoveNow(MoveState(row.state), row.end_message or "") for row in rows}


async def pauses_of(connection: AsyncConnection, move_ids: Collection[str]) -> Mapping[str, int]:
    """For how long training paused in moves that are measured, in milliseconds."""
    of = moves.c
    rows = await connection.execute(
        select(of.id, of.pause_ms).where(is_one_of(of.id, sorted(move_ids)), of.pause_ms.is_not(None))
    )
    return {row.id: row.pause_ms for row in rows}


async def pause_after(connection: AsyncConnection, job_id: str, run_id: str) -> int | None:
    """From the moment when this run was asked to leave until the job's next one trained, in milliseconds."""
    of = runs.c
    asked = select(of.stop_asked_ms).where(of.id == run_id).scalar_subquery()
    rows = await connection.execute(
        select(of.running_ms - asked)
        .join(run_jobs, run_jobs.c.run_id == of.id)
        .where(run_jobs.c.job_id == job_id, of.member_of.is_(None), of.running_ms >= asked)
        .order_by(of.running_ms)
        .limit(1)
    )
    return rows.scalar_one_or_none()


@dataclass(frozen=True, slots=True)
class GangWays:
    """`node_id`: of the machine that leads; `bits_per_s`: by the node of each further one, as measured from the first
    one. `layout`: of the run that leads."""

    job_id: str
    node_id: str
    bits_per_s: Mapping[str, int]
    layout: Mapping[str, Any]


async def ways_of_gangs(connection: AsyncConnection, lead_ids: Collection[str]) -> list[GangWays]:
    """Of jobs on several machines that these runs lead, and of which both is known."""
    of = runs.c
    lead_id = func.coalesce(of.member_of, of.id)
    rows = await connection.execute(
        select(lead_id.label("lead_id"), run_jobs.c.job_id, allocations.c.node_id, of.network_bits_per_s, of.layout)
        .join(run_jobs, run_jobs.c.run_id == of.id)
        .join(allocations, (allocations.c.run_id == of.id) & allocations.c.to_ms.is_(None))
        .where(is_one_of(lead_id, sorted(lead_ids)), of.state != RunState.ENDED)
        .order_by(lead_id, of.node_rank)
    )
    by_lead: dict[str, list[Any]] = {}
    for row in rows:
        by_lead.setdefault(row.lead_id, []).append(row)
    found = []
    for lead, *members in by_lead.values():
        ways = {one.node_id: one.network_bits_per_s for one in members if one.network_bits_per_s}
        if ways and isinstance(lead.layout, Mapping):
            found.append(GangWays(lead.job_id, lead.node_id, ways, lead.layout))
    return found
