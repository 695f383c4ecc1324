"""Decisions as they were recorded, to be taken again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import tick_offers, ticks


@dataclass(frozen=True, slots=True)
class RecordedTick:
    """`body` with `base` (where it is a record of differences) and `offers`, of `app.core.recording`; all None where it
    was stored before migration 0016, with `observed` and `plan` as releases encoded them until then. `state_before`:
    what the policy remembered after its decision before."""

    number: int
    at_ms: int
    policy: str
    trigger: str
    duration_ms: int
    body: bytes | None
    base: bytes | None
    offers: bytes | None
    observed: Any
    plan: Any
    state_before: Any


async def read_recorded_tick(connection: AsyncConnection, number: int) -> RecordedTick | None:
    """None: there is no such tick, or not any more."""
    base = ticks.alias("base")
    found = await connection.execute(
        select(ticks, base.c.recorded.label("base"), tick_offers.c.recorded.label("offers"))
        .outerjoin(base, base.c.id == ticks.c.base_id)
        .outerjoin(tick_offers, tick_offers.c.sha256 == ticks.c.offers_sha256)
        .where(ticks.c.id == number)
    )
    row = found.one_or_none()
    if row is None:
        return None
    return RecordedTick(
        number=row.id,
        at_ms=row.at_ms,
        policy=row.policy,
        trigger=row.trigger,
        duration_ms=row.duration_ms,
        body=row.recorded,
        base=row.base,
        offers=row.offers,
        observed=row.observed,
        plan=row.plan,
        state_before=await _state_before(connection, number, row.policy) if row.recorded is None else None,
    )


async def _state_before(connection: AsyncConnection, number: int, policy: str) -> Any:
    rows = await connection.execute(
        select(ticks.c.policy_state)
        .where(ticks.c.id < number, ticks.c.policy == policy)
        .order_by(ticks.c.id.desc())
        .limit(1)
    )
    return rows.scalar_one_or_none()
