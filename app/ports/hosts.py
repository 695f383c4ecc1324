"""What a provider of one's own machines asks of whoever talks to them: the hosts dial in, so nobody can call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from app.core.model.offer import Offer
from app.ports.provider import Machine, MachineRequest


class OwnHosts(Protocol):
    """Every method raises Transient while that cannot be known or written."""

    async def offers(self) -> list[Offer]:
        """What is free now."""
        ...

    async def launch(self, request: MachineRequest) -> Machine:
        """Give GPUs of the offer's host to the request's label, and have the host start a machine. Asked again for a
        label that has one, that one. Raises OfferGone, NoCapacity, PriceMoved."""
        ...

    async def machines(self, label: str | None = None) -> Sequence[Machine]:
        """All that run or ended lately; of a label all that ever were."""
        ...

    async def machine(self, ref: str) -> Machine | None: ...

    async def end(self, ref: str) -> None:
        """Have its host end it; one that is over, or unknown, is none to end."""
        ...

    async def log(self, ref: str) -> str:
        """The last that its host told of what it writes."""
        ...
