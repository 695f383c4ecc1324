"""Signed URLs of the S3 store: right by AWS's own example, and bound to what they promise."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import InvalidInput, InvariantBroken, TooLarge
from app.storage.s3 import MAX_URL_UPLOAD_BYTES, S3Store
from app.storage.s3_place import S3Place, s3_place
from app.storage.s3_signing import MAX_LIFE_S, Binding, download_url, upload_url
from tests.storage.object_server import RealClock, key_of, sha256_of, soon_ms
from tests.storage.s3_server import S3Server

_AWS = S3Place(
    endpoint="https://s3.amazonaws.com",
    public_endpoint="https://s3.amazonaws.com",
    region="us-east-1",
    bucket="examplebucket",
    prefix="",
    path_style=False,
    access_key="AKIAIOSFODNN7EXAMPLE",
    secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
)
_2013_MS = 1_369_353_600_000


def _place(**changes: object) -> S3Place:
    given_settings = {
        "endpoint": "http://127.0.0.1:9000",
        "public_endpoint": None,
        "region": "eu-central-1",
        "bucket": "weights",
        "prefix": "",
        "addressing": "auto",
        "access_key": "key",
        "secret_key": "secret",
    }
    return s3_place(**{**given_settings, **changes})  # type: ignore[arg-type]  # names and kinds by the callers


def test_the_signature_is_that_of_the_documented_example() -> None:
    """The example of AWS's documentation of presigned URLs comes out digit by digit."""
    url = download_url(_AWS, "test.txt", now_ms=_2013_MS + 999, expires_ms=_2013_MS + 86_400_000)
    assert url == (
        "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
        "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )


@pytest.mark.parametrize("binding", list(Binding))
def test_hash_and_size_are_inside_the_signature(binding: Binding) -> None:
    """The length is a signed header in either form; the hash is in the query of the stronger one."""
    url = upload_url(
        _AWS, "k", sha256="a" * 64, size_bytes=7, binding=binding, now_ms=0, expires_ms=60_000, public=True
    )
    query = dict(parse_qsl(urlsplit(url).query))
    assert query["X-Amz-SignedHeaders"] == "content-length;host"
    assert query.get("X-Amz-Content-Sha256") == ("a" * 64 if binding is Binding.PAYLOAD else None)


@given(now_ms=st.integers(0, 2**41), life_ms=st.integers(1000, MAX_LIFE_S * 1000 - 1000))
@settings(max_examples=50)
def test_a_url_never_outlives_its_instant(now_ms: int, life_ms: int) -> None:
    """Whole seconds are rounded so that the URL is dead at the promised instant, and at most two seconds before."""
    url = download_url(_AWS, "k", now_ms=now_ms, expires_ms=now_ms + life_ms)
    dead_ms = (now_ms // 1000 + int(dict(parse_qsl(urlsplit(url).query))["X-Amz-Expires"])) * 1000
    assert now_ms + life_ms - 2000 < dead_ms <= now_ms + life_ms


@pytest.mark.parametrize("life_ms", [0, -1, MAX_LIFE_S * 1000 + 1001])
def test_an_impossible_life_is_a_bug(life_ms: int) -> None:
    """A URL that is dead at birth or longer-lived than S3 allows is never made."""
    with pytest.raises(InvariantBroken):
        download_url(_AWS, "k", now_ms=_2013_MS, expires_ms=_2013_MS + life_ms)


async def test_nothing_about_a_url_can_be_changed(s3_server: S3Server, s3_store: S3Store) -> None:
    """Another value anywhere in the query, another key or another method is refused by the service."""
    key = key_of(b"right")
    up = s3_store.sign_put(key, sha256=sha256_of(b"right"), size_bytes=5, expires_ms=soon_ms())
    base, query = up.split("?")
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        for pair in query.split("&"):
            name, value = pair.split("=")
            changed = value[:-1] + ("0" if value[-1] != "0" else "1")
            refused = await client.put(f"{base}?{query.replace(pair, f'{name}={changed}')}", content=b"right")
            assert refused.is_client_error, name
        assert (await client.put(f"{base}0?{query}", content=b"right")).status_code == 403
        assert (await client.get(up)).status_code == 403
        assert (await client.put(up, content=b"right", headers={"x-amz-meta-a": "b"})).status_code == 403
        assert s3_server.keys(s3_store.place.bucket) == []
        assert (await client.put(up, content=b"right", headers={"Content-Type": "text/plain"})).is_success
    assert s3_server.keys(s3_store.place.bucket) == [f"here/{key}"]


async def test_urls_carry_the_public_address(s3_server: S3Server) -> None:
    """Agents get the name under which they reach the service, signed for it, while we use our own."""
    store = s3_server.store(s3_server.new_bucket(), public_endpoint=s3_server.url.replace("127.0.0.1", "localhost"))
    assert await store.check() is None
    url = store.sign_put(key_of(b"x"), sha256=sha256_of(b"x"), size_bytes=1, expires_ms=soon_ms())
    assert url.startswith("http://localhost:")
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        assert (await client.put(url, content=b"x")).is_success
    assert await store.get(key_of(b"x")) == b"x"
    await store.close()


def test_an_upload_beyond_one_request_is_refused_when_signing() -> None:
    """S3 takes 5 GiB in one PUT: a larger one is refused before an agent spends an hour on it."""
    store = S3Store(_place(), max_object_bytes=64 * 1024**3, clock=RealClock())
    with pytest.raises(TooLarge, match="shards"):
        store.sign_put(key_of(b"x"), sha256=sha256_of(b"x"), size_bytes=MAX_URL_UPLOAD_BYTES + 1, expires_ms=soon_ms())


@pytest.mark.parametrize(
    ("changes", "host_and_path"),
    [
        ({}, ("http", "127.0.0.1:9000", "/weights/k")),
        ({"addressing": "virtual", "endpoint": "https://store.example:443"}, ("https", "weights.store.example", "/k")),
        ({"endpoint": None}, ("https", "weights.s3.eu-central-1.amazonaws.com", "/k")),
        ({"endpoint": None, "bucket": "a.b"}, ("https", "s3.eu-central-1.amazonaws.com", "/a.b/k")),
        ({"endpoint": None, "region": "cn-north-1"}, ("https", "weights.s3.cn-north-1.amazonaws.com.cn", "/k")),
        ({"prefix": "/team/a/"}, ("http", "127.0.0.1:9000", "/weights/team/a/k")),
        ({"endpoint": "http://[::1]:9000/"}, ("http", "[::1]:9000", "/weights/k")),
    ],
)
def test_an_object_has_one_address(changes: dict[str, object], host_and_path: tuple[str, str, str]) -> None:
    """Bucket in the host on AWS, in the path elsewhere and for names with dots, unless set otherwise."""
    assert _place(**changes).address("k", public=False) == host_and_path


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"endpoint": "127.0.0.1:9000"}, "ALLPASS_S3_ENDPOINT"),
        ({"endpoint": "http://host/path"}, "ALLPASS_S3_ENDPOINT"),
        ({"endpoint": "http://host:port"}, "ALLPASS_S3_ENDPOINT"),
        ({"public_endpoint": "ftp://host"}, "ALLPASS_S3_PUBLIC_ENDPOINT"),
        ({"endpoint": None, "region": "auto"}, "ALLPASS_S3_REGION"),
        ({"bucket": "Upper"}, "ALLPASS_S3_BUCKET"),
        ({"prefix": "a/../b"}, "ALLPASS_S3_PREFIX"),
    ],
)
def test_a_malformed_setting_is_named(changes: dict[str, object], setting: str) -> None:
    """What cannot be right is refused at once, with the name of the setting and without the secret."""
    with pytest.raises(InvalidInput) as refused:
        _place(**changes)
    assert refused.value.param == setting
    assert "secret" not in repr(_place(secret_key="very-secret")).replace("secret_key", "")
