"""What the S3 store promises beyond the port: lax services, large objects, broken connections, giving up cleanly."""

from __future__ import annotations

import asyncio
import secrets
import sys
import threading
from collections.abc import AsyncIterator

import httpx
import pytest
from pydantic import ValidationError

from app.errors import ObjectCorrupt, StoreUnavailable
from app.ports.objects import ObjectInfo
from app.settings import Settings
from app.storage.directory import DirectoryStore
from app.storage.s3 import S3Store
from app.storage.s3_probe import checksum_of
from app.wiring import build_objects
from tests.storage.object_server import RealClock, key_of, sha256_of, soon_ms
from tests.storage.s3_server import ACCESS_KEY, REGION, SECRET_KEY, Answer, S3Server

_MIB = 1024**2
_KEYS = {"database_url": "postgresql://x", "secret_key": "s" * 32}


@pytest.fixture
async def lax_store(s3_server: S3Server) -> AsyncIterator[S3Store]:
    """A service that checks signatures and nothing else: no checksums, no hashes in URLs, no conditions."""
    gate = s3_server.gate
    gate.honours_payload_query = gate.checks_checksums = gate.honours_conditions = False
    store = s3_server.store(s3_server.new_bucket())
    assert await store.check() is None
    yield store
    await store.close()


async def _upload(store: S3Store, key: str, right: bytes, sent: bytes) -> int:
    url = store.sign_put(key, sha256=sha256_of(right), size_bytes=len(right), expires_ms=soon_ms())
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        return (await client.put(url, content=sent)).status_code


async def _chunks(data: bytes, size_bytes: int = 700_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size_bytes):
        yield data[start : start + size_bytes]


async def test_wrong_bytes_that_a_lax_service_took_count_as_absent(s3_server: S3Server, lax_store: S3Store) -> None:
    """Where the service takes anything of the right length, looking at it finds it out, and the right bytes replace
    it: by URL and from the service alike."""
    for number, replace_by_url in enumerate((True, False)):
        right = b"right %d" % number
        key = key_of(right)
        assert await _upload(lax_store, key, right, b"wrong %d" % number) == 200
        assert await lax_store.head(key) is None
        with pytest.raises(ObjectCorrupt, match="damaged"):
            await lax_store.get(key)
        if replace_by_url:
            assert await _upload(lax_store, key, right, right) == 200
        else:
            await lax_store.put(key, right, sha256=sha256_of(right))
        assert await lax_store.head(key) == ObjectInfo(key, len(right), sha256_of(right))
        assert await lax_store.get(key) == right


async def test_even_a_lax_service_holds_uploads_to_their_length(lax_store: S3Store) -> None:
    """The length is inside every signature."""
    assert await _upload(lax_store, key_of(b"right"), b"right", b"much longer") == 403


async def test_content_is_read_for_proof_once(s3_server: S3Server, lax_store: S3Store) -> None:
    """However many ask, at once or later, an unproven object is read a single time; another version anew."""
    data = secrets.token_bytes(100_000)
    assert await _upload(lax_store, key_of(data), data, data) == 200
    s3_server.gate.requests.clear()
    infos = await asyncio.gather(*(lax_store.head(key_of(data)) for _ in range(8)))
    assert set(infos) == {await lax_store.head(key_of(data))} == {ObjectInfo(key_of(data), 100_000, sha256_of(data))}
    assert s3_server.gate.count("GET", sha256_of(data)) == 1
    await _upload(lax_store, key_of(data), data, data[::-1])
    assert await lax_store.head(key_of(data)) is None
    assert s3_server.gate.count("GET", sha256_of(data)) == 2


async def test_proof_survives_the_asker(s3_server: S3Server, lax_store: S3Store) -> None:
    """A request that is given up leaves the reading to end by itself: asked again, the answer is there."""
    data = secrets.token_bytes(100_000)
    assert await _upload(lax_store, key_of(data), data, data) == 200
    asking = asyncio.create_task(lax_store.head(key_of(data)))
    async with asyncio.timeout(60):
        while not s3_server.gate.count("GET", sha256_of(data)):
            await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await lax_store.head(key_of(data)) is not None
    assert s3_server.gate.count("GET", sha256_of(data)) == 1


