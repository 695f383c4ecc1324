"""The files of a checkpoint by path, a page at a time."""

from __future__ import annotations

import asyncio

from app.core.model.checkpoint import SavedFile
from app.core.model.listing import files_in, unpack
from app.db.checkpoints.listings import listing_of
from app.db.checkpoints.manifests import files_of
from app.db.connection import Connection
from app.db.engine import Database
from app.db.reading.job_records import checkpoint_files_after


async def list_checkpoint_files(
    database: Database, checkpoint_id: str, after: str | None, *, limit: int
) -> list[SavedFile]:
    """Those above `after`, at most `limit`. A listing of very many is unpacked in a thread of its own."""
    async with database.transaction() as connection:
        packed = await listing_of(connection, checkpoint_id)
        if packed is None:
            return await checkpoint_files_after(connection, checkpoint_id, after, limit=limit)
        stream = await _stream(connection, checkpoint_id)
    return await asyncio.to_thread(lambda: files_in(stream, unpack(packed), after, limit))


async def _stream(connection: Connection, checkpoint_id: str) -> SavedFile:
    (stream,) = await files_of(connection, checkpoint_id)
    return stream
