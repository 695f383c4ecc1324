"""The provider of hosts that have joined."""

from __future__ import annotations

from app.core.model.node import BillingRule, BillingStart, ProviderTraits, Tier
from app.core.model.offer import Offer
from app.core.model.pool import JOINED
from app.core.pools import STARTUP_MS
from app.errors import InvalidRequest, NoCapacity
from app.ports.hosts import OwnHosts
from app.ports.provider import Machine, MachineRequest

_CREATE_GRACE_MS = 5_000  # what is written down is listed at once


class JoinedHosts:
    """Implements `app.ports.provider.Provider`. Without `hosts` nothing is offered: a tool that runs alone."""

    name = JOINED

    def __init__(self, hosts: OwnHosts | None, *, startup_deadline_ms: int) -> None:
        self._hosts = hosts
        self._traits = ProviderTraits(
            provider=JOINED,
            tier=Tier.OWN,
            billing=BillingRule(1_000, BillingStart.READY),
            startup_mean_ms=STARTUP_MS,
            startup_deadline_ms=startup_deadline_ms,
            create_grace_ms=_CREATE_GRACE_MS,
            dies_with_run=False,
            preemptible=True,
            takes_images=False,
            is_networked=True,
        )

    def traits(self) -> tuple[ProviderTraits, ...]:
        return (self._traits,)

    async def offers(self) -> list[Offer]:
        return [] if self._hosts is None else await self._hosts.offers()

    async def create(self, request: MachineRequest) -> Machine:
        """Raises OfferGone, NoCapacity, PriceMoved and InvalidRequest; there is no answer that could be lost."""
        if request.offer.provider != JOINED:
            raise InvalidRequest(f"offer {request.offer.key} is not one of provider {JOINED}")
        return await self._known().launch(request)

    async def get(self, ref: str) -> Machine | None:
        return await self._known().machine(ref)

    async def find(self, label: str) -> list[Machine]:
        return list(await self._known().machines(label))

    async def list_owned(self) -> list[Machine]:
        return [] if self._hosts is None else list(await self._hosts.machines())

    async def terminate(self, ref: str) -> None:
        await self._known().end(ref)

    async def logs(self, ref: str, tail_lines: int) -> str:
        text = await self._known().log(ref)
        return "".join(text.splitlines(keepends=True)[-tail_lines:]) if tail_lines > 0 else ""

    async def close(self) -> None:
        """Nothing is held."""

    def _known(self) -> OwnHosts:
        if self._hosts is None:
            raise NoCapacity("hosts that have joined are known to the service alone")
        return self._hosts
