"""The provider protocol: small, and the same for every rental company. The exam is `providers/conformance`, published
as `allpass.testing.providers`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from app.core.model.money import Money
from app.core.model.node import ProviderTraits, Tier
from app.core.model.offer import Offer


class MachineStatus(StrEnum):
    """What a provider says of a machine, in our words."""

    BOOTING = "booting"
    RUNNING = "running"
    STOPPED = "stopped"  # still exists and may still be billed
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class MachineRequest:
    """A create call. `label` is our node id: it travels inside the call and comes back in every listing.

    `max_price_per_hour` is what was agreed: the adapter raises PriceMoved when the billed price is higher.
    `bootstrap` is environment for the agent (our URL, its hash, a join token): never a provider or storage key.
    """

    label: str
    offer: Offer
    max_price_per_hour: Money
    image: str
    bootstrap: tuple[tuple[str, str], ...]
    lifetime_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine as its provider lists it. Identified by `ref`, never by an address.

    `billed_from_ms` / `billed_to_ms` are the provider's own times (None: not billed yet / still billed);
    `billed` is the provider's own figure so far, where it tells one. `ends_ms`: when it ends by itself, where the
    provider tells that of each machine (a lease); a limit of the tier is in its traits. `outage`: it has ended because
    its provider itself went down; no job has anything to do with that. `interrupted`: it was bid for, and its provider
    has taken it back for somebody who pays more, or has done so and started it again: what ran there is gone.
    """

    provider: str
    ref: str
    label: str | None
    tier: Tier
    status: MachineStatus
    price_per_hour: Money
    created_ms: int
    billed_from_ms: int | None
    billed_to_ms: int | None
    billed: Money | None = None
    detail: str = ""
    ends_ms: int | None = None
    outage: bool = False
    interrupted: bool = False


class ImageBuilder(Protocol):
    """A provider that builds a copy of an image before machines can run it (`ProviderTraits.builds_images`)."""

    async def build_image(self, image: str) -> None:
        """Return when machines with this image can be had: minutes, where nobody has asked for it before.

        Asking again joins a build that goes on, and is harmless for one that is done. Raises ImageRefused when the
        image cannot be built, Transient when the build was cut off.
        """
        ...


class Provider(Protocol):
    """One account at one rental company.

    Every method may raise ProviderError. `create` raises OutcomeUnknown whenever the request may have reached
    the provider without an answer; the caller then looks with `find` before it tries anything else.
    `terminate` of something already gone is success.
    """

    name: str

    def traits(self) -> tuple[ProviderTraits, ...]: ...

    async def offers(self) -> list[Offer]: ...

    async def create(self, request: MachineRequest) -> Machine: ...

    async def get(self, ref: str) -> Machine | None: ...

    async def find(self, label: str) -> list[Machine]: ...

    async def list_owned(self) -> list[Machine]: ...

    async def terminate(self, ref: str) -> None: ...

    async def logs(self, ref: str, tail_lines: int) -> str: ...

    async def close(self) -> None: ...


@runtime_checkable
class TellsCredit(Protocol):
    """A provider whose account is paid in advance, and that says what is left."""

    async def credit_micros(self) -> int | None:
        """Micro-dollars that may still be spent; None where this key may not know. Raises ProviderError."""
        ...
