"""Calls to RunPod's REST API, version 2: in turn, within a deadline, and never twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from app.errors import OutcomeUnknown, Transient
from app.ports.pace import Pace
from providers.runpod.options import RunpodOptions
from providers.runpod.refusals import creating_refused, is_missing, refusal, summary

CALL = "call"  # the lane of all calls of the account
_CONNECT_S = 10.0
_KEEPALIVE_S = 5.0  # shorter than theirs, so that we never send into a connection that has just been closed
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_PODS = "/v2/pods"


class RunpodWire:
    """Raises ProviderError only. What keeps a call from its answer is Transient, but OutcomeUnknown for a create."""

    def __init__(self, options: RunpodOptions, *, pace: Pace) -> None:
        self._options = options
        self._pace = pace
        self._http = httpx.AsyncClient(
            base_url=options.base_url.rstrip("/"),
            headers={"Authorization": f"Bearer {options.api_key}"},
            timeout=httpx.Timeout(options.timeout_s, connect=min(_CONNECT_S, options.timeout_s / 2)),
            limits=httpx.Limits(max_connections=8, keepalive_expiry=_KEEPALIVE_S),
            trust_env=False,
            verify=not options.base_url.startswith("http://"),  # no certificates for what is not encrypted
        )

    async def close(self) -> None:
        """Harmless when repeated."""
        await self._http.aclose()

    async def gpus(self, params: Mapping[str, str]) -> list[Any]:
        """The types of GPU, with the stock that these parameters ask for."""
        return _list(await self._ask("GET", "/v2/catalog/gpus", params=params), "gpus")

    async def gpu(self, gpu_id: str, params: Mapping[str, str]) -> Mapping[str, Any] | None:
        """One type of GPU; None when RunPod has none of this name."""
        response = await self._ask("GET", f"/v2/catalog/gpus/{_segment(gpu_id)}", params=params, missing_is_fine=True)
        return None if is_missing(response) else _object(response)

    async def create(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The new pod. OutcomeUnknown as soon as the call may have arrived without a clear answer."""
        await self._pace.turn(CALL, self._options.call_every_ms)
        try:
            async with asyncio.timeout(self._options.timeout_s):
                response = await self._http.post(_PODS, json=body)
        except _NOT_SENT as error:
            raise Transient(f"runpod cannot be reached: {_words(error)}") from error
        except (httpx.HTTPError, TimeoutError) as error:
            raise OutcomeUnknown(f"runpod did not answer the create call: {_words(error)}") from error
        refused = creating_refused(response, pause_ms=self._options.call_every_ms)
        if isinstance(refused, Transient):
            raise OutcomeUnknown(f"whether the create call took effect is not clear: {refused.message}")
        if refused is not None:
            raise refused
        row = _json(response)
        if not isinstance(row, dict) or not isinstance(row.get("id"), str) or not row["id"]:
            raise OutcomeUnknown(f"the answer to the create call names no pod: {response.status_code}")
        return row

    async def pods(self) -> list[Any]:
        """Every pod of the account that is not gone."""
        return _list(await self._ask("GET", _PODS), "pods")

    async def pod(self, ref: str) -> Mapping[str, Any] | None:
        """One pod; None when RunPod itself says that there is none."""
        response = await self._ask("GET", f"{_PODS}/{_segment(ref)}", missing_is_fine=True)
        return None if is_missing(response) else _object(response)

    async def delete(self, ref: str) -> None:
        """The pod is over, or there was none. What refuses that for now (it is locked) is Transient."""
        await self._pace.turn(CALL, self._options.call_every_ms)
        response = await self._send("DELETE", f"{_PODS}/{_segment(ref)}")
        if is_missing(response):
            return
        refused = refusal(response, pause_ms=self._options.call_every_ms)
        if refused is not None and response.status_code in {httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY}:
            raise Transient(f"pod {ref} cannot be deleted now: {refused.message}")
        if refused is not None:
            raise refused

    async def _ask(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, missing_is_fine: bool = False
    ) -> httpx.Response:
        """A call that may be repeated."""
        await self._pace.turn(CALL, self._options.call_every_ms)
        response = await self._send(method, path, params)
        if missing_is_fine and is_missing(response):
            return response
        refused = refusal(response, pause_ms=2 * self._options.call_every_ms)
        if refused is not None:
            raise refused
        return response

    async def _send(self, method: str, path: str, params: Mapping[str, str] | None = None) -> httpx.Response:
        try:
            async with asyncio.timeout(self._options.timeout_s):
                return await self._http.request(method, path, params=params)
        except (httpx.HTTPError, TimeoutError) as error:
            raise Transient(f"runpod did not answer {method} {path}: {_words(error)}") from error


def _list(response: httpx.Response, name: str) -> list[Any]:
    body = _json(response)
    listed = body.get(name) if isinstance(body, dict) else None
    if not isinstance(listed, list):
        raise Transient(f"runpod: the answer holds no list of {name}: {summary(response)}")
    return listed


def _object(response: httpx.Response) -> Mapping[str, Any]:
    body = _json(response)
    if not isinstance(body, dict):
        raise Transient(f"the answer to {response.request.url.path} cannot be read: {summary(response)}")
    return body


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _segment(text: str) -> str:
    return quote(text, safe="")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()
