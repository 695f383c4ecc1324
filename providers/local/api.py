"""The company's HTTP API: JSON, `Authorization: Bearer <key>`, errors as `{"error": {"code", "message"}}`.

GET    /v1/traits                 the classes: billing, start-up, deadlines, all scaled as this cloud runs
GET    /v1/offers                 what can be rented now
POST   /v1/machines               rent -> 201 machine; no idempotency key: the label is the only handle
GET    /v1/machines               live ones, and those that ended in the last 15 minutes
GET    /v1/machines?label=L       all that were ever rented under this label
GET    /v1/machines/{id}          one, also long after its end
DELETE /v1/machines/{id}          end it; repeating it is harmless
GET    /v1/machines/{id}/logs     ?tail=N, plain text
GET    /v1/bill                   one line per machine
GET, POST, DELETE /admin/faults   see, ask for, drop scripted faults
GET    /healthz                   without a key
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from providers.local.bill import bill_of
from providers.local.company import LISTED_AFTER_END_MS, LocalCompany, NotRentedOut, Rental
from providers.local.faults import Fault, FaultKind, FaultScript, Operation, When
from providers.local.market import (
    CREATE_GRACE_MS,
    LEAST_DEADLINE_MS,
    LEAST_GRACE_MS,
    RULES,
    ClassRules,
    ListedOffer,
    RentalClass,
)
from providers.local.store import MachineRow

ABORT = "allpass.abort"  # in the request's scope: closes the connection without a word
MAX_BODY_BYTES = 256 * 1024
MAX_TAIL_LINES = 10_000
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
_RENTAL_FIELDS = {"label", "offer_id", "max_price_micros_per_hour", "image", "env", "lifetime_ms"}
_CREATED = 201

Handler = Callable[[Request], Awaitable[Response]]


class ApiError(Exception):
    """An answer other than success."""

    def __init__(self, status: int, code: str, message: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_ms = retry_after_ms


def build_app(company: LocalCompany, api_key: str) -> Starlette:
    """The application; the company is started and stopped by the caller."""
    return _Api(company, api_key, FaultScript()).app()


class _Api:
    def __init__(self, company: LocalCompany, api_key: str, faults: FaultScript) -> None:
        self._company = company
        self._api_key = api_key
        self._faults = faults

    def app(self) -> Starlette:
        machine = "/v1/machines/{machine_id}"
        return Starlette(
            routes=[
                Route("/healthz", self.health),
                self._route("/v1/traits", "GET", self.traits),
                self._route("/v1/offers", "GET", self.offers, Operation.OFFERS),
                self._route("/v1/machines", "POST", self.create),
                self._route("/v1/machines", "GET", self.list, Operation.LIST),
                self._route(machine, "GET", self.get, Operation.GET),
                self._route(machine, "DELETE", self.terminate, Operation.TERMINATE),
                self._route(machine + "/logs", "GET", self.logs),
                self._route("/v1/bill", "GET", self.bill),
                self._route("/admin/faults", "GET", self.see_faults),
                self._route("/admin/faults", "POST", self.add_fault),
                self._route("/admin/faults", "DELETE", self.drop_faults),
            ],
            exception_handlers={ApiError: _answer_error, HTTPException: _answer_http, Exception: _answer_bug},
        )

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def traits(self, _: Request) -> Response:
        speed = self._company.market.speed
        return JSONResponse({"speed": speed, "classes": [_traits(name, RULES[name], speed) for name in RentalClass]})

    async def offers(self, _: Request) -> Response:
        startup_ms = {name: self._company.market.expected_startup_ms(name) for name in RentalClass}
        listed = [_offer(offer, startup_ms[offer.rental_class]) for offer in self._company.offers()]
        return JSONResponse({"offers": listed})

    async def create(self, request: Request) -> Response:
        rental = _rental(await _body(request))
        fault = self._faults.take(Operation.CREATE)
        await self._strike(request, fault, When.BEFORE)
        kind = fault.kind if fault else None
        try:
            machine = self._company.create(
                rental,
                never_ready=kind is FaultKind.NEVER_READY,
                extra_boot_ms=fault.ms if fault and kind is FaultKind.BOOT_SLOW_MS else 0,
            )
        except NotRentedOut as refusal:
            raise ApiError(409, refusal.code, str(refusal)) from refusal
        await self._strike(request, fault, When.AFTER)
        return JSONResponse(self._machine(machine), status_code=_CREATED)

    async def list(self, request: Request) -> Response:
        label = request.query_params.get("label")
        if label is not None:
            machines = self._company.store.with_label(label)
        else:
            machines = self._company.store.live_or_ended_since(self._company.now_ms() - LISTED_AFTER_END_MS)
        return JSONResponse({"machines": [self._machine(machine) for machine in machines]})

    async def get(self, request: Request) -> Response:
        return JSONResponse(self._machine(self._required(request)))

    async def terminate(self, request: Request) -> Response:
        machine = await self._company.terminate(self._required(request).machine_id)
        if machine is None:
            raise ApiError(404, "machine_not_found", "the machine has vanished")
        return JSONResponse(self._machine(machine))

    async def logs(self, request: Request) -> Response:
        machine = self._required(request)
        lines = _whole_number(request.query_params.get("tail", "200"), "tail", 0, MAX_TAIL_LINES)
        return PlainTextResponse(await asyncio.to_thread(self._company.log_tail, machine.machine_id, lines))

    async def bill(self, _: Request) -> Response:
        now_ms = self._company.now_ms()
        lines = [bill_of(machine, now_ms) for machine in self._company.store.all()]
        total = sum(line.amount_micros for line in lines)
        return JSONResponse({"lines": [asdict(line) for line in lines], "total_micros": total})

    async def see_faults(self, _: Request) -> Response:
        return JSONResponse({"faults": [asdict(fault) for fault in self._faults.waiting()]})

    async def add_fault(self, request: Request) -> Response:
        try:
            fault = Fault.parse(await _body(request))
        except ValueError as error:
            raise ApiError(422, "invalid_request", str(error)) from error
        self._faults.add(fault)
        return JSONResponse(asdict(fault), status_code=_CREATED)

    async def drop_faults(self, _: Request) -> Response:
        self._faults.clear()
        return JSONResponse({"faults": []})

    def _route(self, path: str, method: str, handler: Handler, operation: Operation | None = None) -> Route:
        """Ask for the key, then let a scripted fault strike around the handler (create strikes for itself)."""

        async def guarded(request: Request) -> Response:
            self._check_key(request)
            fault = self._faults.take(operation) if operation else None
            await self._strike(request, fault, When.BEFORE)
            response = await handler(request)
            await self._strike(request, fault, When.AFTER)
            return response

        return Route(path, guarded, methods=[method])

    def _check_key(self, request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self._api_key}".encode()):
            raise ApiError(401, "unauthenticated", "the API key is missing or wrong; send Authorization: Bearer <key>")

    async def _strike(self, request: Request, fault: Fault | None, when: When) -> None:
        if fault is None or fault.when is not when:
            return
        match fault.kind:
            case FaultKind.DROP_CONNECTION:
                await _drop(request)
            case FaultKind.HANG_MS:
                await asyncio.sleep(fault.ms / 1000)
            case FaultKind.ERROR_500:
                raise ApiError(500, "internal_error", "something went wrong (scripted)")
            case FaultKind.RATE_LIMITED:
                raise ApiError(429, "rate_limited", "too many requests (scripted)", retry_after_ms=fault.ms)
            case FaultKind.NO_CAPACITY | FaultKind.OFFER_GONE | FaultKind.PRICE_MOVED:
                raise ApiError(409, fault.kind.value, f"{fault.kind} (scripted)")
            case FaultKind.NEVER_READY | FaultKind.BOOT_SLOW_MS:
                return  # strikes the machine, not the call

    def _required(self, request: Request) -> MachineRow:
        machine_id = request.path_params["machine_id"]
        machine = self._company.store.get(machine_id)
        if machine is None:
            raise ApiError(404, "machine_not_found", f"there is no machine {machine_id}")
        return machine

    def _machine(self, machine: MachineRow) -> dict[str, Any]:
        line = bill_of(machine, self._company.now_ms())
        return {
            "id": machine.machine_id,
            "label": machine.label,
            "class": machine.rental_class,
            "offer_id": machine.offer_id,
            "status": machine.state,
            "detail": machine.detail,
            "outage": machine.outage,
            "price_micros_per_hour": machine.price_micros_per_hour,
            "created_ms": machine.created_ms,
            "ready_ms": machine.ready_ms,
            "ended_ms": machine.ended_ms,
            "billed_from_ms": line.from_ms,
            "billed_to_ms": line.to_ms,
            "billed_micros": line.amount_micros,
        }


def _traits(name: RentalClass, rules: ClassRules, speed: float) -> dict[str, Any]:
    return {
        "class": name,
        "billing_unit_ms": rules.billing_unit_ms,
        "billed_from": "request" if rules.billed_from_request else "ready",
        "startup_mean_ms": round(rules.startup_mean_ms * speed),
        "startup_deadline_ms": max(LEAST_DEADLINE_MS, round(rules.startup_deadline_ms * speed)),
        "create_grace_ms": max(LEAST_GRACE_MS, round(CREATE_GRACE_MS * speed)),
        "dies_with_run": rules.dies_with_run,
        "preemptible": rules.preemptible,
    }


def _offer(offer: ListedOffer, startup_ms: int) -> dict[str, Any]:
    fields = asdict(offer)
    fields["class"] = fields.pop("rental_class")
    del fields["single"]
    return {**fields, "startup_ms": startup_ms}


def _rental(body: dict[str, Any]) -> Rental:
    unknown = sorted(set(body) - _RENTAL_FIELDS)
    if unknown:
        raise ApiError(422, "invalid_request", f"{unknown[0]} is not a field; they are {', '.join(_RENTAL_FIELDS)}")
    env = body.get("env", {})
    if not isinstance(env, dict) or not all(
        isinstance(name, str) and _VARIABLE.match(name) and isinstance(value, str) and "\0" not in value
        for name, value in env.items()
    ):
        raise ApiError(422, "invalid_request", "env must map names of environment variables to strings")
    lifetime = body.get("lifetime_ms")
    return Rental(
        label=_text(body, "label", 200) if body.get("label") is not None else None,
        offer_id=_text(body, "offer_id", 200),
        max_price_micros_per_hour=_whole_number(body.get("max_price_micros_per_hour"), "max_price_micros_per_hour"),
        image=_text(body, "image", 1024),
        environment=env,
        lifetime_ms=None if lifetime is None else _whole_number(lifetime, "lifetime_ms", least=1),
    )


async def _body(request: Request) -> dict[str, Any]:
    if len(await request.body()) > MAX_BODY_BYTES:
        raise ApiError(413, "too_large", f"the body is larger than {MAX_BODY_BYTES} bytes")
    try:
        body = await request.json()
    except ValueError as error:
        raise ApiError(400, "invalid_request", f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "invalid_request", "the body must be a JSON object")
    return body


def _text(body: dict[str, Any], name: str, longest: int) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise ApiError(422, "invalid_request", f"{name} is {value!r}; it must be a text of 1 to {longest} characters")
    return value


def _whole_number(value: Any, name: str, least: int = 0, most: int = 2**53) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) <= 16:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ApiError(422, "invalid_request", f"{name} is {value!r}; it must be a whole number of at least {least}")
    return value


async def _drop(request: Request) -> None:
    """Close the connection without an answer, as a failing network does."""
    request.scope[ABORT]()
    while (await request.receive())["type"] != "http.disconnect":
        continue
    raise ApiError(500, "dropped", "the connection was closed before this answer")


async def _answer_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    body: dict[str, Any] = {"code": error.code, "message": str(error)}
    headers = {}
    if error.retry_after_ms is not None:
        body["retry_after_ms"] = error.retry_after_ms
        headers["Retry-After"] = str(-(-error.retry_after_ms // 1000))
    return JSONResponse({"error": body}, status_code=error.status, headers=headers)


async def _answer_http(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = {404: "path_not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
    return JSONResponse({"error": {"code": code, "message": error.detail}}, status_code=error.status_code)


async def _answer_bug(_: Request, error: Exception) -> Response:
    body = {"code": "internal_error", "message": f"{type(error).__name__}: {error}"}
    return JSONResponse({"error": body}, status_code=500)
