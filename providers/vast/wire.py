"""Calls to Vast.ai's HTTP API: one at a time in each lane, within a deadline, and never twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from app.errors import OutcomeUnknown, ProviderError, RateLimited, Transient
from app.ports.clock import Clock
from app.ports.pace import Pace
from providers.vast.options import VastOptions
from providers.vast.refusals import body_of, is_nothing_there, refusal, summary

_CONNECT_S = 10.0
_KEEPALIVE_S = 5.0
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_PAGE = 25  # the most that a listing gives at once
_MOST_PAGES = 400
_MOST_LOG_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Lane:
    """A kind of call with its own limit: at least `every_ms` between two of one account."""

    name: str
    every_ms: int
    pause_ms: int  # after a refusal for being too fast, when the answer does not say how long


# The documented intervals and a tenth: calls that leave in time may arrive closer together than they left.
SEARCH = Lane("search", 6_600, 60_000)  # ten in a minute
CREATE = Lane("create", 5_000, 12_000)
SHOW = Lane("show", 2_200, 4_000)
LIST = Lane("list", 1_100, 2_000)
DESTROY = Lane("destroy", 3_300, 3_000)
LOGS = Lane("logs", 1_650, 3_000)
CHARGES = Lane("charges", 1_100, 2_000)
ACCOUNT = Lane("account", 1_100, 2_000)


class VastWire:
    """Raises ProviderError only. An answer that cannot be had is Transient, but OutcomeUnknown for `create`."""

    def __init__(self, options: VastOptions, *, clock: Clock, pace: Pace) -> None:
        self._options = options
        self._clock = clock
        self._pace = pace
        self._search_closed_until_ms = 0
        timeout = httpx.Timeout(options.timeout_s, connect=min(_CONNECT_S, options.timeout_s))
        encrypted = not options.base_url.startswith("http://")  # loading certificates takes its time
        self._http = httpx.AsyncClient(
            base_url=options.base_url,
            headers={"Authorization": f"Bearer {options.api_key}"},
            timeout=timeout,
            limits=httpx.Limits(max_connections=16, keepalive_expiry=_KEEPALIVE_S),
            trust_env=False,
            verify=encrypted,
        )
        # Logs lie with somebody else, who is not to see our key.
        self._elsewhere = httpx.AsyncClient(timeout=timeout, trust_env=False, verify=encrypted)

    async def close(self) -> None:
        """Harmless when repeated."""
        await self._http.aclose()
        await self._elsewhere.aclose()

    async def search(self, body: Mapping[str, Any]) -> list[Any]:
        """The offers found. Once the day's searches are used up, nothing is asked before they are given anew."""
        left_ms = self._search_closed_until_ms - self._clock.now_ms()
        if left_ms > 0:
            raise RateLimited("vast: all searches of the day are used up", retry_after_ms=left_ms)
        try:
            response = await self._ask(SEARCH, "POST", "/api/v0/bundles/", body=body)
        except RateLimited as error:
            if error.retry_after_ms <= SEARCH.every_ms:  # our own distance between two searches
                raise
            self._search_closed_until_ms = self._clock.now_ms() + error.retry_after_ms
            raise
        return _list(response, "offers")

    async def create(self, offer_id: str, body: Mapping[str, Any]) -> httpx.Response:
        """Whatever was answered, also a refusal: it may name a contract. OutcomeUnknown when the answer is lost."""
        await self._pace.turn(CREATE.name, CREATE.every_ms)
        try:
            async with asyncio.timeout(self._options.timeout_s):
                response = await self._http.put(f"/api/v0/asks/{_segment(offer_id)}/", json=body)
        except _NOT_SENT as error:
            raise Transient(f"vast cannot be reached: {_words(error)}") from error
        except (httpx.HTTPError, TimeoutError) as error:
            raise OutcomeUnknown(f"vast did not answer the create call: {_words(error)}") from error
        return _masked(response, str(body.get("image_login", "")))

    async def show(self, ref: str) -> Mapping[str, Any] | None:
        """The contract with this id; None when there is none."""
        path, params = f"/api/v0/instances/{_segment(ref)}/", {"owner": "me"}
        response = await self._ask(SHOW, "GET", path, params=params, missing=ref)
        if is_nothing_there(response, ref):
            return None
        body = body_of(response)
        row = body.get("instances")
        if "instances" not in body or not (row is None or isinstance(row, dict)):
            raise Transient(f"vast: the answer for contract {ref} cannot be read: {summary(response)}")
        return row

    async def instances(self, filters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """All contracts that the filters let through, page by page."""
        params = {
            "select_filters": json.dumps(filters),
            "order_by": json.dumps([{"col": "id", "dir": "asc"}]),
            "limit": str(_PAGE),
        }
        rows: dict[str, Mapping[str, Any]] = {}  # a contract that two pages show is one contract
        for _ in range(_MOST_PAGES):
            response = await self._ask(LIST, "GET", "/api/v1/instances/", params=params)
            rows |= {str(row.get("id")): row for row in _list(response, "instances") if isinstance(row, dict)}
            token = body_of(response).get("next_token")
            if not token:
                return list(rows.values())
            if params.get("after_token") == str(token):
                raise Transient("vast: the listing goes round in circles")
            params["after_token"] = str(token)
        raise Transient(f"vast: the listing does not end after {_MOST_PAGES} pages")

    async def destroy(self, ref: str) -> bool:
        """The contract is over; False when there was none."""
        response = await self._ask(DESTROY, "DELETE", f"/api/v0/instances/{_segment(ref)}/", body={}, missing=ref)
        return not is_nothing_there(response, ref)

    async def charges(self, from_s: int, to_s: int) -> list[Any]:
        """What was charged for contracts in these days, the latest first: as much as one page holds."""
        filters = {"day": {"gte": from_s, "lte": to_s}, "type": {"in": ["instance"]}}
        params = {"select_filters": json.dumps(filters), "latest_first": "true", "limit": "500"}
        return _list(await self._ask(CHARGES, "GET", "/api/v0/charges/", params=params), "results")

    async def account(self) -> Mapping[str, Any]:
        """The account that our key belongs to."""
        return body_of(await self._ask(ACCOUNT, "GET", "/api/v0/users/current/"))

    async def logs(self, ref: str, tail_lines: int) -> str:
        """Ask for the container's log, and fetch it when it is there. Empty for a contract that is not known."""
        body, path = {"tail": str(tail_lines)}, f"/api/v0/instances/request_logs/{_segment(ref)}/"
        response = await self._ask(LOGS, "PUT", path, body=body, missing=ref)
        if is_nothing_there(response, ref):
            return ""
        url = body_of(response).get("result_url")
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise Transient(f"vast: no address of the log of {ref}: {summary(response)}")
        return await self._fetch(url)

    async def _fetch(self, url: str) -> str:
        """It appears there some time after it was asked for."""
        try:
            async with asyncio.timeout(self._options.timeout_s):
                while True:
                    text = await self._try_fetch(url)
                    if text is not None:
                        return text
                    await self._clock.sleep_ms(300)
        except TimeoutError as error:
            raise Transient(f"vast: the log was not ready within {self._options.timeout_s:g} s") from error

    async def _try_fetch(self, url: str) -> str | None:
        try:
            async with self._elsewhere.stream("GET", url) as response:
                if response.status_code != httpx.codes.OK:
                    return None
                parts, size = [], 0
                async for part in response.aiter_bytes():
                    parts.append(part)
                    size += len(part)
                    if size > _MOST_LOG_BYTES:
                        break
        except httpx.HTTPError as error:
            raise Transient(f"vast: the log cannot be fetched: {_words(error)}") from error
        return b"".join(parts).decode(errors="replace")

    async def _ask(
        self,
        lane: Lane,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        missing: str | None = None,
    ) -> httpx.Response:
        """A call that may be repeated. `missing`: the contract whose absence is an answer, not an error."""
        await self._pace.turn(lane.name, lane.every_ms)
        try:
            async with asyncio.timeout(self._options.timeout_s):
                response = await self._http.request(method, path, params=params, json=body)
        except (httpx.HTTPError, TimeoutError) as error:
            raise Transient(f"vast did not answer {method} {path}: {_words(error)}") from error
        refused = self.refused(response, lane)
        if refused is None or (missing is not None and is_nothing_there(response, missing)):
            return response
        raise refused

    def refused(self, response: httpx.Response, lane: Lane) -> ProviderError | None:
        """What the answer refuses; None for a success."""
        return refusal(response, pause_ms=lane.pause_ms, now_ms=self._clock.now_ms())


def _list(response: httpx.Response, name: str) -> list[Any]:
    listed = body_of(response).get(name)
    if not isinstance(listed, list):
        raise Transient(f"vast: the answer holds no list of {name}: {summary(response)}")
    return listed


def _masked(response: httpx.Response, image_login: str) -> httpx.Response:
    """Answers are quoted in errors and logs: one that repeats what was sent must not tell the password."""
    password = next(iter(image_login.split(" ")[3:]), "")
    if not password or password not in response.text:
        return response
    kept = {name: value for name, value in response.headers.items() if name.lower() == "retry-after"}
    return httpx.Response(response.status_code, headers=kept, text=response.text.replace(password, "***"))


def _segment(text: str) -> str:
    return quote(text, safe="")


def _words(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
