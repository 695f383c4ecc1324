"""API keys. Only their hashes are stored."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import api_keys

_USE_RECORDED_EVERY_MS = 60_000


@dataclass(frozen=True, slots=True)
class KeyRow:
    key_id: str
    project_id: str
    scopes: frozenset[str]
    expires_ms: int | None
    revoked_ms: int | None


async def add_key(
    connection: AsyncConnection,
    key_id: str,
    project_id: str,
    name: str,
    *,
    prefix: str,
    key_sha256: bytes,
    scopes: tuple[str, ...],
    now_ms: int,
    expires_ms: int | None,
) -> None:
    """Store a key by its hash."""
    await connection.execute(
        api_keys.insert().values(
            id=key_id,
            project_id=project_id,
            name=name,
            prefix=prefix,
            key_sha256=key_sha256,
            scopes=list(scopes),
            created_ms=now_ms,
            expires_ms=expires_ms,
        )
    )


async def find_key(connection: AsyncConnection, key_sha256: bytes, *, now_ms: int) -> KeyRow | None:
    """The key with this hash, whatever its condition; its use is recorded about once a minute."""
    row = (
        await connection.execute(
            select(
                api_keys.c.id, api_keys.c.project_id, api_keys.c.scopes, api_keys.c.expires_ms, api_keys.c.revoked_ms
            ).where(api_keys.c.key_sha256 == key_sha256)
        )
    ).one_or_none()
    if row is None:
        return None
    await connection.execute(
        update(api_keys)
        .where(
            api_keys.c.id == row.id,
            or_(api_keys.c.last_used_ms.is_(None), api_keys.c.last_used_ms <= now_ms - _USE_RECORDED_EVERY_MS),
        )
        .values(last_used_ms=now_ms)
    )
    return KeyRow(row.id, row.project_id, frozenset(row.scopes), row.expires_ms, row.revoked_ms)


async def revoke_key(connection: AsyncConnection, key_id: str, *, now_ms: int) -> bool:
    """From now on (other processes: within seconds) the key opens nothing. False when it was revoked already."""
    statement = (
        update(api_keys).where(api_keys.c.id == key_id, api_keys.c.revoked_ms.is_(None)).values(revoked_ms=now_ms)
    )
    return (await connection.execute(statement)).rowcount == 1


async def any_key_exists(connection: AsyncConnection, project_id: str) -> bool:
    """Whether the project has a key that was not revoked."""
    usable = exists().where(api_keys.c.project_id == project_id, api_keys.c.revoked_ms.is_(None))
    answer: bool = (await connection.execute(select(usable))).scalar_one()
    return answer
