"""Files of a door: their rows come before their content and go after it, so that nothing is stored that nobody owns."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from app.db.doors import files as rows
from app.db.doors.files import UPLOADING, DoorFile
from app.db.engine import Database
from app.errors import Conflict, NotFound, ObjectMissing
from app.ports.clock import Clock, IdSource
from app.ports.objects import ObjectStore
from app.services.doors.rows import BadRows, RowReader

TO_TRAIN_ON = "fine-tune"


def door_id(kind: str, ids: IdSource) -> str:
    """An id as the other side writes them; later ones sort after earlier ones."""
    return f"{kind}{ids.new('door').partition('_')[2]}"


def door_key(project_id: str, owner_id: str, sha256: str) -> str:
    """Of a file's content, or of a part's. Not among the project's content that is named by its hash alone, which is
    collected where nothing refers to it: an older release knows no files, and would collect them."""
    return f"projects/{project_id}/door/{owner_id}/{sha256}"


def key_of(file: DoorFile) -> str:
    return door_key(file.project_id, file.id, file.sha256)


class FileShelf:
    """Keeps files and gives them back."""

    def __init__(self, database: Database, objects: ObjectStore, clock: Clock, ids: IdSource) -> None:
        self._database = database
        self._objects = objects
        self._clock = clock
        self._ids = ids
        self.reader = RowReader()

    async def store(
        self, project_id: str, filename: str, purpose: str, content: bytes, *, life_s: int | None = None
    ) -> DoorFile:
        """The stored file. Rows to train on are looked at first; what is wrong with them is kept as the file's report.

        Raises StoreUnavailable and Unavailable, and leaves nothing then that is not deleted in time.
        """
        now_ms = self._clock.now_ms()
        row_count, report = await self._look(filename, content) if purpose == TO_TRAIN_ON else (None, None)
        file = DoorFile(
            id=door_id("file-", self._ids),
            project_id=project_id,
            filename=filename,
            purpose=purpose,
            sha256=await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest()),
            size_bytes=len(content),
            state=UPLOADING,
            row_count=None,
            report=None,
            created_ms=now_ms,
            expires_ms=None if life_s is None else now_ms + life_s * 1000,
        )
        async with self._database.transaction() as connection:
            await rows.add_file(connection, file)
        await self._objects.put(key_of(file), content, sha256=file.sha256)
        async with self._database.transaction() as connection:
            stored = await rows.set_stored(connection, file.id, row_count=row_count, report=report)
        if stored is None:
            raise Conflict(f"{file.id} was given up while it was being stored: it took too long; send it again")
        return stored

    async def find(self, project_id: str, file_id: str) -> DoorFile:
        """Raises NotFound."""
        async with self._database.statement() as connection:
            file = await rows.find_file(connection, project_id, file_id, now_ms=self._clock.now_ms())
        if file is None:
            raise NotFound(f"No such File object: {file_id[:100]}", param="id")
        return file

    async def content(self, file: DoorFile) -> bytes:
        """Raises NotFound for one that was deleted meanwhile, and StoreUnavailable."""
        try:
            return await self._objects.get(key_of(file))
        except ObjectMissing:
            raise NotFound(f"No such File object: {file.id}", param="id") from None

    async def _look(self, filename: str, content: bytes) -> tuple[int | None, dict[str, Any]]:
        try:
            found = await self.reader.check(filename, content)
        except BadRows as error:
            return None, {"problems": error.problems, "count": error.count, "message": error.message}
        return found["rows"], found
