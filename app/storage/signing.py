"""Signed URLs: who holds one may do exactly one thing to one object until it expires.

Method, key, sha256, size and expiry are inside the signature (HMAC-SHA256). There is one spelling of a grant: a
query that says the same in other words is refused, so nothing outside the signature can be varied.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Literal

from app.errors import Forbidden, InvalidInput
from app.storage.keys import sha256_of_key

URL_PATH = "/objects/"
MIN_SIGNING_KEY_CHARS = 32

MALFORMED = "url_malformed"
WRONG_SIGNATURE = "url_signature_wrong"
EXPIRED = "url_expired"
WRONG_METHOD = "url_for_other_method"

_QUERY = re.compile(
    r"method=(?P<method>GET|PUT&sha256=(?P<sha256>[0-9a-f]{64})&size=(?P<size>0|[1-9][0-9]{0,18}))"
    r"&expires=(?P<expires>[1-9][0-9]{0,15})&signature=(?P<signature>[0-9a-f]{64})"
)
_ALLOWED = {"GET": ("GET", "HEAD"), "PUT": ("PUT",)}


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to GET (and HEAD) `key`, or to PUT exactly these bytes there, before `expires_ms` (an instant).

    `sha256` and `size_bytes` belong to PUT; a GET needs neither, its key ends in the hash.
    """

    method: Literal["GET", "PUT"]
    key: str
    expires_ms: int
    sha256: str | None = None
    size_bytes: int | None = None


def check_signing_key(signing_key: str) -> bytes:
    """The key as bytes. Raises InvalidInput when it is too short to be a secret."""
    if len(signing_key) < MIN_SIGNING_KEY_CHARS:
        raise InvalidInput(
            f"the signing key has {len(signing_key)} characters; give at least {MIN_SIGNING_KEY_CHARS} random ones",
            param="ALLPASS_OBJECTS_SIGNING_KEY",
        )
    return signing_key.encode()


def signed_url(base_url: str, grant: Grant, signing_key: bytes) -> str:
    """The grant as a URL below `base_url`."""
    upload = f"&sha256={grant.sha256}&size={grant.size_bytes}" if grant.method == "PUT" else ""
    query = f"method={grant.method}{upload}&expires={grant.expires_ms}&signature={_signature(grant, signing_key)}"
    return f"{base_url.rstrip('/')}{URL_PATH}{grant.key}?{query}"


def verify(method: str, key: str, query: str, *, signing_key: bytes, now_ms: int) -> Grant:
    """The grant that a request carries.

    Raises InvalidInput (bad key) and Forbidden, whose code says why: `url_malformed`, `url_signature_wrong`,
    `url_for_other_method`, `url_expired`. What a forged URL claims is never told apart further.
    """
    sha256_of_key(key)
    found = _QUERY.fullmatch(query)
    if found is None:
        raise Forbidden("this is not a signed URL of this store, or a part of it was changed", code=MALFORMED)
    size = found["size"]
    grant = Grant(
        method="PUT" if size is not None else "GET",
        key=key,
        expires_ms=int(found["expires"]),
        sha256=found["sha256"],
        size_bytes=None if size is None else int(size),
    )
    if not hmac.compare_digest(_signature(grant, signing_key), found["signature"]):
        raise Forbidden("the signature does not match this URL: use it exactly as it was given", code=WRONG_SIGNATURE)
    if method not in _ALLOWED[grant.method]:
        raise Forbidden(f"this URL is for {grant.method}, not for {method}", code=WRONG_METHOD)
    if now_ms >= grant.expires_ms:
        late_s = (now_ms - grant.expires_ms) / 1000
        raise Forbidden(f"this URL expired {late_s:.1f} s ago: ask for a new one", code=EXPIRED)
    return grant


def _signature(grant: Grant, signing_key: bytes) -> str:
    """No part can hold a line break (keys, hashes and numbers have closed alphabets), so joining is unambiguous."""
    parts = ("allpass-objects-1", grant.method, grant.key, grant.sha256, grant.size_bytes, grant.expires_ms)
    message = "\n".join("" if part is None else str(part) for part in parts)
    return hmac.new(signing_key, message.encode(), hashlib.sha256).hexdigest()
