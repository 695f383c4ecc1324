"""What an S3 service really does, found by trying: services differ, and some accept a condition and ignore it.

Three questions, asked once per process with a few bytes below `<prefix>checks/`:

- does it refuse `If-None-Match: *` on a key that exists (else writers look first);
- does it check the sha256 sent with an upload (else its reported checksums prove nothing);
- does it check the payload hash of a signed URL (else uploads are verified when they are looked at).

A wrong "no" costs time, a wrong "yes" would cost trust; so a "yes" needs the false request refused and the true one
accepted.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
from dataclasses import dataclass

import httpx

from app.errors import AllpassError, ObjectCorrupt, ObjectMissing, StoreUnavailable
from app.storage.incoming import STORE_FULL
from app.storage.s3_client import S3Client
from app.storage.s3_errors import MISCONFIGURED, code_of, lost_to_another, status_of
from app.storage.s3_signing import Binding, upload_url

_TRUE, _FALSE = b"allpass was here", b"or somebody else"
_URL_LIFE_MS = 300_000


@dataclass(frozen=True, slots=True)
class Abilities:
    """`conditional`: exclusive creation works. `checksums`: a sha256 sent along is checked. `binding`: the strongest
    form of upload URL that works."""

    conditional: bool
    checksums: bool
    binding: Binding


async def probe(client: S3Client, *, now_ms: int, timeout_s: float) -> Abilities:
    """Ask. Raises StoreError when the store cannot be written to at all (wrong settings, no room, not there)."""
    key = f"checks/{secrets.token_hex(16)}"
    await client.call("put_object", "trying to write", Key=client.place.object_key(key), Body=_TRUE)
    try:
        return Abilities(
            conditional=await _is_conditional(client, key),
            checksums=await _checks_checksums(client, key),
            binding=await _binding(client, key, now_ms=now_ms, timeout_s=timeout_s),
        )
    finally:
        await client.call("delete_object", "trying to delete", Key=client.place.object_key(key))


def checksum_of(sha256: str) -> str:
    """A sha256 as S3 spells it: base64."""
    return base64.b64encode(bytes.fromhex(sha256)).decode()


async def _is_conditional(client: S3Client, key: str) -> bool:
    """The object exists: creating it must fail. A fresh one must not."""
    try:
        await client.call(
            "put_object", "trying If-None-Match", Key=client.place.object_key(key), Body=_FALSE, IfNoneMatch="*"
        )
    except StoreUnavailable as error:
        _raise_if_serious(error)
        if not lost_to_another(error):
            return False
    else:
        return False
    fresh = client.place.object_key(key + "-new")
    try:
        await client.call("put_object", "trying If-None-Match", Key=fresh, Body=_TRUE, IfNoneMatch="*")
    except StoreUnavailable as error:
        _raise_if_serious(error)
        return False
    finally:
        await client.call("delete_object", "trying to delete", Key=fresh)
    return True


async def _checks_checksums(client: S3Client, key: str) -> bool:
    for body, is_true in ((_FALSE, False), (_TRUE, True)):
        try:
            await client.call(
                "put_object",
                "trying a checksum",
                Key=client.place.object_key(key),
                Body=body,
                ChecksumSHA256=checksum_of(hashlib.sha256(_TRUE).hexdigest()),
            )
            accepted = True
        except (ObjectCorrupt, StoreUnavailable) as error:
            _raise_if_serious(error)
            accepted = False
        if accepted != is_true:
            return False
    return True


async def _binding(client: S3Client, key: str, *, now_ms: int, timeout_s: float) -> Binding:
    """Send as an uploader does. A service that cannot be reached this way keeps the form that works everywhere."""
    url = upload_url(
        client.place,
        key,
        sha256=hashlib.sha256(_TRUE).hexdigest(),
        size_bytes=len(_TRUE),
        binding=Binding.PAYLOAD,
        now_ms=now_ms,
        expires_ms=now_ms + _URL_LIFE_MS,
        public=False,
    )
    with contextlib.suppress(httpx.HTTPError):
        tls = client.place.endpoint.startswith(
            "https:"
        )  # loading all authorities for plain HTTP takes longer than asking
        async with httpx.AsyncClient(timeout=timeout_s, verify=tls) as http:
            false = await http.put(url, content=_FALSE)
            true = await http.put(url, content=_TRUE)
            if _is_trouble(false.status_code) or _is_trouble(true.status_code):
                raise StoreUnavailable("the object store failed while a signed URL was tried: retry")
            if false.is_client_error and true.is_success and await _holds(client, key):
                return Binding.PAYLOAD
    return Binding.LENGTH


async def _holds(client: S3Client, key: str) -> bool:
    """Whether the true bytes arrived: an answer of success alone proves nothing."""
    try:
        found = await client.call("head_object", "trying to read", Key=client.place.object_key(key))
    except ObjectMissing:
        return False
    return int(found["ContentLength"]) == len(_TRUE)


def _raise_if_serious(error: AllpassError) -> None:
    """An answer about the request is what was asked for; wrong settings, no room, a service in trouble and a lost
    connection are not."""
    told_about_the_request = code_of(error) and not _is_trouble(status_of(error))
    if error.error_code in (MISCONFIGURED, STORE_FULL) or not told_about_the_request:
        raise error


def _is_trouble(status: int) -> bool:
    """Server errors pass; 501 says for good that something is not implemented."""
    return status >= 500 and status != 501
