"""The API as customers see it, under /api/v1.

A user data script runs as soon as the machine is active; that it has ended, or never began, shows nowhere. There is no
systemd: after a restart the script runs again, in place of the service that it would have installed.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from providers.emulators.faults import Fault, When
from providers.emulators.gpu_faults import wrong_of
from providers.emulators.lambda_cloud import ways
from providers.emulators.lambda_cloud.answers import LambdaError, failure, invalid, missing, success
from providers.emulators.lambda_cloud.firewalls import GLOBAL, Firewalls
from providers.emulators.lambda_cloud.goods import MICROS_PER_CENT, TYPES, region
from providers.emulators.lambda_cloud.images import images
from providers.emulators.lambda_cloud.instances import instance_json, shown_status, status_of
from providers.emulators.lambda_cloud.limits import CallSpacing
from providers.emulators.lambda_cloud.orders import LONGEST_NAME, LaunchOrder, read_order
from providers.emulators.nvidia_smi import GPUS
from providers.emulators.rows import MachineProgram, MachineRow, NewMachine, Then
from providers.emulators.serving import Grounds
from providers.emulators.wire import CallerGone, ScriptedError, answer_dropped, strike

_PREFIX = "/api/v1"
_NO_SCRIPT = "echo 'only user data that begins with #! is run here'"
_KEYS = "ssh_keys"
_MOST_BODY_BYTES = 2_000_000
_RESTART_MS = 60_000
_LONGEST_SHOWN_MS = 3_600_000  # well above what a machine that has ended lingers, at any sensible speed

Handler = Callable[[Request, Fault | None], Awaitable[Response]]


class LambdaApi:
    """Builds the application on its grounds."""

    def __init__(self, grounds: Grounds) -> None:
        self._grounds = grounds
        self._estate = grounds.estate
        self._switches = grounds.switches
        self._firewalls = Firewalls(grounds.estate, grounds.now_ms)
        self._limits = CallSpacing(grounds.now_ms, grounds.speed)
        if self._estate.recall(_KEYS) is None:
            self._estate.remember(_KEYS, [ways.FIRST_SSH_KEY])

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                self._route("/instance-types", "GET", "types", self.instance_types),
                self._route("/instance-operations/launch", "POST", "launch", self.launch),
                self._route("/instances", "GET", "list", self.instances),
                self._route("/instances/{ref}", "GET", "get", self.instance),
                self._route("/instances/{ref}", "POST", "rename", self.rename),
                self._route("/instance-operations/terminate", "POST", "terminate", self.terminate),
                self._route("/instance-operations/restart", "POST", "restart", self.restart),
                self._route("/ssh-keys", "GET", "keys", self.keys),
                self._route("/ssh-keys", "POST", "keys", self.add_key),
                self._route("/ssh-keys/{key_id}", "DELETE", "keys", self.drop_key),
                self._route("/file-systems", "GET", "other", self.nothing),
                self._route("/images", "GET", "other", self.images),
                self._route("/firewall-rulesets", "GET", "other", self.rulesets),
                self._route("/firewall-rulesets", "POST", "other", self.add_ruleset),
                self._route("/firewall-rulesets/{ruleset}", "GET", "other", self.ruleset),
                self._route("/firewall-rulesets/{ruleset}", "PATCH", "other", self.change_ruleset),
                self._route("/firewall-rulesets/{ruleset}", "DELETE", "other", self.drop_ruleset),
            ],
            exception_handlers={
                LambdaError: _answer_error,
                ScriptedError: _answer_scripted,
                CallerGone: answer_dropped,
                HTTPException: _answer_http,
                Exception: _answer_bug,
            },
        )

    # -- what is for rent

    async def instance_types(self, _: Request, __: Fault | None) -> Response:
        now_ms, market = self._grounds.now_ms(), self._grounds.market
        taken = self._taken()
        shown: dict[str, Any] = {}
        for name, each in TYPES.items():
            cents = market.listed_price_micros(name, now_ms) // MICROS_PER_CENT
            free = [
                region(place)
                for place in each.regions
                if market.listed_supply(name, now_ms, place) > taken.get((name, place), 0)
            ]
            shown[name] = {
                "instance_type": {**each.wire(), "price_cents_per_hour": cents},
                "regions_with_capacity_available": free,
            }
        return success(shown)

    async def launch(self, request: Request, fault: Fault | None) -> Response:
        order = read_order(await _body(request), self._estate.recall(_KEYS))
        self._firewalls.check(order.firewalls, order.region)
        self._check_room(order, fault)
        machine = self._estate.add(self._new(order, fault))
        return success({"instance_ids": [machine.ref]})

    def _check_room(self, order: LaunchOrder, fault: Fault | None) -> None:
        name, now_ms, taken = order.instance_type.name, self._grounds.now_ms(), self._taken()
        quota = self._switches["gpu_quota"]
        gpus = sum(TYPES[each].gpus * count for (each, _), count in taken.items())
        if quota and gpus + order.instance_type.gpus > quota:
            raise LambdaError("global/quota-exceeded", f"Quota exceeded: {quota} GPUs.")
        room = {
            place: self._grounds.market.supply(name, now_ms, place) - taken.get((name, place), 0)
            for place in order.instance_type.regions
        }
        scripted = fault is not None and fault.kind == ways.NO_CAPACITY
        if scripted or room.get(order.region, 0) <= 0:
            places = [place for place, left in room.items() if left > 0 and place != order.region]
            raise _insufficient(fault.args.get("places", places) if fault and scripted else places)

    def _new(self, order: LaunchOrder, fault: Fault | None) -> NewMachine:
        kind = fault.kind if fault else None
        number, startup = self._estate.next_number(), self._grounds.startup
        boot_ms = startup.boot_ms(number, mean_ms=order.instance_type.boot_ms)
        if kind == ways.NEVER_READY:
            boot_ms = None
        elif fault is not None and kind == ways.BOOT_SLOW:
            boot_ms = (boot_ms or 0) + fault.ms
        facts: dict[str, Any] = {
            "order": _order_facts(order),
            "private_ip": self._switches["private_ips"],
            GPUS: order.instance_type.shown_gpus(wrong_of(fault)),
        }
        if fault is not None and kind == ways.UNHEALTHY:
            facts["unhealthy_after_ms"] = fault.ms
        fails = kind == ways.CLOUD_INIT_FAILS or ways.chance(
            self._grounds.seed, "cloud-init", number, self._switches["cloud_init_fails_ppm"]
        )
        late_ms = fault.ms if fault is not None and kind == ways.CLOUD_INIT_SLOW else 0
        return NewMachine(
            ref=secrets.token_hex(16),
            program=MachineProgram(script="exit 1") if fails else _program(order.user_data, late_ms),
            label=_label(order),
            price_micros_per_hour=self._grounds.market.price_micros(order.instance_type.name, self._grounds.now_ms()),
            boot_ms=boot_ms,
            when_it_exits=Then.STAY,  # nothing that happens inside ends a machine, or its billing
            facts=facts,
        )

    def _taken(self) -> dict[tuple[str, str], int]:
        """Live machines by type and region."""
        taken: dict[tuple[str, str], int] = {}
        for machine in self._estate.live():
            order = machine.facts["order"]
            place = order["type"], order["region"]
            taken[place] = taken.get(place, 0) + 1
        return taken

    # -- instances

    async def instances(self, _: Request, fault: Fault | None) -> Response:
        candidates = self._estate.live_or_ended_since(self._grounds.now_ms() - _LONGEST_SHOWN_MS)
        shown = [(each, status) for each in candidates if (status := self._shown(each)) is not None]
        if fault is not None and fault.kind == ways.PARTIAL_LIST:
            shown = shown[: max(0, len(shown) - fault.args.get("hide", 1))]
        return success([self._json(machine, status) for machine, status in shown])

    async def instance(self, request: Request, _: Fault | None) -> Response:
        machine = self._required(request.path_params["ref"])
        status = self._shown(machine)
        if status is None and self._switches["gone_is"] == ways.GONE_IS_404:
            raise missing("instance")
        return success(self._json(machine, status or "terminated"))

    async def rename(self, request: Request, _: Fault | None) -> Response:
        machine, body = self._required(request.path_params["ref"]), await _body(request)
        name = body.get("name")
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
            raise invalid(f"name must have 1 to {LONGEST_NAME} characters.")
        machine = self._estate.update_facts(machine.ref, order=machine.facts["order"] | {"name": name})
        return success(self._json(machine, status_of(machine, self._grounds.now_ms())))

    async def restart(self, request: Request, _: Fault | None) -> Response:
        """All that runs there is killed, and the machine boots again; its disk, addresses and bill go on."""
        machines, now_ms = await self._named(request), self._grounds.now_ms()
        for machine in machines:
            if (status := status_of(machine, now_ms)) not in {"active", "unhealthy"}:
                code = "vm-has-not-launched" if status == "booting" else "vm-is-terminating"
                raise LambdaError(code, f"The instance cannot be restarted while it is {status}.")
        restarted = []
        for machine in machines:
            self._estate.update_facts(machine.ref, unhealthy_after_ms=None)
            await self._estate.stop(machine.ref, detail="restarted")
            again = self._estate.start_again(machine.ref, round(_RESTART_MS * self._grounds.speed))
            restarted.append(self._json(again, status_of(again, now_ms)))
        return success({"restarted_instances": restarted})

    async def terminate(self, request: Request, fault: Fault | None) -> Response:
        machines, now_ms = await self._named(request), self._grounds.now_ms()
        for machine in machines:
            if fault is not None and fault.kind == ways.REFUSE_TERMINATE:
                raise LambdaError(str(fault.args.get("code", "global/unknown")))
            status = status_of(machine, now_ms)
            if status in {"terminating", "terminated"}:
                if self._shown(machine) is None:
                    raise missing("instance")
                raise LambdaError("global/unknown")
            if status == "booting" and self._switches["refuse_terminate_while_booting"]:
                raise LambdaError("vm-has-not-launched", "The instance has not launched yet.")
        ending = []
        for machine in machines:
            self._estate.update_facts(machine.ref, terminated_ms=now_ms)
            ending.append(self._json(self._estate.end_soon(machine.ref, is_accepted=True), "terminating"))
        return success({"terminated_instances": ending})

    # -- keys, and what nobody of ours uses

    async def keys(self, _: Request, __: Fault | None) -> Response:
        return success([{"id": name, "name": name, "public_key": "ssh-ed25519 AAAA"} for name in self._key_names()])

    async def add_key(self, request: Request, _: Fault | None) -> Response:
        body = await _body(request)
        name, public_key = body.get("name"), body.get("public_key", "ssh-ed25519 AAAA")
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME or not isinstance(public_key, str):
            raise invalid(f"name must have 1 to {LONGEST_NAME} characters.")
        if name in self._key_names():
            raise LambdaError("global/duplicate", "An SSH key with this name exists.")
        self._estate.remember(_KEYS, [*self._key_names(), name])
        return success({"id": name, "name": name, "public_key": public_key})

    async def drop_key(self, request: Request, _: Fault | None) -> Response:
        name = request.path_params["key_id"]
        if name not in self._key_names():
            raise missing("SSH key")
        self._estate.remember(_KEYS, [each for each in self._key_names() if each != name])
        return success({})

    async def images(self, _: Request, __: Fault | None) -> Response:
        return success(images())

    async def rulesets(self, _: Request, __: Fault | None) -> Response:
        return success(self._firewalls.all())

    async def ruleset(self, request: Request, _: Fault | None) -> Response:
        ref = request.path_params["ruleset"]
        return success(self._firewalls.of_all() if ref == GLOBAL else self._firewalls.get(ref))

    async def add_ruleset(self, request: Request, _: Fault | None) -> Response:
        return success(self._firewalls.create(await _body(request)))

    async def change_ruleset(self, request: Request, _: Fault | None) -> Response:
        ref, body = request.path_params["ruleset"], await _body(request)
        changed = self._firewalls.set_for_all(body) if ref == GLOBAL else self._firewalls.change(ref, body)
        return success(changed)

    async def drop_ruleset(self, request: Request, _: Fault | None) -> Response:
        self._firewalls.drop(request.path_params["ruleset"])
        return success({})

    async def nothing(self, _: Request, __: Fault | None) -> Response:
        return success([])

    # -- around every call

    def _route(self, path: str, method: str, op: str, handler: Handler) -> Route:
        async def guarded(request: Request) -> Response:
            self._check_account(request)
            if self._switches["rate_limits"] and not self._limits.lets_through(launch=op == "launch"):
                raise LambdaError("global/too-many-requests")
            fault = self._grounds.faults.take(op)
            await strike(request, fault, When.BEFORE)
            response = await handler(request, fault)
            if fault is not None and fault.when is When.AFTER:
                await strike(request, fault, When.AFTER)
            return response

        return Route(_PREFIX + path, guarded, methods=[method])

    def _check_account(self, request: Request) -> None:
        given = request.headers.get("authorization", "").encode()
        basic = base64.b64encode(f"{self._grounds.key}:".encode())
        accepted = (b"Bearer " + self._grounds.key.encode(), b"Basic " + basic)
        if not any(hmac.compare_digest(given, each) for each in accepted):
            raise LambdaError("global/invalid-api-key")
        if self._switches["account_inactive"]:
            raise LambdaError("global/account-inactive")

    # -- small things

    async def _named(self, request: Request) -> list[MachineRow]:
        """The machines in `instance_ids`. Raises LambdaError where one does not exist."""
        refs = (await _body(request)).get("instance_ids")
        if not isinstance(refs, list) or not refs or not all(isinstance(ref, str) for ref in refs):
            raise invalid("instance_ids must be a list of ids.")
        return [self._required(ref) for ref in refs]

    def _required(self, ref: str) -> MachineRow:
        machine = self._estate.get(ref)
        if machine is None:
            raise missing("instance")
        return machine

    def _shown(self, machine: MachineRow) -> str | None:
        return shown_status(machine, self._grounds.now_ms(), self._grounds.speed)

    def _json(self, machine: MachineRow, status: str) -> dict[str, Any]:
        refuses = bool(self._switches["refuse_terminate_while_booting"])
        cents = machine.price_micros_per_hour // MICROS_PER_CENT
        shown = instance_json(machine, status, refuses_to_end=refuses)
        shown["instance_type"]["price_cents_per_hour"] = cents
        return shown

    def _key_names(self) -> list[str]:
        return list(self._estate.recall(_KEYS))


def _program(user_data: str, late_ms: int) -> MachineProgram:
    if not user_data.startswith("#!"):
        return MachineProgram(script=_NO_SCRIPT)
    first, _, rest = user_data.partition("\n")
    return MachineProgram(script=f"{first}\nsleep {late_ms / 1000}\n{rest}" if late_ms else user_data)


def _label(order: LaunchOrder) -> str | None:
    """What the estate files it under: any tag that names its owner's id for it, else its name."""
    tagged = next((tag["value"] for tag in order.tags if tag["key"] == "allpass_node"), None)
    return tagged or order.name