@pytest.mark.parametrize("checks_checksums", [True, False])
async def test_a_strict_service_vouches_and_nothing_is_read(s3_server: S3Server, checks_checksums: bool) -> None:
    """What the service checked, sent by us or by URL, in one piece or in parts, is proven to a fresh process without
    reading it; our attestation does where the service reports no checksum."""
    s3_server.gate.checks_checksums = checks_checksums
    bucket = s3_server.new_bucket()
    writer = s3_server.store(bucket, part_bytes=5 * _MIB)
    assert await writer.check() is None
    small, by_url, large = b"small", b"by url", secrets.token_bytes(6 * _MIB)
    await writer.put(key_of(large), large, sha256=sha256_of(large))
    assert await _upload(writer, key_of(by_url), by_url, by_url) == 200
    await writer.put(key_of(small), small, sha256=sha256_of(small))
    await writer.close()
    reader = s3_server.store(bucket)
    s3_server.gate.requests.clear()
    for data in (by_url, large, small):
        assert await reader.head(key_of(data)) == ObjectInfo(key_of(data), len(data), sha256_of(data))
    assert s3_server.gate.count("GET", "sha256/") == 0
    await reader.close()


@pytest.mark.parametrize("checks_checksums", [True, False])
async def test_a_reported_checksum_counts_only_where_it_is_checked(s3_server: S3Server, checks_checksums: bool) -> None:
    """A right checksum spares the reading where the service was seen to check it; elsewhere it is a mere claim."""
    s3_server.gate.checks_checksums = checks_checksums
    store = s3_server.store(s3_server.new_bucket())
    assert await store.check() is None
    right = b"right"
    await store._client.call(
        "put_object",
        "sending as another program would",
        Key=f"here/{key_of(right)}",
        Body=right if checks_checksums else b"wrong",
        ChecksumAlgorithm="SHA256",
        ChecksumSHA256=checksum_of(sha256_of(right)),
    )
    s3_server.gate.requests.clear()
    assert (await store.head(key_of(right)) is not None) == checks_checksums
    assert s3_server.gate.count("GET", "sha256/") == (0 if checks_checksums else 1)
    await store.close()


async def test_a_forged_attestation_proves_nothing(s3_server: S3Server, lax_store: S3Store) -> None:
    """A note that was not made with the secret key does not stop the bytes from being read and found wrong."""
    key = key_of(b"right")
    await lax_store._client.call(
        "put_object", "forging", Key=f"here/{key}", Body=b"wrong", Metadata={"allpass-sha256": sha256_of(b"right")}
    )
    assert await lax_store.head(key) is None


@pytest.mark.parametrize("honours_conditions", [True, False])
@pytest.mark.parametrize("size_bytes", [100_000, 6 * _MIB])
async def test_concurrent_writers_agree(s3_server: S3Server, honours_conditions: bool, size_bytes: int) -> None:
    """Writers of one key, whole or in parts, with exclusive creation or without, all succeed and leave one object."""
    s3_server.gate.honours_conditions = honours_conditions
    store = s3_server.store(s3_server.new_bucket(), part_bytes=5 * _MIB)
    assert await store.check() is None
    data = secrets.token_bytes(size_bytes)
    await asyncio.gather(*(store.put(key_of(data), data, sha256=sha256_of(data)) for _ in range(4)))
    assert s3_server.keys(store.place.bucket) == [f"here/{key_of(data)}"]
    assert s3_server.uploads(store.place.bucket) == []
    assert await store.get(key_of(data)) == data
    await store.close()


async def test_an_object_that_appears_meanwhile_wins(s3_server: S3Server, s3_store: S3Store) -> None:
    """A writer that looked too early finds the object when it writes, and takes it for its own success."""
    data = b"the same thought"
    other = s3_server.store(s3_store.place.bucket)
    await other.check()
    appeared = False

    def appear(method: str, _path: str, _query: str) -> Answer | None:
        nonlocal appeared
        if method == "HEAD" and not appeared:
            appeared = True
            return 404, "NoSuchKey", "not yet"
        return None

    await other.put(key_of(data), data, sha256=sha256_of(data))
    s3_server.gate.refuse = appear
    assert await s3_store.put_stream(key_of(data), _chunks(data), sha256=sha256_of(data), size_bytes=16) == (
        ObjectInfo(key_of(data), 16, sha256_of(data)),
        False,
    )
    await other.close()


