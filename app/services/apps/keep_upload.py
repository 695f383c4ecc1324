"""Content that somebody sent through the API, under its hash. Nothing refers to it: the collector takes it after an
hour, unless something does by then."""

from __future__ import annotations

import asyncio
import hashlib

from app.db.checkpoints.objects import add_verified, claim_objects
from app.db.engine import Database
from app.errors import InvalidInput, TooLarge
from app.ports.clock import Clock
from app.ports.objects import ObjectStore, content_key


class Uploads:
    """One per process."""

    def __init__(self, database: Database, objects: ObjectStore, clock: Clock, max_bytes: int) -> None:
        self._database = database
        self._objects = objects
        self._clock = clock
        self.max_bytes = max_bytes

    async def keep(self, project_id: str, content: bytes) -> str:
        """Its sha256. Raises Unavailable while the same content is being deleted."""
        sha256 = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as connection:
            await claim_objects(connection, project_id, [sha256], now_ms=now_ms)
        await self._objects.put(content_key(project_id, sha256), content, sha256=sha256)
        async with self._database.transaction() as connection:
            await add_verified(connection, project_id, {sha256: len(content)}, now_ms=now_ms)
            await claim_objects(connection, project_id, [sha256], now_ms=now_ms)
        return sha256

    async def find(self, project_id: str, sha256: str, param: str, route: str) -> bytes:
        """What was sent to `route`. Raises InvalidInput where it is not there any more, and TooLarge."""
        async with self._database.transaction() as connection:
            await claim_objects(connection, project_id, [sha256], now_ms=self._clock.now_ms())
        found = await self._objects.head(content_key(project_id, sha256))
        if found is None:
            raise InvalidInput(f"{param}: nothing is kept under {sha256}; send it anew with {route}", param=param)
        if found.size_bytes > self.max_bytes:
            raise self.too_large(param, "send a smaller file")
        return await self._objects.get(found.key)

    def too_large(self, param: str, instead: str) -> TooLarge:
        """For a file that is beyond what may be sent through the API."""
        return TooLarge(f"{param}: a file of more than {self.max_bytes} bytes; {instead}", param=param)
