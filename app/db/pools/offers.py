"""What a team's own machines offer at this moment: read with what is decided on, and never from an older listing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.node import GONE_NODE_STATES, Tier
from app.core.model.offer import Offer
from app.core.model.pool import JOINED, Pool
from app.core.pools import governed, offers_of
from app.db.pools.hosts import seen_hosts
from app.db.pools.pools import read_pools
from app.db.tables import nodes
from app.db.unreadable import RowReading


async def own_offers(
    connection: AsyncConnection, *, now_ms: int, reading: RowReading | None = None, pools: Sequence[Pool] | None = None
) -> list[Offer]:
    """What hosts that have joined offer now."""
    if pools is None:
        pools = [row.pool for row in await read_pools(connection, reading)]
    joined = [pool for pool in pools if pool.launcher == JOINED]
    return offers_of(joined, await seen_hosts(connection, now_ms=now_ms, reading=reading), now_ms) if joined else []


async def as_pools_have_it(
    connection: AsyncConnection, offers: Sequence[Offer], *, now_ms: int, reading: RowReading
) -> tuple[Offer, ...]:
    """Offers as they were listed, those of one's own machines as their pools have them now: what has been given out
    since, who may use it, at which price."""
    pools = [row.pool for row in await read_pools(connection, reading)]
    listed = [offer for offer in offers if offer.provider != JOINED]
    if not pools:
        return tuple(listed)
    used = await _used(connection) if any(pool.launcher != JOINED for pool in pools) else {}
    own = await own_offers(connection, now_ms=now_ms, reading=reading, pools=pools)
    found = [*governed(listed, pools, used, now_ms), *own]
    return tuple(sorted(found, key=lambda offer: offer.key))


async def launched_as_pools_have_it(
    connection: AsyncConnection, offers: Sequence[Offer], *, now_ms: int, reading: RowReading
) -> list[Offer]:
    """As `as_pools_have_it`, with what hosts that have joined offer as it was listed: of a plan, not a decision."""
    pools = [row.pool for row in await read_pools(connection, reading) if row.pool.launcher != JOINED]
    joined = [offer for offer in offers if offer.provider == JOINED]
    others = [offer for offer in offers if offer.provider != JOINED]
    return [*joined, *(governed(others, pools, await _used(connection), now_ms) if pools else others)]


async def _used(connection: AsyncConnection) -> dict[str, int]:
    """GPUs of the nodes of launchers, by pool."""
    of = nodes.c
    rows = await connection.execute(
        select(of.region, func.sum(of.gpu_count).label("gpus"))
        .where(of.tier == Tier.OWN, of.provider != JOINED, of.state.not_in(GONE_NODE_STATES))
        .group_by(of.region)
    )
    return {row.region: int(row.gpus) for row in rows}


async def gpus_left(connection: AsyncConnection) -> Mapping[tuple[str, str], int]:
    """How many more GPUs pools with a limit let be used, by launcher and name."""
    of = nodes.c
    limited = [row.pool for row in await read_pools(connection) if row.pool.most_gpus is not None]
    if not limited:
        return {}
    rows = await connection.execute(
        select(of.provider, of.region, func.sum(of.gpu_count).label("gpus"))
        .where(of.tier == Tier.OWN, of.state.not_in(GONE_NODE_STATES))
        .group_by(of.provider, of.region)
    )
    used = {(row.provider, row.region): int(row.gpus) for row in rows}
    keys = {(pool.launcher, pool.name): pool.most_gpus or 0 for pool in limited}
    return {key: max(0, most - used.get(key, 0)) for key, most in keys.items()}