@pytest.mark.parametrize("fault", ["other bytes", "too short", "too long", "stream breaks", "part refused", "complete"])
async def test_a_failed_multipart_upload_leaves_no_parts(s3_server: S3Server, fault: str) -> None:
    """Whatever goes wrong in the middle of a large object, neither an object nor parts stay behind."""
    store = s3_server.store(s3_server.new_bucket(), part_bytes=5 * _MIB)
    assert await store.check() is None
    data = secrets.token_bytes(16 * _MIB)
    sent = {"other bytes": data[::-1], "too short": data[:-1], "too long": data + b"x"}.get(fault, data)

    async def stream() -> AsyncIterator[bytes]:
        async for chunk in _chunks(sent):
            yield chunk
            if fault == "stream breaks" and s3_server.uploads(store.place.bucket):
                raise ConnectionError("the sender went away")

    def refuse(method: str, _path: str, query: str) -> Answer | None:
        part = fault == "part refused" and method == "PUT" and "partNumber=3" in query
        complete = fault == "complete" and method == "POST" and "uploadId" in query
        return (507, "InsufficientStorage", "full") if part or complete else None

    s3_server.gate.refuse = refuse
    with pytest.raises((ObjectCorrupt, ConnectionError, StoreUnavailable)):
        await store.put_stream(key_of(data), stream(), sha256=sha256_of(data), size_bytes=len(data))
    assert s3_server.gate.count("POST", "uploads") == 1
    assert s3_server.uploads(store.place.bucket) == []
    assert s3_server.keys(store.place.bucket) == []
    await store.close()


@pytest.mark.parametrize("parts_sent", [0, 1])
async def test_a_cancelled_multipart_upload_leaves_no_parts(s3_server: S3Server, parts_sent: int) -> None:
    """Cancelling at any moment removes the parts, also those on their way."""
    store = s3_server.store(s3_server.new_bucket(), part_bytes=5 * _MIB)
    assert await store.check() is None
    data = secrets.token_bytes(16 * _MIB)
    begun = asyncio.Event()

    async def stream() -> AsyncIterator[bytes]:
        async for chunk in _chunks(data, 5 * _MIB):
            if s3_server.gate.count("PUT", "partNumber") >= parts_sent:
                begun.set()
            yield chunk
        await asyncio.Event().wait()

    task = asyncio.create_task(store.put_stream(key_of(data), stream(), sha256=sha256_of(data), size_bytes=len(data)))
    async with asyncio.timeout(60):
        await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert s3_server.uploads(store.place.bucket) == []
    assert s3_server.keys(store.place.bucket) == []
    await store.close()


