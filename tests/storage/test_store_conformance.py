"""The exam that every object store adapter sits. It uses the port alone, and HTTP for the signed URLs."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time

import httpx
import pytest

from app.errors import InvalidInput, ObjectCorrupt, ObjectMissing, TooLarge
from app.ports.objects import ObjectInfo, ObjectStore, content_key
from tests.storage.object_server import MAX_OBJECT_BYTES, key_of, sha256_of, soon_ms

_numbers = itertools.count()


@pytest.fixture
def project() -> str:
    """A namespace of the test's own: adapters keep what earlier tests stored."""
    return f"proj_{next(_numbers):06d}{secrets.token_hex(4)}"


async def _put(store: ObjectStore, project: str, data: bytes) -> ObjectInfo:
    return await store.put(key_of(data, project), data, sha256=sha256_of(data))


@pytest.mark.parametrize("size_bytes", [0, 1, 255, 65_536, 1_048_577, 3_000_000])
async def test_what_is_put_comes_back_byte_for_byte(store: ObjectStore, project: str, size_bytes: int) -> None:
    """An object of any size is read back as it was written, and head describes it."""
    data = secrets.token_bytes(size_bytes)
    info = await _put(store, project, data)
    assert info == ObjectInfo(key_of(data, project), size_bytes, sha256_of(data))
    assert await store.get(info.key) == data
    assert await store.head(info.key) == info


async def test_putting_again_is_success_and_changes_nothing(store: ObjectStore, project: str) -> None:
    """The same content under the same key is accepted any number of times."""
    first = await _put(store, project, b"weights")
    assert await _put(store, project, b"weights") == first
    assert await store.get(first.key) == b"weights"


async def test_other_bytes_than_promised_are_never_stored(store: ObjectStore, project: str) -> None:
    """Bytes that do not have the promised hash are refused, before and after the true ones are there."""
    key = key_of(b"true", project)
    with pytest.raises(ObjectCorrupt):
        await store.put(key, b"fake", sha256=sha256_of(b"true"))
    assert await store.head(key) is None
    await _put(store, project, b"true")
    for data, sha256 in ((b"fake", sha256_of(b"fake")), (b"fake", sha256_of(b"true")), (b"longer", sha256_of(b"true"))):
        with pytest.raises(ObjectCorrupt):
            await store.put(key, data, sha256=sha256)
    assert await store.get(key) == b"true"


async def test_a_range_is_what_slicing_would_give(store: ObjectStore, project: str) -> None:
    """start and end behave like those of a slice, also beyond the end of the object."""
    info = await _put(store, project, b"0123456789")
    for start, end in ((0, None), (0, 4), (3, 7), (5, None), (9, 10), (9, 99), (10, None), (50, 60), (4, 4), (0, 0)):
        assert await store.get(info.key, start=start, end=end) == b"0123456789"[start:end], (start, end)


async def test_what_is_not_there_is_missing(store: ObjectStore, project: str) -> None:
    """head answers None and get raises for an object that nobody stored."""
    key = key_of(b"never stored", project)
    assert await store.head(key) is None
    with pytest.raises(ObjectMissing):
        await store.get(key)
    with pytest.raises(ObjectMissing):
        await store.get(key, start=3, end=4)


async def test_deleting_is_final_and_repeatable(store: ObjectStore, project: str) -> None:
    """A deleted object is gone, deleting it again is success, and it can be stored anew."""
    info = await _put(store, project, b"short-lived")
    await store.delete(info.key)
    await store.delete(info.key)
    assert await store.head(info.key) is None
    assert await _put(store, project, b"short-lived") == info
    assert await store.get(info.key) == b"short-lived"


async def test_listing_is_sorted_and_stays_inside_its_prefix(store: ObjectStore, project: str) -> None:
    """list gives each object below the prefix once, in the order of keys, and no neighbour's."""
    contents = [bytes([n]) * n for n in range(40)]
    for data in contents:
        await _put(store, project, data)
    for neighbour in (project + "-x", project + "0"):
        await _put(store, neighbour, b"not yours")
    found = [info async for info in store.list(f"projects/{project}/")]
    assert found == sorted(
        (ObjectInfo(key_of(data, project), len(data), sha256_of(data)) for data in contents), key=lambda info: info.key
    )
    everything = [info.key async for info in store.list(f"projects/{project}")]
    assert everything == sorted(everything)
    assert len(everything) == len(contents) + 2


async def test_a_prefix_may_end_in_the_middle_of_a_name(store: ObjectStore, project: str) -> None:
    """A prefix is a beginning of keys, not a folder: half a hash selects what begins so."""
    info = await _put(store, project, b"one of them")
    assert [found.key async for found in store.list(info.key[:-20])] == [info.key]
    assert [found.key async for found in store.list(info.key)] == [info.key]
    assert [found.key async for found in store.list(f"projects/{project}/none/")] == []


