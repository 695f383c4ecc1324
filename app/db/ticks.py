"""What each decision saw and chose: kept to explain it, and to go on from after a restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.policy import PolicyState
from app.db.tables import ticks


@dataclass(frozen=True, slots=True)
class TickRow:
    """One decision. `observed` and `plan` are JSON-able; `dropped` counts actions whose rows had moved on."""

    at_ms: int
    term: int
    trigger: str
    policy: str
    policy_state: PolicyState
    observed: dict[str, Any]
    plan: dict[str, Any]
    dropped: int
    duration_ms: int


async def add_tick(connection: AsyncConnection, tick: TickRow) -> int:
    """Append it; returns its number."""
    statement = (
        ticks.insert()
        .values(
            at_ms=tick.at_ms,
            term=tick.term,
            trigger=tick.trigger,
            policy=tick.policy,
            policy_state=codec.encode(tick.policy_state),
            observed=tick.observed,
            plan=tick.plan,
            dropped=tick.dropped,
            duration_ms=tick.duration_ms,
        )
        .returning(ticks.c.id)
    )
    number: int = (await connection.execute(statement)).scalar_one()
    return number


async def last_state(connection: AsyncConnection, policy: str) -> PolicyState:
    """What this policy remembered in its newest tick; nothing when it has none."""
    rows = await connection.execute(
        select(ticks.c.policy_state).where(ticks.c.policy == policy).order_by(ticks.c.id.desc()).limit(1)
    )
    kept = rows.scalar_one_or_none()
    return PolicyState() if kept is None else codec.decode(PolicyState, kept)


async def last_tick_ms(connection: AsyncConnection, *, before_term: int) -> int | None:
    """When an earlier leader's newest tick was; None when there was none."""
    newest = select(func.max(ticks.c.at_ms)).where(ticks.c.term < before_term)
    latest: int | None = (await connection.execute(newest)).scalar_one()
    return latest


async def drop_old_ticks(connection: AsyncConnection, *, before_ms: int) -> int:
    """Forget ticks from before a moment; returns how many."""
    return (await connection.execute(delete(ticks).where(ticks.c.at_ms < before_ms))).rowcount
