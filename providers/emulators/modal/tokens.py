"""Short-lived tokens that the control plane hands out, and takes back as proof."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any


class Tokens:
    """JWTs of three parts. `ms` is what `exp` says; `refused_after` lets a server's clock run ahead of that."""

    def __init__(self, secret: str, now_ms: Callable[[], int]) -> None:
        self._secret = secret.encode()
        self._now_ms = now_ms

    def issue(self, kind: str, lifetime_ms: int) -> str:
        """A token for one purpose."""
        now_ms = self._now_ms()
        claims = {"kind": kind, "iat_ms": now_ms, "iat": now_ms // 1_000, "exp": (now_ms + lifetime_ms) / 1_000}
        body = f"{_text({'alg': 'HS256', 'typ': 'JWT'})}.{_text(claims)}"
        return f"{body}.{self._sign(body)}"

    def holds(self, kind: str, token: str, *, refused_after_ms: int = 0) -> bool:
        """Whether it is ours, for this purpose, and not over. `refused_after_ms`: a shorter life than it says."""
        body, _, signature = token.rpartition(".")
        if not hmac.compare_digest(signature, self._sign(body)):
            return False
        try:
            claims = json.loads(base64.urlsafe_b64decode(body.split(".")[1] + "=="))
        except (ValueError, IndexError):
            return False
        now_ms = self._now_ms()
        early = refused_after_ms and now_ms >= claims["iat_ms"] + refused_after_ms
        return bool(claims["kind"] == kind and now_ms < claims["exp"] * 1_000 and not early)

    def _sign(self, body: str) -> str:
        return _encoded(hmac.digest(self._secret, body.encode(), hashlib.sha256))


def _text(claims: dict[str, Any]) -> str:
    return _encoded(json.dumps(claims).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
