"""What is told when the S3 service refuses, is wrongly set up, or is not there."""

from __future__ import annotations

import asyncio
import socket

import pytest

from app.errors import AllpassError, ObjectCorrupt, StoreUnavailable, TooLarge
from app.storage.s3 import S3Store
from tests.storage.object_server import MAX_OBJECT_BYTES, RealClock, key_of, sha256_of, soon_ms
from tests.storage.s3_server import Answer, S3Server

DATA = b"some weights"
KEY = key_of(DATA)


@pytest.mark.parametrize(
    ("status", "code", "expected", "error_code", "text"),
    [
        (403, "InvalidAccessKeyId", StoreUnavailable, "store_misconfigured", "ALLPASS_S3_ACCESS_KEY"),
        (403, "SignatureDoesNotMatch", StoreUnavailable, "store_misconfigured", "ALLPASS_S3_SECRET_KEY"),
        (403, "AccessDenied", StoreUnavailable, "store_misconfigured", "s3:PutObject"),
        (403, "RequestTimeTooSkewed", StoreUnavailable, "store_misconfigured", "clock.*NTP"),
        (404, "NoSuchBucket", StoreUnavailable, "store_misconfigured", "create it or set ALLPASS_S3_BUCKET"),
        (400, "AuthorizationHeaderMalformed", StoreUnavailable, "store_misconfigured", "ALLPASS_S3_REGION"),
        (400, "ExpiredToken", StoreUnavailable, "store_misconfigured", "expired"),
        (403, "QuotaExceeded", StoreUnavailable, "store_full", "no room left"),
        (507, "XMinioStorageFull", StoreUnavailable, "store_full", "no room left"),
        (503, "SlowDown", StoreUnavailable, "store_unavailable", "SlowDown"),
        (500, "InternalError", StoreUnavailable, "store_unavailable", "InternalError"),
        (400, "BadDigest", ObjectCorrupt, "object_corrupt", "send them again"),
        (400, "EntityTooLarge", TooLarge, "too_large", "no object of this size"),
        (418, "Teapot", StoreUnavailable, "store_unavailable", "Teapot: because"),
    ],
)
async def test_a_refused_write_says_what_to_do(
    s3_server: S3Server,
    s3_store: S3Store,
    status: int,
    code: str,
    expected: type[AllpassError],
    error_code: str,
    text: str,
) -> None:
    """Each kind of refusal comes out as our error, names the remedy, keeps its cause, and stores nothing."""
    s3_server.gate.refuse = lambda method, _path, _query: (status, code, "because") if method == "PUT" else None
    with pytest.raises(expected, match=f"(?s){text}") as refused:
        await s3_store.put(KEY, DATA, sha256=sha256_of(DATA))
    assert refused.value.error_code == error_code
    assert refused.value.__cause__ is not None
    assert s3_server.keys(s3_store.place.bucket) == []


async def test_a_head_without_a_reason_is_explained_by_another_request(s3_server: S3Server, s3_store: S3Store) -> None:
    """The answer to a HEAD has no body: the reason is asked for, so the message is as good as any other."""
    s3_server.gate.refuse = lambda *_: (403, "RequestTimeTooSkewed", "The difference is too large.")
    with pytest.raises(StoreUnavailable, match="this machine's clock") as refused:
        await s3_store.head(KEY)
    assert refused.value.retryable


