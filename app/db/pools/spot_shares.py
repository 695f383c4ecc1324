"""What spot jobs pay of a pool's price, and since when: kept for meters that are read later, maybe after the pool."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.spot_share import FULL
from app.db.tables import pool_spot_shares, pools


async def set_share(connection: AsyncConnection, launcher: str, pool: str, parts: int, *, now_ms: int) -> None:
    """From now on it counts. The pool is locked, or new. Two replicas whose clocks are apart: what was written last
    counts from the later instant on."""
    of = pool_spot_shares.c
    newest = select(func.max(of.from_ms)).where(of.launcher == launcher, of.pool == pool).scalar_subquery()
    from_ms = func.greatest(newest, literal(now_ms, of.from_ms.type))
    new = insert(pool_spot_shares).values(launcher=launcher, pool=pool, from_ms=from_ms, parts=parts)
    key = [of.launcher, of.pool, of.from_ms]
    await connection.execute(new.on_conflict_do_update(index_elements=key, set_={"parts": new.excluded.parts}))


async def shares_now(connection: AsyncConnection) -> Mapping[tuple[str, str], int]:
    """By launcher and name, of pools where spot jobs pay less than the full price."""
    of = pools.c
    rows = await connection.execute(select(of.launcher, of.name, of.spot_share_parts).where(of.spot_share_parts < FULL))
    return {(row.launcher, row.name): row.spot_share_parts for row in rows}
