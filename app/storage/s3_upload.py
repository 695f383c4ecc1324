"""Multipart upload in bounded memory: the object appears when all of it was checked, or nothing is left of it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from app.errors import ObjectCorrupt, StoreError
from app.storage.s3_client import S3Client
from app.storage.s3_errors import code_of
from app.storage.s3_probe import Abilities, checksum_of
from app.storage.s3_signing import ATTESTATION, attestation

_log = logging.getLogger(__name__)
MAX_PARTS = 10_000
PARTS_AT_ONCE = 2


class MultipartUpload:
    """One upload, used once. Holds at most `PARTS_AT_ONCE` parts and the one that waits to be sent."""

    def __init__(self, client: S3Client, key: str, abilities: Abilities) -> None:
        self._client = client
        self._key = key
        self._abilities = abilities
        self._digest = hashlib.sha256()
        self._begun: Future[Any] | None = None
        self._sent: list[Future[dict[str, Any]]] = []

    async def store(self, parts: AsyncIterator[bytes], *, sha256: str, size_bytes: int, replace: bool) -> str:
        """Send the parts in order; answers the ETag. Unless `replace`, an object that is there meanwhile wins.

        Raises ObjectCorrupt when the bytes are not what was promised, and StoreError. Whatever ends it early,
        cancellation too, the parts already sent are removed.
        """
        try:
            upload_id = await self._begin(size_bytes)
            total = 0
            async for part in parts:
                total += len(part)
                await self._send(upload_id, part)
            check_arrived(total, self._digest.hexdigest(), size_bytes=size_bytes, sha256=sha256)
            return await self._complete(upload_id, replace=replace)
        except BaseException:
            # A task of its own: it ends even when this one is cancelled a second time.
            await asyncio.shield(asyncio.ensure_future(self._abort()))
            raise

    async def _begin(self, size_bytes: int) -> str:
        algorithm = {"ChecksumAlgorithm": "SHA256"} if self._abilities.checksums else {}
        self._begun = self._start(
            "create_multipart_upload",
            Metadata={ATTESTATION: attestation(self._client.place, self._key, size_bytes)},
            **algorithm,
        )
        return str((await asyncio.wrap_future(self._begun))["UploadId"])

    async def _send(self, upload_id: str, part: bytes) -> None:
        if len(self._sent) >= PARTS_AT_ONCE:
            await asyncio.wrap_future(self._sent[-PARTS_AT_ONCE])
        await self._client.run(partial(self._digest.update, part))
        number = len(self._sent) + 1
        self._sent.append(self._client.start(partial(self._send_blocking, upload_id, number, part)))

    def _send_blocking(self, upload_id: str, number: int, part: bytes) -> dict[str, Any]:
        checksum = (
            {"ChecksumSHA256": checksum_of(hashlib.sha256(part).hexdigest())} if self._abilities.checksums else {}
        )
        answer = self._client.call_blocking(
            "upload_part",
            f"sending part {number} of {self._key!r}",
            Key=self._client.place.object_key(self._key),
            UploadId=upload_id,
            PartNumber=number,
            Body=part,
            **checksum,
        )
        return {"PartNumber": number, "ETag": answer["ETag"], **checksum}

    async def _complete(self, upload_id: str, *, replace: bool) -> str:
        sent = [await asyncio.wrap_future(future) for future in self._sent]
        condition = {"IfNoneMatch": "*"} if self._abilities.conditional and not replace else {}
        done = self._start(
            "complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": sent}, **condition
        )
        return str((await asyncio.wrap_future(done))["ETag"])

    async def _abort(self) -> None:
        """Remove the parts. Those on their way are awaited first: a part that arrives later would stay for good."""
        if self._begun is None:
            return
        futures = [self._begun, *self._sent]
        for future in futures:
            future.cancel()
        await asyncio.to_thread(wait, futures)
        if self._begun.cancelled() or self._begun.exception() is not None:
            return
        try:
            await asyncio.wrap_future(self._start("abort_multipart_upload", UploadId=self._begun.result()["UploadId"]))
        except StoreError as error:
            if code_of(error) != "NoSuchUpload":
                _log.warning("parts of %s may be left over until the bucket's lifecycle rule: %s", self._key, error)

    def _start(self, operation: str, **parameters: Any) -> Future[Any]:
        action = f"{operation.replace('_', ' ')} of {self._key!r}"
        key = self._client.place.object_key(self._key)
        return self._client.start(partial(self._client.call_blocking, operation, action, Key=key, **parameters))


def check_arrived(arrived_bytes: int, arrived_sha256: str, *, size_bytes: int, sha256: str) -> None:
    """Refuse other bytes than were promised. Raises ObjectCorrupt."""
    if arrived_bytes != size_bytes:
        raise ObjectCorrupt(f"{size_bytes} bytes were promised, {arrived_bytes} came", param="size_bytes")
    if arrived_sha256 != sha256:
        raise ObjectCorrupt(f"sha256 {sha256} was promised, the bytes have {arrived_sha256}", param="sha256")


async def parts_of(chunks: AsyncIterator[bytes], size_bytes: int, part_bytes: int) -> AsyncIterator[bytes]:
    """The stream cut into parts of exactly `part_bytes`, the last one shorter. A stream that exceeds its promise is
    not read further (ObjectCorrupt)."""
    held, total = bytearray(), 0
    async for chunk in chunks:
        total += len(chunk)
        if total > size_bytes:
            raise ObjectCorrupt(f"{size_bytes} bytes were promised, more came", param="size_bytes")
        view = memoryview(chunk)
        while view:
            room = part_bytes - len(held)
            held += view[:room]
            view = view[room:]
            if len(held) == part_bytes:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)