async def test_a_large_object_needs_little_memory(s3_server: S3Server) -> None:
    """64 MiB go out in less than half of that, and are proven to another store without being held."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.storage.s3_large"),
        *(s3_server.url, s3_server.new_bucket(), REGION, ACCESS_KEY, SECRET_KEY),
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        out, _ = await process.communicate()
    assert process.returncode == 0
    sent_bytes, whole_bytes, size_bytes = (int(word) for word in out.split())
    assert size_bytes == 64 * _MIB
    assert sent_bytes < 32 * _MIB
    assert whole_bytes < 40 * _MIB


@pytest.mark.parametrize("cuts", [1, 2])
async def test_a_broken_download_is_taken_up_where_it_broke(s3_server: S3Server, cuts: int) -> None:
    """A connection that breaks in the middle costs a request for the rest, whole object and range alike."""
    store = s3_server.store(s3_server.new_bucket(), attempts=4)
    assert await store.check() is None
    data = secrets.token_bytes(3 * _MIB)
    await store.put(key_of(data), data, sha256=sha256_of(data))
    s3_server.gate.cut_bodies = cuts
    assert await store.get(key_of(data)) == data
    s3_server.gate.cut_bodies = cuts
    assert await store.get(key_of(data), start=100, end=2 * _MIB) == data[100 : 2 * _MIB]
    assert s3_server.gate.cut_bodies == 0
    await store.close()


async def test_listing_walks_all_pages_and_skips_what_is_no_object(s3_server: S3Server, s3_store: S3Store) -> None:
    """More objects than fit a page come once each, sorted; foreign files and neighbours of the prefix do not."""
    contents = [b"%d" % number for number in range(7)]
    for data in contents:
        await s3_store.put(key_of(data), data, sha256=sha256_of(data))
    for foreign in ("here/notes.txt", "elsewhere/" + key_of(b"1"), "hereafter/" + key_of(b"2")):
        await s3_store._client.call("put_object", "adding a foreign file", Key=foreign, Body=b"")
    call, pages = s3_store._client.call, 0

    async def small_pages(operation: str, action: str, **parameters: object) -> object:
        nonlocal pages
        pages += operation == "list_objects_v2"
        return await call(operation, action, **parameters, **({"MaxKeys": 2} if "list" in operation else {}))

    s3_store._client.call = small_pages  # type: ignore[method-assign]  # the seam
    assert [info.key async for info in s3_store.list("")] == sorted(key_of(data) for data in contents)
    assert pages >= 4


async def test_what_is_tried_out_leaves_nothing_and_is_tried_once(s3_server: S3Server) -> None:
    """The probe cleans up behind itself, and many first uses at once share one."""
    store = s3_server.store(s3_server.new_bucket())
    await asyncio.gather(*(store.put(key_of(b"%d" % n), b"%d" % n, sha256=sha256_of(b"%d" % n)) for n in range(5)))
    assert len(s3_server.keys(store.place.bucket)) == 5
    assert len({path.split("?")[0] for method, path in s3_server.gate.requests if "checks/" in path}) == 2
    await store.close()


async def test_no_more_calls_at_once_than_allowed(s3_server: S3Server) -> None:
    """Many users wait for one of the connections instead of opening more."""
    place = s3_server.place(s3_server.new_bucket())
    store = S3Store(place, max_object_bytes=1000, clock=RealClock(), connections=3)
    assert await store.check() is None
    gate, met = s3_server.gate, threading.Event()
    gate.most_at_once = 0

    def let_nobody_through_alone(*_: str) -> None:
        if gate.most_at_once > 1:
            met.set()
        met.wait(60)

    gate.refuse = let_nobody_through_alone
    await asyncio.gather(*(store.head(key_of(b"%d" % number)) for number in range(40)))
    assert 1 < gate.most_at_once <= 3
    await store.close()


async def test_settings_choose_and_build_the_store(s3_server: S3Server) -> None:
    """The store named in the settings is built from them, and works."""
    settings = Settings(
        **_KEYS,  # type: ignore[arg-type]  # pydantic makes the secret of the text
        objects_store="s3",
        s3_endpoint=s3_server.url,
        s3_region=REGION,
        s3_bucket=s3_server.new_bucket(),
        s3_prefix="team",
        s3_access_key=ACCESS_KEY,  # type: ignore[arg-type]  # pydantic makes the secret of the text
        s3_secret_key=SECRET_KEY,  # type: ignore[arg-type]  # pydantic makes the secret of the text
    )
    assert SECRET_KEY not in repr(settings)
    store = build_objects(settings, RealClock())
    assert isinstance(store, S3Store)
    assert await store.check() is None
    await store.put(key_of(b"x"), b"x", sha256=sha256_of(b"x"))
    assert s3_server.keys(str(settings.s3_bucket)) == [f"team/{key_of(b'x')}"]
    await store.close()


def test_a_store_names_the_settings_that_it_needs(tmp_path: object) -> None:
    """What the chosen store cannot do without is required with it, and not with the other."""
    with pytest.raises(ValidationError) as refused:
        Settings(**_KEYS, objects_store="s3")  # type: ignore[arg-type]  # pydantic makes the secret of the text
    assert {error["loc"][0] for error in refused.value.errors()} == {"s3_bucket", "s3_access_key", "s3_secret_key"}
    with pytest.raises(ValidationError, match="required with ALLPASS_OBJECTS_STORE=directory"):
        Settings(**_KEYS)  # type: ignore[arg-type]  # pydantic makes the secret of the text
    # Pydantic makes the secret of the text.
    chosen = Settings(**_KEYS, objects_signing_key="k" * 32, objects_dir=tmp_path)  # type: ignore[arg-type]
    assert isinstance(build_objects(chosen, RealClock()), DirectoryStore)


async def test_a_bucket_is_made_once(s3_server: S3Server) -> None:
    """One that is not there is made and can be used; one that is there stays as it is."""
    store = s3_server.store("made-on-demand")
    try:
        assert await store.check() is not None
        assert await store.make_bucket() is None
        assert await store.check() is None
        assert await store.make_bucket() is None
    finally:
        await store.close()
