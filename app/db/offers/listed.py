"""What could be rented: kept from the providers' listings, gone when it is not seen again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, all_, and_, delete, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core import codec
from app.core.model.node import GONE_NODE_STATES, MOST_GPUS, NodeState, Tier
from app.core.model.offer import Offer
from app.db.arrays import insert_rows, is_one_of
from app.db.bids import is_bid
from app.db.offers.provider_states import rents_nothing
from app.db.tables import nodes, offers, pools, provider_states
from app.db.text import storable_json
from app.db.unreadable import RowReading

# Nobody here knows how what a newer release rents in another way begins, ends and is paid.
KNOWN_TIER = is_one_of(offers.c.tier, sorted(Tier))
_MOST = 2**63
_MOST_UNREAD = 20  # offers that cannot be read may stand before the cheapest
IS_NETWORKED = "is_networked"  # in the row of an offer, and no field of it: of its tier, as its provider says
_ON_TRIAL = frozenset({NodeState.REQUESTED, NodeState.UNKNOWN, NodeState.BOOTING})


async def replace_offers(
    connection: AsyncConnection,
    provider: str,
    seen: Iterable[Offer],
    *,
    now_ms: int,
    reading: RowReading | None = None,
    networked: Collection[Tier] = (),
) -> bool:
    """Make the provider's rows equal to its listing; whether anything but the time of seeing changed. An offer that
    cannot be kept is left out, and noted. `networked`: the tiers whose machines of one site reach each other, which is
    kept beside each offer, for processes that have no provider to ask (ADR 0112)."""
    reading = RowReading() if reading is None else reading
    before = await _kept_of(connection, provider)
    told = (
        reading.of(offers.name, f"{provider}/{place}", partial(_row, offer, now_ms, offer.tier in networked))
        for place, offer in enumerate(seen)
    )
    rows = {row["offer_id"]: row for row in told if row is not None}
    after = {offer_id: row["offer"] for offer_id, row in rows.items()}
    if rows:
        fresh = insert_rows(offers, [rows[offer_id] for offer_id in sorted(rows)])
        columns = ("tier", "offer", "price_micros_per_hour", "seen_ms")
        await connection.execute(
            fresh.on_conflict_do_update(
                index_elements=[offers.c.provider, offers.c.offer_id],
                set_={name: fresh.excluded[name] for name in columns},
            )
        )
    gone = sorted(before.keys() - after.keys())
    if gone:
        await connection.execute(
            delete(offers).where(offers.c.provider == provider, is_one_of(offers.c.offer_id, gone))
        )
    return before != after


async def delete_offer(connection: AsyncConnection, offer: Offer) -> None:
    """It could not be had; the next listing brings it back when it is there again."""
    await connection.execute(
        delete(offers).where(offers.c.provider == offer.provider, offers.c.offer_id == offer.offer_id)
    )


async def recent_offers(
    connection: AsyncConnection,
    *,
    now_ms: int,
    max_age_ms: int,
    reading: RowReading | None = None,
    project_id: str | None = None,
) -> tuple[Offer, ...]:
    """Offers seen within `max_age_ms`, by key; without providers that refuse our credentials or are at our limit, and
    without those that cannot be read, which are noted. `project_id`: those that this project may have; else all."""
    reading = RowReading() if reading is None else reading
    closed = exists().where(provider_states.c.provider == offers.c.provider, rents_nothing(now_ms))
    rows = await connection.execute(
        select(offers.c.provider, offers.c.offer_id, offers.c.offer)
        .where(KNOWN_TIER, offers.c.seen_ms >= now_ms - max_age_ms, ~closed, *_had_by(project_id))
        .order_by(offers.c.provider, offers.c.offer_id)
    )
    read = (reading.of(offers.name, f"{row.provider}/{row.offer_id}", partial(read_offer, row.offer)) for row in rows)
    return tuple(sorted((offer for offer in read if offer is not None), key=lambda offer: offer.key))


def _had_by(project_id: str | None) -> tuple[ColumnElement[bool], ...]:
    return () if project_id is None else (is_for_project(project_id), ~is_of_others_pool(project_id))


def is_for_project(project_id: str) -> ColumnElement[bool]:
    """Of a row: whether it is for all projects, or for this one."""
    projects = offers.c.offer["projects"].astext
    return or_(func.coalesce(projects, "[]") == "[]", offers.c.offer.contains({"projects": [project_id]}))


def is_of_others_pool(project_id: str) -> ColumnElement[bool]:
    """Launchers do not know whose the pool is in which they start machines."""
    of = pools.c
    its = and_(of.launcher == offers.c.provider, of.name == offers.c.offer["region"].astext)
    return and_(
        offers.c.tier == Tier.OWN,
        exists().where(its, func.cardinality(of.projects) > 0, all_(of.projects) != project_id),
    )


async def closed_pools(connection: AsyncConnection) -> dict[tuple[str, str], frozenset[str]]:
    """The projects of each pool that is not for all, by its launcher and name."""
    rows = await connection.execute(
        select(pools.c.launcher, pools.c.name, pools.c.projects).where(func.cardinality(pools.c.projects) > 0)
    )
    return {(row.launcher, row.name): frozenset(row.projects) for row in rows}


def read_offer(kept: Any) -> Offer:
    """As it is kept. Raises for what no offer is: a machine without GPUs cannot be weighed by its GPUs."""
    offer = codec.decode_row(Offer, kept)
    if not 1 <= offer.gpu_count <= MOST_GPUS or not 0 <= offer.price_per_hour.micros < _MOST:
        raise ValueError(f"an offer of {offer.gpu_count} GPUs for {offer.price_per_hour}")
    if not (0 <= offer.mean_life_ms < _MOST and 0 <= offer.startup_ms < _MOST):
        raise ValueError("an offer of machines that live, or start, for no time that there is")
    if not (0 <= offer.arrival_ms < _MOST and 0 <= offer.arrival_micros < _MOST):
        raise ValueError("an offer of machines on which arrivals take, or cost, what cannot be")
    return offer


async def hosts_on_trial(connection: AsyncConnection) -> frozenset[tuple[str, str]]:
    """Provider and host of each node that is to come up on a single host: two rents of one may both be answered with
    yes, and all but one never start. And of each that is held by a bid of ours, which a rent of the same host, on
    demand or by a higher bid, would end."""
    there = nodes.c.host != "", nodes.c.state.not_in(GONE_NODE_STATES)
    rows = await connection.execute(
        select(nodes.c.provider, nodes.c.host).where(*there, or_(nodes.c.state.in_(_ON_TRIAL), is_bid()))
    )
    return frozenset((provider, host) for provider, host in rows)


async def cheapest_offer(connection: AsyncConnection, *, now_ms: int, max_age_ms: int) -> Offer | None:
    """The offer with the lowest price per hour, of those seen within `max_age_ms` that can be read."""
    rows = await connection.execute(
        select(offers.c.offer)
        .where(KNOWN_TIER, offers.c.seen_ms >= now_ms - max_age_ms)
        .order_by(offers.c.price_micros_per_hour, offers.c.provider, offers.c.offer_id)
        .limit(_MOST_UNREAD)
    )
    reading = RowReading()
    read = (reading.of(offers.name, "", partial(read_offer, kept)) for kept in rows.scalars())
    return next((offer for offer in read if offer is not None), None)


async def _kept_of(connection: AsyncConnection, provider: str) -> dict[str, Any]:
    """As they are kept, readable or not, by id."""
    rows = await connection.execute(select(offers.c.offer_id, offers.c.offer).where(offers.c.provider == provider))
    return {row.offer_id: row.offer for row in rows}


def _row(offer: Offer, now_ms: int, is_networked: bool) -> dict[str, Any]:
    """Raises for what could not be read again, or not be stored."""
    kept = {**codec.encode(offer), IS_NETWORKED: is_networked}
    read_offer(kept)
    if storable_json(kept) != kept:
        raise ValueError("an offer with characters that PostgreSQL does not store")
    return {
        "provider": offer.provider,
        "offer_id": offer.offer_id,
        "tier": offer.tier,
        "offer": kept,
        "price_micros_per_hour": offer.price_per_hour.micros,
        "seen_ms": now_ms,
    }
