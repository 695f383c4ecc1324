"""The audit log: one row for each write that a key asked for, whatever came of it. Rows are never changed."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import audit_log


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
