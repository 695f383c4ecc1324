"""The audit log: one row for each write that a key asked for, whatever came of it. Rows are never changed, only
deleted when they are old."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import audit_log

# Ids grow with time, so the oldest entries of a project are the first of its part of the primary key: the log is
# never read as a whole.
_FORGET = text(
    """
    DELETE FROM audit_log a
    USING (
        SELECT p.id AS project_id, first.id
        FROM projects p
        CROSS JOIN LATERAL (
            SELECT id, at_ms FROM audit_log WHERE project_id = p.id ORDER BY id LIMIT :most
        ) first
        WHERE first.at_ms < :before_ms
        LIMIT :most
    ) old
    WHERE a.project_id = old.project_id AND a.id = old.id
    """
)


@dataclass(frozen=True, slots=True)
class Author:
    """Who asks, with which request. `route` is the method and the path's template."""

    project_id: str
    key_id: str
    request_id: str
    route: str


@dataclass(frozen=True, slots=True)
class AuditRow:
    id: int
    at_ms: int
    key_id: str
    request_id: str
    route: str
    object_id: str | None
    status: int


async def add_entry(
    connection: AsyncConnection, author: Author, object_id: str | None, status: int, *, now_ms: int
) -> None:
    """Note what this author did, in the transaction that does it."""
    await connection.execute(
        audit_log.insert().values(
            project_id=author.project_id,
            at_ms=now_ms,
            key_id=author.key_id,
            request_id=author.request_id,
            route=author.route,
            object_id=object_id,
            status=status,
        )
    )


async def list_entries(
    connection: AsyncConnection, project_id: str, *, before: int | None, limit: int
) -> list[AuditRow]:
    """The newest entries older than `before`."""
    columns = audit_log.c
    statement = select(
        columns.id,
        columns.at_ms,
        columns.key_id,
        columns.request_id,
        columns.route,
        columns.object_id,
        columns.status,
    ).where(columns.project_id == project_id)
    if before is not None:
        statement = statement.where(columns.id < before)
    rows = await connection.execute(statement.order_by(columns.id.desc()).limit(limit))
    return [AuditRow(*row) for row in rows.all()]


async def delete_entries(connection: AsyncConnection, *, before_ms: int, most: int) -> int:
    """Delete at most so many entries from before a moment; returns how many."""
    return (await connection.execute(_FORGET, {"before_ms": before_ms, "most": most})).rowcount
