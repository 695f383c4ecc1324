"""Whether machines can bring to the object store, and fetch from it, by signed URL and through its public address."""

from __future__ import annotations

import hashlib
import secrets
from contextlib import suppress
from urllib.parse import urlsplit

import httpx

from app.core.model.finding import Finding, good, wrong
from app.errors import AllpassError
from app.ports.clock import Clock
from app.ports.objects import ObjectStore
from app.services.nodes.reach.asking import HttpAnswer, Unanswered, ask

NAME = "store"
PROBE_BYTES = 8 * 1024 * 1024
_WITHIN_S, _LIFE_MS = 120.0, 600_000
_FIRST, _LAST = 1_000, 1_999


class StoreLook:
    """`setting`: which one says where the store is reached."""

    def __init__(self, http: httpx.AsyncClient, store: ObjectStore, clock: Clock, *, setting: str) -> None:
        self._http, self._store, self._clock, self._setting = http, store, clock, setting

    async def findings(self) -> list[Finding]:
        """Put, get, get a part, and take it away again. What is left when that fails is swept up as a stray."""
        data = secrets.token_bytes(PROBE_BYTES)
        sha256 = hashlib.sha256(data).hexdigest()
        key = f"checks/{sha256}"
        expires_ms = self._clock.now_ms() + _LIFE_MS
        put = self._store.sign_put(key, sha256=sha256, size_bytes=len(data), expires_ms=expires_ms)
        get = self._store.sign_get(key, expires_ms=expires_ms)
        try:
            return [await self._brought_and_fetched(put, get, data)]
        finally:
            with suppress(AllpassError, OSError):
                await self._store.delete(key)

    async def _brought_and_fetched(self, put: str, get: str, data: bytes) -> Finding:
        sent = await ask(self._http, "PUT", put, within_s=_WITHIN_S, content=data)
        problem = self._problem("put", sent, {200, 201, 204})
        if problem is not None:
            return problem
        whole = await ask(self._http, "GET", get, within_s=_WITHIN_S)
        problem = self._problem("get", whole, {200}) or self._changed(whole, data)
        if problem is not None:
            return problem
        span = {"Range": f"bytes={_FIRST}-{_LAST}"}
        part = await ask(self._http, "GET", get, within_s=_WITHIN_S, headers=span)
        problem = self._problem("get a part of", part, {200, 206})
        if problem is not None:
            return problem
        assert isinstance(sent, HttpAnswer) and isinstance(whole, HttpAnswer) and isinstance(part, HttpAnswer)
        if part.status != 206 or part.body != data[_FIRST : _LAST + 1]:
            return wrong(
                NAME,
                "store_no_ranges",
                f"{self._where(get)} gives the whole object where a part was asked for",
                "have the proxy pass on the header Range, and cache nothing",
            )
        mib = len(data) / 2**20
        return good(
            NAME,
            f"{self._where(get)}: {mib:.0f} MiB there in {sent.took_s:.1f} s and back in {whole.took_s:.1f} s, "
            "parts work",
        )

    def _problem(self, what: str, answer: HttpAnswer | Unanswered, good_statuses: set[int]) -> Finding | None:
        if isinstance(answer, Unanswered):
            fix = f"{answer.fix}; the address is {self._setting}"
            return wrong(NAME, f"store_{answer.code}", f"cannot {what} an object: {answer.words}", fix)
        if answer.status in good_statuses:
            return None
        if 300 <= answer.status < 400:
            return wrong(
                NAME,
                "store_redirects",
                f"the store answers {answer.status} and sends elsewhere",
                f"set {self._setting} to the address that it leads to",
            )
        if answer.status == 413:
            return wrong(
                NAME,
                "store_body_limit",
                f"an object of {PROBE_BYTES // 2**20} MiB is refused as too large; checkpoints are larger",
                "take away the proxy's limit for bodies (nginx: client_max_body_size 0)",
            )
        code = "store_nothing_behind" if answer.status in (502, 503, 504) else "store_refuses"
        said = answer.body[:120].decode(errors="replace")
        return wrong(
            NAME,
            code,
            f"cannot {what} an object through {self._setting}: status {answer.status} {said}",
            "start the tunnel to the store's port; have the proxy keep the path and the header Host; look at the keys",
        )

    def _changed(self, answer: HttpAnswer | Unanswered, data: bytes) -> Finding | None:
        if isinstance(answer, HttpAnswer) and answer.body == data:
            return None
        return wrong(
            NAME,
            "store_changes_bytes",
            "an object comes back as other bytes than were stored",
            "have the proxy change nothing: no compression, no cache",
        )

    def _where(self, url: str) -> str:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc}"
