"""Reading where a job has been and what that cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import BigInteger, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.foreign import read_as
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, Tier
from app.db.arrays import is_one_of
from app.db.tables import allocations, job_events, ledger, nodes, offers, run_jobs, runs

STEPS_LOST = "steps_lost"  # an event


@dataclass(frozen=True, slots=True)
class StayRow:
    """A run of the job on one node. The price is for the GPUs it held; the rule is the node's."""

    run_id: str
    node_id: str
    provider: str
    tier: Tier
    gpu_type: str
    gpu_count: int
    price_per_hour: Money
    billing: BillingRule
    resumed_from_step: int | None
    from_ms: int
    running_ms: int | None
    to_ms: int | None
    end_reason: str | None
    follows: bool = False  # on a further machine of a job on several, which another stay leads


async def stays_of(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, list[StayRow]]:
    """Every stay of these jobs, oldest first; a job that was nowhere has none. Of a run whose GPUs have changed, with
    those that it had last."""
    statement = (
        select(
            run_jobs.c.job_id,
            runs.c.id.label("run_id"),
            runs.c.resumed_from_step,
            runs.c.running_ms,
            runs.c.end_reason,
            runs.c.member_of,
            allocations.c.from_ms,
            allocations.c.to_ms,
            func.cardinality(allocations.c.gpu_indices).label("held"),
            nodes.c.id.label("node_id"),
            nodes.c.provider,
            nodes.c.tier,
            nodes.c.gpu_type,
            nodes.c.gpu_count,
            nodes.c.price_micros_per_hour,
            nodes.c.billing_unit_ms,
            nodes.c.billing_starts,
            nodes.c.billing_minimum_ms,
        )
        .join(runs, runs.c.id == run_jobs.c.run_id)
        .join(allocations, allocations.c.run_id == runs.c.id)
        .join(nodes, nodes.c.id == allocations.c.node_id)
        .where(is_one_of(run_jobs.c.job_id, job_ids))
        .order_by(allocations.c.from_ms, allocations.c.id)
    )
    found: dict[str, list[StayRow]] = {job_id: [] for job_id in job_ids}
    for row in await connection.execute(statement):
        stays = found[row.job_id]
        same = next((index for index, one in enumerate(stays) if one.run_id == row.run_id), None)
        if same is None:
            stays.append(_stay(row))
        else:
            stays[same] = replace(_stay(row), from_ms=stays[same].from_ms)
    return found


def _stay(row: Any) -> StayRow:
    return StayRow(
        run_id=row.run_id,
        node_id=row.node_id,
        provider=row.provider,
        tier=read_as(Tier, row.tier),
        gpu_type=row.gpu_type,
        gpu_count=row.held,
        price_per_hour=Money(row.price_micros_per_hour * row.held // max(1, row.gpu_count)),
        billing=BillingRule(row.billing_unit_ms, read_as(BillingStart, row.billing_starts), row.billing_minimum_ms),
        resumed_from_step=row.resumed_from_step,
        from_ms=row.from_ms,
        running_ms=row.running_ms,
        to_ms=row.to_ms,
        end_reason=row.end_reason,
        follows=row.member_of is not None,
    )


@dataclass(frozen=True, slots=True)
class Lost:
    """What a run took with it: it was at `step`, and `steps` of it nobody could go on from."""

    steps: int
    step: int


async def lost_by_run(connection: AsyncConnection, job_ids: Sequence[str]) -> Mapping[str, Lost]:
    """By run of these jobs that ended without what it had done."""
    event = job_events.c
    told = select(event.data).where(is_one_of(event.job_id, job_ids), event.kind == STEPS_LOST)
    told = told.order_by(event.job_id, event.position)
    found: dict[str, Lost] = {}
    for (data,) in await connection.execute(told):
        run_id, steps, step = data.get("run_id"), data.get("steps"), data.get("step")
        if isinstance(run_id, str) and isinstance(steps, int) and isinstance(step, int):
            found[run_id] = Lost(steps, step)
    return found


async def paid_by_job(connection: AsyncConnection, job_id: str) -> Mapping[tuple[str, str | None], Money]:
    """What the ledger says this job pays, by node and run (run None: before its agent called home)."""
    statement = (
        select(ledger.c.node_id, ledger.c.run_id, cast(func.sum(ledger.c.amount_micros), BigInteger).label("micros"))
        .where(ledger.c.job_id == job_id)
        .group_by(ledger.c.node_id, ledger.c.run_id)
    )
    return {(row.node_id, row.run_id): Money(row.micros) for row in await connection.execute(statement)}


async def cheapest_serverless_price(connection: AsyncConnection, gpu_type: str, gpu_count: int) -> Money | None:
    """What this many GPUs of this type cost an hour on serverless, as last offered; None when nobody offers them."""
    statement = (
        select(offers.c.price_micros_per_hour)
        .where(
            offers.c.tier == Tier.SERVERLESS,
            offers.c.offer["gpu_type"].as_string() == gpu_type,
            offers.c.offer["gpu_count"].as_integer() >= gpu_count,
        )
        .order_by(offers.c.price_micros_per_hour)
        .limit(1)
    )
    micros = (await connection.execute(statement)).scalar_one_or_none()
    return None if micros is None else Money(micros)
