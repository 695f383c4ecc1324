"""Calls to the API server, as plain JSON, within a deadline.

Those that change nothing when they are repeated (GET, and DELETE of one object by its uid) the library sends once more
when a connection breaks; a POST never.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp

from app.errors import OutcomeUnknown, Transient
from providers.kubernetes.connecting import connected
from providers.kubernetes.options import KubeOptions
from providers.kubernetes.refusals import KubeAnswer, refusal

if TYPE_CHECKING:
    from kubernetes_asyncio import client

_MOST_PAGES = 1_000
_MOST_RELISTS = 3
_LARGEST_LINE_BYTES = 4_000_000
_SILENCE_S = 90.0  # bookmarks come about once a minute: a watch that is silent for longer has lost its server
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class KubeWire:
    """Raises ProviderError only. What keeps a call from its answer is Transient, but OutcomeUnknown for a create."""

    def __init__(self, options: KubeOptions) -> None:
        self._options = options
        self._api: client.ApiClient | None = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """Harmless when repeated."""
        api, self._api = self._api, None
        if api is not None:
            await api.close()
            for _ in range(2):  # a connection with TLS is closed in two turns of the loop
                await asyncio.sleep(0)

    def place(self, group: str, plural: str, name: str = "") -> str:
        """An address within our namespace."""
        base = "/api/v1" if group == "v1" else f"/apis/{group}"
        path = f"{base}/namespaces/{self._options.namespace}/{plural}"
        return f"{path}/{name}" if name else path

    async def create(self, path: str, body: Mapping[str, Any]) -> KubeAnswer:
        """The answer, a clear refusal among them. OutcomeUnknown as soon as it may have taken effect without one."""
        try:
            answer = await self._call("POST", path, body=body)
        except _NOT_SENT as error:
            raise Transient(f"kubernetes cannot be reached: {_words(error)}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise OutcomeUnknown(f"kubernetes did not answer POST {path}: {_words(error)}") from error
        if isinstance(refusal(answer), Transient):
            raise OutcomeUnknown(f"whether POST {path} took effect is not clear: {answer.status} {answer.words}")
        return answer

    async def ask(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> KubeAnswer:
        """A call that the service may repeat; its answer may be a refusal."""
        try:
            return await self._call(method, path, query, body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Transient(f"kubernetes did not answer {method} {path}: {_words(error)}") from error

    async def get(self, path: str) -> dict[str, Any] | None:
        """One object; None when the API server says that there is none."""
        answer = await self.ask("GET", path)
        if answer.is_missing:
            return None
        _raise_refusal(answer)
        return answer.body()

    async def listed(self, path: str, selector: str) -> tuple[list[Any], str]:
        """All objects of a selector, page by page, and the version of the list. One that expires between two pages is
        begun anew."""
        for _ in range(_MOST_RELISTS):
            found = await self._pages(path, selector)
            if found is not None:
                return found
        raise Transient(f"kubernetes: the list of {path} expires again and again; ask again later")

    async def _pages(self, path: str, selector: str) -> tuple[list[Any], str] | None:
        rows: list[Any] = []
        query = {"labelSelector": selector, "limit": str(self._options.page)}
        for _ in range(_MOST_PAGES):
            answer = await self.ask("GET", path, query)
            if answer.status == 410:
                return None
            _raise_refusal(answer)
            body = answer.body()
            meta, items = body.get("metadata"), body.get("items")
            if not isinstance(meta, dict) or not isinstance(items, list):
                raise Transient(f"kubernetes: the list of {path} cannot be read: {answer.text[:200]!r}")
            rows += items
            if not meta.get("continue"):
                return rows, str(meta.get("resourceVersion") or "")
            query = {**query, "continue": str(meta["continue"])}
        raise Transient(f"kubernetes: the list of {path} has no end")

    @asynccontextmanager
    async def watched(self, path: str, selector: str, version: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events from this version on, until the server ends the watch. Raises Transient when it breaks off."""
        query = {"labelSelector": selector, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        timeout = aiohttp.ClientTimeout(sock_connect=self._options.timeout_s, sock_read=_SILENCE_S)
        try:
            response = await self._send("GET", path, {**query, "timeoutSeconds": "300"}, None, timeout)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Transient(f"kubernetes did not answer the watch of {path}: {_words(error)}") from error
        try:
            if response.status != 200:
                _raise_refusal(KubeAnswer(f"the watch of {path}", response.status, await response.text()))
            yield _events(response, path)
        finally:
            _cut(response)

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> KubeAnswer:
        timeout = aiohttp.ClientTimeout(
            total=self._options.timeout_s, sock_connect=self._options.timeout_s / 2, connect=self._options.timeout_s / 2
        )
        response = await self._send(method, path, query, body, timeout)
        try:
            text = (await response.read()).decode(errors="replace")
        finally:
            response.release()
        return KubeAnswer(f"{method} {path}", response.status, text, response.headers.get("Retry-After", ""))

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        async with self._opening:
            if self._api is None:
                self._api = await connected(self._options)
        answered: aiohttp.ClientResponse = await self._api.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=limits,
        )
        return answered


def _cut(response: aiohttp.ClientResponse) -> None:
    """End a watch at once: with TLS a connection that is closed waits for a word of the other side."""
    connection = response.connection
    transport = None if connection is None else connection.transport
    response.close()
    if transport is not None:
        transport.abort()


async def _events(response: aiohttp.ClientResponse, path: str) -> AsyncIterator[dict[str, Any]]:
    rest = b""
    try:
        async for chunk in response.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LARGEST_LINE_BYTES:
                raise Transient(f"kubernetes: an event of the watch of {path} has no end")
            for line in lines:
                event = json.loads(line) if line.strip() else None
                if isinstance(event, dict):
                    yield event
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise Transient(f"kubernetes: the watch of {path} broke off: {_words(error)}") from error


def _raise_refusal(answer: KubeAnswer) -> None:
    refused = refusal(answer)
    if refused is not None:
        raise refused


def _words(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()[:300]
