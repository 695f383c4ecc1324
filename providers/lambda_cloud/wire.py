"""Calls to Lambda's HTTP API: in turn, within a deadline, and never twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from app.errors import OutcomeUnknown, Transient
from app.ports.pace import Pace
from providers.lambda_cloud.options import LambdaOptions
from providers.lambda_cloud.refusals import MISSING, code_of, refusal, summary

CALL, LAUNCH = "call", "launch"  # lanes: all calls of the account; launches beside that
_API = "/api/v1"
_CONNECT_S = 10.0
_KEEPALIVE_S = 5.0  # shorter than theirs, so that we never send into a connection that has just been closed
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_LAUNCH_PATH = "/instance-operations/launch"


class LambdaWire:
    """Raises ProviderError only. What keeps a call from its answer is Transient, but OutcomeUnknown for a launch."""

    def __init__(self, options: LambdaOptions, *, pace: Pace) -> None:
        self._options = options
        self._pace = pace
        self._http = httpx.AsyncClient(
            base_url=options.base_url.rstrip("/") + _API,
            headers={"Authorization": f"Bearer {options.api_key}"},
            timeout=httpx.Timeout(options.timeout_s, connect=min(_CONNECT_S, options.timeout_s / 2)),
            limits=httpx.Limits(max_connections=8, keepalive_expiry=_KEEPALIVE_S),
            trust_env=False,
            verify=not options.base_url.startswith("http://"),  # no certificates for what is not encrypted
        )

    async def close(self) -> None:
        """Harmless when repeated."""
        await self._http.aclose()

    async def instance_types(self) -> Mapping[str, Any]:
        """All types by name, each with the regions that have some."""
        return _object(await self._ask("GET", "/instance-types"))

    async def launch(self, body: Mapping[str, Any]) -> list[str]:
        """The ids of what was launched. OutcomeUnknown as soon as the call may have arrived without a clear answer."""
        await self._pace.turn(LAUNCH, self._options.launch_every_ms)
        await self._pace.turn(CALL, self._options.call_every_ms)
        try:
            async with asyncio.timeout(self._options.timeout_s):
                response = await self._http.post(_LAUNCH_PATH, json=body)
        except _NOT_SENT as error:
            raise Transient(f"lambda cannot be reached: {_words(error)}") from error
        except (httpx.HTTPError, TimeoutError) as error:
            raise OutcomeUnknown(f"lambda did not answer the launch: {_words(error)}") from error
        refused = refusal(response, pause_ms=self._options.launch_every_ms)
        if isinstance(refused, Transient):
            raise OutcomeUnknown(f"whether the launch took effect is not clear: {refused.message}")
        if refused is not None:
            raise refused
        try:
            ids = response.json()["data"]["instance_ids"]
        except (ValueError, KeyError, TypeError) as error:
            raise OutcomeUnknown(f"the answer to the launch cannot be read: {summary(response)}") from error
        if not isinstance(ids, list) or not ids or not all(isinstance(each, str) and each for each in ids):
            raise OutcomeUnknown(f"the answer to the launch names no instance: {summary(response)}")
        return ids

    async def instances(self) -> list[Mapping[str, Any]]:
        """Every instance that is not gone."""
        response = await self._ask("GET", "/instances")
        rows = _data(response)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Transient(f"the list of instances cannot be read: {summary(response)}")
        return rows

    async def instance(self, ref: str) -> Mapping[str, Any] | None:
        """One instance; None when Lambda itself says that there is none."""
        response = await self._ask("GET", f"/instances/{quote(ref, safe='')}", missing_is_fine=True)
        return None if code_of(response) == MISSING else _object(response)

    async def terminate(self, ref: str) -> str | None:
        """None when it was accepted, or there is no such instance; else why it was refused just now.

        Whether a refusal means that the end is under way already, only a look at the instance can tell.
        """
        path = "/instance-operations/terminate"
        await self._pace.turn(CALL, self._options.call_every_ms)
        response = await self._send("POST", path, {"instance_ids": [ref]})
        if code_of(response) == MISSING:
            return None
        refused = refusal(response, pause_ms=self._options.call_every_ms)
        if refused is None:
            return None
        if isinstance(refused, Transient) and response.is_client_error:
            return refused.message
        raise refused

    async def _ask(self, method: str, path: str, *, missing_is_fine: bool = False) -> httpx.Response:
        """A call that may be repeated."""
        await self._pace.turn(CALL, self._options.call_every_ms)
        response = await self._send(method, path)
        if missing_is_fine and code_of(response) == MISSING:
            return response
        refused = refusal(response, pause_ms=2 * self._options.call_every_ms)
        if refused is not None:
            raise refused
        return response

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        try:
            async with asyncio.timeout(self._options.timeout_s):
                return await self._http.request(method, path, json=body)
        except (httpx.HTTPError, TimeoutError) as error:
            raise Transient(f"lambda did not answer {method} {path}: {_words(error)}") from error


def _object(response: httpx.Response) -> Mapping[str, Any]:
    data = _data(response)
    if not isinstance(data, dict):
        raise Transient(f"the answer to {response.request.url.path} cannot be read: {summary(response)}")
    return data


def _data(response: httpx.Response) -> Any:
    try:
        return response.json()["data"]
    except (ValueError, KeyError, TypeError) as error:
        raise Transient(f"the answer to {response.request.url.path} cannot be read: {summary(response)}") from error


def _words(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()
