"""What each decision saw and chose: kept to explain it, to take it again, and to go on from after a restart."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import all_, any_, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.policy import PolicyState
from app.core.recording import MOST_DELTAS, Record
from app.db.tables import tick_offers, ticks
from app.db.text import storable_json
from app.errors import InvalidInput

log = logging.getLogger(__name__)

_MOST_DROPPED = 5_000  # at once: no transaction may be long


@dataclass(frozen=True, slots=True)
class TickRow:
    """One decision. `plan` is JSON-able; `dropped` counts actions whose rows had moved on. `record`: what it saw; one
    of differences needs `base_id`, the tick whose record is the whole one. `named_ids`: the rows its actions name."""

    at_ms: int
    term: int
    trigger: str
    policy: str
    policy_state: PolicyState
    plan: dict[str, Any]
    dropped: int
    duration_ms: int
    record: Record | None = None
    base_id: int | None = None
    named_ids: Sequence[str] = ()


async def add_tick(connection: AsyncConnection, tick: TickRow) -> int:
    """Append it; returns its number."""
    record = tick.record
    statement = (
        ticks.insert()
        .values(
            at_ms=tick.at_ms,
            term=tick.term,
            trigger=tick.trigger,
            policy=tick.policy,
            policy_state=codec.encode(tick.policy_state),
            plan=storable_json(tick.plan),
            recorded=None if record is None else record.body,
            base_id=tick.base_id,
            offers_sha256=None if record is None else record.offers_sha256,
            size_bytes=0 if record is None else len(record.body) + await _keep_offers(connection, record, tick.at_ms),
            named_ids=sorted(set(tick.named_ids)),
            dropped=tick.dropped,
            duration_ms=tick.duration_ms,
        )
        .returning(ticks.c.id)
    )
    number: int = (await connection.execute(statement)).scalar_one()
    return number


async def _keep_offers(connection: AsyncConnection, record: Record, at_ms: int) -> int:
    """Returns the bytes that this took: none when another decision saw the same."""
    fresh = insert(tick_offers).values(sha256=record.offers_sha256, recorded=record.offers, seen_ms=at_ms)
    kept = await connection.execute(fresh.on_conflict_do_nothing().returning(tick_offers.c.sha256))
    return len(record.offers) if kept.scalar_one_or_none() is not None else 0


async def last_state(connection: AsyncConnection, policy: str) -> PolicyState:
    """What this policy remembered in its newest tick; nothing when it has none, or none that this release can read."""
    rows = await connection.execute(
        select(ticks.c.policy_state).where(ticks.c.policy == policy).order_by(ticks.c.id.desc()).limit(1)
    )
    kept = rows.scalar_one_or_none()
    try:
        return PolicyState() if kept is None else codec.decode_row(PolicyState, kept)
    except InvalidInput as error:  # its measurements begin anew; a leader that cannot decide would be worse
        log.warning("what policy %s remembered cannot be read, it begins anew: %s", policy, error)
        return PolicyState()


async def last_tick_ms(connection: AsyncConnection, *, before_term: int) -> int | None:
    """When an earlier leader's newest tick was; None when there was none."""
    newest = select(func.max(ticks.c.at_ms)).where(ticks.c.term < before_term)
    latest: int | None = (await connection.execute(newest)).scalar_one()
    return latest


async def delete_old_ticks(connection: AsyncConnection, *, before_ms: int, most_bytes: int) -> int:
    """Forget ticks from before a moment, and the oldest of those that take more than `most_bytes` together; some at a
    time. Returns how many. A whole record stays as long as a younger one needs it, and the newest stay in any case:
    the next decision may be recorded by its difference to one of them."""
    newest_first = func.sum(ticks.c.size_bytes).over(order_by=ticks.c.id.desc())
    sizes = select(ticks.c.id, newest_first.label("total")).subquery()
    too_large = select(func.max(sizes.c.id)).where(sizes.c.total > most_bytes).scalar_subquery()
    too_old = select(func.max(ticks.c.id)).where(ticks.c.at_ms < before_ms).scalar_subquery()
    newest = select(ticks.c.id).order_by(ticks.c.id.desc()).offset(2 * MOST_DELTAS).limit(1).scalar_subquery()
    asked = select(func.greatest(too_large, too_old).label("last"), newest.label("newest"))
    row = (await connection.execute(asked)).one()
    if row.last is None or row.newest is None:
        return 0
    last = min(row.last, row.newest)
    needed = select(ticks.c.base_id).where(ticks.c.id > last, ticks.c.base_id.is_not(None))
    oldest = (
        select(ticks.c.id)
        .where(ticks.c.id <= last, ticks.c.id != all_(needed.scalar_subquery()))
        .order_by(ticks.c.id)
        .limit(_MOST_DROPPED)
    )
    return (await connection.execute(delete(ticks).where(ticks.c.id == any_(oldest.scalar_subquery())))).rowcount


async def delete_unseen_offers(connection: AsyncConnection, *, before_ms: int) -> int:
    """Forget what was on offer at no decision that is still kept; returns how many records. `before_ms`: younger ones
    may be of a decision that is being written."""
    seen = select(ticks.c.offers_sha256).where(ticks.c.offers_sha256.is_not(None))
    unseen = tick_offers.c.sha256 != all_(seen.scalar_subquery())
    return (await connection.execute(delete(tick_offers).where(tick_offers.c.seen_ms < before_ms, unseen))).rowcount
