"""The S3 store: objects in a bucket of any service that speaks S3 (AWS, R2, SeaweedFS, MinIO, Ceph, ...).

How bytes that nobody vouches for are kept out. Agents and SDKs PUT to a signed URL and send no header but
Content-Length, so the URL alone must bind the bytes. Where the service honours a payload hash in the query of a
signed URL, it does. AWS is known to ignore a *checksum* there, and some services ignore the hash as well: what such a
service took is then verified when it is looked at. `head` answers "here" only for content that is proven:

1. the service reports a sha256 that it checked itself (seen by trying), or
2. the object carries our attestation, which only a holder of the secret key can make, or
3. this process hashed this version (ETag) before, or hashes it now, reading it once.

Content that is proven wrong counts as absent: the next upload replaces it, and nothing is deleted, since a deletion
could hit the right bytes of a writer that came between. Equal keys hold equal bytes, so replacing is harmless, and
conditional writes spare work but carry no promise.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
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
from app.storage.s3_reading import Overtaken, hash_version, read_range
from app.storage.s3_signing import ATTESTATION, Binding, attestation, download_url, upload_url
from app.storage.s3_upload import MAX_PARTS, MultipartUpload

_log = logging.getLogger(__name__)
MAX_URL_UPLOAD_BYTES = 5 * 1024**3
_MIN_PART_BYTES = 5 * 1024**2
_REMEMBERED = 200_000
_TRIES = 4


class S3Store:
    """`app.ports.objects.ObjectStore` in a bucket.

    `part_bytes`: objects above it are sent in parts of this size (at least 5 MiB). `timeout_s`: longest silence of
    the service; `attempts`: tries per call; `connections`: calls at once.
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
        self._part_bytes = max(part_bytes, _MIN_PART_BYTES, -(-max_object_bytes // MAX_PARTS))
        self._client = S3Client(place, timeout_s=timeout_s, attempts=attempts, connections=connections)
        self._hashing = asyncio.Semaphore(max(1, connections // 4))
        self._verdicts: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._verifying: dict[tuple[str, str], asyncio.Task[bool]] = {}
        self._probing: asyncio.Task[Abilities] | None = None
        self._abilities: Abilities | None = None
        self._closed = False

    async def put(self, key: str, data: bytes, *, sha256: str) -> ObjectInfo:
        info, _ = await self.put_stream(key, _once(data), sha256=sha256, size_bytes=len(data))
        return info

    async def put_stream(
        self, key: str, chunks: AsyncIterator[bytes], *, sha256: str, size_bytes: int
    ) -> tuple[ObjectInfo, bool]:
        """Store a stream in bounded memory; also answers whether it was stored by this call.

        Raises InvalidInput, TooLarge, ObjectCorrupt and StoreUnavailable; whatever ends it early, cancellation too,
        no part is left behind.
        """
        check_promise(key, sha256)
        self._check_size(size_bytes, self.max_object_bytes, "ALLPASS_MAX_OBJECT_BYTES")
        info = ObjectInfo(key=key, size_bytes=size_bytes, sha256=sha256)
        ...
