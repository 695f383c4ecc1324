"""Signed URLs of S3 (Signature Version 4 in the query), as a pure function of the place, the promise and the time.

botocore can sign URLs too, but only with the extra headers it makes of each parameter; the uploaders here (the agent,
the SDK) hold a URL and nothing else. An upload URL therefore comes in two forms, both with the length inside the
signature (`Content-Length` is a signed header, and every uploader sends it):

- `payload`: the sha256 of the body is the payload hash of the signature (`X-Amz-Content-Sha256` in the query). The
  service hashes what comes and refuses other bytes.
- `length`: the payload is unsigned. Other bytes of the same length are taken; `S3Store.head` finds them out.

Which form a service honours is tried out, never assumed (`app.storage.s3_probe`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from urllib.parse import quote

from app.errors import InvariantBroken
from app.storage.s3_place import S3Place

ATTESTATION = "allpass-sha256"
MAX_LIFE_S = 7 * 24 * 3600
_ALGORITHM = "AWS4-HMAC-SHA256"
_UNSIGNED = "UNSIGNED-PAYLOAD"


class Binding(Enum):
    """What ties an upload URL to its bytes."""

    PAYLOAD = "payload"
    LENGTH = "length"


def upload_url(
    place: S3Place,
    key: str,
    *,
    sha256: str,
    size_bytes: int,
    binding: Binding,
    now_ms: int,
    expires_ms: int,
    public: bool,
) -> str:
    """A URL to PUT exactly these bytes to, with no header but Content-Length."""
    bound = binding is Binding.PAYLOAD
    # Stored with the object. Only where the service has checked the bytes: the note says that somebody did.
    noted = {f"x-amz-meta-{ATTESTATION}": attestation(place, key, size_bytes)}
    return _presign(
        place,
        "PUT",
        key,
        query={"X-Amz-Content-Sha256": sha256, **noted} if bound else {},
        headers={"content-length": str(size_bytes)},
        payload=sha256 if bound else _UNSIGNED,
        now_ms=now_ms,
        expires_ms=expires_ms,
        public=public,
    )


def download_url(place: S3Place, key: str, *, now_ms: int, expires_ms: int) -> str:
    """A URL to GET the object from. It is for GET alone; ranges may be asked for."""
    return _presign(
        place, "GET", key, query={}, headers={}, payload=_UNSIGNED, now_ms=now_ms, expires_ms=expires_ms, public=True
    )


def attestation(place: S3Place, key: str, size_bytes: int) -> str:
    """What only a holder of the secret key can note on an object: "these many bytes were checked against the name"."""
    message = f"allpass-checked-1\n{place.bucket}\n{place.object_key(key)}\n{size_bytes}"
    return hmac.new(place.secret_key.encode(), message.encode(), hashlib.sha256).hexdigest()


def _presign(
    place: S3Place,
    method: str,
    key: str,
    *,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    payload: str,
    now_ms: int,
    expires_ms: int,
    public: bool,
) -> str:
    scheme, host, path = place.address(key, public=public)
    moment = datetime.fromtimestamp(now_ms // 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/{place.region}/s3/aws4_request"
    signed_headers = {"host": host, **headers}
    names = ";".join(sorted(signed_headers))
    everything = {
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{place.access_key}/{scope}",
        "X-Amz-Date": moment,
        "X-Amz-Expires": str(_life_s(now_ms, expires_ms)),
        "X-Amz-SignedHeaders": names,
        **query,
    }
    pairs = sorted((_quoted(name), _quoted(value)) for name, value in everything.items())
    canonical_query = "&".join(f"{name}={value}" for name, value in pairs)
    canonical_headers = "".join(f"{name}:{signed_headers[name]}\n" for name in sorted(signed_headers))
    canonical = "\n".join((method, path, canonical_query, canonical_headers, names, payload))
    text = "\n".join((_ALGORITHM, moment, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    signature = hmac.new(_signing_key(place, moment[:8]), text.encode(), hashlib.sha256).hexdigest()
    return f"{scheme}://{host}{path}?{canonical_query}&X-Amz-Signature={signature}"


def _life_s(now_ms: int, expires_ms: int) -> int:
    """Whole seconds from the (whole) second of signing, rounded down: a URL never outlives its promise by more than
    the one second that the format forces on the very short-lived."""
    if expires_ms <= now_ms:
        raise InvariantBroken(f"expires_ms={expires_ms} is in the past: it is an instant, not a duration")
    life_s = expires_ms // 1000 - now_ms // 1000
    if life_s > MAX_LIFE_S:
        raise InvariantBroken(f"a signed URL lives at most {MAX_LIFE_S} s, {life_s} were asked for")
    return max(1, life_s)


def _signing_key(place: S3Place, day: str) -> bytes:
    key = b"AWS4" + place.secret_key.encode()
    for part in (day, place.region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
