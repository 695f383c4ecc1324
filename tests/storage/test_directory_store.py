"""What the directory store promises beyond the port: durability, damage, sharing a folder, giving up cleanly."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.errors import InvariantBroken, ObjectCorrupt, ObjectMissing, StoreUnavailable, TooLarge
from app.storage.directory import DirectoryStore
from app.storage.incoming import INCOMING_FOLDER, IncomingFile, sweep
from tests.storage.object_server import RealClock, key_of, sha256_of, soon_ms

KEY = "a-signing-key-for-tests-0123456789"


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "root", "http://x", KEY, max_object_bytes=5_000_000, clock=RealClock())


def _leftovers(store: DirectoryStore) -> list[Path]:
    folder = store.root / INCOMING_FOLDER
    return list(folder.iterdir()) if folder.is_dir() else []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("failing", ["write", "fsync"])
async def test_a_full_disk_says_so_and_leaves_no_temporary_file(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, number: int, failing: str
) -> None:
    """No room, found while writing or only when syncing, is a clear retryable error; afterwards all is as before."""

    def full(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, full)
        with pytest.raises(StoreUnavailable, match="no room left") as refused:
            await store.put(key_of(b"data"), b"data", sha256=sha256_of(b"data"))
    assert refused.value.error_code == "store_full"
    assert refused.value.retryable
    assert _leftovers(store) == []
    assert await store.head(key_of(b"data")) is None
    await store.put(key_of(b"data"), b"data", sha256=sha256_of(b"data"))


async def test_a_broken_disk_is_told_apart_from_a_full_one(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other errors of the disk are StoreUnavailable too, with the cause in the message."""

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken)
        with pytest.raises(StoreUnavailable, match="Input/output error") as refused:
            await store.put(key_of(b"data"), b"data", sha256=sha256_of(b"data"))
    assert refused.value.error_code == "store_unavailable"
    assert _leftovers(store) == []


