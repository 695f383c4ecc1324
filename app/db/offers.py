"""What could be rented: kept from the providers' listings, gone when it is not seen again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import delete, exists, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.model.node import NodeState
from app.core.model.offer import Offer
from app.db.provider_states import rents_nothing
from app.db.provider_tables import provider_states
from app.db.tables import nodes, offers

_ON_TRIAL = frozenset({NodeState.REQUESTED, NodeState.UNKNOWN, NodeState.BOOTING})


async def replace_offers(connection: AsyncConnection, provider: str, seen: Iterable[Offer], *, now_ms: int) -> bool:
    """Make the provider's rows equal to its listing; whether anything but the time of seeing changed."""
    before = {offer.offer_id: offer for offer in await _offers_of(connection, provider)}
    after = {offer.offer_id: offer for offer in seen}
    if after:
        fresh = insert(offers)
        rows = [_row(after[offer_id], now_ms) for offer_id in sorted(after)]
        columns = ("tier", "offer", "price_micros_per_hour", "seen_ms")
        await connection.execute(
            fresh.on_conflict_do_update(
                index_elements=[offers.c.provider, offers.c.offer_id],
                set_={name: fresh.excluded[name] for name in columns},
            ),
            rows,
        )
    gone = sorted(before.keys() - after.keys())
    if gone:
        await connection.execute(delete(offers).where(offers.c.provider == provider, offers.c.offer_id.in_(gone)))
    return before != after


async def forget_offer(connection: AsyncConnection, offer: Offer) -> None:
    """It could not be had; the next listing brings it back when it is there again."""
    await connection.execute(
        delete(offers).where(offers.c.provider == offer.provider, offers.c.offer_id == offer.offer_id)
    )


async def recent_offers(connection: AsyncConnection, *, now_ms: int, max_age_ms: int) -> tuple[Offer, ...]:
    """Offers seen within `max_age_ms`, by key; without providers that refuse our credentials or are at our limit."""
    closed = exists().where(provider_states.c.provider == offers.c.provider, rents_nothing(now_ms))
    rows = await connection.execute(
        select(offers.c.offer)
        .where(offers.c.seen_ms >= now_ms - max_age_ms, ~closed)
        .order_by(offers.c.provider, offers.c.offer_id)
    )
    return tuple(sorted((codec.decode(Offer, kept) for kept in rows.scalars()), key=lambda offer: offer.key))


async def hosts_on_trial(connection: AsyncConnection) -> frozenset[tuple[str, str]]:
    """Provider and host of each node that is to come up on a single host: two rents of one may both be answered with
    yes, and all but one never start."""
    rows = await connection.execute(
        select(nodes.c.provider, nodes.c.host).where(nodes.c.host != "", nodes.c.state.in_(sorted(_ON_TRIAL)))
    )
    return frozenset((provider, host) for provider, host in rows)


async def cheapest_offer(connection: AsyncConnection, *, now_ms: int, max_age_ms: int) -> Offer | None:
    """The offer with the lowest price per hour, of those seen within `max_age_ms`."""
    rows = await connection.execute(
        select(offers.c.offer)
        .where(offers.c.seen_ms >= now_ms - max_age_ms)
        .order_by(offers.c.price_micros_per_hour, offers.c.provider, offers.c.offer_id)
        .limit(1)
    )
    kept = rows.scalar_one_or_none()
    return None if kept is None else codec.decode(Offer, kept)


async def _offers_of(connection: AsyncConnection, provider: str) -> list[Offer]:
    rows = await connection.execute(select(offers.c.offer).where(offers.c.provider == provider))
    return [codec.decode(Offer, kept) for kept in rows.scalars()]


def _row(offer: Offer, now_ms: int) -> dict[str, Any]:
    return {
        "provider": offer.provider,
        "offer_id": offer.offer_id,
        "tier": offer.tier,
        "offer": codec.encode(offer),
        "price_micros_per_hour": offer.price_per_hour.micros,
        "seen_ms": now_ms,
    }
