"""Files of a door. A row comes before its content and goes after it, so that no content is ever without a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.tables import door_files

UPLOADING = "uploading"
STORED = "stored"
DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class DoorFile:
    """`report`: of a file that is to be trained on, what was found in it; `row_count`: of good rows."""

    id: str
    project_id: str
    filename: str
    purpose: str
    sha256: str
    size_bytes: int
    state: str
    row_count: int | None
    report: Mapping[str, Any] | None
    created_ms: int
    expires_ms: int | None


_COLUMNS = tuple(door_files.c[name] for name in DoorFile.__dataclass_fields__)


async def add_file(connection: AsyncConnection, file: DoorFile) -> None:
    values = {name: getattr(file, name) for name in DoorFile.__dataclass_fields__}
    await connection.execute(door_files.insert().values(**values))


async def set_stored(
    connection: AsyncConnection, file_id: str, *, row_count: int | None, report: Mapping[str, Any] | None
) -> DoorFile | None:
    """Its content lies in the store. None: the file was given up meanwhile."""
    statement = (
        update(door_files)
        .where(door_files.c.id == file_id, door_files.c.state == UPLOADING)
        .values(state=STORED, row_count=row_count, report=None if report is None else dict(report))
        .returning(*_COLUMNS)
    )
    return _file((await connection.execute(statement)).one_or_none())


async def find_file(connection: AsyncConnection, project_id: str, file_id: str, *, now_ms: int) -> DoorFile | None:
    """One that is stored, and has not expired."""
    statement = select(*_COLUMNS).where(door_files.c.id == file_id, *_there(project_id, now_ms))
    return _file((await connection.execute(statement)).one_or_none())


async def list_files(
    connection: AsyncConnection,
    project_id: str,
    *,
    purpose: str | None,
    after: str | None,
    ascending: bool,
    limit: int,
    now_ms: int,
) -> list[DoorFile]:
    """In the order of their making, of those beyond `after`."""
    columns = door_files.c
    statement = select(*_COLUMNS).where(*_there(project_id, now_ms))
    if purpose is not None:
        statement = statement.where(columns.purpose == purpose)
    if after is not None:
        statement = statement.where(columns.id > after if ascending else columns.id < after)
    statement = statement.order_by(columns.id if ascending else columns.id.desc()).limit(limit)
    return [DoorFile(*row) for row in await connection.execute(statement)]


async def set_deleted(connection: AsyncConnection, project_id: str, file_id: str, *, now_ms: int) -> DoorFile | None:
    """From now on it is not there; its content is deleted soon."""
    statement = (
        update(door_files)
        .where(door_files.c.id == file_id, *_there(project_id, now_ms))
        .values(state=DELETED)
        .returning(*_COLUMNS)
    )
    return _file((await connection.execute(statement)).one_or_none())


async def files_to_forget(
    connection: AsyncConnection, *, now_ms: int, given_up_before_ms: int, most: int
) -> list[DoorFile]:
    """Those whose content may go: deleted ones, expired ones, and uploads that came to nothing."""
    columns = door_files.c
    expired = (columns.state == STORED) & (columns.expires_ms <= now_ms)
    given_up = (columns.state == UPLOADING) & (columns.created_ms < given_up_before_ms)
    statement = select(*_COLUMNS).where(or_(columns.state == DELETED, expired, given_up))
    return [DoorFile(*row) for row in await connection.execute(statement.order_by(columns.id).limit(most))]


async def delete_file(connection: AsyncConnection, file_id: str) -> None:
    """Its content is gone."""
    await connection.execute(delete(door_files).where(door_files.c.id == file_id))


def _there(project_id: str, now_ms: int) -> list[Any]:
    columns = door_files.c
    alive = or_(columns.expires_ms.is_(None), columns.expires_ms > now_ms)
    return [columns.project_id == project_id, columns.state == STORED, alive]


def _file(row: Any) -> DoorFile | None:
    return None if row is None else DoorFile(*row)
