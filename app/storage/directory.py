"""The directory store: objects as files below one folder, safe against crashes and against concurrent writers.

Any number of processes of one machine may use the same folder at once (the API writes manifests directly, agents
come through `app.storage.server`): files appear complete or not at all, and equal keys hold equal bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO

from app.errors import InvariantBroken, ObjectCorrupt, ObjectMissing, TooLarge
from app.ports.clock import Clock
from app.ports.objects import ObjectInfo
from app.storage.incoming import IncomingFile, disk_errors
from app.storage.keys import check_prefix, check_promise, is_sha256, sha256_of_key
from app.storage.signing import Grant, check_signing_key, signed_url

READ_CHUNK_BYTES = 256 * 1024
_LIST_BATCH = 500


class DirectoryStore:
    """`app.ports.objects.ObjectStore` on a folder. `root` is created; `base_url` is where the store's server answers.

    Writing an object that is there already costs nothing and changes nothing. An object whose stored size is not
    the promised one is reported as damaged (ObjectCorrupt) and left as it is: delete it, then upload again.
    """

    def __init__(self, root: Path, base_url: str, signing_key: str, *, max_object_bytes: int, clock: Clock) -> None:
        self.root = root
        self.max_object_bytes = max_object_bytes
        self._base_url = base_url
        self._signing_key = check_signing_key(signing_key)
        self._clock = clock
        with disk_errors(f"opening {root}"):
            root.mkdir(parents=True, exist_ok=True)

    async def put(self, key: str, data: bytes, *, sha256: str) -> ObjectInfo:
        return await asyncio.to_thread(self._put, key, data, sha256)

    def take(
        self, key: str, blocks: Iterable[bytes | memoryview], *, sha256: str, size_bytes: int
    ) -> tuple[ObjectInfo, bool]:
        """Store what comes in blocks; also answers whether it is new here. Blocks the thread.

        When the object exists, nothing is read. Raises InvalidInput, TooLarge, ObjectCorrupt and StoreUnavailable, and
        what `blocks` raises; whatever ends it early, nothing is left behind.
        """
        check_promise(key, sha256)
        self._check_size(size_bytes)
        info = ObjectInfo(key=key, size_bytes=size_bytes, sha256=sha256)
        if self._holds(info):
            return info, False
        incoming = IncomingFile(self.root)
        try:
            for block in blocks:
                if incoming.size_bytes + len(block) > size_bytes:
                    raise ObjectCorrupt(f"{size_bytes} bytes were promised, more came", param="size_bytes")
                incoming.write(block)
            incoming.commit(self._path(key), sha256=sha256, size_bytes=size_bytes)
        finally:
            incoming.discard()
        return info, True

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Bytes `start` up to, not including, `end`, clipped as a slice is. A whole object is checked against its
        hash first (ObjectCorrupt)."""
        sha256 = sha256_of_key(key)
        data = await asyncio.to_thread(self._read, key, start, end)
        if start == 0 and end is None:
            actual = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
            if actual != sha256:
                raise ObjectCorrupt(f"the stored copy of {key!r} is damaged: its bytes have sha256 {actual}")
        return data

    async def head(self, key: str) -> ObjectInfo | None:
        sha256_of_key(key)
        return await asyncio.to_thread(self._info, key)

    async def delete(self, key: str) -> None:
        """Remove an object. One that is not there is removed already."""
        sha256_of_key(key)
        await asyncio.to_thread(self._delete, key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in the order of their keys; read from disk in batches."""
        check_prefix(prefix)
        walk = self._walk(self.root, "", prefix)
        while batch := await asyncio.to_thread(lambda: list(islice(walk, _LIST_BATCH))):
            for info in batch:
                yield info

    def sign_put(self, key: str, *, sha256: str, size_bytes: int, expires_ms: int) -> str:
        check_promise(key, sha256)
        self._check_size(size_bytes)
        grant = Grant(method="PUT", key=key, sha256=sha256, size_bytes=size_bytes, expires_ms=expires_ms)
        return self._signed(grant)

    def sign_get(self, key: str, *, expires_ms: int) -> str:
        sha256_of_key(key)
        return self._signed(Grant(method="GET", key=key, expires_ms=expires_ms))

    def open(self, key: str) -> OpenObject:
        """An object to read from; it stays whole for its reader even when it is deleted meanwhile. Blocks the thread.

        Raises ObjectMissing. The caller closes it.
        """
        sha256_of_key(key)
        with disk_errors(f"opening {key!r}"):
            try:
                return OpenObject(key, self._path(key).open("rb", buffering=0))
            except (FileNotFoundError, NotADirectoryError):
                raise ObjectMissing(f"there is no object {key!r}", param="key") from None

    async def check(self) -> str | None:
        """Whether the folder is there and may be written to."""
        usable = await asyncio.to_thread(os.access, self.root, os.R_OK | os.W_OK | os.X_OK)
        return None if usable else f"the folder {self.root} (ALLPASS_OBJECTS_DIR) is gone or may not be written to"

    async def close(self) -> None:
        """Holds nothing open between calls: there is nothing to close."""

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self.max_object_bytes:
            raise TooLarge(
                f"{size_bytes} bytes: an object has at most {self.max_object_bytes} (ALLPASS_MAX_OBJECT_BYTES)",
                param="size_bytes",
            )

    def _signed(self, grant: Grant) -> str:
        if grant.expires_ms <= self._clock.now_ms():
            raise InvariantBroken(f"expires_ms={grant.expires_ms} is in the past: it is an instant, not a duration")
        return signed_url(self._base_url, grant, self._signing_key)

    def _path(self, key: str) -> Path:
        return self.root / key

    def _holds(self, promised: ObjectInfo) -> bool:
        stored = self._info(promised.key)
        if stored is not None and stored.size_bytes != promised.size_bytes:
            raise ObjectCorrupt(
                f"{promised.key!r} is stored with {stored.size_bytes} bytes, not {promised.size_bytes}: one of the "
                "two is damaged; delete the stored object before uploading it again"
            )
        return stored is not None

    def _info(self, key: str) -> ObjectInfo | None:
        with disk_errors(f"looking at {key!r}"):
            try:
                status = self._path(key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return ObjectInfo(key=key, size_bytes=status.st_size, sha256=key.rsplit("/", 1)[-1])

    def _put(self, key: str, data: bytes, sha256: str) -> ObjectInfo:
        info, is_new = self.take(key, (data,), sha256=sha256, size_bytes=len(data))
        actual = sha256 if is_new else hashlib.sha256(data).hexdigest()  # what is new was hashed on its way
        if actual != sha256:
            raise ObjectCorrupt(f"sha256 {sha256} was promised, the bytes have {actual}", param="sha256")
        return info

    def _read(self, key: str, start: int, end: int | None) -> bytes:
        if start < 0 or (end is not None and end < start):
            raise InvariantBroken(f"range {start}..{end} of {key!r} is none")
        source = self.open(key)
        try:
            stop = source.info.size_bytes if end is None else min(end, source.info.size_bytes)
            return b"".join(source.pieces(start, stop))
        finally:
            source.close()

    def _delete(self, key: str) -> None:
        with disk_errors(f"deleting {key!r}"):
            self._path(key).unlink(missing_ok=True)

    def _walk(self, folder: Path, above: str, prefix: str) -> Iterator[ObjectInfo]:
        """Depth first, folders sorted as `name/`: exactly the order of whole keys ('a-b' before 'a/b')."""
        with disk_errors(f"listing {folder}"):
            try:
                with os.scandir(folder) as entries:
                    found = [(entry.name + "/" * entry.is_dir(follow_symlinks=False), entry) for entry in entries]
            except FileNotFoundError:
                return
        for name, entry in sorted(found, key=lambda pair: pair[0]):
            key = above + name
            if name.startswith(".") or not (key.startswith(prefix) or prefix.startswith(key)):
                continue
            if name.endswith("/"):
                yield from self._walk(folder / entry.name, key, prefix)
            elif is_sha256(name) and key.startswith(prefix) and (info := self._info(key)) is not None:
                yield info


class OpenObject:
    """One opened object: `info`, and the `file` of its bytes."""

    def __init__(self, key: str, file: IO[bytes]) -> None:
        self.file = file
        self.info = ObjectInfo(key=key, size_bytes=os.fstat(file.fileno()).st_size, sha256=key.rsplit("/", 1)[-1])

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """Bytes `start` up to `end`, in bounded pieces. Blocks. Raises ObjectCorrupt when the file ends early."""
        while start < end:
            with disk_errors(f"reading {self.info.key!r}"):
                piece = os.pread(self.file.fileno(), min(READ_CHUNK_BYTES, end - start), start)
            if not piece:
                raise ObjectCorrupt(f"{self.info.key!r} ends at byte {start}, {end} were expected")
            start += len(piece)
            yield piece

    def close(self) -> None:
        self.file.close()
