"""The test's own door to an emulator, on its own port: nothing here is part of a company's API.

Every call but /healthz needs `Authorization: Bearer <admin key>`. Bodies and answers are JSON; an error is
{"error": {"code", "message"}}.

GET    /healthz
GET, POST, DELETE /admin/faults      what will go wrong; ask for one more; forget all
GET, POST, DELETE /admin/switches    how it behaves; {"name": value}; back to the defaults
GET, POST, DELETE /admin/market      prices and supply now; script them (see `Admin.script_market`); forget the script
GET    /admin/machines               every machine there ever was
GET    /admin/machines/{ref}         one of them, with `intervals` and `facts`
GET    /admin/machines/{ref}/log     ?tail=N, plain text
POST   /admin/machines/{ref}/{what}  boot | stop | start | end | kill | signal | preempt | price | ... -> the machine
GET    /admin/ledger                 the company's bill: a line per machine, and the total
POST   /admin/ledger                 {"owned": [refs], "owned_labels": [labels]} -> also the cost of all others
"""

from __future__ import annotations

import asyncio
import hmac
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from providers.emulators.estate import Estate
from providers.emulators.faults import FaultScript, fault_json
from providers.emulators.market import ANYWHERE, EmulatedMarket
from providers.emulators.meter import Rule, ledger, line_of
from providers.emulators.rows import MachineRow, Then
from providers.emulators.switches import Switches

MAX_TAIL_LINES = 10_000
MARKET_SCRIPT = "market"  # the name under which the estate keeps it
_MARKET_FIELDS = {"price_micros", "supply", "empty"}

Action = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""What an emulator adds to /admin/machines/{ref}/{what}: called with the ref and the body.

