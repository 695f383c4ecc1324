"""A rental company in memory: the provider port, faithfully, with faults on demand and a bill of its own."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from app.core.billing import cost
from app.core.model.money import Money
from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.errors import OfferGone, OutcomeUnknown, PriceMoved, ProviderError
from app.ports.clock import Clock
from app.ports.provider import Machine, MachineRequest, MachineStatus

GIB = 1024**3


class Fault(Enum):
    """What may go wrong with one create call, beside a plain error."""

    LOST_REPLY = "the machine is created, the answer is lost"
    LOST_REQUEST = "nothing is created, and that is not told"
    HANG = "the machine is created, the answer never comes"


@dataclass
class RentedMachine:
    """What the company knows of a machine. `visible_ms`: listings show it from then on."""

    machine: Machine
    join_token: str
    url: str
    visible_ms: int = 0
    vanished: bool = False  # dropped from every answer, as some companies do with what has ended

    @property
    def nonce(self) -> str:
        """What its agent made up when it started."""
        return hashlib.sha256(self.machine.ref.encode()).hexdigest()


@dataclass
class FakeProvider:
    """One account. `create_faults` are used up one per create call; `listing_error` lasts until it is taken away."""

    clock: Clock
    name: str = "cloud"
    create_faults: list[Fault | ProviderError | None] = field(default_factory=list)
    terminate_faults: list[ProviderError | None] = field(default_factory=list)
    listing_error: ProviderError | None = None
    get_error: ProviderError | None = None
    slow_to_end: int = 0  # so many looks at a terminated machine still show it running
    listing_lag_ms: int = 0
    image_builds: dict[str, asyncio.Future[None]] | None = None  # by image; None: needs none, runs any image at once
    keeps_running: bool = False  # a terminate call is answered, `get` says it is gone, and the machine runs on
    max_lifetime_ms: dict[Tier, int] = field(default_factory=dict)
    before_call: Callable[[str], None] = lambda _name: None  # crash tests raise here
    after_call: Callable[[str], None] = lambda _name: None

    def __post_init__(self) -> None:
        self.rented: dict[str, RentedMachine] = {}
        self.creates = 0
        self.told_to_end: list[str] = []
        self.calls: list[str] = []
        self._numbers = itertools.count(1)
        self._looks_left: dict[str, int] = {}
        self.on_offer = [
            make_offer(self.name, "serverless-a100", Tier.SERVERLESS, "2.10", startup_ms=2_000),
            make_offer(self.name, "market-a100", Tier.MARKETPLACE, "0.72", startup_ms=30_000),
        ]

    def traits(self) -> tuple[ProviderTraits, ...]:
        return tuple(
            ProviderTraits(
                provider=self.name,
                tier=tier,
                billing=BillingRule(unit_ms=unit_ms, starts=BillingStart.REQUEST),
                startup_mean_ms=2_000,
                startup_deadline_ms=120_000,
                create_grace_ms=10_000,
                dies_with_run=tier is Tier.SERVERLESS,
                preemptible=tier is Tier.MARKETPLACE,
                max_lifetime_ms=self.max_lifetime_ms.get(tier),
                is_networked=tier is Tier.CONVENTIONAL,
                builds_images=self.image_builds is not None and tier is Tier.SERVERLESS,
            )
            for tier, unit_ms in ((Tier.SERVERLESS, 1), (Tier.MARKETPLACE, 1_000), (Tier.CONVENTIONAL, 60_000))
        )

    async def offers(self) -> list[Offer]:
        self._enter("offers")
        if self.listing_error is not None:
            raise self.listing_error
        return list(self.on_offer)

    async def create(self, request: MachineRequest) -> Machine:
        self._enter("create")
        self.creates += 1
        fault = self.create_faults.pop(0) if self.create_faults else None
        if isinstance(fault, ProviderError):
            raise fault
        if fault is Fault.LOST_REQUEST:
            raise OutcomeUnknown("the connection broke")
        machine = self._rent(request)
        self._leave("create")
        if fault is Fault.LOST_REPLY:
            raise OutcomeUnknown("the connection broke")
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        return machine

    async def build_image(self, image: str) -> None:
        """Goes on until the test sets a result. Who asks again joins the same build."""
        self._enter(f"build_image {image}")
        assert self.image_builds is not None
        build = self.image_builds.setdefault(image, asyncio.get_running_loop().create_future())
        await asyncio.shield(build)

    async def get(self, ref: str) -> Machine | None:
        self._enter("get")
        if self.get_error is not None:
            raise self.get_error
        rented = self.rented.get(ref)
        if rented is None or rented.vanished or (self.keeps_running and ref in self.told_to_end):
            return None
        if self._looks_left.get(ref, 0) > 0:
            self._looks_left[ref] -= 1
            if self._looks_left[ref] == 0:
                self._end(ref)
        return self._as_told(rented)

    async def find(self, label: str) -> list[Machine]:
        self._enter("find")
        if self.listing_error is not None:
            raise self.listing_error
        return [machine for machine in self._listing() if machine.label == label]

    async def list_owned(self) -> list[Machine]:
        self._enter("list_owned")
        if self.listing_error is not None:
            raise self.listing_error
        return self._listing()

    async def terminate(self, ref: str) -> None:
        self._enter("terminate")
        fault = self.terminate_faults.pop(0) if self.terminate_faults else None
        if fault is not None:
            raise fault
        self.told_to_end.append(ref)
        if self.keeps_running:
            return
        if ref in self.rented and self.rented[ref].machine.status is not MachineStatus.ENDED:
            if self.slow_to_end:
                self._looks_left.setdefault(ref, self.slow_to_end)
            else:
                self._end(ref)
        self._leave("terminate")

    async def logs(self, ref: str, tail_lines: int) -> str:
        return ""

    async def close(self) -> None:
        return None

    # What tests do at the company's side

    def plant(self, label: str | None, *, created_ms: int) -> str:
        """A machine that nobody here asked for."""
        ref = f"m-{next(self._numbers)}"
        machine = Machine(
            provider=self.name,
            ref=ref,
            label=label,
            tier=Tier.MARKETPLACE,
            status=MachineStatus.RUNNING,
            price_per_hour=Money.usd("0.72"),
            created_ms=created_ms,
            billed_from_ms=created_ms,
            billed_to_ms=None,
        )
        self.rented[ref] = RentedMachine(machine, "", "")
        return ref

    def die(self, label: str, *, outage: bool = False) -> None:
        """The node's machine ends by itself, or with the company."""
        for ref, rented in self.rented.items():
            if rented.machine.label == label:
                self._end(ref)
                rented.machine = replace(rented.machine, outage=outage)

    def outbid(self, label: str, *, runs_again: bool = False) -> None:
        """The node's machine, which was bid for, goes to somebody else; `runs_again`: and is started anew then."""
        status = MachineStatus.RUNNING if runs_again else MachineStatus.STOPPED
        for rented in self.of_label(label):
            rented.machine = replace(rented.machine, status=status, interrupted=True, detail="stopped")

    def alive(self) -> list[Machine]:
        """Machines that cost money now."""
        return [rented.machine for rented in self.rented.values() if rented.machine.status is not MachineStatus.ENDED]

    def of_label(self, label: str) -> list[RentedMachine]:
        return [rented for rented in self.rented.values() if rented.machine.label == label]

    def bill(self, label: str | None = None) -> Money:
        """What the company asks for all its machines, or for one node's."""
        charged = [r for r in self.rented.values() if label is None or r.machine.label == label]
        return Money(sum(self._charge(rented.machine).micros for rented in charged))

    def _rent(self, request: MachineRequest) -> Machine:
        known = {offer.key: offer for offer in self.on_offer}
        offer = known.get(request.offer.key)
        if offer is None:
            raise OfferGone(f"{request.offer.key} is taken")
        if offer.price_per_hour > request.max_price_per_hour:
            raise PriceMoved(f"{offer.key} costs {offer.price_per_hour}")
        now_ms = self.clock.now_ms()
        machine = Machine(
            provider=self.name,
            ref=f"m-{next(self._numbers)}",
            label=request.label,
            tier=offer.tier,
            status=MachineStatus.RUNNING,
            price_per_hour=offer.price_per_hour,
            created_ms=now_ms,
            billed_from_ms=now_ms,
            billed_to_ms=None,
        )
        bootstrap = dict(request.bootstrap)
        self.rented[machine.ref] = RentedMachine(
            machine, bootstrap["ALLPASS_JOIN_TOKEN"], bootstrap["ALLPASS_URL"], now_ms + self.listing_lag_ms
        )
        return machine

    def _listing(self) -> list[Machine]:
        now_ms = self.clock.now_ms()
        shown = [r for r in self.rented.values() if not r.vanished and r.visible_ms <= now_ms]
        return [self._as_told(rented) for rented in shown]

    def _as_told(self, rented: RentedMachine) -> Machine:
        return replace(rented.machine, billed=self._charge(rented.machine))

    def _end(self, ref: str) -> None:
        rented = self.rented[ref]
        if rented.machine.status is not MachineStatus.ENDED:
            ended = replace(rented.machine, status=MachineStatus.ENDED, billed_to_ms=self.clock.now_ms())
            rented.machine = ended

    def _charge(self, machine: Machine) -> Money:
        rule = next(trait.billing for trait in self.traits() if trait.tier is machine.tier)
        assert machine.billed_from_ms is not None
        to_ms = self.clock.now_ms() if machine.billed_to_ms is None else machine.billed_to_ms
        return cost(rule, machine.price_per_hour, machine.billed_from_ms, to_ms)

    def _enter(self, name: str) -> None:
        self.calls.append(name)
        self.before_call(name)

    def _leave(self, name: str) -> None:
        self.after_call(name)


def make_offer(provider: str, offer_id: str, tier: Tier, usd_hour: str, *, startup_ms: int, gpus: int = 1) -> Offer:
    return Offer(
        provider=provider,
        offer_id=offer_id,
        tier=tier,
        gpu_type="A100",
        gpu_count=gpus,
        gpu_memory_bytes=40 * GIB,
        cpus=8,
        memory_bytes=64 * GIB,
        price_per_hour=Money.usd(usd_hour),
        startup_ms=startup_ms,
    )
