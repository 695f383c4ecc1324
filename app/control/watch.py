"""What the calls to providers come to: noted as they end, kept in the database when there is something new to keep.

Refused credentials and a reached limit are kept before the caller goes on, so that the next decision knows of them.
All else is kept when it changes, or now and then: a provider that works costs one write a minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import SecretStr

from app.core.model.node import ProviderTraits
from app.core.model.offer import Offer
from app.core.model.price_list import PriceList
from app.db.connection import Connection
from app.db.engine import Database
from app.db.offers import provider_states as rows
from app.db.offers.provider_states import Failure
from app.errors import (
    AllpassError,
    AuthFailed,
    ImageNotBuilt,
    ImageRefused,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Transient,
)
from app.ports.clock import Clock
from app.ports.prices import price_list_of
from app.ports.provider import ImageBuilder, Machine, MachineRequest, Provider
from app.settings import Settings

log = logging.getLogger(__name__)

_REPEAT_MS = 30_000  # the same failure again is kept this often
_SUCCESS_MS = 60_000
_FLIP_MS = 1_000
_RETRY_MS = 5_000
_MOST_WORDS = 400
_SHORTEST_SECRET = 8
# What says nothing of our network: a rate limit may be our own, kept before the call.
NO_ANSWER = (Transient, OutcomeUnknown, RateLimited)
_OF_THE_IMAGE = (ImageNotBuilt, ImageRefused)  # the provider works, and says so

T = TypeVar("T")


@dataclass(slots=True)
class _Notes:
    """Of one provider: what is not kept yet, and what was kept last."""

    success_ms: int | None = None
    failure: Failure | None = None
    refused: str | None = None
    over_quota: str | None = None
    has_rented: bool = False
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    kept_success_ms: int = -_SUCCESS_MS
    kept_failure_ms: int = -_REPEAT_MS
    kept_code: str | None = None  # of the last failure, until a success was kept

    def is_due(self) -> bool:
        if self.refused is not None or self.over_quota is not None:
            return True
        if self.failure is not None:
            is_new = self.failure.code != self.kept_code
            if is_new or self.failure.at_ms - self.kept_failure_ms >= _REPEAT_MS:
                return True
        if self.success_ms is None:
            return False
        return self._has_recovered() or self.success_ms - self.kept_success_ms >= _SUCCESS_MS

    def _has_recovered(self) -> bool:
        """Whether a success has followed the last failure: but not each time when calls fail and succeed in turns."""
        if self.kept_code is None or self.success_ms is None:
            return False
        failed_ms = self.kept_failure_ms if self.failure is None else self.failure.at_ms
        return self.success_ms > failed_ms and self.success_ms - self.kept_failure_ms >= _FLIP_MS


class ProviderWatch:
    """One per process. `of` gives a provider whose calls are noted; `keep` writes what is due."""

    def __init__(self, database: Database, settings: Settings, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._notes: dict[str, _Notes] = {}
        self._answered_ms: int | None = None
        self._one_writes = asyncio.Lock()
        self._rests_until_ms = 0
        every = (settings, *(one.section for one in settings.providers if one.section is not None))
        given = (getattr(each, name) for each in every for name in type(each).model_fields)
        words = (value.get_secret_value() for value in given if isinstance(value, SecretStr))
        self._secrets = tuple(word for word in words if len(word) >= _SHORTEST_SECRET)

    def of(self, provider: Provider) -> WatchedProvider:
        """The same provider, noted."""
        return WatchedProvider(provider, self)

    @property
    def answered_ms(self) -> int | None:
        """When any provider last answered anything, refusals included: our network worked then."""
        return self._answered_ms

    def note(self, provider: str, call: str, error: ProviderError | None) -> None:
        """A call has ended. Never waits."""
        now_ms = self._clock.now_ms()
        if not isinstance(error, NO_ANSWER):
            self._answered_ms = now_ms
        notes = self._notes.setdefault(provider, _Notes())
        if error is None or isinstance(error, _OF_THE_IMAGE):
            notes.success_ms = now_ms
            notes.has_rented = notes.has_rented or (call == "create" and error is None)
            return
        notes.errors[call, error.error_code] += 1
        notes.failure = Failure(call, error.error_code, self.said(error), now_ms)
        if isinstance(error, AuthFailed):
            notes.refused = self.said(error)
        elif isinstance(error, QuotaExceeded) and call == "create":
            notes.over_quota = self.said(error)

    async def keep(self) -> None:
        """Write what is due. What cannot be written now is written later; nothing is raised for that."""
        if not any(notes.is_due() for notes in self._notes.values()):
            return
        async with self._one_writes:
            for provider in sorted(self._notes):
                if self._notes[provider].is_due() and self._clock.now_ms() >= self._rests_until_ms:
                    await self._keep(provider)

    async def _keep(self, provider: str) -> None:
        notes = self._notes[provider]
        later = self._notes[provider] = _Notes(
            kept_success_ms=notes.success_ms if notes.success_ms is not None else notes.kept_success_ms,
            kept_failure_ms=notes.kept_failure_ms if notes.failure is None else notes.failure.at_ms,
            kept_code=_code_after(notes),
        )
        try:
            async with self._database.transaction() as connection:
                news = await self._write(connection, provider, notes)
        except Exception as error:
            log.warning("what is known of %s is kept later: %s", provider, error)
            _put_back(notes, later)
            self._notes[provider] = notes
            self._rests_until_ms = self._clock.now_ms() + _RETRY_MS
            return
        if news:
            log.error(
                "ALARM: %s refuses our credentials; nothing is rented there until a check succeeds "
                "(allpass providers check): %s",
                provider,
                notes.refused,
            )

    async def _write(self, connection: Connection, provider: str, notes: _Notes) -> bool:
        """Whether it is news that the credentials are refused."""
        now_ms = self._clock.now_ms()
        if notes.success_ms is not None:
            await rows.set_success(connection, provider, at_ms=notes.success_ms)
        if notes.failure is not None:
            await rows.set_failure(connection, provider, notes.failure)
        quota_errors = sum(count for (_call, code), count in notes.errors.items() if code == QuotaExceeded.code)
        await rows.add_errors(connection, provider, notes.errors, quota_errors=quota_errors)
        if notes.has_rented and notes.over_quota is None:
            await rows.rented(connection, provider, now_ms=now_ms)
        if notes.over_quota is not None:
            await rows.pause(connection, provider, f"its limit is reached ({notes.over_quota})", now_ms=now_ms)
        return notes.refused is not None and await rows.refuse(connection, provider, notes.refused, now_ms=now_ms)

    def said(self, error: ProviderError) -> str:
        """The provider's words, cut to what people read, without any secret of our settings."""
        return self.said_in_full(error.message)[:_MOST_WORDS]

    def said_in_full(self, words: str) -> str:
        """Without any secret of our settings."""
        for secret in self._secrets:
            words = words.replace(secret, "***")
        return words