Raises ValueError for a body that is wrong, Unfit for a machine that is not in a state for it.
"""


class Unfit(Exception):
    """The machine is not in a state that allows this."""


class Admin:
    """Builds the application. `actions` are the emulator's own, by name."""

    def __init__(
        self,
        *,
        key: str,
        estate: Estate,
        faults: FaultScript,
        switches: Switches,
        market: EmulatedMarket,
        rule: Rule,
        actions: Mapping[str, Action] | None = None,
    ) -> None:
        self._key = key
        self._estate = estate
        self._faults = faults
        self._switches = switches
        self._market = market
        self._rule = rule
        self._actions: dict[str, Action] = {
            "boot": self._boot,
            "stop": self._stop,
            "start": self._start,
            "end": self._end,
            "kill": self._kill,
            "signal": self._signal,
            "preempt": self._preempt,
            "price": self._price,
            **(actions or {}),
        }

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/healthz", _health),
                self._route("/admin/faults", "GET", self.see_faults),
                self._route("/admin/faults", "POST", self.add_fault),
                self._route("/admin/faults", "DELETE", self.drop_faults),
                self._route("/admin/switches", "GET", self.see_switches),
                self._route("/admin/switches", "POST", self.set_switches),
                self._route("/admin/switches", "DELETE", self.reset_switches),
                self._route("/admin/market", "GET", self.see_market),
                self._route("/admin/market", "POST", self.script_market),
                self._route("/admin/market", "DELETE", self.reset_market),
                self._route("/admin/machines", "GET", self.see_machines),
                self._route("/admin/machines/{ref}", "GET", self.see_machine),
                self._route("/admin/machines/{ref}/log", "GET", self.see_log),
                self._route("/admin/machines/{ref}/{what}", "POST", self.act),
                self._route("/admin/ledger", "GET", self.see_ledger),
                self._route("/admin/ledger", "POST", self.see_orphans),
            ],
            exception_handlers={_Wrong: _answer_wrong, HTTPException: _answer_http, Exception: _answer_bug},
        )

    # -- what goes wrong, and how it behaves

    async def see_faults(self, _: Request) -> Response:
        kinds = {name: _kind_json(kind.ops, kind.sided, kind.args) for name, kind in self._faults.kinds.items()}
        waiting = [fault_json(fault) for fault in self._faults.waiting()]
        return JSONResponse({"faults": waiting, "ops": list(self._faults.ops), "kinds": kinds})

    async def add_fault(self, request: Request) -> Response:
        body = await _body(request)
        try:
            fault = self._faults.parse(body)
        except ValueError as error:
            raise _Wrong(422, "invalid_request", str(error)) from error
        self._faults.add(fault)
        return JSONResponse(fault_json(fault), status_code=201)

    async def drop_faults(self, _: Request) -> Response:
        self._faults.clear()
        return JSONResponse({"faults": []})

    async def see_switches(self, _: Request) -> Response:
        return JSONResponse(self._switches.all())

    async def set_switches(self, request: Request) -> Response:
        try:
            self._switches.set(await _body(request))
        except ValueError as error:
            raise _Wrong(422, "invalid_request", str(error)) from error
        return JSONResponse(self._switches.all())

    async def reset_switches(self, _: Request) -> Response:
        self._switches.reset()
        return JSONResponse(self._switches.all())

    # -- the market

    async def see_market(self, _: Request) -> Response:
        return JSONResponse({"goods": self._goods()})

    async def script_market(self, request: Request) -> Response:
        """{"price_micros": {good: micros or null}, "supply": {good: count or null, or {place: ...}}, "empty": true}.

        Null gives a figure back to the market. `empty` comes first, so that it can leave one thing for rent.
        """
        body = await _body(request)
        unknown = sorted(set(body) - _MARKET_FIELDS)
        if unknown:
            raise _Wrong(422, "invalid_request", f"{unknown[0]} is not one of {', '.join(sorted(_MARKET_FIELDS))}")
        wanted = [*self._checked("price_micros", body), *self._checked("supply", body)]
        now_ms = self._estate.now_ms()
        if body.get("empty") is True:
            self._market.empty(now_ms)
        for field, good, place, value in wanted:
            if field == "price_micros":
                self._market.set_price(good, value, now_ms)
            else:
                self._market.set_supply(good, value, now_ms, place)
        self._estate.remember(MARKET_SCRIPT, self._market.script())
        return JSONResponse({"goods": self._goods()})

    async def reset_market(self, _: Request) -> Response:
        self._market.reset()
        self._estate.remember(MARKET_SCRIPT, self._market.script())
        return JSONResponse({"goods": self._goods()})

    def _checked(self, field: str, body: Mapping[str, Any]) -> list[tuple[str, str, str, int | None]]:
        wanted = body.get(field, {})
        if not isinstance(wanted, dict):
            raise _Wrong(422, "invalid_request", f"{field} must be an object")
        found = []
        for good, told in wanted.items():
            if good not in self._market.goods:
                known = ", ".join(self._market.goods)
                raise _Wrong(422, "invalid_request", f"{field}.{good} is not for rent here; what is: {known}")
            for place, value in (told if isinstance(told, dict) and field == "supply" else {ANYWHERE: told}).items():
                if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                    message = f"{field}.{good} is {value!r}; it must be a whole number of at least 0, or null"
                    raise _Wrong(422, "invalid_request", message)
                found.append((field, good, place, value))
        return found

    def _goods(self) -> list[dict[str, Any]]:
        now_ms = self._estate.now_ms()
        return [
            {
                "name": name,
                "price_micros": self._market.price_micros(name, now_ms),
                "listed_price_micros": self._market.listed_price_micros(name, now_ms),
                "supply": {place: self._market.supply(name, now_ms, place) for place in good.places},
                "listed_supply": {place: self._market.listed_supply(name, now_ms, place) for place in good.places},
            }
            for name, good in self._market.goods.items()
        ]

    # -- machines

    async def see_machines(self, _: Request) -> Response:
        return JSONResponse({"machines": [self._json(machine) for machine in self._estate.all()]})

    async def see_machine(self, request: Request) -> Response:
        return JSONResponse(self._json(self._required(request)))

    async def see_log(self, request: Request) -> Response:
        machine, tail = self._required(request), request.query_params.get("tail", "200")
        if not tail.isdecimal() or int(tail) > MAX_TAIL_LINES:
            raise _Wrong(422, "invalid_request", f"tail is {tail!r}; it must be 0 to {MAX_TAIL_LINES}")
        return PlainTextResponse(await asyncio.to_thread(self._estate.log_tail, machine.ref, int(tail)))

    async def act(self, request: Request) -> Response:
        machine, what = self._required(request), request.path_params["what"]
        action = self._actions.get(what)
        if action is None:
            raise _Wrong(404, "no_such_action", f"{what} is not one of {', '.join(self._actions)}")
        try:
            await action(machine.ref, await _body(request, empty_is_fine=True))
        except ValueError as error:
            raise _Wrong(422, "invalid_request", str(error)) from error
        except Unfit as error:
            raise _Wrong(409, "unfit", str(error)) from error
        return JSONResponse(self._json(self._required(request)))

    async def _boot(self, ref: str, _: Mapping[str, Any]) -> None:
        self._estate.boot_now(ref)

    async def _stop(self, ref: str, _: Mapping[str, Any]) -> None:
        await self._estate.stop(ref, detail="stopped by the test")

    async def _start(self, ref: str, body: Mapping[str, Any]) -> None:
        self._estate.start_again(ref, whole_number(body, "boot_ms", default=0))

    async def _end(self, ref: str, _: Mapping[str, Any]) -> None:
        await self._estate.end(ref, detail="ended by the test")

    async def _kill(self, ref: str, _: Mapping[str, Any]) -> None:
        if not await self._estate.kill_inside(ref):
            raise Unfit(f"nothing runs on {ref}")

    async def _signal(self, ref: str, body: Mapping[str, Any]) -> None:
        names = {number.name: number for number in signal.Signals}
        name = body.get("signal")
        if name not in names:
            raise ValueError(f"signal is {name!r}; it must be a name, e.g. SIGINT")
        if not await self._estate.signal_inside(ref, names[str(name)]):
            raise Unfit(f"nothing runs on {ref}")

    async def _preempt(self, ref: str, body: Mapping[str, Any]) -> None:
        then = Then.STOP if body.get("then") == Then.STOP else Then.END
        await self._estate.preempt(ref, whole_number(body, "notice_ms", default=30_000), then)

    async def _price(self, ref: str, body: Mapping[str, Any]) -> None:
        self._estate.set_price(ref, whole_number(body, "price_micros_per_hour"))

    # -- the bill

    async def see_ledger(self, _: Request) -> Response:
        return JSONResponse(ledger(self._estate.all(), self._rule, self._estate.now_ms()))

    async def see_orphans(self, request: Request) -> Response:
        body = await _body(request)
        refs, labels = _texts(body, "owned"), _texts(body, "owned_labels")
        machines = self._estate.all()
        owned = refs | {machine.ref for machine in machines if machine.label in labels}
        return JSONResponse(ledger(machines, self._rule, self._estate.now_ms(), owned))

    # -- small things

    def _required(self, request: Request) -> MachineRow:
        ref = request.path_params["ref"]
        machine = self._estate.get(ref)
        if machine is None:
            raise _Wrong(404, "machine_not_found", f"there is no machine {ref}")
        return machine

    def _json(self, machine: MachineRow) -> dict[str, Any]:
        told = asdict(machine) | {"due_ms": machine.due_ms}
        told["bill"] = asdict(line_of(machine, self._rule, self._estate.now_ms()))
        return told

    def _route(self, path: str, method: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
        async def guarded(request: Request) -> Response:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {self._key}".encode()):
                raise _Wrong(401, "unauthenticated", "send Authorization: Bearer <the emulator's admin key>")
            return await handler(request)

        return Route(path, guarded, methods=[method])


def whole_number(body: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A field of an action's body. Raises ValueError naming it."""
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 0")
    return value


class _Wrong(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


async def _health(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _body(request: Request, *, empty_is_fine: bool = False) -> dict[str, Any]:
    if empty_is_fine and not await request.body():
        return {}
    try:
        body = await request.json()
    except ValueError as error:
        raise _Wrong(400, "invalid_request", f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise _Wrong(400, "invalid_request", "the body must be a JSON object")
    return body


def _texts(body: Mapping[str, Any], name: str) -> set[str]:
    value = body.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _Wrong(422, "invalid_request", f"{name} must be a list of texts")
    return set(value)


def _kind_json(ops: frozenset[str], sided: bool, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"ops": sorted(ops), "when": sided, "args": sorted(args)}


async def _answer_wrong(_: Request, error: Exception) -> Response:
    if not isinstance(error, _Wrong):
        raise error
    return _error(error.status, error.code, str(error))


async def _answer_http(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    return _error(error.status_code, "no_such_path" if error.status_code == 404 else "invalid_request", error.detail)


async def _answer_bug(_: Request, error: Exception) -> Response:
    return _error(500, "internal_error", f"{type(error).__name__}: {error}")


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status)
