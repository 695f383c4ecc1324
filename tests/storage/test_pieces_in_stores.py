"""Checkpoints in pieces through each object store: the agent's own code, signed URLs, real HTTP."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from app.ports.objects import ObjectStore, content_key, content_prefix
from app.services.checkpoints.report_damage import is_right
from tests.seeds import new_id
from workers.agent.api import Api, Writer
from workers.agent.fetching import Fetcher, fetch_checkpoint
from workers.agent.files import Fence, listing
from workers.agent.pieces import Manifest, cut
from workers.agent.transfer import store as send
from workers.agent.transport import Transport


class Signer:
    """What the agent asks the server, answered by the store at hand."""

    def __init__(self, objects: ObjectStore, project_id: str) -> None:
        self._objects = objects
        self._project_id = project_id

    @staticmethod
    def _soon_ms() -> int:
        return int(time.time() * 1000) + 60_000

    def downloads(self, _: Writer, sha256s: Sequence[str]) -> dict[str, str]:
        keys = {sha256: content_key(self._project_id, sha256) for sha256 in sha256s}
        return {sha256: self._objects.sign_get(key, expires_ms=self._soon_ms()) for sha256, key in keys.items()}

    def uploads(self, sizes: dict[str, int]) -> dict[str, str]:
        return {
            sha256: self._objects.sign_put(
                content_key(self._project_id, sha256), sha256=sha256, size_bytes=size, expires_ms=self._soon_ms()
            )
            for sha256, size in sizes.items()
        }


async def test_a_checkpoint_goes_there_and_back(store: ObjectStore, tmp_path: Path) -> None:
    """Large, small, packed and empty files: what arrives is what was sent; each piece is looked at where it lies, and
    one that was deleted is missed."""
    project_id = new_id("proj")
    chance = random.Random(3)
    files = {"big": 20_000_000, "deep/one": 100, "deep/two": 70_000, "empty": 0}
    for name, size in files.items():
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_bytes(chance.randbytes(size))
    here, there, gone = tmp_path / "here", tmp_path / "there", threading.Event()
    signer, transport = Signer(store, project_id), Transport()
    saved = cut(Fence(here, None), here, sorted(files), gone)
    sizes = {sha256: content.size_bytes for sha256, content in saved.contents.items()}
    assert sorted(sizes.values()) == [100, 70_000, 3_222_784, 16_777_216]
    sent = await asyncio.to_thread(send, transport, saved.contents, lambda: signer.uploads(sizes), lambda: None, gone)
    assert sent == saved.size_bytes == sum(files.values())
    assert {info.sha256: info.size_bytes async for info in store.list(content_prefix(project_id))} == sizes
    link = Fetcher(cast(Api, signer), transport, Writer(run_id="run_1", job_id="job_1", epoch=1), gone)
    await asyncio.to_thread(fetch_checkpoint, link, Manifest("ckpt_1", 1, saved.files), there)
    assert listing(there) == sorted(files)
    assert all((there / name).read_bytes() == (here / name).read_bytes() for name in files)
    for sha256, size in sizes.items():
        assert await is_right(store, project_id, sha256, size)
        assert not await is_right(store, project_id, sha256, size + 1)
    lost: Any = min(sizes)
    await store.delete(content_key(project_id, lost))
    assert not await is_right(store, project_id, lost, sizes[lost])
    transport.close()