class WatchedProvider:
    """Implements `Provider` by another one, and notes what its calls come to.

    An adapter that raises what it should not (a listing has changed its shape) is told as OutcomeUnknown: the call may
    have had its effect, and whoever made it knows how to live with that.
    """

    def __init__(self, provider: Provider, watch: ProviderWatch) -> None:
        self.name = provider.name
        self._provider = provider
        self._watch = watch

    def traits(self) -> tuple[ProviderTraits, ...]:
        return self._provider.traits()

    async def offers(self) -> list[Offer]:
        return await self._noted("offers", self._provider.offers())

    def price_list(self) -> PriceList | None:
        return price_list_of(self._provider)

    async def create(self, request: MachineRequest) -> Machine:
        return await self._noted("create", self._provider.create(request))

    async def get(self, ref: str) -> Machine | None:
        return await self._noted("get", self._provider.get(ref))

    async def find(self, label: str) -> list[Machine]:
        return await self._noted("find", self._provider.find(label))

    async def list_owned(self) -> list[Machine]:
        return await self._noted("list", self._provider.list_owned())

    async def terminate(self, ref: str) -> None:
        return await self._noted("terminate", self._provider.terminate(ref))

    async def logs(self, ref: str, tail_lines: int) -> str:
        return await self._noted("logs", self._provider.logs(ref, tail_lines))

    async def build_image(self, image: str) -> None:
        """For providers that are `ImageBuilder`s, as their traits say."""
        builder: ImageBuilder = self._provider  # type: ignore[assignment]  # its traits say that it builds images
        return await self._noted("build_image", builder.build_image(image))

    async def close(self) -> None:
        await self._provider.close()

    async def _noted(self, call: str, answer: Awaitable[T]) -> T:
        try:
            given = await answer
        except ProviderError as error:
            self._watch.note(self.name, call, error)
            raise
        except AllpassError:
            raise  # the database's, where calls are paced
        except Exception as error:
            log.exception("%s did what its adapter does not understand, asked for %s", self.name, call)
            strange = OutcomeUnknown(f"its answer was not understood ({type(error).__name__})")
            self._watch.note(self.name, call, strange)
            raise strange from error
        except asyncio.CancelledError:  # by the caller's timeout, or because the process ends
            self._watch.note(self.name, call, OutcomeUnknown("no answer in time"))
            raise
        self._watch.note(self.name, call, None)
        return given


def watched(providers: Mapping[str, Provider], watch: ProviderWatch) -> dict[str, Provider]:
    """All of them, noted."""
    return {name: watch.of(provider) for name, provider in providers.items()}


def _code_after(notes: _Notes) -> str | None:
    """The failure that is kept as the newest thing known, if it is one."""
    if notes.failure is None:
        return None if notes.success_ms is not None else notes.kept_code
    succeeded_since = notes.success_ms is not None and notes.success_ms > notes.failure.at_ms
    return None if succeeded_since else notes.failure.code


def _put_back(notes: _Notes, later: _Notes) -> None:
    """What was noted while the write failed counts too."""
    notes.errors.update(later.errors)
    notes.success_ms = later.success_ms if later.success_ms is not None else notes.success_ms
    notes.failure = later.failure or notes.failure
    notes.refused = later.refused or notes.refused
    notes.over_quota = later.over_quota or notes.over_quota
    notes.has_rented = notes.has_rented or later.has_rented
