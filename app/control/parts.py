"""What every part of the control loop is given, and how it asks a provider."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from app.control.leader import Leader
from app.core.model.node import ProviderTraits, Tier
from app.db.engine import Database
from app.errors import OutcomeUnknown
from app.ports.clock import Clock, IdSource
from app.ports.provider import Provider
from app.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ControlParts:
    """Shared by the loop, the workers and the chores of one process."""

    database: Database
    providers: Mapping[str, Provider]
    settings: Settings
    clock: Clock
    ids: IdSource
    leader: Leader

    def traits(self) -> tuple[ProviderTraits, ...]:
        """How every tier of every provider behaves, by provider and tier."""
        every = [trait for provider in self.providers.values() for trait in provider.traits()]
        return tuple(sorted(every, key=lambda trait: (trait.provider, trait.tier)))

    def traits_of(self, provider: str, tier: Tier) -> ProviderTraits | None:
        """How this tier of this provider behaves; None when the settings do not know the provider any more."""
        return next((trait for trait in self.traits() if (trait.provider, trait.tier) == (provider, tier)), None)

    async def ask(self, call: Awaitable[T]) -> T:
        """A provider's answer within the time that settings allow.

        Raises what the provider raises, and OutcomeUnknown when the time is up: the call may have had its effect.
        """
        timeout_s = self.settings.operation_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                return await call
        except TimeoutError as error:
            raise OutcomeUnknown(f"no answer within {timeout_s:g} s") from error


def as_ms(seconds: float) -> int:
    """Settings speak seconds, times are milliseconds."""
    return round(seconds * 1000)
