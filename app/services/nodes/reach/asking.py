"""One request as a rented machine makes it: no proxy of this shell, no authorities but the usual ones, no redirects."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx

_CONNECT_S = 10.0
_MOST_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: httpx.Headers
    body: bytes
    took_s: float
    received_s: float  # when the head came, by the clock of this host

    def skew_s(self) -> float | None:
        """How far the answering clock is ahead of ours; None where it tells no time. Dates have whole seconds."""
        try:
            told = parsedate_to_datetime(self.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            return None
        ahead = told - self.received_s
        return min(ahead + 1, 0.0) if ahead < 0 else ahead


@dataclass(frozen=True, slots=True)
class Unanswered:
    """`code` is stable; `took_s` says how long it was tried."""

    code: str
    words: str
    fix: str
    took_s: float


@asynccontextmanager
async def machine(authorities: ssl.SSLContext | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client that meets what a rented machine meets."""
    async with httpx.AsyncClient(
        trust_env=False, verify=authorities or True, headers={"User-Agent": "allpass-agent"}
    ) as http:
        yield http


async def ask(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    within_s: float,
    content: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpAnswer | Unanswered:
    """Never raises for what the other side does; no more than 16 MiB of an answer are read."""
    begun = time.monotonic()
    try:
        async with (
            asyncio.timeout(within_s),
            http.stream(
                method, url, content=content, headers=headers, timeout=httpx.Timeout(within_s, connect=_CONNECT_S)
            ) as reply,
        ):
            received_s, body = time.time(), bytearray()
            async for part in reply.aiter_raw():
                body += part
                if len(body) > _MOST_BYTES:
                    break
            return HttpAnswer(reply.status_code, reply.headers, bytes(body), time.monotonic() - begun, received_s)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, ValueError) as error:
        return _unanswered(error, urlsplit(url).hostname or "", time.monotonic() - begun)


def _unanswered(error: Exception, host: str, took_s: float) -> Unanswered:
    chain = list(_causes(error))
    if any(isinstance(one, socket.gaierror) for one in chain):
        return Unanswered("name_unknown", f"no name server knows {host}", "correct the name, or add its record", took_s)
    if any(isinstance(one, ssl.SSLCertVerificationError) for one in chain):
        why = next(one for one in chain if isinstance(one, ssl.SSLCertVerificationError)).verify_message
        fix = "use a certificate of a public authority for this very name (Caddy gets one by itself)"
        return Unanswered("certificate_wrong", f"the certificate of {host} is not accepted ({why})", fix, took_s)
    if any(isinstance(one, ssl.SSLError) for one in chain):
        return Unanswered("tls_failed", f"{host} does not speak TLS there", "set up TLS, or correct the port", took_s)
    if any(isinstance(one, ConnectionRefusedError) for one in chain) or "refused" in str(error):
        fix = "start the proxy or tunnel that leads here, and open its port"
        return Unanswered("refused", f"nothing listens at {host} on that port", fix, took_s)
    if any(isinstance(one, httpx.TimeoutException | TimeoutError) for one in chain):
        fix = "look at firewalls and at the tunnel"
        return Unanswered("no_answer", f"no answer from {host} within {took_s:.0f} s", fix, took_s)
    said = str(error) or type(error).__name__
    return Unanswered("cut", f"{host} ended the connection after {took_s:.0f} s ({said})", "look at its log", took_s)


def _causes(error: BaseException) -> list[BaseException]:
    """The error and everything that it came of, groups of errors included."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or one in found:
            continue
        found.append(one)
        waiting += [one.__cause__, one.__context__]
        waiting += getattr(one, "exceptions", ())
    return found
