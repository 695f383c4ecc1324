"""What a project could be rented now, to plan with: as few rows as say it, however many hosts a pool has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from sqlalchemy import ColumnElement, and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.node import Tier
from app.core.model.offer import Offer
from app.core.model.pool import JOINED
from app.db.offers.listed import IS_NETWORKED, KNOWN_TIER, is_for_project, read_offer
from app.db.offers.provider_states import rents_nothing
from app.db.pools.hosts import HEARD_WITHIN_MS
from app.db.pools.offers import launched_as_pools_have_it
from app.db.tables import hosts, offers, provider_states
from app.db.unreadable import RowReading

MOST_OF_A_KIND = 64  # hosts of one pool that offer the same: more machines no job can have
MOST_APART = 1_024  # where only so many of them may be under one switch: the first 64 may all be under one


@dataclass(frozen=True, slots=True)
class Plannable:
    """`networked`: the tiers of providers whose machines of one site reach each other; None: of no offer it is known,
    as all were listed by a release before that was kept."""

    offers: tuple[Offer, ...]
    networked: frozenset[tuple[str, Tier]] | None


async def plannable_offers(
    connection: AsyncConnection,
    project_id: str,
    *,
    now_ms: int,
    max_age_ms: int,
    most_of_a_kind: int = MOST_OF_A_KIND,
    reading: RowReading | None = None,
) -> Plannable:
    """Offers seen within `max_age_ms` that the project may have, by key, with the prices of their pools; of a pool's
    the cheapest of each kind, those with the most memory first. Left out are those of providers that rent nothing now,
    of hosts that are not heard of, and those that cannot be read, which are noted."""
    reading = RowReading() if reading is None else reading
    of = offers.c
    closed = exists().where(provider_states.c.provider == of.provider, rents_nothing(now_ms))
    kind = (of.offer[name] for name in ("region", "gpu_type", "gpu_count", "gpu_memory_bytes", "spot_only"))
    place = func.row_number().over(
        partition_by=(of.provider, of.tier, *kind),
        order_by=(of.price_micros_per_hour, of.offer["memory_bytes"].desc(), of.offer_id),
    )
    listed = (  # without the offers themselves, which would be sorted with it
        select(of.provider, of.offer_id, of.tier, place.label("place"))
        .where(
            KNOWN_TIER,
            of.seen_ms >= now_ms - max_age_ms,
            ~closed,
            is_for_project(project_id),
            ~_is_of_gone_host(now_ms),
        )
        .subquery()
    )
    same = (of.provider == listed.c.provider, of.offer_id == listed.c.offer_id)
    few = (
        select(of.provider, of.offer_id, of.offer)
        .join(listed, and_(*same))
        .where(or_(listed.c.tier != Tier.OWN, listed.c.place <= most_of_a_kind))
    )
    found: list[Offer] = []
    networked: set[tuple[str, Tier]] = set()
    is_known = False
    for row in await connection.execute(few):
        offer = reading.of(offers.name, f"{row.provider}/{row.offer_id}", partial(read_offer, row.offer))
        if offer is None:
            continue
        found.append(offer)
        is_known = is_known or IS_NETWORKED in row.offer
        if row.offer.get(IS_NETWORKED) is True:
            networked.add((offer.provider, offer.tier))
    known = frozenset(networked) if is_known or not found else None
    found = await launched_as_pools_have_it(connection, found, now_ms=now_ms, reading=reading)
    its = (offer for offer in found if not offer.projects or project_id in offer.projects)
    return Plannable(tuple(sorted(its, key=lambda offer: offer.key)), known)


def _is_of_gone_host(now_ms: int) -> ColumnElement[bool]:
    """Listings are as old as a minute: its host may have left since, or be silent."""
    of = hosts.c
    its_host = func.split_part(offers.c.offer["host"].astext, "/", 1)
    gone = or_(of.left_ms.is_not(None), of.leaves_ms.is_not(None), of.heard_ms <= now_ms - HEARD_WITHIN_MS)
    return and_(offers.c.provider == JOINED, exists().where(of.id == its_host, gone))
