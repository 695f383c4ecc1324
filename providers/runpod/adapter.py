"""RunPod as a provider: the conventional tier from its vetted data centers, the marketplace from machines of others."""

from __future__ import annotations

import logging

from app.core.model.node import BillingRule, BillingStart, ProviderTraits
from app.core.model.offer import Offer
from app.errors import InvalidRequest, OfferGone, OutcomeUnknown, PriceMoved, ProviderError
from app.ports.clock import Clock
from app.ports.pace import Pace
from app.ports.provider import Machine, MachineRequest
from providers.bootstrap import bootstrap_script
from providers.runpod.catalogue import NAME, TIERS, availability_params, read_offers, split_offer_id
from providers.runpod.options import RunpodOptions
from providers.runpod.order import Bootstrap, create_body
from providers.runpod.pods import Pods, is_ours
from providers.runpod.wire import RunpodWire

_BILLING = BillingRule(1_000, BillingStart.READY)
_log = logging.getLogger(__name__)


class RunpodProvider:
    """Implements `app.ports.provider.Provider`. No call is ever made twice.

    Pods are deleted, and never stopped: one that is stopped has lost its GPUs, and may not get them back.
    """

    name = NAME

    def __init__(
        self, options: RunpodOptions, *, clock: Clock, pace: Pace, bootstrap: Bootstrap = bootstrap_script
    ) -> None:
        """`pace` is shared by all that use the account."""
        self._options = options
        self._bootstrap = bootstrap
        self._wire = RunpodWire(options, pace=pace)
        self._pods = Pods(clock, create_grace_ms=options.create_grace_ms)
        self._unwanted: set[str] = set()  # pods that a create has left, and that could not be deleted at once

    def traits(self) -> tuple[ProviderTraits, ...]:
        """One for each cloud that is rented from. Its API has no pods that can be outbid."""
        options = self._options
        return tuple(
            ProviderTraits(
                provider=NAME,
                tier=TIERS[cloud],
                billing=_BILLING,
                startup_mean_ms=options.startup_ms,
                startup_deadline_ms=options.startup_deadline_ms,
                create_grace_ms=options.create_grace_ms,
                dies_with_run=False,
                preemptible=False,
            )
            for cloud in options.clouds
        )

    async def offers(self) -> list[Offer]:
        """What is in stock: one look at the catalog for each cloud and number of GPUs."""
        found: list[Offer] = []
        for cloud in self._options.clouds:
            for count in self._options.gpu_counts:
                rows = await self._wire.gpus(availability_params(cloud, count, self._options))
                found += read_offers(rows, cloud, count, self._options)
        return found

    async def create(self, request: MachineRequest) -> Machine:
        """Look whether the offer still holds, rent exactly one pod, and check what it costs.

        OutcomeUnknown as soon as a pod may have been left that nobody wants.
        """
        if request.offer.provider != NAME:
            raise InvalidRequest(f"offer {request.offer.key} is not one of provider {NAME}")
        body = create_body(request, self._bootstrap(request), self._options)
        offer = await self._still_offered(request)
        row = await self._wire.create(body)
        machine = self._pods.created(row, label=request.label, price=offer.price_per_hour)
        if machine.price_per_hour > request.max_price_per_hour:
            moved = PriceMoved(
                f"runpod: pod {machine.ref} costs {machine.price_per_hour} an hour, agreed were "
                f"{request.max_price_per_hour}"
            )
            await self._leave_nothing(machine.ref, moved)
            raise moved
        return machine

    async def get(self, ref: str) -> Machine | None:
        """One that is gone is told as ended for as long as this process remembers it."""
        row = await self._wire.pod(ref)
        return self._pods.missing(ref) if row is None else self._pods.see(row)

    async def find(self, label: str) -> list[Machine]:
        """The pods of this name; those that were deleted are not told any more.

        What a create has left against our will is never found: it is deleted first.
        """
        found = [machine for machine in await self._listed() if machine.label == label]
        for ref in self._unwanted & {machine.ref for machine in found}:
            await self.terminate(ref)
        return [machine for machine in found if not self._pods.is_over(machine.ref)]

    async def list_owned(self) -> list[Machine]:
        """The pods whose name is a node's id."""
        return [machine for machine in await self._listed() if is_ours(machine)]

    async def terminate(self, ref: str) -> None:
        """Delete the pod with its disk. One that is gone or unknown is a success."""
        await self._wire.delete(ref)
        self._unwanted.discard(ref)
        self._pods.deleted(ref)

    async def logs(self, ref: str, tail_lines: int) -> str:
        """Always empty: RunPod gives logs as a stream that does not end. What runs on a pod reports for itself."""
        return ""

    async def close(self) -> None:
        """Close the connections; harmless when repeated."""
        await self._wire.close()

    async def _listed(self) -> list[Machine]:
        return [self._pods.see(row) for row in await self._wire.pods() if isinstance(row, dict)]

    async def _still_offered(self, request: MachineRequest) -> Offer:
        wanted = split_offer_id(request.offer.offer_id)
        if wanted is None or wanted[0] not in self._options.clouds:
            raise OfferGone(f"runpod: there is no offer {request.offer.offer_id}")
        cloud, count, gpu_id = wanted
        row = await self._wire.gpu(gpu_id, availability_params(cloud, count, self._options))
        offer = next(iter(read_offers([] if row is None else [row], cloud, count, self._options)), None)
        if offer is None:
            raise OfferGone(f"runpod has no {request.offer.offer_id} now")
        if offer.price_per_hour > request.max_price_per_hour:
            raise PriceMoved(
                f"runpod asks {offer.price_per_hour} an hour for {offer.offer_id}, agreed were "
                f"{request.max_price_per_hour}"
            )
        return offer

    async def _leave_nothing(self, ref: str, error: ProviderError) -> None:
        _log.warning("runpod: deleting pod %s at once: %s", ref, error)
        self._unwanted.add(ref)
        try:
            await self.terminate(ref)
        except ProviderError as kept:
            raise OutcomeUnknown(
                f"runpod: pod {ref} was created although it is not wanted ({error}), and not deleted: {kept}"
            ) from kept
