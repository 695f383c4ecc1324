"""Lambda as a provider: one tier, the conventional one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.errors import InvalidRequest, OfferGone, PriceMoved, Transient
from app.ports.clock import Clock
from app.ports.pace import Pace
from app.ports.provider import Machine, MachineRequest, MachineStatus
from providers.bootstrap import bootstrap_script
from providers.lambda_cloud.catalogue import NAME, read_offers, split_offer_id
from providers.lambda_cloud.options import LambdaOptions
from providers.lambda_cloud.sightings import CREATED_TAG, LABEL_TAG, Sightings, is_ours
from providers.lambda_cloud.wire import LambdaWire

_BILLING = BillingRule(60_000, BillingStart.READY)
_LONGEST_NAME = 64
_MOST_USER_DATA_BYTES = 1_000_000
_ENDING = frozenset({MachineStatus.ENDED, MachineStatus.STOPPED})

Bootstrap = Callable[[MachineRequest], str]


class LambdaProvider:
    """Implements `app.ports.provider.Provider`. No call is ever made twice.

    Lambda tells no times: `billed_from_ms` and `billed_to_ms` are when this process saw the machine become active and
    end. Nothing on a machine ends its billing: that takes `terminate`.
    """

    name = NAME

    def __init__(
        self, options: LambdaOptions, *, clock: Clock, pace: Pace, bootstrap: Bootstrap = bootstrap_script
    ) -> None:
        """`pace` is shared by all that use the account: it is called once a second, and launches every 12 seconds."""
        self._options = options
        self._clock = clock
        self._bootstrap = bootstrap
        self._wire = LambdaWire(options, pace=pace)
        self._sightings = Sightings(clock)

    def traits(self) -> tuple[ProviderTraits, ...]:
        """One tier, billed in started minutes from the moment a machine is active."""
        return (
            ProviderTraits(
                provider=NAME,
                tier=Tier.CONVENTIONAL,
                billing=_BILLING,
                startup_mean_ms=self._options.startup_ms,
                startup_deadline_ms=self._options.startup_deadline_ms,
                create_grace_ms=self._options.create_grace_ms,
                dies_with_run=False,
                preemptible=False,
                takes_images=False,
                is_networked=True,
            ),
        )

    async def offers(self) -> list[Offer]:
        """One for each pair of instance type and region that has capacity, as far as the options allow."""
        return read_offers(await self._wire.instance_types(), self._options)

    async def create(self, request: MachineRequest) -> Machine:
        """Look whether the offer still holds, since launches are rationed, then launch exactly one instance.

        OutcomeUnknown as soon as the launch may have arrived without a clear answer.
        """
        if request.offer.provider != NAME:
            raise InvalidRequest(f"offer {request.offer.key} is not one of provider {NAME}")
        body = self._launch_body(request)
        price = (await self._still_offered(request)).price_per_hour
        ref = (await self._wire.launch(body))[0]
        return self._sightings.launched(ref, request.label, price, _created_ms(body))

    async def get(self, ref: str) -> Machine | None:
        """One that is gone is told as ended for as long as this process remembers it."""
        row = await self._wire.instance(ref)
        return self._sightings.gone(ref) if row is None else self._sightings.see(row)

    async def find(self, label: str) -> list[Machine]:
        """The instances with this label that Lambda still lists."""
        return [machine for machine in await self._listed() if machine.label == label]

    async def list_owned(self) -> list[Machine]:
        """The listed instances whose label is a node id."""
        return [machine for machine in await self._listed() if is_ours(machine)]

    async def terminate(self, ref: str) -> None:
        """Have it terminated. One that is gone, unknown, or on its way out is a success; it is over when `get` says so.

        Lambda refuses an instance that has not launched yet, or that is terminating already, in words that need not
        tell which: a look at it does. Transient when it is neither ended nor ending.
        """
        refused = await self._wire.terminate(ref)
        if refused is not None:
            machine = await self.get(ref)
            if machine is not None and machine.status not in _ENDING:
                raise Transient(f"{ref} is {machine.status} and cannot be terminated now: {refused}")
            if machine is not None and machine.detail == "preempted":
                raise Transient(f"{ref} was preempted and cannot be terminated now: {refused}")
        self._sightings.terminated(ref)

    async def logs(self, ref: str, tail_lines: int) -> str:
        """Always empty: Lambda shows nobody what a machine writes. What runs on it reports for itself."""
        return ""

    async def close(self) -> None:
        """Close the connections; harmless when repeated."""
        await self._wire.close()

    async def _listed(self) -> list[Machine]:
        return [self._sightings.see(row) for row in await self._wire.instances()]

    async def _still_offered(self, request: MachineRequest) -> Offer:
        wanted = request.offer.offer_id
        offer = next((each for each in await self.offers() if each.offer_id == wanted), None)
        if offer is None:
            raise OfferGone(f"lambda has no {wanted} now")
        if offer.price_per_hour > request.max_price_per_hour:
            raise PriceMoved(
                f"lambda asks {offer.price_per_hour} an hour for {wanted}, agreed were {request.max_price_per_hour}"
            )
        return offer

    def _launch_body(self, request: MachineRequest) -> dict[str, Any]:
        """One instance, named and tagged with our label, that runs our script when it first boots."""
        if not request.label or len(request.label) > _LONGEST_NAME:
            raise InvalidRequest(f"label {request.label!r} cannot name an instance: 1 to {_LONGEST_NAME} characters")
        script = self._bootstrap(request)
        if not script.startswith("#!") or len(script.encode()) > _MOST_USER_DATA_BYTES:
            raise InvalidRequest(f"user data must be a script of at most {_MOST_USER_DATA_BYTES} bytes that begins #!")
        type_name, region = split_offer_id(request.offer.offer_id)
        return {
            "region_name": region,
            "instance_type_name": type_name,
            "ssh_key_names": [self._options.ssh_key],
            "name": request.label,
            "user_data": script,
            "tags": [
                {"key": LABEL_TAG, "value": request.label},
                {"key": CREATED_TAG, "value": str(self._clock.now_ms())},
            ],
        }


def _created_ms(body: dict[str, Any]) -> int:
    return next(int(tag["value"]) for tag in body["tags"] if tag["key"] == CREATED_TAG)
