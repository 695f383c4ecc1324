"""Run as a process of its own: sends 64 MiB to an S3 store from a stream and prints how much memory that took."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from app.ports.objects import content_key
from app.storage.s3 import S3Store
from app.storage.s3_place import s3_place
from tests.storage.object_server import MAX_OBJECT_BYTES, RealClock

_BLOCK = bytes(range(256)) * 4096
_BLOCKS = 64
_FEW_BLOCKS = 12


async def main(endpoint: str, bucket: str, region: str, access_key: str, secret_key: str) -> None:
    place = s3_place(
        endpoint=endpoint,
        public_endpoint=None,
        region=region,
        bucket=bucket,
        prefix="",
        addressing="path",
        access_key=access_key,
        secret_key=secret_key,
    )
    store = S3Store(place, max_object_bytes=MAX_OBJECT_BYTES, clock=RealClock(), part_bytes=5 * 1024**2)
    assert await store.check() is None
    await _send(store, _FEW_BLOCKS)  # loads what is loaded once: client, threads, their memory
    before = _peak_bytes()
    key = await _send(store, _BLOCKS)
    sent = _peak_bytes() - before
    await store.close()
    again = S3Store(place, max_object_bytes=MAX_OBJECT_BYTES, clock=RealClock())
    info = await again.head(key)
    assert info is not None
    assert await again.get(key, start=info.size_bytes - 4) == _BLOCK[-4:]
    await again.close()
    print(sent, _peak_bytes() - before, info.size_bytes)


async def _send(store: S3Store, count: int) -> str:
    digest = _digest(count)
    key = content_key("p", digest)
    await store.put_stream(key, _blocks(count), sha256=digest, size_bytes=len(_BLOCK) * count)
    return key


async def _blocks(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield _BLOCK


def _digest(count: int) -> str:
    digest = hashlib.sha256()
    for _ in range(count):
        digest.update(_BLOCK)
    return digest.hexdigest()


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