def _order_facts(order: LaunchOrder) -> dict[str, Any]:
    return {
        "type": order.instance_type.name,
        "region": order.region,
        "ssh_key": order.ssh_key,
        "name": order.name,
        "hostname": order.hostname,
        "tags": order.tags,
        "firewalls": list(order.firewalls),
    }


def _insufficient(places: list[str]) -> LambdaError:
    message = "Not enough capacity to fulfill launch request."
    if places:
        message += f" Regions with capacity available: {', '.join(places)}"
    return LambdaError(
        "instance-operations/launch/insufficient-capacity",
        message,
        suggestion="Choose an instance type with more availability, or try again later.",
    )


async def _body(request: Request) -> dict[str, Any]:
    text = await request.body()
    if len(text) > _MOST_BODY_BYTES:
        raise invalid("The request is too large.")
    try:
        body = json.loads(text)
    except ValueError as error:
        raise invalid("The request is not JSON.") from error
    if not isinstance(body, dict):
        raise invalid("The request must be a JSON object.")
    return body


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, LambdaError)
    return failure(error)


async def _answer_scripted(_: Request, error: Exception) -> Response:
    assert isinstance(error, ScriptedError)
    code = error.code or ("global/too-many-requests" if error.status == 429 else "global/internal-error")
    message = str(error) if error.message_given else None
    return failure(LambdaError(code, message, status=error.status, retry_after_s=error.retry_after_s))


async def _answer_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return failure(LambdaError("global/object-does-not-exist", error.detail, status=error.status_code))


async def _answer_bug(_: Request, error: Exception) -> Response:
    return failure(LambdaError("global/internal-error", f"{type(error).__name__}: {error}"))
