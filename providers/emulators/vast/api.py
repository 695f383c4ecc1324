"""The emulated Vast.ai's HTTP API, /api/v0 and /api/v1: paths, bodies and errors as the real one has them.

Bearer key. A refused key is 401 auth_error, and 404 "Invalid user key" for searches.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.emulators.faults import Fault, When
from providers.emulators.rows import MachineRow, MachineState
from providers.emulators.serving import Grounds
from providers.emulators.vast.account import AccountHandlers
from providers.emulators.vast.contracts import Contracts, container_key
from providers.emulators.vast.errors import (
    RefusedAnswer,
    TooFast,
    answer_http,
    answer_refused,
    answer_scripted,
    answer_too_fast,
    no_such_instance,
    too_fast,
)
from providers.emulators.vast.filters import Row, matching, ordered
from providers.emulators.vast.hosts import OFFER_FIELDS, Hosts
from providers.emulators.vast.inside import Inside
from providers.emulators.vast.limits import RequestLimits
from providers.emulators.vast.order import read_order
from providers.emulators.vast.reading import body_of, json_of, object_of
from providers.emulators.vast.view import STORED, instance
from providers.emulators.wire import CallerGone, ScriptedError, answer_dropped, strike

_PAGE = 25
_DEFAULT_LIMIT = 64
_DEFAULT_DISK_GB = 5.0
_LONGEST_LABEL = 256
_NOT_FILTERS = frozenset({"order", "type", "limit", "allocated_storage", "disable_bundling", "select_cols", "q"})
_INDEPENDENT = frozenset(
    {"no_such_ask", "price_moves", "error_with_contract", "stuck", "boot_fails", "broken_gpu", "bad_gpus"}
)

_OF_A_CONTAINER = frozenset({"destroy"})  # of what its own key opens: the rest is not needed here

Handler = Callable[[Request, Fault | None], Awaitable[Response]]


def build_app(grounds: Grounds, hosts: Hosts, contracts: Contracts, limits: RequestLimits) -> Starlette:
    """The application; the estate is opened and closed by the caller."""
    return _Api(grounds, hosts, contracts, limits).app()


class _Api:
    def __init__(self, grounds: Grounds, hosts: Hosts, contracts: Contracts, limits: RequestLimits) -> None:
        self._grounds = grounds
        self._estate = grounds.estate
        self._hosts = hosts
        self._contracts = contracts
        self._limits = limits

    def app(self) -> Starlette:
        one, inside, account = "/api/v0/instances/{ref}/", Inside(self._grounds), AccountHandlers(self._grounds)
        return Starlette(
            routes=[
                self._route("/api/v0/bundles/", "POST", "search", self.search),
                self._route("/api/v0/bundles/", "GET", "search", self.search),
                self._route("/api/v0/search/asks/", "PUT", "search", self.search),
                self._route("/api/v0/asks/{offer}/", "PUT", "create", self.create),
                self._route("/api/v1/instances/", "GET", "list", self.list),
                self._route("/api/v0/instances/", "DELETE", "destroy", self.destroy_many),
                self._route("/api/v0/instances/request_logs/{ref}/", "PUT", "logs", self._with(inside.logs)),
                self._route("/api/v0/instances/command/{ref}/", "PUT", "execute", self._with(inside.execute)),
                self._route("/api/v0/instances/filters/", "GET", "other", self.filters),
                self._route("/api/v0/instances/", "PUT", "change", self.change_many),
                self._route("/api/v0/instances/{ref}/ssh/", "POST", "other", self._with(account.attach_key)),
                self._route("/api/v0/instances/{ref}/ssh/{key_id}/", "DELETE", "other", self._with(account.detach_key)),
                self._route("/api/v0/instances/bid_price/{ref}/", "PUT", "change", self.bid, endpoint="bid"),
                self._route("/api/v0/instances/reboot/{ref}/", "PUT", "change", self.reboot),
                self._route("/api/v0/instances/recycle/{ref}/", "PUT", "change", self.reboot),
                self._route(one, "GET", "show", self.show),
                self._route(one, "PUT", "change", self.change),
                self._route(one, "DELETE", "destroy", self.destroy),
                *(self._route(path, method, op, handler) for path, method, op, handler in account.routes()),
                Route("/results/{token}", inside.result),
            ],
            exception_handlers={
                RefusedAnswer: answer_refused,
                TooFast: answer_too_fast,
                ScriptedError: answer_scripted,
                CallerGone: answer_dropped,
                HTTPException: answer_http,
            },
        )

    # -- the market

    async def search(self, request: Request, _: Fault | None) -> Response:
        """Filters at the top level of a POST, in `q` of a GET or of a PUT."""
        if request.method == "GET":
            wanted = object_of(request.query_params.get("q", "{}"))
        else:
            body = await body_of(request)
            wanted = body["q"] if isinstance(body.get("q"), dict) else body
        disk_gb = float(wanted.get("allocated_storage") or _DEFAULT_DISK_GB)
        found = self._hosts.found(disk_gb, bids=wanted.get("type") == "bid")
        filters = {name: each for name, each in wanted.items() if name not in _NOT_FILTERS}
        rows = ordered(matching(found, filters, OFFER_FIELDS), wanted.get("order") or [["score", "desc"]])
        return JSONResponse({"offers": rows[: int(wanted.get("limit") or _DEFAULT_LIMIT)]})

    async def create(self, request: Request, fault: Fault | None) -> Response:
        order = read_order(await body_of(request))
        shaping = fault if fault is not None and fault.kind in _INDEPENDENT else None
        machine = await self._contracts.create(request.path_params["offer"], order, shaping)
        key = container_key(self._grounds.key, machine.ref)
        return JSONResponse({"success": True, "new_contract": int(machine.ref), "instance_api_key": key})

    # -- contracts

    async def show(self, request: Request, _: Fault | None) -> Response:
        machine = self._find(request)
        return JSONResponse({"instances": None if machine is None else self._row(machine)})

    async def list(self, request: Request, fault: Fault | None) -> Response:
        """At most 25 at once. A fresh contract is not listed for a moment."""
        asked = request.query_params
        listed_from_ms = self._grounds.now_ms() - self._grounds.switches["list_lag_ms"]
        known = [machine for machine in self._estate.live() if _exists(machine)]
        if fault is not None and fault.kind == "empty_list":
            known = []
        rows: list[Row] = [self._row(machine) for machine in known if machine.created_ms <= listed_from_ms]
        found = matching(rows, object_of(asked.get("select_filters", "{}")), STORED)
        found = ordered(found, json_of(asked.get("order_by", "[]")) or [{"col": "id", "dir": "asc"}])
        limit = min(_PAGE, int(asked.get("limit", _PAGE)))
        page = _after(found, asked.get("after_token"))
        page, more = page[:limit], len(page) > limit
        columns = json_of(asked.get("select_cols", "[]"))
        return JSONResponse(
            {
                "success": True,
                "instances": [{name: row.get(name) for name in columns or row} for row in page],
                "instances_found": len(found),
                "total_instances": len(rows),
                "label_counts": Counter(row["label"] or "" for row in rows),
                "next_token": _token(page[-1]["id"]) if more else None,
            }
        )

    async def filters(self, _: Request, __: Fault | None) -> Response:
        """By what the listing can be narrowed down: each combination that there is."""
        rows = [self._row(machine) for machine in self._estate.live() if _exists(machine)]
        names = ("actual_status", "verification", "gpu_name")
        told = {tuple(row[name] for name in names) for row in rows}
        return JSONResponse({"success": True, "filters": [dict(zip(names, each, strict=True)) for each in told]})

    async def change(self, request: Request, _: Fault | None) -> Response:
        await self._change(self._required(request), await body_of(request))
        return JSONResponse({"success": True})

    async def change_many(self, request: Request, _: Fault | None) -> Response:
        body = await body_of(request)
        for machine in self._named(body.get("ids")):
            await self._change(machine, body)
        return JSONResponse({"success": True})

    async def _change(self, machine: MachineRow, body: Mapping[str, Any]) -> None:
        if "label" in body:
            if len(str(body["label"])) > _LONGEST_LABEL:
                raise RefusedAnswer(400, "label_too_long", f"labels have at most {_LONGEST_LABEL} characters")
            self._estate.set_label(machine.ref, str(body["label"]))
        if body.get("state") == "stopped":
            await self._estate.stop(machine.ref)
        elif body.get("state") == "running":
            self._contracts.start(machine)

    async def bid(self, request: Request, _: Fault | None) -> Response:
        machine, body = self._required(request), await body_of(request)
        price = body.get("price")
        if not isinstance(price, int | float) or not 0.001 <= price <= 32 or machine.facts["bid_micros"] is None:
            raise RefusedAnswer(400, "invalid_price", f"price is {price!r}")
        self._contracts.change_bid(machine, round(price * 1_000_000))
        return JSONResponse({"success": True})

    async def reboot(self, request: Request, _: Fault | None) -> Response:
        await self._contracts.restart(self._required(request))
        return JSONResponse({"success": True})

    async def destroy(self, request: Request, _: Fault | None) -> Response:
        await self._estate.end(self._required(request).ref, detail="destroyed")
        return JSONResponse({"success": True})

    async def destroy_many(self, request: Request, _: Fault | None) -> Response:
        for machine in self._named((await body_of(request)).get("instance_ids")):
            await self._estate.end(machine.ref, detail="destroyed")
        return JSONResponse({"success": True})

    # -- around them

    def _route(self, path: str, method: str, op: str, handler: Handler, endpoint: str | None = None) -> Route:
        """The key first, then the limits, then what a test wants to go wrong around the handler."""

        async def guarded(request: Request) -> Response:
            self._check_key(request, op)
            self._limits.check(endpoint or op)
            fault = self._grounds.faults.take(op)
            if fault is not None and fault.kind == "rate_limited":
                raise too_fast(fault, self._grounds.switches["limit_shape"])
            if fault is not None and fault.kind == "search_quota":
                raise TooFast("json", "Daily search quota exceeded.", code="search_quota_exceeded")
            await strike(request, fault, When.BEFORE)
            response = await handler(request, fault)
            await strike(request, fault, When.AFTER)
            return response

        return Route(path, guarded, methods=[method])

    def _check_key(self, request: Request, op: str) -> None:
        given = request.headers.get("authorization", "").encode()
        ref = request.path_params.get("ref", "")
        own = f"Bearer {container_key(self._grounds.key, ref)}".encode()
        if ref and op in _OF_A_CONTAINER and hmac.compare_digest(given, own):
            return
        if not hmac.compare_digest(given, f"Bearer {self._grounds.key}".encode()):
            status, code = (404, "invalid_key") if op == "search" else (401, "auth_error")
            raise RefusedAnswer(status, code, "Invalid user key")

    def _with(self, handler: Callable[[Request, MachineRow], Awaitable[Response]]) -> Handler:
        """A handler of a contract that has to exist."""

        async def handle(request: Request, _: Fault | None) -> Response:
            return await handler(request, self._required(request))

        return handle

    def _named(self, refs: Any) -> Sequence[MachineRow]:
        """Those that exist, of the contracts in a body."""
        named = [self._estate.get(str(ref)) for ref in refs or []]
        return [machine for machine in named if machine is not None and _exists(machine)]

    def _find(self, request: Request) -> MachineRow | None:
        """The contract in the path, if it exists. Raises Refused for what cannot be one."""
        ref = request.path_params["ref"]
        if not ref.isdecimal():
            raise RefusedAnswer(400, "invalid_args", "error 400: instance id must be an integer")
        machine = self._estate.get(ref)
        return machine if machine is not None and _exists(machine) else None

    def _required(self, request: Request) -> MachineRow:
        machine = self._find(request)
        if machine is None:
            raise no_such_instance(request.path_params["ref"])
        return machine

    def _row(self, machine: MachineRow) -> dict[str, Any]:
        host = self._hosts.get(machine.facts["offer_id"])
        assert host is not None  # contracts are made with hosts only, and these do not change
        return instance(machine, host, self._grounds)


def _exists(machine: MachineRow) -> bool:
    """A contract that is being destroyed is gone for its customer."""
    return machine.is_live and (machine.ending is None or machine.ending.state is not MachineState.ENDED)


def _token(last_id: int) -> str:
    return base64.b64encode(json.dumps({"values": {"id": last_id}}).encode()).decode()


def _after(rows: list[Row], token: str | None) -> list[Row]:
    """What follows the row that the last page ended with; that one may be gone, when rows are listed by id."""
    if not token:
        return rows
    try:
        last_id = int(json.loads(base64.b64decode(token))["values"]["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise RefusedAnswer(400, "invalid_args", "after_token is not one of ours") from error
    place = next((place for place, row in enumerate(rows) if row["id"] == last_id), None)
    return [row for row in rows if row["id"] > last_id] if place is None else rows[place + 1 :]
