"""What every part of the control loop is given, and how it asks a provider."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from app.control.health import Health
from app.control.leader import Leader
from app.control.strangers import Strangers
from app.control.watch import ProviderWatch, watched
from app.core.model.node import ProviderTraits, Tier
from app.db.connection import Connection
from app.db.engine import Database
from app.db.nodes.operations import Settlement, settle_together
from app.errors import OutcomeUnknown, ProviderError
from app.ports.clock import Clock, IdSource
from app.ports.provider import Machine, Provider
from app.services.kit.group_commit import GroupCommit
from app.services.runs.lay_out_run import RunLayouts
from app.settings import Settings

log = logging.getLogger(__name__)

_MOST_SETTLED = 64  # in one statement
_MOST_UNSETTLED = 4096

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ControlContext:
    """Shared by the loop, the workers and the chores of one process."""

    database: Database
    providers: Mapping[str, Provider]
    settings: Settings
    clock: Clock
    ids: IdSource
    leader: Leader
    watch: ProviderWatch = field(init=False, repr=False, compare=False)
    health: Health = field(init=False, repr=False, compare=False)
    layouts: RunLayouts = field(init=False, repr=False, compare=False)
    strangers: Strangers = field(default_factory=Strangers, init=False, repr=False, compare=False)
    _settling: GroupCommit[Settlement, bool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        watch = ProviderWatch(self.database, self.settings, self.clock)
        object.__setattr__(self, "watch", watch)
        object.__setattr__(self, "health", Health(self.database, self.clock))
        object.__setattr__(self, "providers", watched(self.providers, watch))
        commits = GroupCommit(self._settle_together, max_batch=_MOST_SETTLED, max_waiting=_MOST_UNSETTLED)
        object.__setattr__(self, "_settling", commits)
        object.__setattr__(self, "layouts", RunLayouts(self.database, self.clock))

    def traits(self) -> tuple[ProviderTraits, ...]:
        """How every tier of every provider behaves, by provider and tier. Of one that cannot say, nothing is rented."""
        every: list[ProviderTraits] = []
        for name, provider in self.providers.items():
            try:
                every += provider.traits()
            except Exception:
                log.exception("how %s behaves is not known", name)
        return tuple(sorted(every, key=lambda trait: (trait.provider, trait.tier)))

    @asynccontextmanager
    async def led(self) -> AsyncIterator[Connection]:
        """A transaction under the leader's term. Raises Fenced when this process does not lead any more."""
        async with self.database.transaction() as connection:
            await self.leader.guard(connection)
            yield connection

    def networked_tiers(self, provider: str) -> frozenset[Tier]:
        """Of a provider: those whose machines of one site reach each other by a private network."""
        return frozenset(one.tier for one in self.traits() if one.is_networked and one.provider == provider)

    def traits_of(self, provider: str, tier: Tier) -> ProviderTraits | None:
        """How this tier of this provider behaves; None when the settings do not know the provider any more."""
        return next((trait for trait in self.traits() if (trait.provider, trait.tier) == (provider, tier)), None)

    def ends_ms(self, machine: Machine) -> int | None:
        """When the machine ends by itself: as its provider says, or by the limit of its tier, counted from its order
        on. None: it does not, or nobody knows."""
        traits = self.traits_of(machine.provider, machine.tier)
        limit_ms = None if traits is None else traits.max_lifetime_ms
        limits = (machine.ends_ms, None if limit_ms is None else machine.created_ms + limit_ms)
        return min((moment for moment in limits if moment is not None), default=None)

    async def ask(self, call: Awaitable[T]) -> T:
        """A provider's answer within the time that settings allow; what it says of the provider is kept before.

        Raises what the provider raises, and OutcomeUnknown when the time is up: the call may have had its effect.
        """
        timeout_s = self.settings.operation_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                answer = await call
        except TimeoutError as error:
            await self.watch.keep()
            raise OutcomeUnknown(f"no answer within {timeout_s:g} s") from error
        except ProviderError:
            await self.watch.keep()
            raise
        await self.watch.keep()
        return answer

    async def settle(self, settlement: Settlement) -> bool:
        """Write how an operation came out, when nothing else changes with it; False when it is not ours any more.

        What ends at the same time is written together. Raises Unavailable when the database does not answer.
        """
        return await self._settling.submit(settlement)

    async def _settle_together(self, settlements: Sequence[Settlement]) -> Sequence[bool]:
        return await settle_together(self.database, settlements)


def as_ms(seconds: float) -> int:
    """Settings speak seconds, times are milliseconds."""
    return round(seconds * 1000)
