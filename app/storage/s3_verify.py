"""Whether a stored object holds what its name says: proven by the service, by our note, or by reading it once."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import OrderedDict
from functools import partial
from typing import Any

from app.errors import StoreUnavailable
from app.storage.keys import sha256_of_key
from app.storage.s3_client import S3Client
from app.storage.s3_probe import Abilities, checksum_of
from app.storage.s3_reading import hash_version
from app.storage.s3_signing import ATTESTATION, attestation

_log = logging.getLogger(__name__)
_REMEMBERED = 200_000


class Verifier:
    """Judges versions of objects (key and ETag) and remembers its verdicts, the newest 200 000 of them.

    At most `at_once` objects are read at a time, each once however many ask. Reading goes on when an asker leaves,
    so that a request that timed out finds the verdict when it comes again.
    """

    def __init__(self, client: S3Client, *, at_once: int) -> None:
        self._client = client
        self._reading = asyncio.Semaphore(at_once)
        self._verdicts: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._under_way: dict[tuple[str, str], asyncio.Task[bool]] = {}
        self._closed = False

    async def is_right(self, key: str, found: Any, abilities: Abilities) -> bool:
        """`found` is the answer to a HEAD that asked for checksums. Raises StoreError."""
        version = str(found["ETag"])
        known = self._verdicts.get((key, version))
        if known is not None:
            self._verdicts.move_to_end((key, version))
            return known
        # Equal proves; unequal proves nothing: of an object sent in parts it is the checksum of the parts' checksums.
        if abilities.checksums and found.get("ChecksumSHA256") == checksum_of(sha256_of_key(key)):
            return self.remember(key, version, is_right=True)
        noted = str(found.get("Metadata", {}).get(ATTESTATION, ""))
        expected = attestation(self._client.place, key, int(found["ContentLength"]))
        if hmac.compare_digest(noted.encode(), expected.encode()):
            return self.remember(key, version, is_right=True)
        return await self._read(key, version)

    def remember(self, key: str, version: str, *, is_right: bool) -> bool:
        """Note a verdict; answers it."""
        if not is_right:
            _log.warning("object %s (version %s) does not hold what its name says: it counts as absent", key, version)
        self._verdicts[key, version] = is_right
        while len(self._verdicts) > _REMEMBERED:
            self._verdicts.popitem(last=False)
        return is_right

    async def close(self) -> None:
        """Stop reading, and wait until it has stopped."""
        self._closed = True
        for task in list(self._under_way.values()):
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _read(self, key: str, version: str) -> bool:
        if self._closed:
            raise StoreUnavailable("the object store is closed")
        task = self._under_way.get((key, version))
        if task is None:
            task = asyncio.create_task(self._judge(key, version))
            self._under_way[key, version] = task
            task.add_done_callback(partial(self._done, key, version))
        return await asyncio.shield(task)

    async def _judge(self, key: str, version: str) -> bool:
        async with self._reading:
            given_up = partial(getattr, self, "_closed")
            actual = await self._client.run(partial(hash_version, self._client, key, version, given_up))
        return self.remember(key, version, is_right=actual == sha256_of_key(key))

    def _done(self, key: str, version: str, task: asyncio.Task[bool]) -> None:
        del self._under_way[key, version]
        if not task.cancelled():
            task.exception()  # those who waited were told; when all left, nobody needs to be