async def test_a_passing_failure_is_retried(s3_server: S3Server) -> None:
    """A service that stumbles once is asked again; nobody notices."""
    store = s3_server.store(s3_server.new_bucket(), attempts=3)
    assert await store.check() is None
    stumbles: list[Answer] = [(503, "SlowDown", "x")]
    s3_server.gate.refuse = lambda method, *_: stumbles.pop() if method == "PUT" and stumbles else None
    await store.put(KEY, DATA, sha256=sha256_of(DATA))
    assert stumbles == []
    assert await store.get(KEY) == DATA
    await store.close()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"access_key": "AKIAOTHER"}, "does not know the access key in ALLPASS_S3_ACCESS_KEY"),
        ({"secret_key": "wrong"}, "ALLPASS_S3_SECRET_KEY does not belong to"),
        ({"bucket": "no-such-bucket"}, "there is no bucket 'no-such-bucket'"),
        ({"region": "us-west-2"}, "ALLPASS_S3_REGION='us-west-2' is not the region"),
    ],
)
async def test_check_says_in_one_sentence_what_is_wrong(
    s3_server: S3Server, changes: dict[str, str], text: str
) -> None:
    """A typing error in the settings is found at the start and named, and no secret is in the message."""
    bucket = changes.get("bucket") or s3_server.new_bucket()
    store = s3_server.store(**{**changes, "bucket": bucket})
    wrong = await store.check()
    assert wrong is not None
    assert text in wrong
    assert "AKIAOTHER" not in wrong
    await store.close()


async def test_check_finds_a_bucket_in_another_region(s3_server: S3Server) -> None:
    """botocore would follow the bucket, but signed URLs could not: it is told, with the right value."""
    store = s3_server.store(s3_server.new_bucket(region="ap-south-1"))
    assert "set it to 'ap-south-1'" in str(await store.check())
    await store.close()


async def test_check_finds_credentials_that_may_only_read(s3_server: S3Server) -> None:
    """Being allowed to list is not enough; once the rights are there, the same store works."""
    store = s3_server.store(s3_server.new_bucket())
    s3_server.gate.refuse = lambda method, *_: (403, "AccessDenied", "no") if method == "PUT" else None
    assert "needs s3:ListBucket" in str(await store.check())
    s3_server.gate.refuse = None
    assert await store.check() is None
    await store.put(KEY, DATA, sha256=sha256_of(DATA))
    await store.close()


@pytest.mark.parametrize("occasion", ["If-None-Match", "checksum", "signed URL"])
async def test_a_stumble_while_trying_out_settles_nothing(s3_server: S3Server, occasion: str) -> None:
    """Trouble during the probe is an error for now, not a lasting "this service cannot": the next use asks again."""
    store = s3_server.store(s3_server.new_bucket(), attempts=1)
    puts = {"If-None-Match": 2, "checksum": 4, "signed URL": 6}[occasion]
    s3_server.gate.refuse = lambda method, *_: (
        (503, "SlowDown", "busy") if method == "PUT" and s3_server.gate.count("PUT", "checks/") == puts else None
    )
    assert await store.check() is not None
    s3_server.gate.refuse = None
    assert await store.check() is None
    data = b"%d" % puts
    url = store.sign_put(key_of(data), sha256=sha256_of(data), size_bytes=1, expires_ms=soon_ms())
    assert "X-Amz-Content-Sha256" in url
    await store.close()


async def test_an_endpoint_that_is_down_is_told_within_bounds(s3_server: S3Server) -> None:
    """No listener: every operation is a retryable error that names the endpoint."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        store = s3_server.store("weights", endpoint=url, attempts=1)
        for operation in (store.head(KEY), store.get(KEY), store.put(KEY, DATA, sha256=sha256_of(DATA))):
            with pytest.raises(StoreUnavailable, match=f"nothing answers at {url}") as refused:
                await operation
            assert refused.value.retryable
        assert url in str(await store.check())
        await store.close()


async def test_an_endpoint_that_is_silent_is_given_up(s3_server: S3Server) -> None:
    """A listener that never answers costs the timeout and no more."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = s3_server.place("weights", endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        store = S3Store(place, max_object_bytes=MAX_OBJECT_BYTES, clock=RealClock(), timeout_s=0.2, attempts=1)
        async with asyncio.timeout(60):
            with pytest.raises(StoreUnavailable, match="went silent"):
                await store.get(KEY)
        await store.close()


async def test_a_closed_store_says_so(s3_server: S3Server, s3_store: S3Store) -> None:
    """After close, no call begins; closing twice is harmless."""
    await s3_store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await s3_store.head(KEY)
    await s3_store.close()
