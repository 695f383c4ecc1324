"""The local cloud as a provider: three tiers under one account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from app.core.model.ids import is_id
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.errors import (
    AuthFailed,
    InvalidRequest,
    NoCapacity,
    OfferGone,
    OutcomeUnknown,
    PriceMoved,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
)
from app.ports.clock import Clock
from app.ports.provider import Machine, MachineRequest, MachineStatus

NAME = "local"
_TRAITS_FRESH_MS = 60_000
_KEEPALIVE_S = 5.0  # shorter than the cloud's own, so that we never send into a connection it has just closed
_DEFAULT_RETRY_AFTER_MS = 1_000
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_REFUSALS: Mapping[str, type[ProviderError]] = {
    "offer_gone": OfferGone,
    "price_moved": PriceMoved,
    "no_capacity": NoCapacity,
    "quota_exceeded": QuotaExceeded,
}
# Until the cloud has told how it runs: as slow as it can be, so that nothing is given up too early.
_UNSCALED = (
    ProviderTraits(NAME, Tier.SERVERLESS, BillingRule(1_000, BillingStart.REQUEST), 3_880, 60_000, 30_000, True, False),
    ProviderTraits(
        NAME, Tier.MARKETPLACE, BillingRule(1_000, BillingStart.READY), 36_040, 600_000, 30_000, False, True
    ),
    ProviderTraits(
        NAME,
        Tier.CONVENTIONAL,
        BillingRule(60_000, BillingStart.READY),
        255_590,
        1_800_000,
        30_000,
        False,
        False,
        is_networked=True,
    ),
)


class LocalProvider:
    """Implements `app.ports.provider.Provider`. No method ever tries a call twice."""

    name = NAME

    def __init__(self, base_url: str, api_key: str, *, timeout_s: float = 30.0, clock: Clock) -> None:
        """`timeout_s` bounds each phase of a call (connect, send, wait for the answer)."""
        self._clock = clock
        self._traits: tuple[ProviderTraits, ...] = _UNSCALED
        self._traits_until_ms = 0
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=32, keepalive_expiry=_KEEPALIVE_S),
            trust_env=False,
            verify=not base_url.startswith("http://"),  # no need to load certificates for what is not encrypted
        )

    def traits(self) -> tuple[ProviderTraits, ...]:
        """One per tier. Scaled as the cloud runs once `offers` has been called; before that, as slow as can be."""
        return self._traits

    async def offers(self) -> list[Offer]:
        """What can be rented now. Also brings `traits` up to date, at most once a minute."""
        if self._clock.now_ms() >= self._traits_until_ms:
            classes = _read(await self._ask("GET", "/v1/traits"), "classes")
            self._traits = tuple(_traits(each) for each in classes)
            self._traits_until_ms = self._clock.now_ms() + _TRAITS_FRESH_MS
        return [_offer(each) for each in _read(await self._ask("GET", "/v1/offers"), "offers")]

    async def create(self, request: MachineRequest) -> Machine:
        """Rent `request.offer`. OutcomeUnknown as soon as the call may have arrived and no clear answer came back."""
        if request.offer.provider != NAME:
            raise InvalidRequest(f"offer {request.offer.key} is not one of provider {NAME}")
        body = {
            "label": request.label,
            "offer_id": request.offer.offer_id,
            "max_price_micros_per_hour": request.max_price_per_hour.micros,
            "image": request.image,
            "env": dict(request.bootstrap),
            "lifetime_ms": request.lifetime_ms,
        }
        try:
            response = await self._http.post("/v1/machines", json=body)
        except _NOT_SENT as error:
            raise Transient(f"the local cloud cannot be reached: {_words(error)}") from error
        except httpx.HTTPError as error:
            raise OutcomeUnknown(f"the local cloud did not answer the create call: {_words(error)}") from error
        if not response.is_success and not response.is_client_error:
            raise OutcomeUnknown(f"the local cloud answered the create call with {_summary(response)}")
        _raise_refusal(response)
        try:
            return _machine(response.json())
        except (ValueError, KeyError, TypeError) as error:
            raise OutcomeUnknown(f"the answer to the create call cannot be read: {_words(error)}") from error

    async def get(self, ref: str) -> Machine | None:
        """Also long after its end. None: there never was such a machine in this account."""
        response = await self._ask("GET", _path(ref), missing_is_fine=True)
        return None if response.status_code == httpx.codes.NOT_FOUND else _read_machine(response)

    async def find(self, label: str) -> list[Machine]:
        """All machines ever rented under this label, oldest first, ended ones included."""
        response = await self._ask("GET", "/v1/machines", params={"label": label})
        return [_readable(each) for each in _read(response, "machines")]

    async def list_owned(self) -> list[Machine]:
        """Machines whose label is a node id: all live ones, and those that ended in the last 15 minutes."""
        machines = [_readable(each) for each in _read(await self._ask("GET", "/v1/machines"), "machines")]
        return [machine for machine in machines if machine.label is not None and is_id(machine.label, "node")]

    async def terminate(self, ref: str) -> None:
        """End the machine and wait until it is gone. One that is gone or unknown is a success."""
        await self._ask("DELETE", _path(ref), missing_is_fine=True)

    async def logs(self, ref: str, tail_lines: int) -> str:
        """The last lines the machine itself wrote; empty for a machine that is not known."""
        params = {"tail": str(tail_lines)}
        response = await self._ask("GET", f"{_path(ref)}/logs", params=params, missing_is_fine=True)
        return "" if response.status_code == httpx.codes.NOT_FOUND else response.text

    async def close(self) -> None:
        """Close the connections; harmless when repeated."""
        await self._http.aclose()

    async def _ask(
        self, method: str, path: str, *, params: dict[str, str] | None = None, missing_is_fine: bool = False
    ) -> httpx.Response:
        """A call that may be repeated: whatever keeps it from an answer is Transient."""
        try:
            response = await self._http.request(method, path, params=params)
        except httpx.HTTPError as error:
            raise Transient(f"the local cloud did not answer {method} {path}: {_words(error)}") from error
        if missing_is_fine and _is_missing(response):
            return response
        if not response.is_success and not response.is_client_error:
            raise Transient(f"the local cloud answered {method} {path} with {_summary(response)}")
        _raise_refusal(response)
        return response


def _path(ref: str) -> str:
    return f"/v1/machines/{quote(ref, safe='')}"


def _is_missing(response: httpx.Response) -> bool:
    """The cloud's own word that there is no such machine: any other 404 comes from somebody else at this address."""
    return response.status_code == httpx.codes.NOT_FOUND and _error_body(response).get("code") == "machine_not_found"


