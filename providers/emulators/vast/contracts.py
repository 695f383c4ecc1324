"""The contracts of the emulated Vast.ai: how they come about, what becomes of them, and why."""

from __future__ import annotations

import hashlib
import hmac
import shlex
from collections.abc import Mapping
from typing import Any

from providers.emulators.admin import Action, Unfit, whole_number
from providers.emulators.faults import Fault
from providers.emulators.gpu_faults import break_gpus, wrong_of
from providers.emulators.meter import BESIDE
from providers.emulators.nvidia_smi import GPUS
from providers.emulators.registry import SWITCH, why_not_pulled
from providers.emulators.rows import Cause, MachineRow, MachineState, NewMachine, Then
from providers.emulators.serving import Grounds
from providers.emulators.vast.credit import is_broke
from providers.emulators.vast.errors import RefusedAnswer, no_such_ask
from providers.emulators.vast.hosts import Host, Hosts, shown_gpus
from providers.emulators.vast.order import CreateOrder

VARIABLES = "account_variables"  # what every container gets of its account
_FIRST_REF = 20_000_000
_BITS_PER_BYTE = 8
_GB = 1_000_000_000
_NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "-1"}


def container_key(account_key: str, ref: str) -> str:
    """What a container finds as CONTAINER_API_KEY: it may start, stop and destroy its own contract with it."""
    return hmac.new(account_key.encode(), ref.encode(), hashlib.sha256).hexdigest()