async def test_bytes_are_durable_before_the_name_appears(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is synced before it is renamed, and the folders that gained a name after."""
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def traced_fsync(fd: int) -> None:
        events.append("sync " + os.path.relpath(os.path.realpath(f"/proc/self/fd/{fd}"), store.root))
        fsync(fd)

    def traced_rename(self: Path, target: Path) -> Path:
        events.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(Path, "rename", traced_rename)
    key = key_of(b"data")
    await store.put(key, b"data", sha256=sha256_of(b"data"))
    project, folder = key.split("/")[1], key.rsplit("/", 1)[0]
    assert events[0].startswith(f"sync {INCOMING_FOLDER}/")
    assert events[1:] == [
        "sync .",
        "sync projects",
        f"sync projects/{project}",
        f"sync projects/{project}/sha256",
        "rename",
        f"sync {folder}",
    ]


async def test_damage_on_disk_is_found(store: DirectoryStore) -> None:
    """A stored file whose bytes changed is never handed out whole; one whose size changed is not taken for present."""
    key, sha256 = key_of(b"precious"), sha256_of(b"precious")
    await store.put(key, b"precious", sha256=sha256)
    (store.root / key).write_bytes(b"Precious")
    with pytest.raises(ObjectCorrupt, match="damaged"):
        await store.get(key)
    (store.root / key).write_bytes(b"prec")
    with pytest.raises(ObjectCorrupt, match="delete the stored object"):
        await store.put(key, b"precious", sha256=sha256)
    assert (store.root / key).read_bytes() == b"prec"
    await store.delete(key)
    await store.put(key, b"precious", sha256=sha256)
    assert await store.get(key) == b"precious"


def test_an_upload_whose_source_fails_leaves_nothing(store: DirectoryStore) -> None:
    """What breaks off in the middle of an upload removes its temporary file, closes it, and is told as it is."""
    data = secrets.token_bytes(3_000_000)
    seen: list[list[Path]] = []

    def blocks() -> Iterator[bytes]:
        yield data[:2_000_000]
        seen.append(_leftovers(store))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.take(key_of(data), blocks(), sha256=sha256_of(data), size_bytes=len(data))
    assert len(seen[0]) == 1
    assert _leftovers(store) == []
    assert not any(os.path.realpath(link).startswith(f"{store.root}/") for link in Path("/proc/self/fd").iterdir())


def test_a_stream_longer_than_promised_is_cut_off(store: DirectoryStore) -> None:
    """An endless stream is not read further than the promised size."""
    data, read = b"x" * 100_000, 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        while True:
            read += len(data)
            yield data

    with pytest.raises(ObjectCorrupt, match="more came"):
        store.take(key_of(data * 3), endless(), sha256=sha256_of(data * 3), size_bytes=300_000)
    assert read == 400_000
    assert _leftovers(store) == []


def test_blocks_that_share_their_memory_are_each_kept(store: DirectoryStore) -> None:
    """A buffer that is filled anew for each block is written before it is: what is stored is what came."""
    data = secrets.token_bytes(300_000)

    def blocks() -> Iterator[memoryview]:
        buffer = bytearray(100_000)
        for start in range(0, len(data), len(buffer)):
            buffer[:] = data[start : start + len(buffer)]
            yield memoryview(buffer)

    assert store.take(key_of(data), blocks(), sha256=sha256_of(data), size_bytes=len(data))[1]
    assert (store.root / key_of(data)).read_bytes() == data


async def test_a_put_hashes_its_bytes_once(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """New bytes are hashed on their way to the disk, and not before; those of an object that is there are hashed too:
    other bytes under its name are a mistake."""
    data, hashed = secrets.token_bytes(100_000), 0
    real = hashlib.sha256

    class Counting:
        def __init__(self, first: bytes = b"") -> None:
            self._digest = real()
            self.update(first)

        def update(self, part: bytes | memoryview) -> None:
            nonlocal hashed
            hashed += len(part)
            self._digest.update(part)

        def hexdigest(self) -> str:
            return self._digest.hexdigest()

    key, sha256 = key_of(data), sha256_of(data)
    monkeypatch.setattr(hashlib, "sha256", Counting)
    await store.put(key, data, sha256=sha256)
    assert hashed == len(data)
    await store.put(key, data, sha256=sha256)
    assert hashed == 2 * len(data)


async def test_an_object_above_the_limit_is_refused_unread(store: DirectoryStore) -> None:
    """More bytes than the store takes are refused with the limit in the message."""
    data = bytes(5_000_001)
    with pytest.raises(TooLarge, match="at most 5000000"):
        await store.put(key_of(data), data, sha256=sha256_of(data))


def test_a_sweep_takes_leftovers_and_spares_live_uploads(tmp_path: Path) -> None:
    """Files of dead writers go; a file that some process still writes stays and can be finished."""
    live = IncomingFile(tmp_path)
    live.write(b"still coming")
    leftover = tmp_path / INCOMING_FOLDER / "0123.part"
    leftover.write_bytes(b"torn")
    assert sweep(tmp_path) == 1
    assert not leftover.exists()
    target = tmp_path / "a" / "b"
    live.commit(target, sha256=sha256_of(b"still coming"), size_bytes=12)
    live.discard()
    assert target.read_bytes() == b"still coming"
    assert sweep(tmp_path) == 0


def test_sweeping_while_uploads_begin_never_harms_one(tmp_path: Path) -> None:
    """Sweeps racing with new uploads never take a file away from its writer."""
    stop = threading.Event()

    def keep_sweeping() -> None:
        while not stop.is_set():
            sweep(tmp_path)

    sweeper = threading.Thread(target=keep_sweeping)
    sweeper.start()
    try:
        for number in range(300):
            data = str(number).encode()
            incoming = IncomingFile(tmp_path)
            incoming.write(data)
            incoming.commit(tmp_path / "done" / data.decode(), sha256=sha256_of(data), size_bytes=len(data))
            incoming.discard()
    finally:
        stop.set()
        sweeper.join()
    assert len(list((tmp_path / "done").iterdir())) == 300


def test_an_upload_given_up_takes_no_more(tmp_path: Path) -> None:
    """After discard a late write is refused instead of beginning anew."""
    incoming = IncomingFile(tmp_path)
    incoming.write(b"some")
    incoming.discard()
    incoming.discard()
    with pytest.raises(StoreUnavailable, match="given up"):
        incoming.write(b"more")
    with pytest.raises(StoreUnavailable, match="given up"):
        incoming.commit(tmp_path / "x", sha256=sha256_of(b"some"), size_bytes=4)
    assert list((tmp_path / INCOMING_FOLDER).iterdir()) == []


async def test_a_reader_keeps_an_object_that_is_deleted(store: DirectoryStore) -> None:
    """A download that has begun ends well although the object is deleted meanwhile."""
    data = secrets.token_bytes(700_000)
    await store.put(key_of(data), data, sha256=sha256_of(data))
    source = store.open(key_of(data))
    await store.delete(key_of(data))
    assert b"".join(source.pieces(0, len(data))) == data
    source.close()
    with pytest.raises(ObjectMissing):
        store.open(key_of(data))


async def test_foreign_files_in_the_folder_are_not_objects(store: DirectoryStore) -> None:
    """What somebody else put into the folder is neither listed nor in the way."""
    await store.put(key_of(b"data"), b"data", sha256=sha256_of(b"data"))
    (store.root / "README").write_text("notes")
    (store.root / "lost+found").mkdir()
    (store.root / "projects" / ".hidden").write_text("")
    assert [info.key async for info in store.list("")] == [key_of(b"data")]


async def test_the_order_of_a_listing_is_that_of_whole_keys(store: DirectoryStore) -> None:
    """Folders whose names are prefixes of each other do not disturb the order."""
    for project in ("a", "a-b", "a.b", "a0", "aa", "b"):
        data = project.encode()
        await store.put(key_of(data, project), data, sha256=sha256_of(data))
    keys = [info.key async for info in store.list("projects/")]
    assert keys == sorted(keys)
    assert len(keys) == 6


def test_a_duration_given_as_expiry_is_caught(store: DirectoryStore) -> None:
    """expires_ms is an instant; a value in the past is our own mistake and is told at once."""
    with pytest.raises(InvariantBroken, match="instant, not a duration"):
        store.sign_get(key_of(b"data"), expires_ms=900_000)
    assert store.sign_get(key_of(b"data"), expires_ms=soon_ms()).startswith("http://x/objects/projects/")


async def test_check_tells_that_the_folder_is_gone(store: DirectoryStore) -> None:
    """A folder that was taken away is named, with its setting; once it is back all is well."""
    store.root.rename(store.root.with_name("away"))
    assert "ALLPASS_OBJECTS_DIR" in str(await store.check())
    store.root.with_name("away").rename(store.root)
    assert await store.check() is None
