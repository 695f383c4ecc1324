"""API keys. Only their hashes are stored."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import exists, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.arrays import is_one_of
from app.db.tables import api_keys, projects

_FACTS = (
    api_keys.c.id,
    api_keys.c.name,
    api_keys.c.prefix,
    api_keys.c.scopes,
    api_keys.c.created_ms,
    api_keys.c.expires_ms,
    api_keys.c.revoked_ms,
    api_keys.c.last_used_ms,
)


@dataclass(frozen=True, slots=True)
class KeyRow:
    key_id: str
    project_id: str
    scopes: frozenset[str]
    expires_ms: int | None
    revoked_ms: int | None
    archived_ms: int | None  # of its project


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """What may be shown of a key."""

    key_id: str
    name: str
    prefix: str
    scopes: tuple[str, ...]
    created_ms: int
    expires_ms: int | None
    revoked_ms: int | None
    last_used_ms: int | None


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


async def find_key(connection: AsyncConnection, key_sha256: bytes) -> KeyRow | None:
    """The key with this hash, whatever its condition."""
    row = (
        await connection.execute(
            select(
                api_keys.c.id,
                api_keys.c.project_id,
                api_keys.c.scopes,
                api_keys.c.expires_ms,
                api_keys.c.revoked_ms,
                projects.c.archived_ms,
            )
            .join(projects, projects.c.id == api_keys.c.project_id)
            .where(api_keys.c.key_sha256 == key_sha256)
        )
    ).one_or_none()
    if row is None:
        return None
    return KeyRow(row.id, row.project_id, frozenset(row.scopes), row.expires_ms, row.revoked_ms, row.archived_ms)


async def set_used(connection: AsyncConnection, key_id: str, *, now_ms: int, every_ms: int) -> None:
    """Note that the key was used; not again within `every_ms` of the last note, whoever wrote that."""
    await connection.execute(
        update(api_keys)
        .where(
            api_keys.c.id == key_id,
            or_(api_keys.c.last_used_ms.is_(None), api_keys.c.last_used_ms <= now_ms - every_ms),
        )
        .values(last_used_ms=now_ms)
    )


async def list_keys(connection: AsyncConnection, project_id: str, *, before: str | None, limit: int) -> list[KeyFacts]:
    """The project's keys, newest first, revoked and expired ones too."""
    statement = select(*_FACTS).where(api_keys.c.project_id == project_id)
    if before is not None:
        statement = statement.where(api_keys.c.id < before)
    rows = await connection.execute(statement.order_by(api_keys.c.id.desc()).limit(limit))
    return [_facts(row) for row in rows.all()]


async def key_facts(connection: AsyncConnection, project_id: str, key_id: str) -> KeyFacts | None:
    """A key of the project, whatever its condition."""
    statement = select(*_FACTS).where(api_keys.c.project_id == project_id, api_keys.c.id == key_id)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _facts(row)


async def hold_keys(connection: AsyncConnection, project_id: str) -> None:
    """Keep others from revoking keys of the project until this transaction ends."""
    await connection.execute(select(projects.c.id).where(projects.c.id == project_id).with_for_update(key_share=True))


async def usable_keys_with(connection: AsyncConnection, project_id: str, scope: str, *, now_ms: int) -> set[str]:
    """Keys of the project that can still be used and have this scope."""
    rows = await connection.execute(
        select(api_keys.c.id).where(
            api_keys.c.project_id == project_id,
            api_keys.c.revoked_ms.is_(None),
            or_(api_keys.c.expires_ms.is_(None), api_keys.c.expires_ms > now_ms),
            api_keys.c.scopes.contains([scope]),
        )
    )
    return set(rows.scalars())


async def revoke_key(connection: AsyncConnection, key_id: str, *, now_ms: int) -> bool:
    """From now on (other processes: within seconds) the key opens nothing. False when it was revoked already."""
    statement = (
        update(api_keys).where(api_keys.c.id == key_id, api_keys.c.revoked_ms.is_(None)).values(revoked_ms=now_ms)
    )
    return (await connection.execute(statement)).rowcount == 1


async def live_keys(connection: AsyncConnection, key_ids: Collection[str], *, now_ms: int) -> set[str]:
    """Of these keys, those that still open something."""
    statement = (
        select(api_keys.c.id)
        .join(projects, projects.c.id == api_keys.c.project_id)
        .where(is_one_of(api_keys.c.id, key_ids), api_keys.c.revoked_ms.is_(None), projects.c.archived_ms.is_(None))
        .where(or_(api_keys.c.expires_ms.is_(None), api_keys.c.expires_ms > now_ms))
    )
    return set((await connection.execute(statement)).scalars())


async def any_key_exists(connection: AsyncConnection, project_id: str) -> bool:
    """Whether the project has a key that was not revoked."""
    usable = exists().where(api_keys.c.project_id == project_id, api_keys.c.revoked_ms.is_(None))
    answer: bool = (await connection.execute(select(usable))).scalar_one()
    return answer


def _facts(row: Any) -> KeyFacts:
    return KeyFacts(
        key_id=row.id,
        name=row.name,
        prefix=row.prefix,
        scopes=tuple(row.scopes),
        created_ms=row.created_ms,
        expires_ms=row.expires_ms,
        revoked_ms=row.revoked_ms,
        last_used_ms=row.last_used_ms,
    )
