"""The API as customers see it, under /v2. PATCH, logs, volumes, templates and serverless endpoints are not played.

A pod's program is what `args` says, run by its image's entry point; when that ends, the pod is EXITED and costs
nothing, until it is deleted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.emulators.faults import Fault, When
from providers.emulators.nvidia_smi import GPUS
from providers.emulators.rows import Cause, MachineRow, NewMachine, Then
from providers.emulators.runpod import ways
from providers.emulators.runpod.answers import RunpodError, conflicting, failure, invalid, missing
from providers.emulators.runpod.goods import (
    COMMUNITY,
    DATA_CENTERS,
    MOST_GPUS,
    SECURE,
    TYPES,
    GpuType,
    cuda_versions,
    disk_micros_per_hour,
    good_name,
    gpu_json,
    level,
    runs_cuda,
)
from providers.emulators.runpod.limits import RequestWindow
from providers.emulators.runpod.orders import PodOrder, read_order
from providers.emulators.runpod.pods import ERROR, is_shown, pod_json
from providers.emulators.serving import Grounds
from providers.emulators.wire import CallerGone, ScriptedError, answer_dropped, strike

_MOST_BODY_BYTES = 1_000_000
_DRIVER, _CUDA = "580.95.05", "13.0"

Handler = Callable[[Request, Fault | None], Awaitable[Response]]


class RunpodApi:
    """Builds the application on its grounds."""

    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        self._estate = grounds.estate
        self._switches = grounds.switches
        self._limits = RequestWindow(grounds.now_ms, grounds.speed)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                self._route("/catalog/gpus", "GET", "gpus", self.gpus),
                self._route("/catalog/gpus/{gpu_id}", "GET", "gpu", self.gpu),
                self._route("/pods", "GET", "list", self.pods),
                self._route("/pods", "POST", "create", self.create),
                self._route("/pods/{ref}", "GET", "get", self.pod),
                self._route("/pods/{ref}", "DELETE", "delete", self.delete),
                self._route("/pods/{ref}/action", "POST", "action", self.act),
            ],
            exception_handlers={
                RunpodError: _answer_error,
                ScriptedError: _answer_scripted,
                CallerGone: answer_dropped,
                HTTPException: _answer_http,
                Exception: _answer_bug,
            },
        )

    # -- the catalog

    async def gpus(self, request: Request, _: Fault | None) -> Response:
        return JSONResponse({"gpus": [self._gpu(each, request) for each in TYPES.values()]})

    async def gpu(self, request: Request, _: Fault | None) -> Response:
        each = TYPES.get(request.path_params["gpu_id"])
        if each is None:
            raise missing("gpu type")
        return JSONResponse(self._gpu(each, request))

    def _gpu(self, each: GpuType, request: Request) -> dict[str, Any]:
        now_ms, market, asked = self._grounds.now_ms(), self._grounds.market, request.query_params
        clouds = [cloud for cloud in (SECURE, COMMUNITY) if each.usd(cloud) is not None]
        prices = {cloud: market.listed_price_micros(good_name(cloud, each.id), now_ms) for cloud in clouds}
        shown = gpu_json(each, prices)
        if "include" not in asked:
            return shown
        if asked["include"] != "AVAILABILITY" or "product" not in asked:
            raise conflicting("include=AVAILABILITY requires product")
        cloud, count = asked.get("cloud", SECURE), int(asked.get("count", "1"))
        fits = cloud in clouds and count <= MOST_GPUS[cloud] and runs_cuda(asked.get("minCudaVersion", "1.0"))
        free = {place: self._listed_free(cloud, each, place, now_ms) if fits else 0 for place in DATA_CENTERS}
        pods = {place: gpus // count for place, gpus in free.items()}
        shown["availability"] = level(sum(pods.values()))
        if any(pods.values()):
            shown["dataCenters"] = [
                {"id": place, "name": DATA_CENTERS[place], "availability": level(left)} for place, left in pods.items()
            ]
        shown["cudaVersions"] = cuda_versions(in_stock=any(pods.values()))
        return shown

    def _listed_free(self, cloud: str, each: GpuType, place: str, now_ms: int) -> int:
        supply = self._grounds.market.listed_supply(good_name(cloud, each.id), now_ms, place)
        return max(0, supply - self._taken(cloud, each, place))

    def _taken(self, cloud: str, each: GpuType, place: str) -> int:
        """GPUs of pods that are there; one that is stopped has let its GPUs go."""
        live = (machine.facts["order"] for machine in self._estate.live() if machine.stopped_ms is None)
        wanted = (cloud, each.id, place)
        return sum(
            one["gpu"]["count"] for one in live if (one["cloud"], one["gpu"]["id"], one["data_center"]) == wanted
        )

    # -- creating

    async def create(self, request: Request, fault: Fault | None) -> Response:
        order = read_order(await _body(request))
        if self._switches["balance_is_low"]:
            raise RunpodError(402, "Your balance is too low to create this pod.")
        place = self._room(order, fault)
        new = self._new(order, place, fault)
        machine = self._estate.add(new)
        shown = pod_json(machine, self._grounds.now_ms())
        if fault is not None and fault.kind == ways.GHOST:
            await self._estate.end(machine.ref)
            shown["id"] = secrets.token_hex(7)
        return JSONResponse(shown, status_code=201)

    def _room(self, order: PodOrder, fault: Fault | None) -> str:
        """The data center that the pod comes to."""
        if fault is not None and fault.kind == ways.NO_CAPACITY:
            raise conflicting(ways.WORDS.get(str(fault.args.get("words", "")), ways.WORDS["instances"]))
        each, now_ms = order.gpu_type, self._grounds.now_ms()
        fits = each.usd(order.cloud) is not None and order.gpu_count <= MOST_GPUS[order.cloud]
        fits = fits and order.ram_gb <= each.host_gb and order.vcpus <= each.host_vcpus
        for place in order.data_centers if fits and runs_cuda(order.cuda or "1.0") else ():
            supply = self._grounds.market.supply(good_name(order.cloud, each.id), now_ms, place)
            if supply - self._taken(order.cloud, each, place) >= order.gpu_count:
                return place
        raise conflicting(ways.WORDS["instances"])

    def _new(self, order: PodOrder, place: str, fault: Fault | None) -> NewMachine:
        kind, each = fault.kind if fault else None, order.gpu_type
        gpu_micros = self._grounds.market.price_micros(good_name(order.cloud, each.id), self._grounds.now_ms())
        price = gpu_micros * order.gpu_count
        if fault is not None and kind == ways.PRICE_MOVES:
            price += price * int(fault.args.get("percent", 10)) // 100
        ref, number = secrets.token_hex(7), self._estate.next_number()
        boot_ms = self._grounds.startup.boot_ms(number)
        if kind in {ways.NEVER_READY, ways.FAILS, ways.PRICE_MOVES, ways.GHOST}:
            boot_ms = None
        elif fault is not None and kind == ways.BOOT_SLOW:
            boot_ms = (boot_ms or 0) + fault.ms
        wrong = str(fault.args["wrong"]) if fault is not None and kind == ways.BAD_GPUS else ""
        inside = {"RUNPOD_POD_ID": ref, "RUNPOD_API_KEY": pod_key(self._grounds.key, ref)}
        return NewMachine(
            ref=ref,
            program=order.program,
            label=order.name,
            environment=order.env | inside,
            price_micros_per_hour=price + disk_micros_per_hour(order.disk_gb),
            boot_ms=boot_ms,
            when_it_exits=Then.STOP,
            facts={
                "order": _order_facts(order, place),
                "shown": ERROR if kind == ways.FAILS else None,
                GPUS: {
                    "count": order.gpu_count,
                    "good": each.good,
                    "memory_mib": each.memory_gb * 1024,
                    "driver": _DRIVER,
                    "cuda": _CUDA,
                    "wrong": wrong,
                },
            },
        )

    # -- pods

    async def pods(self, _: Request, fault: Fault | None) -> Response:
        shown = [machine for machine in self._estate.live() if is_shown(machine)]
        if fault is not None and fault.kind == ways.PARTIAL_LIST:
            shown = shown[: max(0, len(shown) - fault.args.get("hide", 1))]
        now_ms = self._grounds.now_ms()
        return JSONResponse({"pods": [pod_json(machine, now_ms) for machine in shown]})

    async def pod(self, request: Request, _: Fault | None) -> Response:
        machine = self._estate.get(request.path_params["ref"])
        gone = machine is not None and not is_shown(machine)
        if machine is None or (gone and self._switches["gone_is"] == ways.GONE_IS_404):
            raise missing("pod")
        return JSONResponse(pod_json(machine, self._grounds.now_ms()))

    async def delete(self, request: Request, _: Fault | None) -> Response:
        machine = self._required(request)
        self._estate.update_facts(machine.ref, deleted=True)
        self._estate.end_soon(machine.ref, is_accepted=True)
        return Response(status_code=204)

    async def act(self, request: Request, _: Fault | None) -> Response:
        machine, body = self._required(request), await _body(request)
        action = body.get("action")
        if action == "terminate":
            return await self.delete(request, None)
        if action not in pod_json(machine, self._grounds.now_ms())["actions"]:
            raise conflicting(f"action {action} is not valid for this pod")
        if action == "start" and not self._switches["start_finds_gpus"]:
            raise conflicting(ways.WORDS["gpus"])
        if action in {"stop", "restart"}:
            await self._estate.stop(machine.ref, Cause.REQUEST, str(action))
        if action in {"start", "restart"}:
            self._estate.start_again(machine.ref)
        machine = self._required(request)
        return JSONResponse(pod_json(machine, self._grounds.now_ms()))

    def _required(self, request: Request) -> MachineRow:
        machine = self._estate.get(request.path_params["ref"])
        if machine is None or not machine.is_live or machine.facts.get("deleted"):
            raise missing("pod")
        return machine

    # -- around every call

    def _route(self, path: str, method: str, op: str, handler: Handler) -> Route:
        async def guarded(request: Request) -> Response:
            self._check_account(request, op)
            wait_ms = self._limits.wait_ms() if self._switches["rate_limits"] else 0
            if wait_ms:
                seconds = -(-wait_ms // 1000)
                raise RunpodError(429, "rate limit exceeded for the minute window", retry_after_s=seconds)
            fault = self._grounds.faults.take(op)
            await strike(request, fault, When.BEFORE)
            response = await handler(request, fault)
            if fault is not None and fault.when is When.AFTER:
                await strike(request, fault, When.AFTER)
            return response

        return Route("/v2" + path, guarded, methods=[method])

    def _check_account(self, request: Request, op: str) -> None:
        given = request.headers.get("authorization", "").encode()
        ref = request.path_params.get("ref")
        if op == "delete" and ref and hmac.compare_digest(given, f"Bearer {pod_key(self._grounds.key, ref)}".encode()):
            return
        if not hmac.compare_digest(given, b"Bearer " + self._grounds.key.encode()):
            raise RunpodError(401, "invalid bearer token")
        if self._switches["read_only_key"] and request.method != "GET":
            raise RunpodError(403, "access denied")


def pod_key(key: str, ref: str) -> str:
    """What a pod finds in its environment: it may delete that pod, and nothing else."""
    return "rpa_" + hashlib.sha256(f"{key}/{ref}".encode()).hexdigest()[:32]


def _order_facts(order: PodOrder, place: str) -> dict[str, Any]:
    return {
        "name": order.name,
        "image": order.image,
        "args": order.args,
        "cloud": order.cloud,
        "gpu": {
            "id": order.gpu_type.id,
            "count": order.gpu_count,
            "vcpuCount": order.gpu_type.host_vcpus * order.gpu_count,
            "memory": order.gpu_type.host_gb * order.gpu_count,
        },
        "disk": order.disk_gb,
        "env": order.env,
        "data_center": place,
    }


async def _body(request: Request) -> dict[str, Any]:
    text = await request.body()
    if len(text) > _MOST_BODY_BYTES:
        raise RunpodError(413, "request body too large")
    try:
        body = json.loads(text)
    except ValueError as error:
        raise conflicting("request body is not valid JSON") from error
    if not isinstance(body, dict):
        raise invalid("", "must be an object")
    return body


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RunpodError)
    return failure(error)


async def _answer_scripted(_: Request, error: Exception) -> Response:
    assert isinstance(error, ScriptedError)
    return failure(RunpodError(error.status or 500, str(error), retry_after_s=error.retry_after_s))


async def _answer_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return failure(RunpodError(error.status_code, error.detail))


async def _answer_bug(_: Request, error: Exception) -> Response:
    return failure(RunpodError(500, f"{type(error).__name__}: {error}"))