class Contracts:
    """`settle` is to be called again and again: it is what the company does by itself."""

    def __init__(self, grounds: Grounds, hosts: Hosts) -> None:
        self._grounds = grounds
        self._estate = grounds.estate
        self._hosts = hosts

    async def create(self, offer_id: str, order: CreateOrder, fault: Fault | None) -> MachineRow:
        """Rent out the host. Raises Refused; an answer that names a contract has it all the same."""
        kind = None if fault is None else fault.kind
        host = self._hosts.get(offer_id)
        if host is None or kind == "no_such_ask" or not self._hosts.can_be_rented(host):
            raise no_such_ask(offer_id, fault.args.get("status", 404) if fault else 404)
        if is_broke(self._grounds):
            raise RefusedAnswer(400, "missing_billing", "Your account lacks credit; see the billing page.")
        taken = self._hosts.is_taken(host)
        if taken and not self._grounds.switches["double_rent"]:
            raise no_such_ask(offer_id, 410 if order.cancel_unavail else 404)
        lowest = self._hosts.lowest_bid_micros(host)
        too_low = order.bid_micros is not None and order.bid_micros < lowest
        if too_low and order.cancel_unavail and kind != "error_with_contract":
            raise RefusedAnswer(400, "invalid_price", f"error 400/3606: bid is below the minimum of {lowest / 1e6}")
        machine = self._estate.add(self._new(host, order, fault, never=taken or too_low))
        if too_low or kind == "error_with_contract":
            await self._estate.stop(machine.ref, Cause.COMPANY, "could not be started")
            code = str(fault.args.get("code", "invalid_price")) if fault else "invalid_price"
            raise RefusedAnswer(400, code, "error 400/3606: could not be started", new_contract=int(machine.ref))
        return machine

    async def settle(self) -> None:
        """Bids are won and lost, and without credit everything stops."""
        broke = is_broke(self._grounds)
        for machine in self._estate.live():
            if broke and machine.state is not MachineState.STOPPED:
                await self._estate.stop(machine.ref, Cause.COMPANY, "the account has no credit")
            elif machine.facts["bid_micros"] is not None:
                await self._bid(machine, broke=broke)

    async def restart(self, machine: MachineRow) -> None:
        """The same container from its beginning."""
        await self._estate.stop(machine.ref, Cause.REQUEST, "rebooted")
        self._estate.start_again(machine.ref)

    def start(self, machine: MachineRow) -> None:
        """Start what was stopped. Raises Refused when its time is over, or somebody else has the host by now."""
        if machine.due_ms is not None and machine.due_ms <= self._grounds.now_ms():
            raise RefusedAnswer(400, "invalid_state", "the contract is over")
        host = self._hosts.get(machine.facts["offer_id"])
        if machine.state is MachineState.STOPPED and host is not None and self._hosts.is_taken(host):
            return  # it waits, for ever perhaps
        self._estate.start_again(machine.ref)

    def change_bid(self, machine: MachineRow, bid_micros: int) -> None:
        """It counts from now on."""
        self._estate.update_facts(machine.ref, bid_micros=bid_micros)
        self._estate.set_price(machine.ref, bid_micros)

    # -- what a test can make happen

    def actions(self) -> Mapping[str, Action]:
        """For the admin port: /admin/machines/{ref}/{what}."""
        return {
            "outbid": self._outbid,
            "win": self._win,
            "offline": self._offline,
            "online": self._online,
            "unknown": self._unknown,
            "expire": self._expire,
            "traffic": self._traffic,
            "gpus": break_gpus(self._estate),
        }

    async def _outbid(self, ref: str, _: Mapping[str, Any]) -> None:
        """Somebody bids more: stopped without a word, and resumed when that one has gone (`win`)."""
        if self._required(ref).facts["bid_micros"] is None:
            raise Unfit(f"{ref} was rented on demand: nobody can outbid it")
        self._estate.update_facts(ref, outbid_by_test=True)
        await self._estate.stop(ref, Cause.COMPANY, "outbid")

    async def _win(self, ref: str, _: Mapping[str, Any]) -> None:
        self._estate.update_facts(ref, outbid_by_test=False)
        self._estate.start_again(ref)

    async def _offline(self, ref: str, _: Mapping[str, Any]) -> None:
        """Its host is gone, and nothing is charged until it is back (`online`)."""
        await self._estate.stop(ref, Cause.FAILURE, "the host is offline")
        self._estate.update_facts(ref, shown="offline", offline_from_ms=self._grounds.now_ms())

    async def _online(self, ref: str, _: Mapping[str, Any]) -> None:
        """It hears from its host again; a container that was gone with the host is started again."""
        machine = self._required(ref)
        since_ms = machine.facts.get("offline_from_ms")
        if since_ms is not None:
            away_ms = self._grounds.now_ms() - since_ms
            refund = away_ms * machine.storage_micros_per_hour // 3_600_000
            self._estate.update_facts(ref, **{BESIDE: machine.facts.get(BESIDE, 0) - refund, "offline_from_ms": None})
        self._estate.update_facts(ref, shown=None)
        self._estate.start_again(ref)

    async def _unknown(self, ref: str, _: Mapping[str, Any]) -> None:
        """The company does not hear from the host; what runs there goes on (until `online`)."""
        self._estate.update_facts(ref, shown="unknown")

    async def _expire(self, ref: str, _: Mapping[str, Any]) -> None:
        """The contract reaches its end date."""
        self._estate.set_deadline(ref, self._grounds.now_ms(), Then.STOP)

    async def _traffic(self, ref: str, body: Mapping[str, Any]) -> None:
        """So many bytes go in or out, and are charged."""
        machine = self._required(ref)
        host = self._hosts.get(machine.facts["offer_id"])
        assert host is not None
        count = whole_number(body, "down_bytes", 0) + whole_number(body, "up_bytes", 0)
        cost = count * host.inet_micros_per_gb // _GB
        self._estate.update_facts(ref, **{BESIDE: machine.facts.get(BESIDE, 0) + cost})

    # -- the company's own account

    async def _bid(self, machine: MachineRow, *, broke: bool) -> None:
        host = self._hosts.get(machine.facts["offer_id"])
        if host is None:
            return
        lost = machine.facts["outbid_by_test"] or machine.facts["bid_micros"] < self._hosts.lowest_bid_micros(host)
        if lost and machine.state is not MachineState.STOPPED:
            await self._estate.stop(machine.ref, Cause.COMPANY, "outbid")
        elif not lost and not broke and machine.state is MachineState.STOPPED and machine.cause is Cause.COMPANY:
            self._estate.start_again(machine.ref)

    def _new(self, host: Host, order: CreateOrder, fault: Fault | None, *, never: bool) -> NewMachine:
        kind, now_ms = None if fault is None else fault.kind, self._grounds.now_ms()
        number = self._estate.next_number()
        ref = str(_FIRST_REF + number)
        price = self._hosts.price_micros(host) if order.bid_micros is None else order.bid_micros
        if fault is not None and kind == "price_moves":
            price += price * int(fault.args.get("percent", 10)) // 100
        denied = why_not_pulled(self._grounds.switches[SWITCH], order.image, order.login)
        never = never or bool(denied) or kind in {"stuck", "boot_fails", "error_with_contract"}
        given = {**self._estate.recall(VARIABLES, {}), **order.env}
        environment = {name: value for name, value in given.items() if not name.startswith("-")}
        environment |= {"CONTAINER_ID": ref, "VAST_CONTAINERLABEL": f"C.{ref}"}
        environment["CONTAINER_API_KEY"] = container_key(self._grounds.key, ref)
        return NewMachine(
            ref=ref,
            program=order.program(tuple(shlex.split(self._grounds.switches["image_entrypoint"]))),
            label=order.label,
            environment=environment | (_NO_GPU if kind == "broken_gpu" else {}),
            price_micros_per_hour=price,
            storage_micros_per_hour=order.disk_gb * host.disk_micros_per_gb_hour,
            boot_ms=None if never else self._boot_ms(number, host, order),
            when_it_exits=order.when_it_exits,
            deadline_ms=now_ms + host.lease_s * 1000,
            at_deadline=Then.STOP,
            facts={
                "offer_id": host.offer_id,
                "machine_id": host.machine_id,
                "image": order.image,
                "runtype": order.runtype,
                "args": list(order.args),
                "onstart": order.onstart,
                "env": order.env,
                "disk_gb": order.disk_gb,
                "bid_micros": order.bid_micros,
                "outbid_by_test": False,
                "shown": None,
                "boot_shown": "created" if denied else _shown_while_booting(fault),
                "message": denied or _message(fault),
                "broken_gpu": kind == "broken_gpu",
                GPUS: shown_gpus(host, _wrong(fault)),
            },
        )

    def _boot_ms(self, number: int, host: Host, order: CreateOrder) -> int | None:
        """As long as hosts take, and the image on top where it has not run before."""
        boot_ms = self._grounds.startup.boot_ms(number)
        before = (each for each in self._estate.all() if each.facts["machine_id"] == host.machine_id)
        cached = any(each.ready_ms is not None and each.facts["image"] == order.image for each in before)
        if boot_ms is None or cached:
            return boot_ms
        pull_ms = int(self._grounds.switches["image_mb"]) * _BITS_PER_BYTE * 1000 / host.inet_down_mbps
        return boot_ms + round(pull_ms * self._grounds.speed)

    def _required(self, ref: str) -> MachineRow:
        machine = self._estate.get(ref)
        assert machine is not None  # the admin port has looked
        return machine


def _shown_while_booting(fault: Fault | None) -> str | None:
    if fault is not None and fault.kind == "stuck":
        return str(fault.args.get("status", "loading"))
    return "created" if fault is not None and fault.kind == "boot_fails" else None


def _wrong(fault: Fault | None) -> str:
    """What is wrong with the GPUs of a machine that is otherwise up."""
    return "broken" if fault is not None and fault.kind == "broken_gpu" else wrong_of(fault)


def _message(fault: Fault | None) -> str:
    if fault is None or fault.kind != "boot_fails":
        return ""
    default = "Error response from daemon: OCI runtime create failed: container_linux.go: starting container process"
    return str(fault.args.get("message", default))
