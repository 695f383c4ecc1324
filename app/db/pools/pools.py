"""Rows of pools, and the tokens with which hosts join them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.model.money import Money
from app.core.model.pool import MOST_GRACE_MS, SHORTEST_GRACE_MS, HostQuota, Pool
from app.core.pools import read_hours
from app.core.spot_share import FULL
from app.db.tables import pool_tokens, pools, reservations
from app.db.unreadable import RowReading

# Of each pool, from its row's side: they are written as reservations without an end.
_HOST_QUOTAS = (
    select(
        func.jsonb_agg(
            func.jsonb_build_array(
                *(reservations.c.project_id, reservations.c.gpu_type),
                *(
                    reservations.c.piece_gpus,
                    reservations.c.gpus,
                    reservations.c.short_gpus,
                    reservations.c.blocked_gpus,
                ),
            )
        )
    )
    .where(
        *(reservations.c.pool == pools.c.name, reservations.c.ended_ms.is_(None)),
        reservations.c.piece_gpus.is_not(None),
    )
    .correlate(pools)
    .scalar_subquery()
    .label("host_quotas")
)


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool as its owner wrote it: the hours as text, labels that decide nothing."""

    pool: Pool
    hours: str
    labels: Mapping[str, str]
    created_ms: int


async def read_pools(connection: AsyncConnection, reading: RowReading | None = None) -> list[PoolRow]:
    """All that can be read, by name; those that cannot be are noted."""
    reading = RowReading() if reading is None else reading
    rows = await connection.execute(select(pools, _HOST_QUOTAS).order_by(pools.c.name))
    read = (reading.of(pools.name, row.name, lambda row=row: _pool_row(row)) for row in rows)  # type: ignore[misc]
    return [row for row in read if row is not None]


async def find_pool(connection: AsyncConnection, name: str, *, lock: bool = False) -> PoolRow | None:
    statement = select(pools, _HOST_QUOTAS).where(pools.c.name == name)
    row = (await connection.execute(statement.with_for_update(of=pools) if lock else statement)).one_or_none()
    return None if row is None else _pool_row(row)


async def add_pool(connection: AsyncConnection, row: PoolRow) -> None:
    values = {"name": row.pool.name, "launcher": row.pool.launcher, "created_ms": row.created_ms}
    await connection.execute(insert(pools).values(**values, **_columns(row)))


async def set_pool(connection: AsyncConnection, row: PoolRow) -> None:
    """Everything of it but its name and launcher."""
    await connection.execute(update(pools).where(pools.c.name == row.pool.name).values(**_columns(row)))


async def delete_pool(connection: AsyncConnection, name: str) -> None:
    """With its tokens. Hosts and what ran on them have to be gone from it."""
    await connection.execute(delete(pools).where(pools.c.name == name))


async def add_token(
    connection: AsyncConnection, pool: str, token_sha256: bytes, *, joins: int, expires_ms: int, now_ms: int
) -> None:
    values = {"token_sha256": token_sha256, "pool": pool, "joins_left": joins, "expires_ms": expires_ms}
    await connection.execute(insert(pool_tokens).values(**values, created_ms=now_ms))


async def pool_of_token(connection: AsyncConnection, token_sha256: bytes) -> tuple[str, int, int] | None:
    """Pool, joins left and end of a token, which is locked: two hosts that show it at once take turns."""
    of = pool_tokens.c
    statement = select(of.pool, of.joins_left, of.expires_ms).where(of.token_sha256 == token_sha256).with_for_update()
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else (row.pool, row.joins_left, row.expires_ms)


async def set_token_used(connection: AsyncConnection, token_sha256: bytes) -> None:
    """One host fewer may join with it."""
    statement = update(pool_tokens).where(pool_tokens.c.token_sha256 == token_sha256)
    await connection.execute(statement.values(joins_left=pool_tokens.c.joins_left - 1))


async def delete_tokens(connection: AsyncConnection, *, now_ms: int) -> None:
    """Those whose time is over, and those that are used up."""
    over = (pool_tokens.c.expires_ms <= now_ms) | (pool_tokens.c.joins_left <= 0)
    await connection.execute(delete(pool_tokens).where(over))


def _columns(row: PoolRow) -> dict[str, Any]:
    pool = row.pool
    return {
        "price_micros": pool.price.micros,
        "preference": pool.preference,
        "projects": sorted(pool.projects),
        "hours": row.hours,
        "most_gpus": pool.most_gpus,
        "labels": dict(row.labels),
        "drains_ms": pool.drains_ms,
        "quotas": dict(pool.quotas),
        "spot_share_parts": pool.spot_parts,
        "rebate_parts": pool.rebate_parts,
        "grace_ms": pool.grace_ms,
    }


def _pool_row(row: Row[Any]) -> PoolRow:
    pool = Pool(
        name=row.name,
        launcher=row.launcher,
        price=Money(row.price_micros),
        preference=row.preference,
        projects=tuple(row.projects),
        hours=read_hours(row.hours),
        most_gpus=row.most_gpus,
        drains_ms=row.drains_ms,
        quotas=_quotas(row.quotas),
        host_quotas=_host_quotas(row.host_quotas),
        spot_parts=min(max(0, row.spot_share_parts), FULL),
        rebate_parts=min(max(0, row.rebate_parts), FULL),
        grace_ms=_grace_ms(row.grace_ms),
    )
    return PoolRow(pool, row.hours, row.labels, row.created_ms)


def _grace_ms(row: int | None) -> int | None:
    return row if row is not None and SHORTEST_GRACE_MS <= row <= MOST_GRACE_MS else None


def _host_quotas(row: Any) -> tuple[HostQuota, ...]:
    found = [
        HostQuota(project, kind, piece, gpus // piece, short, blocked)
        for project, kind, piece, gpus, short, blocked in row or ()
        if piece > 0
    ]
    return tuple(sorted(found, key=lambda one: (one.project_id, one.gpu_type, one.gpus)))


def _quotas(row: Any) -> tuple[tuple[str, int], ...]:
    """What makes no sense of them is left out: a pool without a quota is still a pool."""
    named = row.items() if isinstance(row, dict) else ()
    return tuple(sorted((project, gpus) for project, gpus in named if type(gpus) is int and gpus > 0))
