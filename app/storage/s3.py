"""The S3 store: objects in a bucket of any service that speaks S3 (AWS, R2, SeaweedFS, MinIO, Ceph, ...).

How wrong bytes are kept out. Agents and SDKs PUT to a signed URL and send no header but Content-Length, so the URL
alone must bind the bytes. Where the service honours a payload hash in the query of a signed URL, it does. AWS is
known to sign and then ignore a *checksum* there, and some services ignore the hash as well: what such a service took
is verified when it is looked at. `head` answers "here" only for content that is proven:

1. the service reports a sha256 that it checked itself (seen by trying), or
2. the object carries our attestation, which only a holder of the secret key can make, or
3. this process wrote or hashed this version (ETag) before, or hashes it now, reading it once.

Content that is proven wrong counts as absent: the next upload replaces it, and nothing is deleted, since a deletion
could hit the right bytes of a writer that came between. Equal keys hold equal bytes, so replacing is harmless, and
conditional writes spare work but carry no promise.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from app.errors import InvariantBroken, ObjectCorrupt, ObjectMissing, StoreError, StoreUnavailable, TooLarge
from app.ports.clock import Clock
from app.ports.objects import ObjectInfo
from app.storage.keys import check_prefix, check_promise, is_sha256, sha256_of_key
from app.storage.s3_client import S3Client
from app.storage.s3_errors import MISCONFIGURED, lost_to_another
from app.storage.s3_place import S3Place
from app.storage.s3_probe import Abilities, checksum_of, probe
from app.storage.s3_reading import Overtaken, read_range
from app.storage.s3_signing import ATTESTATION, Binding, attestation, download_url, upload_url
from app.storage.s3_upload import MAX_PARTS, MultipartUpload, check_arrived, parts_of
from app.storage.s3_verify import Verifier

_log = logging.getLogger(__name__)
MAX_URL_UPLOAD_BYTES = 5 * 1024**3
MIN_PART_BYTES = 5 * 1024**2
_TRIES = 5
_FIRST_PAUSE_MS = 100
_UNNAMED_REGION = "us-east-1"  # where buckets are made unless another region is named; naming it is refused


class S3Store:
    """`app.ports.objects.ObjectStore` in a bucket.

    `part_bytes`: larger objects are sent in parts of this size (at least 5 MiB). `timeout_s`: longest silence of the
    service; `attempts`: tries per call; `connections`: calls at once.
    """

    def __init__(
        self,
        place: S3Place,
        *,
        max_object_bytes: int,
        clock: Clock,
        timeout_s: float = 20.0,
        attempts: int = 4,
        connections: int = 16,
        part_bytes: int = 16 * 1024**2,
    ) -> None:
        self.place = place
        self.max_object_bytes = max_object_bytes
        self._clock = clock
        self._timeout_s = timeout_s
        self._part_bytes = max(part_bytes, MIN_PART_BYTES, -(-max_object_bytes // MAX_PARTS))
        self._client = S3Client(place, timeout_s=timeout_s, attempts=attempts, connections=connections)
        self._verifier = Verifier(self._client, at_once=max(1, connections // 4))
        self._abilities: Abilities | None = None
        self._probing: asyncio.Task[Abilities] | None = None

    async def check(self) -> str | None:
        """None when the store can be used as it is set up; else one sentence on what is wrong and how to mend it.

        The first time this (or the first use) also tries out what the service can do.
        """
        try:
            await self._client.call("list_objects_v2", "checking it", MaxKeys=1, Prefix=self.place.prefix)
            if self._abilities is None:
                await self._check_region()
            await self._known_abilities()
        except StoreError as error:
            return error.message
        return None

    async def make_bucket(self) -> str | None:
        """Make the bucket if it cannot be used; the answer is that of `check` afterwards, or why it cannot be made."""
        if await self.check() is None:
            return None
        location: dict[str, Any] = {}
        if self.place.region != _UNNAMED_REGION:
            location = {"CreateBucketConfiguration": {"LocationConstraint": self.place.region}}
        try:
            await self._client.call("create_bucket", "making the bucket", **location)
        except StoreError as error:
            return error.message
        return await self.check()

    async def put(self, key: str, data: bytes, *, sha256: str) -> ObjectInfo:
        check_promise(key, sha256)
        actual = await self._client.run(lambda: hashlib.sha256(data).hexdigest())
        check_arrived(len(data), actual, size_bytes=len(data), sha256=sha256)
        info, _ = await self.put_stream(key, _once(data), sha256=sha256, size_bytes=len(data))
        return info

    async def put_stream(
        self, key: str, chunks: AsyncIterator[bytes], *, sha256: str, size_bytes: int
    ) -> tuple[ObjectInfo, bool]:
        """Store a stream in bounded memory; also answers whether this call stored it.

        When the object exists the stream is not read. Raises InvalidInput, TooLarge, ObjectCorrupt and
        StoreUnavailable; whatever ends it early, cancellation too, no part is left behind.
        """
        check_promise(key, sha256)
        self._check_size(size_bytes)
        info = ObjectInfo(key=key, size_bytes=size_bytes, sha256=sha256)
        abilities = await self._known_abilities()
        stored, is_right = await self._look(key)
        if is_right:
            return _same_size(stored, info), False
        parts = parts_of(chunks, size_bytes, self._part_bytes)
        if size_bytes <= self._part_bytes:
            data = b"".join([part async for part in parts])
            return await self._put_whole(info, data, abilities, replace=stored is not None)
        upload = MultipartUpload(self._client, key, abilities)
        try:
            version = await upload.store(parts, sha256=sha256, size_bytes=size_bytes, replace=stored is not None)
        except StoreUnavailable as error:
            if lost_to_another(error) and (await self._look(key))[1]:
                return info, False
            raise
        self._verifier.remember(key, version, is_right=True)
        return info, True

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Bytes `start` up to, not including, `end`, clipped as a slice is. A whole object is checked against its
        hash first (ObjectCorrupt)."""
        sha256 = sha256_of_key(key)
        if start < 0 or (end is not None and end < start):
            raise InvariantBroken(f"range {start}..{end} of {key!r} is none")
        data = await self._client.run(partial(read_range, self._client, key, start, end))
        if start == 0 and end is None:
            actual = await self._client.run(lambda: hashlib.sha256(data).hexdigest())
            if actual != sha256:
                raise ObjectCorrupt(f"the stored copy of {key!r} is damaged: its bytes have sha256 {actual}")
        return data

    async def head(self, key: str) -> ObjectInfo | None:
        """What is stored there, proven to be what the key says; None for wrong bytes as for none.

        May read the object once, where nobody else vouches for it.
        """
        sha256_of_key(key)
        info, is_right = await self._look(key)
        return info if is_right else None

    async def delete(self, key: str) -> None:
        """Remove an object. One that is not there is removed already."""
        sha256_of_key(key)
        try:
            await self._client.call("delete_object", f"deleting {key!r}", Key=self.place.object_key(key))
        except ObjectMissing:
            return

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in the order of their keys, a page at a time. Names and sizes as
        the service lists them: `head` proves."""
        check_prefix(prefix)
        last, page = "", {"Prefix": self.place.object_key(prefix)}
        while True:
            answer: Any = await self._client.call("list_objects_v2", f"listing {prefix!r}", **page)
            for entry in answer.get("Contents", ()):
                key = str(entry["Key"])[len(self.place.prefix) :]
                if key <= last:
                    raise StoreUnavailable(
                        f"{self.place.endpoint} lists {key!r} after {last!r}: a service that lists in no order "
                        "(such as a directory bucket) cannot be used"
                    )
                last = key
                if is_sha256(key.rsplit("/", 1)[-1]):
                    yield ObjectInfo(key=key, size_bytes=int(entry["Size"]), sha256=key.rsplit("/", 1)[-1])
            if not answer.get("IsTruncated"):
                return
            page["ContinuationToken"] = str(answer["NextContinuationToken"])

    def sign_put(self, key: str, *, sha256: str, size_bytes: int, expires_ms: int) -> str:
        """The strongest form of URL that the service was seen to honour. One PUT carries at most 5 GiB in S3."""
        check_promise(key, sha256)
        self._check_size(size_bytes)
        if size_bytes > MAX_URL_UPLOAD_BYTES:
            raise TooLarge(
                f"{size_bytes} bytes: one upload to S3 has at most {MAX_URL_UPLOAD_BYTES}; save the file in shards",
                param="size_bytes",
            )
        return upload_url(
            self.place,
            key,
            sha256=sha256,
            size_bytes=size_bytes,
            binding=self._abilities.binding if self._abilities else Binding.LENGTH,
            now_ms=self._clock.now_ms(),
            expires_ms=expires_ms,
            public=True,
        )

    def sign_get(self, key: str, *, expires_ms: int) -> str:
        sha256_of_key(key)
        return download_url(self.place, key, now_ms=self._clock.now_ms(), expires_ms=expires_ms)

    async def close(self) -> None:
        """Wait for calls under way (each is bounded) and let go of threads and connections."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        await self._verifier.close()
        await self._client.close()

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self.max_object_bytes:
            raise TooLarge(
                f"{size_bytes} bytes: an object has at most {self.max_object_bytes} (ALLPASS_MAX_OBJECT_BYTES)",
                param="size_bytes",
            )

    async def _look(self, key: str) -> tuple[ObjectInfo | None, bool]:
        """What is stored, and whether it is what the key says."""
        for _ in range(_TRIES):
            try:
                found = await self._client.call(
                    "head_object", f"looking at {key!r}", Key=self.place.object_key(key), ChecksumMode="ENABLED"
                )
                info = ObjectInfo(key=key, size_bytes=int(found["ContentLength"]), sha256=sha256_of_key(key))
                return info, await self._verifier.is_right(key, found, await self._known_abilities())
            except ObjectMissing:
                return None, False
            except Overtaken:
                continue
        raise StoreUnavailable(f"{key!r} is being written again and again: retry")

    async def _put_whole(
        self, info: ObjectInfo, data: bytes, abilities: Abilities, *, replace: bool
    ) -> tuple[ObjectInfo, bool]:
        """One PUT. An object that appeared meanwhile wins when it is right, and is replaced when not."""
        actual = await self._client.run(lambda: hashlib.sha256(data).hexdigest())
        check_arrived(len(data), actual, size_bytes=info.size_bytes, sha256=info.sha256)
        checksum = {"ChecksumSHA256": checksum_of(info.sha256)} if abilities.checksums else {}
        for round_ in range(_TRIES):
            condition = {"IfNoneMatch": "*"} if abilities.conditional and not replace else {}
            try:
                answer = await self._client.call(
                    "put_object",
                    f"writing {info.key!r}",
                    Key=self.place.object_key(info.key),
                    Body=data,
                    Metadata={ATTESTATION: attestation(self.place, info.key, info.size_bytes)},
                    **checksum,
                    **condition,
                )
            except StoreUnavailable as error:
                if not lost_to_another(error):
                    raise
                stored, is_right = await self._look(info.key)
                if is_right:
                    return info, False
                replace = stored is not None
                await self._clock.sleep_ms(_FIRST_PAUSE_MS * 2**round_)
            else:
                self._verifier.remember(info.key, str(answer["ETag"]), is_right=True)
                return info, True
        raise StoreUnavailable(f"{info.key!r} is being written by others again and again: retry")

    async def _known_abilities(self) -> Abilities:
        """What the service can do; asked once, by one task for all who wait, and again after a failure."""
        if self._abilities is not None:
            return self._abilities
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())
        return await asyncio.shield(self._probing)

    async def _probe(self) -> Abilities:
        self._abilities = await probe(self._client, now_ms=self._clock.now_ms(), timeout_s=self._timeout_s)
        _log.info(
            "object store %s/%s: uploads by URL are verified %s; conditional writes: %s; checksums kept: %s",
            self.place.endpoint,
            self.place.bucket,
            "by the service" if self._abilities.binding is Binding.PAYLOAD else "when they are first looked at",
            "yes" if self._abilities.conditional else "no",
            "yes" if self._abilities.checksums else "no",
        )
        return self._abilities

    async def _check_region(self) -> None:
        """botocore follows a bucket into its region by itself; signed URLs cannot."""
        answer: Any = await self._client.call("head_bucket", "checking its region")
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        region = str(answer.get("BucketRegion") or headers.get("x-amz-bucket-region") or self.place.region)
        if region != self.place.region:
            raise StoreUnavailable(
                f"ALLPASS_S3_REGION={self.place.region!r} is not the region of bucket {self.place.bucket!r}: "
                f"set it to {region!r}",
                code=MISCONFIGURED,
            )


def _same_size(stored: ObjectInfo | None, promised: ObjectInfo) -> ObjectInfo:
    if stored != promised:
        size = stored.size_bytes if stored else 0
        raise ObjectCorrupt(f"{promised.size_bytes} bytes were promised, this content has {size}", param="size_bytes")
    return promised


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data
