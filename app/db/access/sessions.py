"""Sessions of browsers. Only the hashes of their tokens are stored."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Select, delete, func, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.arrays import is_one_of
from app.db.tables import api_keys, projects, sessions


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session that was begun with an API key, with what is known of the key and of the project."""

    session_id: str
    project_id: str
    project_name: str
    key_id: str
    key_name: str
    scopes: frozenset[str]
    used_ms: int
    expires_ms: int
    key_revoked_ms: int | None
    archived_ms: int | None


@dataclass(frozen=True, slots=True)
class NewSession:
    session_id: str
    token_sha256: bytes
    project_id: str
    key_id: str
    scopes: frozenset[str]
    expires_ms: int


async def add_session(connection: AsyncConnection, new: NewSession, *, now_ms: int, most: int) -> None:
    """Store a session by the hash of its token. Of one key at most so many stay: the oldest go first."""
    await connection.execute(
        sessions.insert().values(
            id=new.session_id,
            token_sha256=new.token_sha256,
            project_id=new.project_id,
            key_id=new.key_id,
            scopes=sorted(new.scopes),
            created_ms=now_ms,
            used_ms=now_ms,
            expires_ms=new.expires_ms,
        )
    )
    columns = sessions.c
    theirs = select(columns.id).where(columns.key_id == new.key_id).order_by(columns.id.desc())
    newest_too_many = theirs.offset(most).limit(1).scalar_subquery()
    await connection.execute(delete(sessions).where(columns.key_id == new.key_id, columns.id <= newest_too_many))


async def find_session(connection: AsyncConnection, token_sha256: bytes) -> SessionRow | None:
    """The session with this hash, whatever its condition. It ends no later than its key."""
    row = (await connection.execute(_sessions().where(sessions.c.token_sha256 == token_sha256))).one_or_none()
    if row is None:
        return None
    fields = dict(row._mapping)
    fields["scopes"] = frozenset(row.scopes) & frozenset(fields.pop("key_scopes"))
    return SessionRow(**fields)


async def extend_session(
    connection: AsyncConnection, session_id: str, *, now_ms: int, idle_ms: int, longest_ms: int, every_ms: int
) -> None:
    """Note that it was used, which lets it live for `idle_ms` from now, and never longer than `longest_ms` in all; not
    again within `every_ms` of the last note, whoever wrote that."""
    columns = sessions.c
    await connection.execute(
        update(sessions)
        .where(columns.id == session_id, columns.used_ms <= now_ms - every_ms)
        .values(used_ms=now_ms, expires_ms=func.least(now_ms + idle_ms, columns.created_ms + longest_ms))
    )


async def end_session(connection: AsyncConnection, token_sha256: bytes) -> SessionRow | None:
    """The session that was ended, with what it was; None when there is none."""
    row = await find_session(connection, token_sha256)
    if row is not None:
        await connection.execute(delete(sessions).where(sessions.c.id == row.session_id))
    return row


async def delete_expired(connection: AsyncConnection, *, now_ms: int) -> int:
    """Delete sessions that have expired; returns how many."""
    return (await connection.execute(delete(sessions).where(sessions.c.expires_ms <= now_ms))).rowcount


async def live_sessions(connection: AsyncConnection, session_ids: Collection[str], *, now_ms: int) -> set[str]:
    """Of these sessions, those that still open something."""
    statement = (
        select(sessions.c.id)
        .join(api_keys, api_keys.c.id == sessions.c.key_id)
        .join(projects, projects.c.id == sessions.c.project_id)
        .where(is_one_of(sessions.c.id, session_ids), sessions.c.expires_ms > now_ms)
        .where(api_keys.c.revoked_ms.is_(None), func.coalesce(api_keys.c.expires_ms, now_ms + 1) > now_ms)
        .where(projects.c.archived_ms.is_(None))
    )
    return set((await connection.execute(statement)).scalars())


def _sessions() -> Select[tuple[object, ...]]:
    """Only those of keys: what a newer release lets in without one opens nothing here."""
    columns = sessions.c
    ends_with_key = func.least(columns.expires_ms, func.coalesce(api_keys.c.expires_ms, literal(2**62)))
    return (
        select(
            columns.id.label("session_id"),
            columns.project_id,
            projects.c.name.label("project_name"),
            columns.key_id,
            api_keys.c.name.label("key_name"),
            columns.scopes,
            api_keys.c.scopes.label("key_scopes"),
            columns.used_ms,
            ends_with_key.label("expires_ms"),
            api_keys.c.revoked_ms.label("key_revoked_ms"),
            projects.c.archived_ms,
        )
        .join(api_keys, api_keys.c.id == columns.key_id)
        .join(projects, projects.c.id == columns.project_id)
    )