_BAD_KEYS = (
    "",
    "/etc/passwd",
    "../outside",
    "projects/../../outside/" + "a" * 64,
    "projects/./" + "a" * 64,
    "projects//" + "a" * 64,
    "projects/.incoming/" + "a" * 64,
    "projects/p q/" + "a" * 64,
    "projects/p\x00/" + "a" * 64,
    "projects/p\n/" + "a" * 64,
    "projects/é/" + "a" * 64,
    "projects/p\\q/" + "a" * 64,
    "projects/p/" + "a" * 63,
    "projects/p/" + "A" * 64,
    "projects/p/" + "a" * 64 + "\n",
    "projects/p/" + "a" * 64 + "/",
    "projects/" + "b" * 64 + "/" + "a" * 64,
    "x/" * 250 + "a" * 64,
)


async def test_keys_outside_the_closed_alphabet_are_refused(store: ObjectStore) -> None:
    """No operation accepts a key that could leave the store, hide in it, or does not name its content."""
    for key in _BAD_KEYS:
        with pytest.raises(InvalidInput) as refused:
            await store.put(key, b"", sha256=sha256_of(b""))
        assert refused.value.param == "key"
        for operation in (store.head, store.get, store.delete):
            with pytest.raises(InvalidInput):
                await operation(key)
        with pytest.raises(InvalidInput):
            store.sign_get(key, expires_ms=soon_ms())
        with pytest.raises(InvalidInput):
            store.sign_put(key, sha256="a" * 64, size_bytes=1, expires_ms=soon_ms())


async def test_a_store_that_works_has_nothing_to_say(store: ObjectStore) -> None:
    """check answers None, however often it is asked."""
    assert await store.check() is None
    assert await store.check() is None


async def test_an_object_above_the_limit_is_refused_when_signing(store: ObjectStore, project: str) -> None:
    """A URL for more bytes than the store takes is never handed out."""
    with pytest.raises(TooLarge, match=str(MAX_OBJECT_BYTES)):
        store.sign_put(
            content_key(project, "a" * 64), sha256="a" * 64, size_bytes=MAX_OBJECT_BYTES + 1, expires_ms=soon_ms()
        )


async def test_signed_urls_carry_an_object_in_and_out(store: ObjectStore, project: str) -> None:
    """Who holds the two URLs and nothing else can upload and download, and the port sees the same object."""
    data = secrets.token_bytes(200_000)
    key, sha256 = key_of(data, project), sha256_of(data)
    up = store.sign_put(key, sha256=sha256, size_bytes=len(data), expires_ms=soon_ms())
    down = store.sign_get(key, expires_ms=soon_ms())
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        assert (await client.get(down)).status_code == 404
        assert (await client.put(up, content=data)).is_success
        assert (await client.put(up, content=data)).is_success
        assert (await client.get(down)).content == data
        assert (await client.get(down, headers={"Range": "bytes=10-19"})).content == data[10:20]
    assert await store.head(key) == ObjectInfo(key, len(data), sha256)
    assert await store.get(key) == data


async def test_a_signed_upload_of_other_bytes_is_refused(store: ObjectStore, project: str) -> None:
    """A URL for certain bytes takes no others, be they of the right size or not."""
    key = key_of(b"right", project)
    url = store.sign_put(key, sha256=sha256_of(b"right"), size_bytes=5, expires_ms=soon_ms())
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        for wrong in (b"wrong", b"long one", b"abc", b""):
            assert (await client.put(url, content=wrong)).is_client_error
    assert await store.head(key) is None


async def test_an_expired_url_opens_nothing(store: ObjectStore, project: str) -> None:
    """A URL works until its instant and is refused from then on."""
    info = await _put(store, project, b"for a moment")
    url = store.sign_get(info.key, expires_ms=time.time_ns() // 1_000_000 + 4000)
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        statuses = []
        while not statuses or (statuses[-1] == 200 and len(statuses) < 200):
            statuses.append((await client.get(url)).status_code)
            await asyncio.sleep(0.05)
    assert statuses[0] == 200
    assert statuses[-1] == 403


async def test_concurrent_writers_of_one_key_all_succeed(store: ObjectStore, project: str) -> None:
    """Many writers of the same content at once leave exactly that content."""
    data = secrets.token_bytes(300_000)
    results = await asyncio.gather(*(_put(store, project, data) for _ in range(12)))
    assert set(results) == {ObjectInfo(key_of(data, project), len(data), sha256_of(data))}
    assert await store.get(key_of(data, project)) == data