def _raise_refusal(response: httpx.Response) -> None:
    """Turn a 4xx answer into the error that says what to do about it."""
    if not response.is_client_error:
        return
    error = _error_body(response)
    message = f"local cloud: {error.get('message') or _summary(response)}"
    if response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        raise AuthFailed(message)
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise RateLimited(message, retry_after_ms=_retry_after_ms(error, response))
    raise _REFUSALS.get(str(error.get("code")), InvalidRequest)(message)


def _error_body(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def _retry_after_ms(error: dict[str, Any], response: httpx.Response) -> int:
    precise = error.get("retry_after_ms")
    if isinstance(precise, int):
        return precise
    header = response.headers.get("Retry-After", "")
    return int(header) * 1000 if header.isdecimal() else _DEFAULT_RETRY_AFTER_MS


def _read(response: httpx.Response, name: str) -> list[dict[str, Any]]:
    try:
        listed = response.json()[name]
    except (ValueError, KeyError, TypeError) as error:
        raise Transient(f"the answer to {response.request.url.path} cannot be read: {_words(error)}") from error
    if not isinstance(listed, list):
        raise Transient(f"the answer to {response.request.url.path} holds no list of {name}")
    return listed


def _read_machine(response: httpx.Response) -> Machine:
    try:
        return _readable(response.json())
    except ValueError as error:
        raise Transient(f"the answer to {response.request.url.path} cannot be read: {_words(error)}") from error


def _readable(body: dict[str, Any]) -> Machine:
    try:
        return _machine(body)
    except (ValueError, KeyError, TypeError) as error:
        raise Transient(f"a machine in the answer cannot be read: {_words(error)}") from error


def _machine(body: dict[str, Any]) -> Machine:
    return Machine(
        provider=NAME,
        ref=body["id"],
        label=body["label"],
        tier=Tier(body["class"]),
        status=MachineStatus(body["status"]),
        price_per_hour=Money(body["price_micros_per_hour"]),
        created_ms=body["created_ms"],
        billed_from_ms=body["billed_from_ms"],
        billed_to_ms=body["billed_to_ms"],
        billed=Money(body["billed_micros"]),
        detail=body["detail"],
        outage=body.get("outage", False),
    )


def _offer(body: dict[str, Any]) -> Offer:
    try:
        return Offer(
            provider=NAME,
            offer_id=body["offer_id"],
            tier=Tier(body["class"]),
            gpu_type=body["gpu_type"],
            gpu_count=body["gpu_count"],
            gpu_memory_bytes=body["gpu_memory_bytes"],
            cpus=body["cpus"],
            memory_bytes=body["memory_bytes"],
            price_per_hour=Money(body["price_micros_per_hour"]),
            startup_ms=body["startup_ms"],
            region=body["region"],
            host=body["host"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Transient(f"an offer of the local cloud cannot be read: {_words(error)}") from error


def _traits(body: dict[str, Any]) -> ProviderTraits:
    try:
        return ProviderTraits(
            provider=NAME,
            tier=Tier(body["class"]),
            billing=BillingRule(body["billing_unit_ms"], BillingStart(body["billed_from"])),
            startup_mean_ms=body["startup_mean_ms"],
            startup_deadline_ms=body["startup_deadline_ms"],
            create_grace_ms=body["create_grace_ms"],
            dies_with_run=body["dies_with_run"],
            preemptible=body["preemptible"],
            is_networked=body["class"] == Tier.CONVENTIONAL,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise Transient(f"the traits of the local cloud cannot be read: {_words(error)}") from error


def _summary(response: httpx.Response) -> str:
    return f"{response.status_code} {response.text[:200]!r}"


def _words(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
