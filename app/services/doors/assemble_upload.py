"""Uploads in parts: kept one by one, and put together to a file at the end."""

from __future__ import annotations

import asyncio
import hashlib

from app.db.connection import Connection
from app.db.doors import uploads as rows
from app.db.doors.files import DoorFile
from app.db.doors.uploads import CANCELLED, COMPLETED, PENDING, STORED, UPLOADING, DoorPart, DoorUpload
from app.db.engine import Database
from app.errors import Conflict, InvalidInput, NotFound, TooLarge
from app.ports.clock import Clock, IdSource
from app.ports.objects import ObjectStore
from app.services.doors.store_file import FileShelf, door_id, door_key

LIFE_MS = 3_600_000


class UploadDesk:
    """Takes parts of files, in any order and several at once."""

    def __init__(self, database: Database, objects: ObjectStore, clock: Clock, ids: IdSource, shelf: FileShelf) -> None:
        self._database = database
        self._objects = objects
        self._clock = clock
        self._ids = ids
        self._shelf = shelf

    async def begin(
        self, project_id: str, *, filename: str, purpose: str, mime_type: str, size_bytes: int, file_life_s: int | None
    ) -> DoorUpload:
        """An upload, open for an hour."""
        now_ms = self._clock.now_ms()
        upload = DoorUpload(
            id=door_id("upload_", self._ids),
            project_id=project_id,
            filename=filename,
            purpose=purpose,
            mime_type=mime_type,
            size_bytes=size_bytes,
            state=PENDING,
            file_id=None,
            file_life_s=file_life_s,
            created_ms=now_ms,
            expires_ms=now_ms + LIFE_MS,
        )
        async with self._database.transaction() as connection:
            await rows.add_upload(connection, upload)
        return upload

    async def add_part(self, project_id: str, upload_id: str, data: bytes) -> DoorPart:
        """Raises NotFound, Conflict for an upload that is not open, TooLarge for more than was announced."""
        part = DoorPart(
            id=door_id("part_", self._ids),
            upload_id=upload_id,
            sha256=await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest()),
            size_bytes=len(data),
            state=UPLOADING,
            created_ms=self._clock.now_ms(),
        )
        async with self._database.transaction() as connection:
            upload = await self._open(connection, project_id, upload_id)
            there = await rows.bytes_of_parts(connection, upload_id)
            if there + part.size_bytes > upload.size_bytes:
                raise TooLarge(
                    f"data: {there + part.size_bytes} bytes of parts are more than the {upload.size_bytes} that "
                    "the upload was created with",
                    param="data",
                )
            await rows.add_part(connection, part)
        await self._objects.put(door_key(project_id, part.id, part.sha256), data, sha256=part.sha256)
        async with self._database.transaction() as connection:
            await rows.set_part_stored(connection, part.id)
        return part

    async def complete(
        self, project_id: str, upload_id: str, part_ids: list[str], md5: str | None
    ) -> tuple[DoorUpload, DoorFile]:
        """The file of these parts, in this order. Completing it again with the file made gives the same file.

        Raises NotFound, Conflict, InvalidInput for parts that are not its own, or do not make what was announced.
        """
        async with self._database.transaction() as connection:
            upload = await self._find(connection, project_id, upload_id)
            parts = await rows.parts_of(connection, upload_id)
        if upload.state == COMPLETED and upload.file_id is not None:
            return upload, await self._shelf.find(project_id, upload.file_id)
        chosen = _chosen(upload, parts, part_ids)
        content = b"".join([await self._objects.get(door_key(project_id, part.id, part.sha256)) for part in chosen])
        if md5 is not None and hashlib.md5(content, usedforsecurity=False).hexdigest() != md5.lower():
            raise InvalidInput("md5: the parts make another content than this checksum is of", param="md5")
        file = await self._shelf.store(project_id, upload.filename, upload.purpose, content, life_s=upload.file_life_s)
        async with self._database.transaction() as connection:
            await self._open(connection, project_id, upload_id)
            await rows.end_upload(connection, upload_id, COMPLETED, file.id)
            ended = await self._find(connection, project_id, upload_id)
        return ended, file

    async def cancel(self, project_id: str, upload_id: str) -> DoorUpload:
        """Raises NotFound, and Conflict for one that is completed."""
        async with self._database.transaction() as connection:
            upload = await self._find(connection, project_id, upload_id, lock=True)
            if upload.state != CANCELLED:
                self._check_open(upload)
                await rows.end_upload(connection, upload_id, CANCELLED)
            return await self._find(connection, project_id, upload_id)

    async def _open(self, connection: Connection, project_id: str, upload_id: str) -> DoorUpload:
        upload = await self._find(connection, project_id, upload_id, lock=True)
        self._check_open(upload)
        return upload

    async def _find(self, connection: Connection, project_id: str, upload_id: str, *, lock: bool = False) -> DoorUpload:
        upload = await rows.find_upload(connection, project_id, upload_id, lock=lock)
        if upload is None:
            raise NotFound(f"No such Upload object: {upload_id[:100]}", param="upload_id")
        return upload

    def _check_open(self, upload: DoorUpload) -> None:
        expired = upload.expires_ms <= self._clock.now_ms()
        if upload.state != PENDING or expired:
            state = "expired" if expired and upload.state == PENDING else upload.state
            raise Conflict(f"Upload {upload.id} is {state}: create another one", param="upload_id")


def _chosen(upload: DoorUpload, parts: dict[str, DoorPart], part_ids: list[str]) -> list[DoorPart]:
    foreign = [one for one in part_ids if one not in parts or parts[one].state != STORED]
    if foreign or len(set(part_ids)) != len(part_ids):
        told = foreign[0][:100] if foreign else "one of them, twice"
        raise InvalidInput(f"part_ids: {told} is no part of {upload.id} that can be used", param="part_ids")
    chosen = [parts[one] for one in part_ids]
    total = sum(part.size_bytes for part in chosen)
    if total != upload.size_bytes:
        raise InvalidInput(
            f"part_ids: the parts have {total} bytes, and {upload.size_bytes} were announced", param="part_ids"
        )
    return chosen
