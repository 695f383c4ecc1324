"""Uploads in parts: what a file is put together from. As with files, a row comes before its content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, exists, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.db.arrays import is_one_of
from app.db.tables import door_parts, door_uploads

PENDING = "pending"
COMPLETED = "completed"
CANCELLED = "cancelled"
EXPIRED = "expired"
UPLOADING = "uploading"
STORED = "stored"


@dataclass(frozen=True, slots=True)
class DoorUpload:
    id: str
    project_id: str
    filename: str
    purpose: str
    mime_type: str
    size_bytes: int
    state: str
    file_id: str | None
    file_life_s: int | None
    created_ms: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class DoorPart:
    id: str
    upload_id: str
    sha256: str
    size_bytes: int
    state: str
    created_ms: int


_UPLOAD = tuple(door_uploads.c[name] for name in DoorUpload.__dataclass_fields__)
_PART = tuple(door_parts.c[name] for name in DoorPart.__dataclass_fields__)


async def add_upload(connection: AsyncConnection, upload: DoorUpload) -> None:
    values = {name: getattr(upload, name) for name in DoorUpload.__dataclass_fields__}
    await connection.execute(door_uploads.insert().values(**values))


async def find_upload(
    connection: AsyncConnection, project_id: str, upload_id: str, *, lock: bool = False
) -> DoorUpload | None:
    statement = select(*_UPLOAD).where(door_uploads.c.id == upload_id, door_uploads.c.project_id == project_id)
    row = (await connection.execute(statement.with_for_update() if lock else statement)).one_or_none()
    return None if row is None else DoorUpload(*row)


async def end_upload(connection: AsyncConnection, upload_id: str, state: str, file_id: str | None = None) -> None:
    """Nothing can be added to it any more."""
    statement = update(door_uploads).where(door_uploads.c.id == upload_id)
    await connection.execute(statement.values(state=state, file_id=file_id))


async def add_part(connection: AsyncConnection, part: DoorPart) -> None:
    values = {name: getattr(part, name) for name in DoorPart.__dataclass_fields__}
    await connection.execute(door_parts.insert().values(**values))


async def set_part_stored(connection: AsyncConnection, part_id: str) -> None:
    await connection.execute(update(door_parts).where(door_parts.c.id == part_id).values(state=STORED))


async def parts_of(connection: AsyncConnection, upload_id: str) -> dict[str, DoorPart]:
    rows = await connection.execute(select(*_PART).where(door_parts.c.upload_id == upload_id))
    return {row.id: DoorPart(*row) for row in rows}


async def bytes_of_parts(connection: AsyncConnection, upload_id: str) -> int:
    """Of all its parts, those on their way included."""
    total = select(func.coalesce(func.sum(door_parts.c.size_bytes), 0)).where(door_parts.c.upload_id == upload_id)
    return int((await connection.execute(total)).scalar_one())


async def uploads_to_forget(connection: AsyncConnection, *, now_ms: int, most: int) -> list[DoorUpload]:
    """Those that have ended or expired, and still have parts."""
    columns = door_uploads.c
    over = (columns.state != PENDING) | (columns.expires_ms <= now_ms)
    has_parts = exists().where(door_parts.c.upload_id == columns.id)
    statement = select(*_UPLOAD).where(over, has_parts).order_by(columns.id).limit(most)
    return [DoorUpload(*row) for row in await connection.execute(statement)]


async def delete_parts(connection: AsyncConnection, upload_id: str, part_ids: list[str]) -> None:
    """Their content is gone. An upload that was still open has expired."""
    mine: Any = door_parts.c.upload_id == upload_id
    await connection.execute(delete(door_parts).where(mine, is_one_of(door_parts.c.id, part_ids)))
    open_still = (door_uploads.c.id == upload_id) & (door_uploads.c.state == PENDING)
    await connection.execute(update(door_uploads).where(open_still).values(state=EXPIRED))
